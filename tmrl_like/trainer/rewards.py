"""The mean reward of the newest decisions, of each worker and of all."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np

from tmrl_like.types import Buffer

_WORKERS = 1000  # the rewards of those heard of longest ago are forgotten


class RecentRewards:
    """Keeps rewards as samples come in; any thread reads means."""

    def __init__(self, window: int) -> None:
        """`window`: decisions of each worker, and of all, that count."""
        self._window = window
        self._of_all = np.zeros(0)
        self._of_workers: OrderedDict[str, np.ndarray[Any, Any]] = OrderedDict()

    def add(self, worker: str, buffer: Buffer) -> None:
        """Samples of a worker enter the memory; those of resets are no decisions."""
        found = [np.zeros(0)]
        for block in buffer.blocks:
            rewards = np.concatenate([np.asarray(segment.tree()[2], np.float64).ravel() for segment in block.segments])
            found.append(rewards[~block.is_reset])
        new = np.concatenate(found)
        self._of_all = np.concatenate((self._of_all, new))[-self._window :]
        own = self._of_workers.get(worker, self._of_all[:0])
        self._of_workers[worker] = np.concatenate((own, new))[-self._window :]
        self._of_workers.move_to_end(worker)
        if len(self._of_workers) > _WORKERS:
            self._of_workers.popitem(last=False)

    def mean(self, worker: str | None = None) -> float | None:
        """Of a worker's decisions, or of all workers'; None: there were none."""
        rewards = self._of_all if worker is None else self._of_workers.get(worker, self._of_all[:0])
        return float(rewards.mean()) if len(rewards) else None

    def widen(self, figures: dict[str, float]) -> dict[str, float]:
        """Have `reward_low` and `reward_high` say of these rewards, too, where the figures have them."""
        if len(self._of_all) and "reward_low" in figures:
            figures["reward_low"] = min(figures["reward_low"], float(self._of_all.min()))
            figures["reward_high"] = max(figures["reward_high"], float(self._of_all.max()))
        return figures

    def metrics(self) -> dict[str, float]:
        """The mean of all; nothing where there were none."""
        mean = self.mean()
        return {} if mean is None else {"reward_recent_mean": mean}
