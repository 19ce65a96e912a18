"""The interface between a training and its workers, and those who watch it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tmrl_like.metrics.reading import Record
from tmrl_like.policies.actor import ActorModule
from tmrl_like.policies.weights import copied, refuse_diverged
from tmrl_like.trainer.fleet import Fleet
from tmrl_like.trainer.saver import Publication, Saver
from tmrl_like.types import Delivery, Receipt


class TrainerInterface:
    """A connection with workers. This base class has none: no samples come, and policies go only to
    the saver.

    Attributes:
        workers: the workers' condition.
        newest_version: version of the policy published last; 0: none.
    """

    def __init__(
        self, saver: Saver | None = None, version: int = 0, workers: Fleet | None = None
    ) -> None:
        """Take what every connection needs.

        Args:
            saver: keeps policies; None: they are not kept.
            version: of the policy that an earlier process of this training published last; 0: none.
            workers: the known workers; None: none.
        """
        self.workers = workers or Fleet()
        self.newest_version = version
        self._saver = saver

    def retrieve(self, timeout_s: float = 0.0) -> list[Delivery]:
        """Return what has arrived, after waiting up to `timeout_s` for something to arrive."""
        time.sleep(timeout_s)
        return []

    def confirm(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge deliveries whose samples are now in the memory."""

    def reject(self, receipt: Receipt, reason: str) -> None:
        """Accept nothing more from the worker process of this packet, because its samples do not
        fit those in the memory.
        """

    def note_trained(self, receipt: Receipt) -> None:
        """In lockstep: tell the worker that the training steps for which it waits, up to this
        packet, are done.
        """

    def broadcast_model(self, model: ActorModule) -> int:
        """Publish weights to all workers without waiting, and return their version.

        Raises:
            DivergedError: the weights are not finite. If another thread publishes, `retrieve`
                raises it instead.
        """
        self.newest_version += 1
        if self._saver is not None:
            weights = copied(model.state_dict())
            refuse_diverged(weights.tensors)
            self._saver.save(Publication(self.newest_version, time.time(), weights))
        return self.newest_version

    def report(self, record: Record) -> None:
        """Send a record of the metrics to those who watch."""

    def fleet(self) -> dict[str, float]:
        """Return metrics of the workers' condition, and of what they did since the last call."""
        return {}

    def who_is_missing(self) -> str:
        """Explain to a person why no samples come: which workers are here, which are not, and why.

        Raises:
            NoWorkerError: waiting is in vain.
        """
        return "training goes by recorded samples alone"

    def close(self) -> None:
        """Disconnect. Calling it twice is fine."""
