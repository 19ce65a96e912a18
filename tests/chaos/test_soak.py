"""A day in compressed time: workers come and go, what is kept is flat.

Server, trainer and workers live in one thread (transport "one_thread"): the time of a session passes by its turns.
"""

import gc
import os
import threading
import tracemalloc
from contextlib import ExitStack

import numpy as np
import psutil
import pytest

from tmrl_like.base.functional import partial
from tmrl_like.networking import RolloutWorker, Server, Trainer
from tmrl_like.testing.fakes import CountingAgent, CountingEnv, LinearActor, ListMemory
from tmrl_like.trainer.schedule import TrainingOffline
from tmrl_like.worker.options import WorkerOptions

HOURS = 24
STEPS_OF_AN_HOUR = 60
COMINGS_OF_AN_HOUR = 3


def slope_per_hour(values: list[float]) -> float:
    """Of the straight line through what was counted each hour."""
    return float(np.polyfit(range(len(values)), values, 1)[0])


def counted() -> dict[str, float]:
    gc.collect()
    process = psutil.Process()
    return {
        "bytes": tracemalloc.get_traced_memory()[0],
        "objects": len(gc.get_objects()),
        "descriptors": process.num_fds() if os.name == "posix" else process.num_handles(),
        "threads": threading.active_count(),
    }


class Day:
    """Server, trainer and a worker that is replaced again and again; `gather` has them take their turns."""

    def __init__(self, folder, stack: ExitStack) -> None:
        self._steps_done = 0
        self.hours: list[dict[str, float]] = []
        self._server = self._serve(0)
        self._where = {
            "server_ip": "127.0.0.1",
            "server_port": self._server.address[1],
            "transport": "one_thread",
        }
        training = partial(
            TrainingOffline,
            env_cls=CountingEnv,
            memory_cls=partial(ListMemory, batch_size=4, memory_size=200),
            training_agent_cls=CountingAgent,
            epochs=10**6,
            rounds=1,
            steps=20,
            update_model_interval=5,
            update_buffer_interval=1,
            max_training_steps_per_env_step=1.0,
        )
        self.trainer = stack.enter_context(
            Trainer(
                training,
                **self._where,
                sinks=[],
                metrics_path=folder / "metrics.jsonl",
                checkpoint_path=folder / "checkpoint",
                policies_path=folder / "policies",
                model_path=folder / "newest.safetensors",
            )
        )
        self.trainer.link.gather = self.gather
        self._workers = 0
        self._come()

    def _serve(self, port: int) -> Server:
        return Server(port, host="127.0.0.1", transport="one_thread")

    def _come(self) -> None:
        self._workers += 1
        options = WorkerOptions(own_thread=False)
        self._worker = RolloutWorker(
            partial(CountingEnv, episode_steps=20),
            LinearActor,
            **self._where,
            name=f"w{self._workers}",
            model_path=None,
            options=options,
        )
        self._steps = self._worker.steps(test_episode_interval=3)

    def gather(self, is_awaited: bool) -> None:
        self._turn()
        if is_awaited:
            next(self._steps)
            self._steps_done += 1
            if self._steps_done % (STEPS_OF_AN_HOUR // COMINGS_OF_AN_HOUR) == 0:
                self._worker.close()
                self._come()
            if self._steps_done % (STEPS_OF_AN_HOUR // 2) == 0:
                self._server.close()
                self._server = self._serve(self._server.address[1])
            if self._steps_done % STEPS_OF_AN_HOUR == 0:
                self.hours.append(counted())
        self._turn()

    def _turn(self) -> None:
        self.trainer.link.session.turn()
        self._server.turn()
        self._worker.link.turn()
        self._server.turn()
        self.trainer.link.session.turn()

    def close(self) -> None:
        self._worker.close()
        self._server.close()


@pytest.mark.chaos
@pytest.mark.fault(
    "processes",
    "a day of workers that come and go, and of a server that is started again",
    "memory, descriptors and threads stay flat",
)
def test_what_a_day_leaves_behind_is_flat(tmp_path, monkeypatch, figure):
    monkeypatch.setattr("tmrl_like.trainer.link._VERSIONS_KEPT", 50)  # bounds that a day in seconds does not reach
    monkeypatch.setattr("tmrl_like.delivery.receiver._MAX_PROCESSES", 8)
    tracemalloc.start()
    try:
        with ExitStack() as stack:
            day = Day(tmp_path, stack)
            stack.callback(day.close)
            day.trainer.training.should_stop = lambda: len(day.hours) >= HOURS
            day.trainer.run()
            hours = day.hours[HOURS // 3 :]
    finally:
        tracemalloc.stop()
    slopes = {name: slope_per_hour([hour[name] for hour in hours]) for name in hours[0]}
    figure(
        ", ".join(f"{name} {slope:+.1f}" for name, slope in slopes.items()) + f" per hour of {STEPS_OF_AN_HOUR} samples"
    )
    print([hour["bytes"] for hour in day.hours], [hour["objects"] for hour in day.hours])
    assert len(hours) >= HOURS // 2
    assert abs(slopes["descriptors"]) < 0.1
    assert abs(slopes["threads"]) < 0.1
    assert slopes["objects"] < 20
    assert slopes["bytes"] < 10_000  # a server that stays, or all of a worker, is four times that
