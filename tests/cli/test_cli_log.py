"""`tmrl-like log`: what a trainer has stored or a worker has left, and the same as a Minari data set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from kit import episodes
from kit.packets import TIMING

from tmrl_like.delivery.folder import open_folder
from tmrl_like.delivery.sample_log import SampleLog
from tmrl_like.delivery.segments import HEAD_BYTES
from tmrl_like.replay.data_sets import read_data_set, write_data_set, write_log
from tmrl_like.testing.fakes import ListMemory
from tmrl_like.types import Buffer, EpisodeStats, Info, Sample
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import encode_packet

CommandLine = Callable[..., int]


def episode(number: int, steps: int, is_whole: bool = True) -> list[Sample]:
    """A reset and `steps` steps; obs is (episode, step), rew the step's number."""
    return [
        Sample(
            np.float32([k]), np.float32([number, k]), float(k), is_whole and k == steps, False, Info(is_reset=k == 0)
        )
        for k in range(steps + 1)
    ]


def buffers() -> Iterator[Buffer]:
    """Two processes by turns; the second one ends in the middle of an episode."""
    first = episode(1, 3)
    yield Buffer(first[:2], "one")
    yield Buffer(episode(7, 2), "two")
    yield Buffer(first[2:], "one")
    yield Buffer(episode(8, 4, is_whole=False), "two")


@pytest.fixture
def log_folder(tmp_path: Path) -> Path:
    write_data_set(tmp_path / "log", buffers())
    return tmp_path / "log"


def packet(first: int, returns: list[float]) -> tuple[bytes, int]:
    """Two samples, and reports of episodes."""
    reports = [EpisodeStats("w", False, r, 2, True, False, 0.0, 0, 0.1, 0, "") for r in returns]
    episodes = tuple(enumerate(reports, start=first + 2))
    last = first + 1 + len(returns)
    return encode_packet(m.SamplePacket("arm", 0xAB, first, last, 1, 0, 2, 0, False, episodes=episodes)), 2


def test_a_log_is_shown_by_process(
    log_folder: Path, command_line: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line("log", str(log_folder)) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "data set," in line]
    assert [row[:3] for row in rows] == [["data", "set,", "1"], ["data", "set,", "2"]]
    assert [row[4:7] for row in rows] == [["2", "0", "4"], ["2", "0", "8"]]  # packets, missing, samples


def test_gaps_and_returns_are_in_the_table(
    tmp_path: Path, command_line: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    known = packet(1, [1.0])  # a kill may leave a packet in two files
    write_log(tmp_path, [[known], [known, packet(7, [3.0, 5.0])], [packet(11, [])]])
    assert command_line("log", str(tmp_path)) == 0
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if "arm," in line]
    assert row == ["arm,", "ab", "-", "3", "3", "6", "0.0", "3", "3", "±", "2"]


def test_one_file_of_a_log_is_shown_as_well(
    log_folder: Path, command_line: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = log_folder.glob("*.log")
    assert command_line("log", str(file)) == 0
    assert capsys.readouterr().out.count("data set,") == 2


@pytest.mark.parametrize("lives", [False, True], ids=["dead", "living"])
def test_what_a_worker_has_in_its_spool_is_shown_and_read_and_left_as_it_is(
    tmp_path: Path, command_line: CommandLine, capsys: pytest.CaptureFixture[str], lives: bool
) -> None:
    folder = open_folder(tmp_path, "my arm")
    log = SampleLog(folder, incarnation=0xAB)
    for sample in episode(1, 3):
        log.append((*sample[:5], {}), *TIMING)
    log.end_episode(episodes.episode("my arm", return_=6.0))
    log.add_break()
    for sample in episode(2, 1):
        log.append((*sample[:5], {}), *TIMING)
    if not lives:
        log.close()
        folder.close()
    before = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    assert command_line("log", str(folder.path)) == 0
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if "my arm," in line]
    assert row[:3] == ["my", "arm,", "ab"]
    assert row[5:8] == ["2", "0", "6"]  # packets, missing, samples
    assert row[-2:] == ["±", "0"]
    read = list(read_data_set(folder.path))
    assert [[sample.obs.tolist() for sample in buffer.memory] for buffer in read] == [
        [[1, 0], [1, 1], [1, 2], [1, 3]],
        [[2, 0], [2, 1]],
    ]
    assert {path.name: path.read_bytes() for path in folder.path.iterdir()} == before
    log.close()
    folder.close()


