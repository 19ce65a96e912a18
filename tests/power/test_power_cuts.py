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


@pytest.mark.parametrize(
    ("seed", "packets", "cuts"),
    [(1, 60, 30), *(pytest.param(seed, 200, 200, marks=pytest.mark.chaos) for seed in range(2, 7))],
)
def test_a_power_cut_costs_nothing_that_was_promised(tmp_path, seed, packets, cuts):
    found = cut_at_random(tmp_path, packets, cuts, seed)
    assert (found.lost, found.damaged, found.wrong) == (0, 0, [])


def test_without_syncs_a_power_cut_costs_samples_that_were_acknowledged(tmp_path):
    found = cut_at_random(tmp_path, 60, 30, 1, sync_every_s=0.0)
    assert found.lost > 0
    print(f"acknowledged and lost without syncs: {found.lost} samples, damaged {found.damaged}; {found.wrong}")
