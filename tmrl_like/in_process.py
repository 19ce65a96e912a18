"""Environments, memory and agent in one process, taking turns, without a server."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from tmrl_like.base import clocks
from tmrl_like.errors import MemoryContractError
from tmrl_like.policies.actor import ActorModule
from tmrl_like.trainer.connecting import LinkParts
from tmrl_like.trainer.interface import TrainerInterface
from tmrl_like.types import Delivery, Receipt
from tmrl_like.wire import messages as m
from tmrl_like.worker.tap import SampleTap
from tmrl_like.worker.worker import RolloutWorker


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
