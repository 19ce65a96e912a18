"""The best run is kept when a record falls, and `replay` drives and draws it."""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chain
import numpy as np
import pytest
from cli_commands import HERE, TINY
from gymnasium import spaces

from tmrl_like.cli import best
from tmrl_like.cli.arguments import Arguments
from tmrl_like.cli.best import BEFORE, BestRun, hooks_of, plot
from tmrl_like.cli.replay import Inputs
from tmrl_like.config.loading import dump_experiment, load_experiment
from tmrl_like.config.paths import RunPaths, data_folder
from tmrl_like.rollouts import Rollout
from tmrl_like.types import ActionSource

CommandLine = Callable[..., int]
has_matplotlib = importlib.util.find_spec("matplotlib") is not None


def drive(return_: float = 0.0, progress: float | None = None, took_s: float = 2.0, steps: int = 4) -> Rollout:
    info: dict[str, Any] = {}
    if progress is not None:
        share = np.linspace(0, progress, steps, dtype=np.float32)
        info = {"progress": share, "distance": 100 * share, "position": np.stack([share, share**2, 0 * share], 1)}
    return Rollout(
        actions=np.zeros((steps, 1), np.float32),
        rewards=np.full(steps, return_ / steps),
        info=info,
        policy_versions=np.full(steps, 7),
        sources=np.zeros(steps, np.int64),
        times_s=np.linspace(0.1, took_s, steps),
        time_step_s=0.05,
    )


def keeper(folder: Path, draw: Callable[[Path], None] = lambda file: None) -> BestRun:
    return BestRun(folder / "rollout.npz", "run_name: mine", "mine.yaml", draw)


def kept(folder: Path, name: str = "rollout.npz") -> Rollout:
    return Rollout.load(folder / name)


def test_a_record_is_kept_and_the_one_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keep = keeper(tmp_path)
    with caplog.at_level(logging.INFO):
        for rollout in (
            drive(progress=0.5),
            drive(progress=0.3),
            drive(progress=0.75),
            drive(progress=1.0, took_s=39.5),
            drive(progress=1.0, took_s=38.2),
            drive(progress=1.0, took_s=38.2),
        ):
            keep(rollout)
    assert [record.message for record in caplog.records] == [
        "record: 50.0% of the way (policy 7)",
        "record: 75.0% of the way, 25.0% further than before (policy 7)",
        "record: 39.50 s, 25.0% further than before (policy 7)",
        "record: 38.20 s, 1.30 s faster than before (policy 7)",
    ]
    assert (kept(tmp_path).took, kept(tmp_path, BEFORE).took) == (38.2, 39.5)
    assert kept(tmp_path).experiment == "run_name: mine"
    assert kept(tmp_path).experiment_file == "mine.yaml"


def test_without_progress_the_return_counts_and_neither_a_fault_nor_a_demonstration_is_a_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep = keeper(tmp_path)
    human = drive(9)
    human.sources[2] = ActionSource.EXPERT
    with caplog.at_level(logging.INFO):
        for rollout in (drive(3), dataclasses.replace(drive(9), fault="it broke"), human, drive(2), drive(5)):
            keep(rollout)
    assert [record.message for record in caplog.records] == [
        "record: return 3 (policy 7)",
        "record: return 5, 2 more than before (policy 7)",
    ]


def test_an_episode_whose_progress_is_not_a_number_is_no_record(tmp_path: Path) -> None:
    keep, unknown = keeper(tmp_path), drive(progress=1.0, took_s=0.2)
    unknown.info["progress"][1] = np.nan
    for progress in (0.5, 0.3):
        with pytest.raises(ValueError, match="not a number"):
            keep(unknown)
        keep(drive(progress=progress))
    assert kept(tmp_path).progress == 0.5


