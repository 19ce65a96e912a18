"""What watches a training: it is told what happens, in the training's own thread, and changes
nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import torch

from tmrl_like.metrics.reading import Record
from tmrl_like.types import Batch, Delivery

StepMetrics: TypeAlias = Mapping[str, float | torch.Tensor]
"""What `TrainingAgent.train` returns: numbers, or tensors [] that may be on a device."""


class Listener:
    """Is told what happens in a training. Override what you want to hear of."""

    def on_samples(self, delivery: Delivery) -> None:
        """These samples are in the memory; of other ranks only their episodes come."""

    def on_step(self, batch: Batch, metrics: StepMetrics) -> None:
        """The agent was trained on `batch`; `metrics` is what its `train` returned."""

    def on_round(self, record: Record) -> None:
        """A round ends: add to its record, which is what `on_record` gets next."""

    def on_record(self, record: Record) -> None:
        """A record leaves: of a round, an episode, or the warm-up (`kind`); docs/metrics.md says
        what is in it.
        """


class RecentRewards(Listener):
    """Keeps rewards as samples come in; any thread reads their mean."""

    def __init__(self, window: int) -> None:
        """`window`: decisions that count."""
        self._window = window
        self.newest = np.zeros(0)  # float64 [N]

    def on_samples(self, delivery: Delivery) -> None:
        """Those of resets are no decisions."""
        found = [self.newest]
        for block in delivery.buffer.blocks:
            rewards = np.concatenate(
                [np.asarray(segment.tree()[2], np.float64).ravel() for segment in block.segments]
            )
            found.append(rewards[~block.is_reset])
        self.newest = np.concatenate(found)[-self._window :]

    def mean(self) -> float | None:
        """Of the newest decisions of all workers; None: there were none."""
        newest = self.newest
        return float(newest.mean()) if len(newest) else None

    def on_round(self, record: Record) -> None:
        if len(self.newest):
            record["reward_recent_mean"] = self.mean()
