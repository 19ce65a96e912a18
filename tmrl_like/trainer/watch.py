"""Observers of a training. They are called in the training's own thread, and do not change it."""

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
    """Is notified of what happens in a training. Override the methods that you need."""

    def on_samples(self, delivery: Delivery) -> None:
        """Called when samples have entered the memory; from other ranks, only their episodes
        come.
        """

    def on_step(self, batch: Batch, metrics: StepMetrics) -> None:
        """Called after the agent was trained on `batch`; `metrics` is what its `train` returned."""

    def on_round(self, record: Record) -> None:
        """Called at the end of a round, to add to its record, which `on_record` receives next."""

    def on_record(self, record: Record) -> None:
        """Called with each record of a round, an episode or the warm-up (`kind`); docs/metrics.md
        describes their contents.
        """


class RecentRewards(Listener):
    """Keeps the newest rewards; any thread may read their mean."""

    def __init__(self, window: int) -> None:
        """Start without rewards; `window` is the number of decisions that count."""
        self._window = window
        self.newest = np.zeros(0)  # float64 [N]

    def on_samples(self, delivery: Delivery) -> None:
        """Add rewards, without those of resets, which follow no decision, and without any that are
        not single numbers: a user's memory may take those.
        """
        found = [self.newest]
        for block in delivery.buffer.blocks:
            end = 0
            for segment in block.segments:
                start = end
                end += segment.rows
                rewards = segment.tree()[2]
                is_number = isinstance(rewards, np.ndarray) and rewards.dtype.kind in "fiub"
                if is_number and rewards.size == segment.rows:
                    is_step = ~block.is_reset[start:end]
                    found.append(rewards.reshape(-1)[is_step].astype(np.float64))
        self.newest = np.concatenate(found)[-self._window :]

    def mean(self) -> float | None:
        """Return the mean over the newest decisions of all workers, or None if there are none."""
        newest = self.newest
        return float(newest.mean()) if len(newest) else None

    def on_round(self, record: Record) -> None:
        if len(self.newest):
            record["reward_recent_mean"] = self.mean()