def test_several_workers_share_a_record(tmp_path: Path) -> None:
    one, other = keeper(tmp_path), keeper(tmp_path)
    one(drive(5))
    other(drive(4))
    assert kept(tmp_path).return_ == 5
    other(drive(6))
    one(drive(5.5))  # better than its own
    assert (kept(tmp_path).return_, kept(tmp_path, BEFORE).return_) == (6, 5)


def test_of_workers_that_set_records_at_once_the_best_is_kept(tmp_path: Path) -> None:
    def work(number: int) -> None:
        keep = keeper(tmp_path)
        for n in range(20):
            keep(drive(100 * ((7 * n + number) % 20) + number))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kept(tmp_path).return_ == 1903
    assert kept(tmp_path, BEFORE).return_ < 1903


def test_what_could_not_be_written_is_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *content: Any) -> None:
        raise OSError("no space left")

    keep = keeper(tmp_path)
    keep(drive(1))
    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space"):
        patch.setattr("tmrl_like.rollouts.rollout.write_atomically", full)
        keep(drive(3))
    assert kept(tmp_path).return_ == 1
    keep(drive(2))
    assert kept(tmp_path).return_ == 2


def test_a_picture_is_drawn_of_a_record_that_has_one_before_it(tmp_path: Path, until: Callable[..., None]) -> None:
    drawn: list[Path] = []
    keep = keeper(tmp_path, drawn.append)
    keep(drive(progress=0.1))
    assert keep._drawing is None
    keep(drive(progress=0.2))
    until(lambda: drawn == [tmp_path / "rollout.npz"])
    keep(drive(progress=0.3))
    keep(drive(progress=0.4))
    assert keep._drawing is not None
    assert 50 < keep._drawing.interval <= 60  # the next one waits
    keep._drawing.cancel()
    keep = keeper(tmp_path / "other", drawn.append)
    keep(drive(1))
    keep(drive(2))  # which says no distance
    assert keep._drawing is None


@pytest.mark.skipif(not has_matplotlib, reason="needs matplotlib")
def test_the_picture_is_drawn_in_a_process_of_its_own(tmp_path: Path) -> None:
    keep = keeper(tmp_path)
    keep(drive(progress=1.0, took_s=4.0))
    keep(drive(progress=1.0, took_s=3.0))
    best.draw_in_process(tmp_path / "rollout.npz")
    assert (tmp_path / "record.png").read_bytes().startswith(b"\x89PNG")


