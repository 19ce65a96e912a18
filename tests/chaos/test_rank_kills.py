"""One of several trainers is killed at random; torchrun restarts all of them."""

import random
import time

import pytest
from chaos_rig import MANY, wait_for_checkpoint
from torchrun import Torchrun

WORKERS = 4


def kill_ranks(rig, rng, count):
    """Kill ranks; return how long the others survived each time, and the final audit."""
    rig.server()
    for number in range(1, WORKERS + 1):
        rig.worker(number)
    with Torchrun(rig.place) as ranks:
        wait_for_checkpoint(rig.place)
        survived_s = []
        for _ in range(count):
            time.sleep(rng.uniform(0.0, 12.0 if count > 1 else 4.0))
            survived_s.append(ranks.kill(rng))
        wait_for_checkpoint(rig.place)
    last = rig.trainer(checkpoint_path=rig.place.checkpoint)
    rig.wait_for_samples(last)
    return survived_s, rig.settle(last)


@pytest.mark.fault(
    "processes",
    "one of several trainers is killed",
    "no sample is lost or doubled; the others end in one line",
)
@pytest.mark.parametrize(
    "count",
    [
        pytest.param(50, marks=MANY),
        pytest.param(3, marks=[pytest.mark.long, pytest.mark.timeout(300)]),
    ],
)
def test_a_killed_rank_costs_no_sample(rigs, seed, figure, count):
    survived_s, found = kill_ranks(rigs("zmq"), random.Random(seed), count)
    figure(
        f"{count} kills of a rank, the others lived on for {max(survived_s):.1f} s at most: {found}"
    )
    assert not found.lost
    assert not found.doubled
    assert max(survived_s) < 15
