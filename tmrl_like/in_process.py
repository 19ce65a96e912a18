"""Environments, memory and agent in one process, taking turns, without a server."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from tmrl_like.base import clocks
from tmrl_like.base.functional import seed_generators
from tmrl_like.errors import MemoryContractError
from tmrl_like.policies.actor import ActorModule
from tmrl_like.trainer.connecting import LinkParts
from tmrl_like.trainer.interface import TrainerInterface
from tmrl_like.trainer.schedule import TrainingOffline
from tmrl_like.trainer.trainer import Trainer
from tmrl_like.types import Delivery, Receipt, SampleCompressor
from tmrl_like.wire import messages as m
from tmrl_like.worker.options import WorkerOptions
from tmrl_like.worker.tap import SampleTap
from tmrl_like.worker.worker import RolloutWorker


def run_in_process(
    training_cls: Callable[[], TrainingOffline],
    env_cls: Callable[[], Any],
    actor_module_cls: Callable[..., Any],
    sample_compressor: SampleCompressor | None = None,
    *,
    seed: int | None = None,
    test_episode_interval: int = 0,
    worker: Mapping[str, Any] | None = None,
    trainer: Mapping[str, Any] | None = None,
) -> TrainingOffline:
    """Train in this process alone, so that a debugger can follow a sample from the environment to
    the learner; blocks.

    Samples are packed, stored and unpacked like those that come over a network. Gathering and
    training are in lockstep: whenever training waits for samples, an environment makes a step. With
    a seed and an environment that is determined by its own seed, the resulting parameters are the
    same bit for bit, on one machine's CPU.

    Args:
        training_cls: as in `Trainer`.
        env_cls: as in `RolloutWorker`; it must be able to pause between steps.
        actor_module_cls: as in `RolloutWorker`.
        sample_compressor: as in `RolloutWorker`.
        seed: for the environments, the memory and the generators of Python, numpy and torch; None:
            nothing is seeded.
        test_episode_interval: as in `RolloutWorker.run`.
        worker: further arguments of `RolloutWorker`.
        trainer: further arguments of `Trainer`.

    Returns:
        The training, after its epochs are done or it was interrupted (Ctrl-C).

    Raises:
        ConfigError: the environment runs in real time, or the ratio is not a finite number.
        EnvironmentFaultError: the environment fails again and again.
    """
    seed_generators(seed)
    own = {"model_path": None, "seed": seed} | dict(worker or {})

    def make_trainer(**how: Any) -> Trainer:
        made = Trainer(training_cls, **how, **(trainer or {}))
        if seed is not None and made.training.total_updates == 0:
            made.training.memory.seed(seed)
        return made

    def make_worker(**how: Any) -> RolloutWorker:
        return RolloutWorker(env_cls, actor_module_cls, sample_compressor, **own | how)

    options = own.get("options") or WorkerOptions()
    with connected(make_trainer, make_worker, options, test_episode_interval) as made:
        made.run()
    return made.training


@contextlib.contextmanager
def connected(
    make_trainer: Callable[..., AbstractContextManager[Trainer]],
    make_worker: Callable[..., RolloutWorker],
    options: WorkerOptions,
    test_episode_interval: int,
    verbose: bool = False,
) -> Iterator[Trainer]:
    """Make a trainer for a `with` block that requests a worker's steps itself.

    A step may take as long as it likes: it may be stopped in a debugger.
    """
    patient = dataclasses.replace(options, hang_timeout_s=math.inf)
    with make_worker(standalone=True, options=patient) as worker:
        steps = worker.steps(test_episode_interval, verbose)
        with make_trainer(connect=lambda parts: DirectLink(worker, steps, parts)) as trainer:
            yield trainer


class DirectLink(TrainerInterface):
    """A connection to one worker in this process: waiting for samples makes one of its environments
    step.
    """

    def __init__(self, worker: RolloutWorker, steps: Iterator[None], parts: LinkParts) -> None:
        """Take the worker, the iterator that its `RolloutWorker.steps` returned, and the trainer's
        parts.
        """
        super().__init__(parts.saver, parts.newest_version)
        self._worker, self._steps, self._tap = worker, steps, SampleTap(worker)
        self._pacer = parts.training.pacer
        self._receiver, self._freshness = parts.receiver, parts.freshness

    def retrieve(self, timeout_s: float = 0.0) -> list[Delivery]:
        # before lockstep, recorded samples let training go on without waiting: step all the same
        if timeout_s > 0 or not self._pacer.in_lockstep:
            next(self._steps)
        beat = m.Beat(self._worker.name, self._worker.condition())
        self.workers.on_beat(beat, self.newest_version)
        deliveries: list[Delivery] = []
        for packet, body, data in self._tap.take(awaits=True):
            deliveries += self._receiver.take(packet, body, data, time.monotonic(), self._admit)
            if reason := self._receiver.rejection_of(packet.receipt):
                self.reject(packet.receipt, reason)
        return deliveries

    def _admit(self, packet: m.SamplePacket) -> bool:
        return self._freshness.admit(packet, clocks.unix_s(), self.newest_version)

    def confirm(self, deliveries: Sequence[Delivery]) -> None:
        self._receiver.confirm(
            [delivery.receipt for delivery in deliveries if delivery.receipt is not None]
        )
        self._receiver.write(time.monotonic())

    def reject(self, receipt: Receipt, reason: str) -> None:
        raise MemoryContractError(reason)

    def broadcast_model(self, model: ActorModule) -> int:
        version = super().broadcast_model(model)
        self._worker.use_weights(model.weights(), version)
        return version

    def fleet(self) -> dict[str, float]:
        stale = {"dropped_stale_samples_total": self._freshness.dropped_samples}
        return self.workers.metrics(self.newest_version) | self._receiver.metrics() | stale

    def close(self) -> None:
        self._receiver.finish()
        self._tap.close()
