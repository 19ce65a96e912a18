"""A day in compressed time: workers come and go, and the use of resources stays flat."""

import gc
import os
import threading
import tracemalloc
from contextlib import ExitStack, contextmanager

import numpy as np
import psutil
import pytest
from chaos_rig import wait_until
from house import House
from kit.fakes import CountingEnv, ListMemory

from tmrl_like.base.functional import partial

UNFREEZE = gc.unfreeze  # the real one: conftest.py disables it while a test runs
BOUNDS = (
    "trainer.round_metrics._VERSIONS_KEPT",
    "delivery.receiver._MAX_PROCESSES",
    "replay.demonstrations._REMEMBERED_STREAMS",
    "replay.streams._REMEMBERED_STREAMS",
)
"""Limits that a compressed day would not reach: the test lowers them."""
EPISODE_STEPS = 20
COMINGS_OF_AN_HOUR = 3


def slope_per_hour(values):
    """Return the slope of the straight line through values counted each hour."""
    return float(np.polyfit(range(len(values)), values, 1)[0])


def counted():
    gc.collect()
    process = psutil.Process()
    return {
        "bytes": tracemalloc.get_traced_memory()[0],
        "objects": len(gc.get_objects()),
        "descriptors": process.num_fds() if os.name == "posix" else process.num_handles(),
        "threads": threading.active_count(),
    }


class Day:
    """A trainer that stays, a worker that is replaced after each episode, and a server that is
    replaced each hour.
    """

    def __init__(self, folder, stack):
        self._house = House("inproc", stack)
        self._comings = 0
        with self._open() as house:
            house.server()
            self._house.port = house.port
            trainer = self._house.trainer(
                partial(ListMemory, memory_size=200),
                {"epochs": 10**6, "rounds": 1, "steps": EPISODE_STEPS, "update_buffer_interval": 1},
                metrics_path=folder / "metrics.jsonl",
                checkpoint_path=folder / "checkpoint",
                policies_path=folder / "policies",
                model_path=folder / "newest.safetensors",
            )
        self._training = trainer.training
        self._house.start(trainer.run)

    @contextmanager
    def _open(self):
        """Open a house at the same address, for parts that are closed and released before the day
        ends.
        """
        with ExitStack() as stack:
            house = House("inproc", stack)
            house.port = self._house.port
            yield house

    def pass_an_hour(self):
        """Run one hour; return what `counted` finds when training has caught up with all
        samples.
        """
        with self._open() as house:
            house.server()
            for _ in range(COMINGS_OF_AN_HOUR):
                self._come()
            return counted()

    def _come(self):
        self._comings += 1
        env_cls = partial(CountingEnv, episode_steps=EPISODE_STEPS)
        with self._open() as house:
            worker = house.worker(env_cls, name=f"w{self._comings % COMINGS_OF_AN_HOUR}")
            worker.run(nb_episodes=1, verbose=False)
            samples = self._comings * (EPISODE_STEPS + 1)  # each episode begins with a reset
            wait_until(
                lambda: self._training.total_updates == samples, 60.0, "training has caught up"
            )


@pytest.mark.fault(
    "processes",
    "a day of workers that come and go, and of a server that is started again",
    "memory, descriptors and threads stay flat",
)
@pytest.mark.parametrize(
    "hours_n",
    [
        pytest.param(9, id="short", marks=pytest.mark.long),
        pytest.param(48, id="full", marks=pytest.mark.chaos),
    ],
)
def test_what_a_day_leaves_behind_is_flat(tmp_path, monkeypatch, figure, hours_n):
    for bound in BOUNDS:
        monkeypatch.setattr(f"tmrl_like.{bound}", 8)
    monkeypatch.setattr(gc, "unfreeze", UNFREEZE)
    tracemalloc.start()
    try:
        with ExitStack() as stack:
            day = Day(tmp_path, stack)
            hours = [day.pass_an_hour() for _ in range(hours_n)][hours_n // 3 :]
    finally:
        tracemalloc.stop()
    slopes = {name: slope_per_hour([hour[name] for hour in hours]) for name in hours[0]}
    found = ", ".join(f"{name} {slope:+.1f}" for name, slope in slopes.items())
    figure(f"{found} per hour, in which {COMINGS_OF_AN_HOUR} workers come")
    assert abs(slopes["descriptors"]) < 0.5  # a leaked worker would have three
    assert abs(slopes["threads"]) < 0.5
    assert slopes["objects"] < 100
    assert slopes["bytes"] < 40_000  # a leaked worker would have twice that
