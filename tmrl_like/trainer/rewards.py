"""The mean reward of the newest decisions."""

from __future__ import annotations

from typing import Any

import numpy as np

from tmrl_like.trainer.watch import Listener
from tmrl_like.types import Delivery


class RecentRewards(Listener):
    """Keeps rewards as samples come in; any thread reads their mean."""

    def __init__(self, window: int) -> None:
        """`window`: decisions that count."""
        self._window = window
        self._newest = np.zeros(0)

    def on_samples(self, delivery: Delivery) -> None:
        """Those of resets are no decisions."""
        found = [self._newest]
        for block in delivery.buffer.blocks:
            rewards = np.concatenate([np.asarray(segment.tree()[2], np.float64).ravel() for segment in block.segments])
            found.append(rewards[~block.is_reset])
        self._newest = np.concatenate(found)[-self._window :]

    def mean(self) -> float | None:
        """Of the newest decisions of all workers; None: there were none."""
        newest = self._newest
        return float(newest.mean()) if len(newest) else None

    def on_round(self, record: dict[str, Any]) -> None:
        if len(self._newest):
            record["reward_recent_mean"] = self.mean()

    def widen(self, record: dict[str, Any]) -> None:
        """Have `reward_low` and `reward_high` of a record say of these rewards, too, where it has them."""
        if len(self._newest) and "reward_low" in record:
            record["reward_low"] = min(record["reward_low"], float(self._newest.min()))
            record["reward_high"] = max(record["reward_high"], float(self._newest.max()))
