"""Training from data alone: what stands in the place of the connection where there is neither server nor worker."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tmrl_like.errors import ConfigError
from tmrl_like.policies.actor import ActorModule
from tmrl_like.policies.weights import WeightsCopy, form_of, refuse_diverged
from tmrl_like.trainer.connecting import Connect, LinkParts
from tmrl_like.trainer.fleet import Fleet
from tmrl_like.trainer.saver import Publication, Saver
from tmrl_like.trainer.schedule import TrainingOffline
from tmrl_like.types import Delivery, Receipt


class NoLink:
    """Implements `TrainerConnection`: no samples come, and policies go to the saver alone.

    Attributes:
        workers: none.
        newest_version: the policy published last; 0: none.
    """

    def __init__(self, saver: Saver | None = None, version: int = 0) -> None:
        """See `TrainerLink`."""
        self.workers = Fleet(0.0)
        self.newest_version = version
        self._saver = saver

    def retrieve(self, timeout_s: float = 0.0) -> list[Delivery]:
        time.sleep(timeout_s)
        return []

    def confirm(self, deliveries: Sequence[Delivery]) -> None:
        pass

    def reject(self, receipt: Receipt, reason: str) -> None:
        pass

    def note_trained(self, receipt: Receipt) -> None:
        pass

    def report(self, record: dict[str, Any]) -> None:
        pass

    def broadcast_model(self, model: ActorModule) -> int:
        """Have the weights kept; DivergedError: they are not finite."""
        self.newest_version += 1
        if self._saver is not None:
            parameters = model.state_dict()
            refuse_diverged(parameters)
            weights = WeightsCopy(form_of(parameters))
            weights.fill(parameters)
            self._saver.save(Publication(self.newest_version, time.time(), weights))
        return self.newest_version

    def published_at(self, version: int) -> float | None:
        return None

    def fleet(self) -> dict[str, float]:
        return {}

    def who_is_missing(self) -> str:
        return "training goes by recorded samples alone"

    def close(self) -> None:
        pass


def _with_no_worker(parts: LinkParts) -> NoLink:
    expect_no_worker(parts.training)
    return NoLink(parts.saver, parts.newest_version)


OFFLINE: Connect = _with_no_worker
"""`Trainer(connect=OFFLINE)` trains from what the memory holds: nothing is connected, no limit of the pace holds."""


def expect_no_worker(training: TrainingOffline) -> None:
    """Let training go by the samples that its memory holds, without a limit on how often.

    Raises:
        ConfigError: it would wait for samples that nobody sends.
    """
    training.memory.flush()
    if training.ranks.sum(training.memory.ready) != [training.ranks.size]:
        raise ConfigError(
            "the memory holds no transition, and offline no worker sends any: name a data set (dataset_path of the "
            "memory), or go on with a run that has recorded samples"
        )
    if training.start_training > training.total_samples:
        raise ConfigError(
            f"start_training is {training.start_training}, and offline there are {training.total_samples} samples: "
            "expected no more than these"
        )
    training.pacer.expect_no_worker(training.total_samples)
