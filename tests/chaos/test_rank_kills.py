"""One of several trainers is killed, at random; torchrun starts all of them again."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from chaos_rig import MANY_S, Rig, wait_for_checkpoint, wait_until

from tmrl_like.testing.chaos import Audit

PART = Path(__file__).with_name("rank_part.py")
RANKS = 2
WORKERS = 4


class Torchrun:
    """The ranks of one training. Use it as a context manager: on leaving, none is alive."""

    def __init__(self, rig: Rig) -> None:
        place = rig.place
        self._log = (place.folder / "torchrun.log").open("ab")
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"),
                *("--max-restarts=1000", PART, place.transport, place.folder, str(place.port)),
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (PART.parent, *PART.parents[1:3])))},
        )

    def ranks(self) -> list[psutil.Process]:
        found = []
        for process in psutil.Process(self._process.pid).children():
            try:
                if PART.name in " ".join(process.cmdline()):
                    found.append(process)
            except psutil.NoSuchProcess:
                pass
        return found

    def kill(self, rng: random.Random) -> float:
        """Kill one of them; returns how long the others lived on."""
        wait_until(lambda: len(self.ranks()) == RANKS, 60, "all ranks are there")
        ranks = self.ranks()
        rng.choice(ranks).kill()
        return wait_until(lambda: not any(rank.is_running() for rank in ranks), 60, "the others end")

    def __enter__(self) -> "Torchrun":
        return self

    def __exit__(self, *exc: object) -> None:
        ranks = self.ranks()
        self._process.kill()
        for rank in ranks:
            rank.kill()
        psutil.wait_procs(ranks, 5.0)
        self._process.wait()
        self._log.close()


def kill_ranks(rig: Rig, rng: random.Random, count: int) -> tuple[list[float], Audit]:
    """Returns how long the others lived on each time, and what all ranks have in the end."""
    rig.server()
    for number in range(1, WORKERS + 1):
        rig.worker(number)
    with Torchrun(rig) as ranks:
        wait_for_checkpoint(rig.place)
        survived_s = []
        for _ in range(count):
            time.sleep(rng.uniform(0.0, 12.0 if count > 1 else 4.0))
            survived_s.append(ranks.kill(rng))
        wait_for_checkpoint(rig.place)
    last = rig.trainer(checkpoint_path=rig.place.checkpoint)
    rig.wait_for_samples(last)
    return survived_s, rig.settle(last)


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(50, marks=[pytest.mark.chaos, pytest.mark.timeout(MANY_S)]),
        pytest.param(3, marks=[pytest.mark.long, pytest.mark.timeout(300)]),
    ],
)
def test_a_killed_rank_costs_no_sample(rigs, seed, figure, count):
    survived_s, found = kill_ranks(rigs("zmq"), random.Random(seed), count)
    figure(f"{count} kills of a rank, the others lived on for {max(survived_s):.1f} s at most: {found}")
    assert not found.lost
    assert not found.doubled
    assert max(survived_s) < 15
