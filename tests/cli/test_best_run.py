"""The best run is kept when a record falls."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chain
import numpy as np
import pytest
from cli_commands import TINY

from tmrl_like import load_experiment
from tmrl_like.base.folders import data_folder
from tmrl_like.cli.best import BestRun, hooks_of
from tmrl_like.config.paths import RunPaths
from tmrl_like.rollouts import Rollout
from tmrl_like.types import ActionSource

CommandLine = Callable[..., int]


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


def keeper(folder: Path) -> BestRun:
    return BestRun(folder / "rollout.npz", "run_name: mine")


def kept(folder: Path) -> Rollout:
    return Rollout.load(folder / "rollout.npz")


def test_a_record_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
        "record: 75.0% of the way, before: 50.0% of the way (policy 7)",
        "record: 39.50 s, before: 75.0% of the way (policy 7)",
        "record: 38.20 s, before: 39.50 s (policy 7)",
    ]
    assert kept(tmp_path).took == 38.2
    assert kept(tmp_path).experiment == "run_name: mine"


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
        "record: return 5, before: return 3 (policy 7)",
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
    assert kept(tmp_path).return_ == 6


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


def test_a_record_of_a_training_is_kept_with_its_configuration(
    command_line: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line("run", TINY, "--env=chain.Chain", "--run_name=chain", "--in-process") == 0
    assert "record: 5 steps, before: 6 steps" in capsys.readouterr().err
    record = Rollout.load(RunPaths("chain", data_folder()).best)
    assert record.took == 5
    assert record.info.keys() >= {"progress", "distance", "position"}
    assert "chain.Chain" in record.experiment


def test_nothing_is_kept_where_that_is_switched_off_and_a_hook_is_called_beside_what_keeps() -> None:
    mine = ((("on_worker_rollout",), "chain.note"),)
    off = ((("worker", "keep_best"), "false"),)
    for overrides, expected in ((mine, [BestRun, type(chain.note)]), (off, [])):
        experiment = load_experiment(TINY, overrides, ("on_worker_rollout",))
        assert [type(hook) for hook in hooks_of(experiment)] == expected