def test_of_a_spool_that_is_damaged_what_is_whole_is_read(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, "arm")
    log = SampleLog(folder, incarnation=1)
    for sample in episode(1, 3):
        log.append((*sample[:5], {}), *TIMING)
    path = next(path for path in folder.path.glob("*.rows") if any(path.read_bytes()[HEAD_BYTES:]))
    data = bytearray(path.read_bytes())
    data[data.rindex(np.float32([1, 2]).tobytes())] ^= 1
    log.close()
    folder.close()
    path.write_bytes(data)
    (buffer,) = read_data_set(folder.path)
    assert [sample.obs.tolist() for sample in buffer.memory] == [[1, 0], [1, 1]]


@pytest.mark.filterwarnings("ignore")
def test_the_whole_episodes_are_a_minari_data_set_for_minari_and_for_memories(
    tmp_path: Path,
    log_folder: Path,
    command_line: CommandLine,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    target = tmp_path / "tiny-v3"
    assert command_line("log", str(log_folder), "--minari", str(target)) == 0
    assert f"{target}: 5 steps of 2 whole episodes" in capsys.readouterr().out
    episodes = list(minari.load_dataset("tiny-v3").iterate_episodes())
    assert [e.observations.tolist() for e in episodes] == [
        [[7, 0], [7, 1], [7, 2]],
        [[1, 0], [1, 1], [1, 2], [1, 3]],
    ]
    assert [e.actions.tolist() for e in episodes] == [[[1], [2]], [[1], [2], [3]]]
    assert [e.rewards.tolist() for e in episodes] == [[1, 2], [1, 2, 3]]
    assert [e.terminations.tolist() for e in episodes] == [[False, True], [False, False, True]]
    expected = [episode(7, 2), episode(1, 3)]
    for found, of_episode in zip(read_data_set(target), expected, strict=True):
        assert [s.info.is_reset for s in found.memory] == [s.info.is_reset for s in of_episode]
        assert [s.obs.tolist() for s in found.memory] == [s.obs.tolist() for s in of_episode]
        assert [s[2:5] for s in found.memory] == [s[2:5] for s in of_episode]
    assert len(ListMemory(dataset_path=target)) == 6


@pytest.mark.parametrize("name", ["log", "gone", "empty", "data.pkl"])
def test_where_there_is_no_log_is_one_line(
    tmp_path: Path, command_line: CommandLine, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "log").write_bytes(b"text")
    (tmp_path / "data.pkl").write_bytes(b"\x80")
    for arguments in ([], ["--minari", str(tmp_path / "new")]):
        assert command_line("log", str(tmp_path / name), *arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("tmrl-like: error: ")
        assert str(tmp_path / name) in line
    assert not (tmp_path / "new").exists()


def test_a_log_of_another_wire_version_is_one_line(
    tmp_path: Path, command_line: CommandLine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(m, "WIRE_VERSION", m.WIRE_VERSION + 1)
        write_data_set(tmp_path / "log", buffers())
    for arguments in ([], ["--minari", str(tmp_path / "new")]):
        assert command_line("log", str(tmp_path / "log"), *arguments) != 0
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("tmrl-like: error: ")
        assert f"wire version {m.WIRE_VERSION + 1}" in line
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("is_file", [True, False])
def test_a_minari_data_set_replaces_nothing(
    tmp_path: Path, log_folder: Path, command_line: CommandLine, capsys: pytest.CaptureFixture[str], is_file: bool
) -> None:
    target = tmp_path / "mine"
    if is_file:
        target.write_bytes(b"mine")
    else:
        (target / "mine").mkdir(parents=True)
    assert command_line("log", str(log_folder), "--minari", str(target)) == 2
    assert "exists: choose another folder" in capsys.readouterr().err
    assert target.exists()


def test_a_log_without_a_whole_episode_is_one_line(
    tmp_path: Path, command_line: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    write_data_set(tmp_path / "log", [Buffer(episode(1, 4, is_whole=False), "one")])
    assert command_line("log", str(tmp_path / "log"), "--minari", str(tmp_path / "new")) != 0
    assert "there is no whole episode to write" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
