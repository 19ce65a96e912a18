"""The power of a trainer's machine is cut at any moment: what was promised is there, and nothing damaged is loaded."""

import random

import pytest
from disk import age, write_tree
from kept_run import Found, check, drive


def cut_at_random(folder, packets, cuts, seed, sync_every_s=0.25):
    """Cut the power after some of a run's operations; what the next processes miss."""
    rng = random.Random(seed)
    (folder / "run").mkdir(parents=True)
    driven = drive(folder / "run", packets, seed, sync_every_s)
    chosen = {*rng.sample(range(len(driven.power.operations)), cuts)}
    found = Found()
    for number, state, promises in driven.states():
        if number in chosen:
            left = folder / f"cut {number}"
            write_tree(state.after_a_cut(rng), left)
            age(left)
            before = len(found.wrong)
            check(left, promises, found)
            found.wrong[before:] = [f"seed {seed}, cut {number}: {line}" for line in found.wrong[before:]]
    return found


@pytest.mark.fault(
    "disk",
    "the power of the trainer's machine is cut, at any write",
    "nothing that was acknowledged as stored is lost, nothing damaged is loaded",
)
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("seeds", "packets", "cuts"),
    [pytest.param([1], 60, 30, id="short"), pytest.param(range(2, 7), 200, 200, id="full", marks=pytest.mark.chaos)],
)
def test_a_power_cut_costs_nothing_that_was_promised(tmp_path, figure, seeds, packets, cuts):
    for seed in seeds:
        found = cut_at_random(tmp_path / str(seed), packets, cuts, seed)
        assert (found.lost, found.damaged, found.wrong) == (0, 0, []), seed
    figure(f"{cuts} cuts of each history of seeds {[*seeds]}: 0 samples lost, 0 damaged loaded")


def test_without_syncs_a_power_cut_costs_samples_that_were_acknowledged(tmp_path):
    assert cut_at_random(tmp_path, 60, 30, 1, sync_every_s=0.0).lost > 0
