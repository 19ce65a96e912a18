"""The mean reward of the newest decisions."""

from __future__ import annotations

import numpy as np

from tmrl_like.types import Buffer


class RecentRewards:
    """Keeps rewards as samples come in; any thread reads their mean."""

    def __init__(self, window: int) -> None:
        """`window`: decisions that count."""
        self._window = window
        self._newest = np.zeros(0)

    def add(self, buffer: Buffer) -> None:
        """Samples enter the memory; those of resets are no decisions."""
        found = [self._newest]
        for block in buffer.blocks:
            rewards = np.concatenate([np.asarray(segment.tree()[2], np.float64).ravel() for segment in block.segments])
            found.append(rewards[~block.is_reset])
        self._newest = np.concatenate(found)[-self._window :]

    def mean(self) -> float | None:
        """Of the newest decisions of all workers; None: there were none."""
        newest = self._newest
        return float(newest.mean()) if len(newest) else None

    def widen(self, figures: dict[str, float]) -> dict[str, float]:
        """Have `reward_low` and `reward_high` say of these rewards, too, where the figures have them."""
        if len(self._newest) and "reward_low" in figures:
            figures["reward_low"] = min(figures["reward_low"], float(self._newest.min()))
            figures["reward_high"] = max(figures["reward_high"], float(self._newest.max()))
        return figures

    def metrics(self) -> dict[str, float]:
        """The mean; nothing where there were no decisions."""
        mean = self.mean()
        return {} if mean is None else {"reward_recent_mean": mean}
