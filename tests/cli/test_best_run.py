"""A run is kept if it is a record."""

import dataclasses
import logging
import math
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from cli_commands import TINY

from tmrl_like import load_experiment
from tmrl_like.base.folders import data_folder
from tmrl_like.cli.best import BestRun, hooks_of
from tmrl_like.config.paths import RunPaths
from tmrl_like.rollouts import Rollout
from tmrl_like.types import ActionSource

FILE = Path("rollout.npz")


def drive(return_=0.0, progress=None):
    """Return the rollout of four steps."""
    info = {} if progress is None else {"progress": np.linspace(0, progress, 4, dtype=np.float32)}
    return Rollout(
        actions=np.zeros((4, 1), np.float32),
        rewards=np.full(4, return_ / 4),
        info=info,
        policy_versions=np.full(4, 7),
        sources=np.zeros(4, np.int64),
        times_s=np.arange(4.0),
        time_step_s=0.05,
    )


@pytest.fixture
def keep():
    return BestRun(FILE, "run_name: mine")


def kept():
    """Return the rollout that is kept."""
    return Rollout.load(FILE)


def test_a_record_is_kept_and_neither_a_fault_nor_a_demonstration_is_one(keep, caplog):
    caplog.set_level(logging.INFO, "tmrl_like")
    fault, human = dataclasses.replace(drive(9), fault="it broke"), drive(9)
    human.sources[2] = ActionSource.EXPERT
    for rollout in (drive(3), fault, human, drive(2), drive(5), drive(5)):
        keep(rollout)
    assert caplog.messages == [
        "record: return 3 (policy 7)",
        "record: return 5, before: return 3 (policy 7)",
    ]
    assert (kept().return_, kept().experiment) == (5, "run_name: mine")


def test_an_episode_whose_progress_is_not_a_number_is_no_record(keep):
    unknown = drive(progress=1.0)
    unknown.info["progress"][1] = np.nan
    for progress in (0.5, 0.3):
        with pytest.raises(ValueError, match="not a number"):
            keep(unknown)
        keep(drive(progress=progress))
    assert kept().progress == 0.5


def test_of_workers_that_set_records_at_once_the_best_is_kept():
    def work(number):
        keep = BestRun(FILE, "")
        for n in range(20):
            keep(drive(100 * ((7 * n + number) % 20) + number))

    with ThreadPoolExecutor(4) as workers:
        list(workers.map(work, range(4)))
    assert kept().return_ == 1903


def test_what_could_not_be_written_is_no_record_and_one_line(keep, monkeypatch, caplog):
    def full(path, *content):
        raise OSError("no space left")

    keep(drive(1))
    with monkeypatch.context() as patch:
        patch.setattr("tmrl_like.rollouts.rollout.write_atomically", full)
        keep(drive(3))
    assert caplog.messages == [f"cannot keep the best run in {FILE}: no space left; acting goes on"]
    assert kept().return_ == 1
    keep(drive(2))
    assert kept().return_ == 2


def test_a_saved_run_that_cannot_be_read_is_put_aside(keep, caplog):
    FILE.write_bytes(b"cut short")
    keep(drive(1))
    keep(drive(2))
    assert kept().return_ == 2
    assert Path("rollout.npz.damaged").read_bytes() == b"cut short"
    (warning,) = caplog.messages
    assert "is no rollout that can be read" in warning


def test_a_record_of_a_training_is_kept_with_its_configuration(typed):
    printed = typed("run TINY --in-process --seed=0")
    assert re.search(r"record: return -[0-9.]+, before: return -[0-9.]+ \(policy", printed.err)
    record = Rollout.load(RunPaths("tiny", data_folder()).best)
    assert record.return_ > -10.0  # the return of a policy that does nothing
    assert "tiny.TinyEnv" in record.experiment


def test_nothing_is_kept_where_that_is_switched_off_and_a_hook_is_called_beside_what_keeps():
    mine = ((("on_worker_rollout",), "math.dist"),)
    off = ((("worker", "keep_best"), "false"),)
    for overrides, expected in ((mine, [BestRun, type(math.dist)]), (off, [])):
        experiment = load_experiment(TINY, overrides, ("on_worker_rollout",))
        assert [type(hook) for hook in hooks_of(experiment)] == expected
