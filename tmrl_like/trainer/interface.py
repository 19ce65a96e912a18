"""What a training has of its workers, and of those who watch it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tmrl_like.metrics.reading import Record
from tmrl_like.policies.actor import ActorModule
from tmrl_like.policies.weights import WeightsCopy, refuse_diverged
from tmrl_like.trainer.fleet import Fleet
from tmrl_like.trainer.saver import Publication, Saver
from tmrl_like.types import Delivery, Receipt


class TrainerInterface:
    """A connection with workers; this one has none: no samples come, and policies go to the saver
    alone.

    Attributes:
        workers: their condition.
        newest_version: the policy published last; 0: none.
    """

    def __init__(
        self, saver: Saver | None = None, version: int = 0, workers: Fleet | None = None
    ) -> None:
        """Begin.

        Args:
            saver: keeps policies; None: nobody does.
            version: of the policy published last, by an earlier process of this training; 0: none
                was.
            workers: those that there are; None: none.
        """
        self.workers = Fleet(0.0) if workers is None else workers
        self.newest_version = version
        self._saver = saver

    def retrieve(self, timeout_s: float = 0.0) -> list[Delivery]:
        """Take what has arrived; waits up to `timeout_s` for something to arrive."""
        time.sleep(timeout_s)
        return []

    def confirm(self, deliveries: Sequence[Delivery]) -> None:
        """Their samples are in the memory now."""

    def reject(self, receipt: Receipt, reason: str) -> None:
        """Take nothing more of the worker process of this packet: its samples do not fit those in
        the memory.
        """

    def note_trained(self, receipt: Receipt) -> None:
        """In lockstep: the training steps are made that the worker process awaits up to this
        packet.
        """

    def broadcast_model(self, model: ActorModule) -> int:
        """Publish weights to all workers, without waiting; returns their version.

        Raises:
            DivergedError: they are not finite. Where another thread publishes, `retrieve` raises it
                instead.
        """
        self.newest_version += 1
        if self._saver is not None:
            parameters = model.state_dict()
            refuse_diverged(parameters)
            weights = WeightsCopy(parameters)
            weights.fill(parameters)
            self._saver.save(Publication(self.newest_version, time.time(), weights))
        return self.newest_version

    def report(self, record: Record) -> None:
        """Let who watches have a record of the metrics."""

    def fleet(self) -> dict[str, float]:
        """Metrics of the workers' condition, and of what they did since the last call."""
        return {}

    def who_is_missing(self) -> str:
        """Why no samples come, for people: which workers are here, which not, and why.
        NoWorkerError: it is in vain.
        """
        return "training goes by recorded samples alone"

    def close(self) -> None:
        """Leave. Twice is fine."""