def test_a_record_of_a_training_is_driven_again(
    tmp_path: Path, command_line: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line("run", TINY, "--env=chain.Chain", "--run_name=chain", "--in-process") == 0
    assert "record: 5 steps, 1 steps faster than before" in capsys.readouterr().err
    paths = RunPaths("chain", data_folder())
    record = Rollout.load(paths.best)
    assert record.took == 5
    assert record.info.keys() >= {"progress", "distance", "position"}
    assert "chain.Chain" in record.experiment
    assert record.experiment_file == str((HERE / "tiny.yaml").resolve())
    film = tmp_path / "best.mp4"
    assert command_line("replay", "chain", "--episodes", "2", "--video", str(film)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ": 5 steps, policy" in lines[0]
    same = f"5 steps, equal to the best run (return {record.return_:.5g} in 5 steps, 0 overruns)"
    assert lines[1:] == [f"episode 1: {same}", f"episode 2: {same}"]
    assert film.stat().st_size > 0
    for place in (paths.folder, paths.folder / "best" / BEFORE):
        assert command_line("replay", str(place)) == 0
    assert command_line("replay", TINY, "--run_name", "chain") == 0
    capsys.readouterr()
    assert command_line("replay", "chain", "--env.says", "false") == 0
    assert "episode 1: return" in capsys.readouterr().out


@pytest.fixture
def record() -> Rollout:
    """Kept as a run's, with one before it."""
    text = dump_experiment(TINY, [(("env",), "chain.Chain"), (("run_name",), "chain")], ())
    keep = BestRun(RunPaths("chain", data_folder()).best, text, TINY, lambda file: None)
    keep(drive(progress=1.0, took_s=2.0))
    keep(drive(progress=1.0, took_s=1.5))
    return Rollout.load(RunPaths("chain", data_folder()).best)


def test_the_kept_inputs_come_in_their_order_in_each_episode_and_then_the_last_one() -> None:
    space = spaces.Tuple((spaces.Discrete(5), spaces.Box(-1, 1, (2,))))
    numbers, vectors = np.array([2, 0, 4]), np.array([[0, 0], [1, 1], [0.5, -1]], np.float32)
    inputs = Inputs(dataclasses.replace(drive(steps=3), actions=[numbers, vectors]), space, space)
    for _ in range(2):
        inputs.reset()
        for step in (0, 1, 2, 2):
            number, vector = inputs.act_(None)
            assert number == numbers[step]
            assert np.array_equal(vector, vectors[step])
            assert space.contains((number, vector))


@pytest.mark.skipif(not has_matplotlib, reason="needs matplotlib")
def test_a_picture_is_drawn_on_demand(
    record: Rollout, tmp_path: Path, command_line: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "pictures" / "won.png"
    before = RunPaths("chain", data_folder()).best.with_name(BEFORE)
    assert command_line("replay", "chain", "--picture", str(picture), "--against", str(before)) == 0
    assert f"picture: {picture}" in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(not has_matplotlib, reason="needs matplotlib")
@pytest.mark.usefixtures("record")
@pytest.mark.parametrize("name", [".", "p.xyz", "file/p.png"])
def test_a_picture_that_cannot_be_written_is_one_line(
    name: str, tmp_path: Path, command_line: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    capsys.readouterr()
    assert command_line("replay", "chain", "--picture", str(tmp_path / name)) == 2
    error = capsys.readouterr().err
    assert f"--picture {tmp_path / name}: " in error
    assert error.count("\n") == 1


def test_mistakes_are_one_line_each(
    record: Rollout, tmp_path: Path, command_line: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = tmp_path / "alone.npz"
    dataclasses.replace(record, experiment="").save(alone)
    (tmp_path / "empty.npz").write_bytes(b"")
    capsys.readouterr()
    for arguments, message in [
        (("nothing",), "there is no best run at "),
        ((TINY,), "worker.keep_best"),
        ((str(tmp_path / "empty.npz"),), "is no rollout that can be read"),
        ((str(alone),), "says no experiment"),
        ((str(alone), "--picture", "p.png"), "is the first best run"),
        (("chain", "--picture", str(tmp_path / "p.png"), "--against", "nothing"), "there is no best run at "),
        (("chain", "--against", "chain"), "--picture"),
        (("chain", "--env.inputs", "2"), "the kept actions are none of this environment"),
        (("chain", "--env.wheels", "4"), "wheels"),
        (("chain", "--episodes", "0"), "1 or more"),
        (("chain", "--video", str(tmp_path / "v.avi")), "ending in .mp4"),
    ]:
        assert command_line("replay", *arguments) == 2, arguments
        error = capsys.readouterr().err
        assert message in error, arguments
        assert error.count("\n") == 1


def test_nothing_is_kept_where_that_is_switched_off_and_a_hook_is_called_beside_what_keeps() -> None:
    mine = ((("on_worker_rollout",), "chain.note"),)
    off = ((("worker", "keep_best"), "false"),)
    for overrides, expected in ((mine, [BestRun, type(chain.note)]), (off, [])):
        arguments = Arguments(experiment=TINY, overrides=overrides)
        experiment = load_experiment(TINY, overrides, ("on_worker_rollout",))
        assert [type(hook) for hook in hooks_of(arguments, experiment)] == expected


def test_a_picture_needs_a_part_of_the_way_in_common(tmp_path: Path) -> None:
    there = drive(progress=0.5)
    elsewhere = dataclasses.replace(there, info={**there.info, "distance": there.info["distance"] + 1000})
    with pytest.raises(best.ConfigError, match="no part of the way in common"):
        plot(tmp_path / "p.png", there, elsewhere)
