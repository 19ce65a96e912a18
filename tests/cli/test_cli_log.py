"""`tmrl-like log` on a trainer's store or a worker's spool, and their export as a Minari data
set.
"""

import numpy as np
import pytest
from kit import episodes
from kit.packets import TIMING, numbered, packet_of

from tmrl_like.delivery.folder import open_folder
from tmrl_like.delivery.sample_log import SampleLog
from tmrl_like.replay.data_sets import read_data_set, write_data_set, write_log
from tmrl_like.types import Buffer, Info, Sample
from tmrl_like.wire import messages as m


def episode(number, steps, is_whole=True):
    """Return the samples of a reset and `steps` steps; obs is (episode, step), rew the step's
    number.
    """
    samples = []
    for k in range(steps + 1):
        terminated = is_whole and k == steps
        samples.append(
            Sample(
                np.float32([k]),
                np.float32([number, k]),
                float(k),
                terminated,
                False,
                Info({}, k == 0),
            )
        )
    return samples


def append(log, samples):
    for sample in samples:
        log.append((*sample[:5], {}), *TIMING)


@pytest.fixture
def log_folder(tmp_path):
    """A store with samples of two processes in turn; the second one ends within an episode."""
    first = episode(1, 3)
    buffers = [
        Buffer(first[:2], "one"),
        Buffer(episode(7, 2), "two"),
        Buffer(first[2:], "one"),
        Buffer(episode(8, 4, is_whole=False), "two"),
    ]
    write_data_set(tmp_path / "log", buffers)
    return tmp_path / "log"


def packet(first, returns):
    """Return a packet of two samples and reports of episodes, and its number of samples."""
    reports = [episodes.episode(return_=return_) for return_ in returns]
    samples = numbered(1), numbered(2)
    return packet_of(first, *samples, worker="arm", incarnation=0xAB, reports=reports), 2


def observations(folder):
    return [[sample.obs.tolist() for sample in buffer.memory] for buffer in read_data_set(folder)]


def test_a_log_and_one_file_of_it_are_shown_by_process(log_folder, typed):
    for path in (log_folder, *log_folder.glob("*.log")):
        rows = [line.split() for line in typed("log", path).out.splitlines() if "data set," in line]
        assert [row[:3] for row in rows] == [["data", "set,", "1"], ["data", "set,", "2"]]
        # packets, missing, samples
        assert [row[4:7] for row in rows] == [["2", "0", "4"], ["2", "0", "8"]]


def test_gaps_and_returns_are_in_the_table(tmp_path, typed):
    known = packet(1, [1.0])  # after a kill, a packet may be in two files
    write_log(tmp_path, [[known], [known, packet(7, [3.0, 5.0])], [packet(11, [])]])
    (row,) = [line.split() for line in typed("log", tmp_path).out.splitlines() if "arm," in line]
    assert row[:2] + row[4:] == ["arm,", "ab", "3", "3", "6", "0.0", "3", "3", "±", "2"]


def test_the_samples_of_all_ranks_are_shown_and_read(tmp_path, typed):
    write_log(tmp_path / "log", [[packet(1, [1.0]), packet(7, [])]])
    write_log(tmp_path / "rank-1" / "log", [[packet(4, [3.0])]])
    rows = [line.split() for line in typed("log", tmp_path).out.splitlines() if "arm," in line]
    assert [row[6] for row in rows] == ["4", "2"]
    assert sum(map(len, observations(tmp_path))) == 6


@pytest.mark.parametrize("lives", [False, True], ids=["dead", "living"])
def test_what_a_worker_has_in_its_spool_is_shown_and_read_and_left_as_it_is(tmp_path, typed, lives):
    folder = open_folder(tmp_path, "my arm")
    log = SampleLog(folder, incarnation=0xAB)
    append(log, episode(1, 3))
    log.end_episode(episodes.episode("my arm", return_=6.0))
    log.add_break()
    append(log, episode(2, 1))
    if not lives:
        log.close()
        folder.close()
    before = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    (row,) = [
        line.split() for line in typed("log", folder.path).out.splitlines() if "my arm," in line
    ]
    assert row[:3] == ["my", "arm,", "ab"]
    assert row[5:8] == ["2", "0", "6"]  # packets, missing, samples
    assert row[-2:] == ["±", "0"]
    assert observations(folder.path) == [[[1, 0], [1, 1], [1, 2], [1, 3]], [[2, 0], [2, 1]]]
    assert {path.name: path.read_bytes() for path in folder.path.iterdir()} == before
    log.close()
    folder.close()


@pytest.mark.filterwarnings("ignore")
def test_the_whole_episodes_are_written_as_a_minari_data_set(tmp_path, log_folder, typed):
    target = tmp_path / "tiny-v3"
    out = typed("log", log_folder, "--minari", target).out
    assert f"{target}: 5 steps of 2 whole episodes" in out
    assert observations(target) == [[[7, 0], [7, 1], [7, 2]], [[1, 0], [1, 1], [1, 2], [1, 3]]]


@pytest.mark.parametrize("name", ["log", "gone", "data.pkl"])
def test_where_no_log_can_be_read_is_one_line(tmp_path, refused, name):
    (tmp_path / "log").write_bytes(b"text")
    (tmp_path / "data.pkl").write_bytes(b"\x80")
    assert str(tmp_path / name) in refused("log", tmp_path / name)


def test_a_log_of_another_version_is_one_line(log_folder, refused, monkeypatch):
    monkeypatch.setattr(m, "WIRE_VERSION", m.WIRE_VERSION + 1)
    assert f"wire version {m.WIRE_VERSION - 1}" in refused("log", log_folder, code=1)


@pytest.mark.parametrize(
    ("in_the_way", "target", "said"),
    [
        ("mine", "mine", "exists: choose another folder"),
        ("mine/file", "mine", "exists: choose another folder"),
        ("file", "file/mine", "file/mine: "),
    ],
)
def test_a_minari_data_set_replaces_nothing(
    tmp_path, log_folder, refused, in_the_way, target, said
):
    file = tmp_path / in_the_way
    file.parent.mkdir(exist_ok=True)
    file.touch()
    assert said in refused("log", log_folder, "--minari", tmp_path / target)
    assert file.is_file()
