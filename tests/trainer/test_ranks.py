"""Two trainers that learn as one, each in its own process; `rank_work` is what they run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit.ports import free_port
from kit.pythons import PYTHONPATH

from tmrl_like.errors import ConfigError
from tmrl_like.trainer.options import RankOptions
from tmrl_like.trainer.ranks import meet

SCRIPT = Path(__file__).with_name("rank_work.py")


@pytest.fixture(scope="module")
def said():
    """The results that rank 0 prints of its work with rank 1, which disappears at the end: one
    record, one line.
    """
    both = {
        "PYTHONPATH": PYTHONPATH,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
    }
    parts = [
        subprocess.Popen(
            [sys.executable, SCRIPT],
            env=os.environ | both | {"RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    (out, errors), _ = [part.communicate(timeout=240) for part in parts]
    assert [part.returncode for part in parts] == [0, 9], errors
    record, line = out.splitlines()
    return json.loads(record) | {"gone": json.loads(line)}


@pytest.mark.parametrize("kind", ["continuous", "discrete"])
def test_two_ranks_learn_as_one_with_twice_the_batch(said, kind):
    assert said[kind] < 1e-4  # difference of any parameter or statistic after 10 steps


@pytest.mark.parametrize("own", ["batches", "quantiles"])
def test_agents_stay_equal_that_each_rank_normalises_by_its_own_batches_or_quantiles(said, own):
    assert said[own] == ""


@pytest.mark.parametrize(
    ("agent", "line"),
    [
        ("lonely", "call self.average_gradients(optimizer) between loss.backward() and optimizer."),
        ("differing", "after 10 training steps the parameters of rank 1 differ from those of rank"),
    ],
)
def test_an_agent_that_does_not_average_or_whose_parameters_differ_is_refused(said, agent, line):
    assert line in said[agent]


def test_a_vote_goes_with_the_gradients_and_is_heard_by_all_before_the_next_step(said):
    heard = [[0, False, 0], [0, False, 0], [20, False, 10], [40, True, 20], [80, False, 40]]
    assert said["votes"] == [heard, heard]


def test_ranks_sum_and_gather(said):
    assert said["sum"] == [2, 1, 2 * 10**15]
    assert said["gathered"] == ["zero", ""]


def test_a_rank_that_is_gone_ends_the_other_with_one_line(said):
    assert said["gone"].startswith("rank 0 of 2 ends: another one is gone")
    assert "/" not in said["gone"]
    assert "\n" not in said["gone"]


def test_ranks_without_numbers_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigError, match="start them with torchrun"):
        meet(RankOptions())
