"""Prioritised sampling: transitions on which the agent errs are drawn more often.

Schaul et al., "Prioritized Experience Replay", 2016 (arXiv:1511.05952), proportional variant. A transition i is drawn
with probability P(i) = p_i^alpha / sum_k p_k^alpha, where p_i = |TD error| + epsilon of the last time that it was
drawn, and the largest p so far for one that is new. Its importance weight is (N P(i))^-beta, divided by the largest
of the batch; beta grows to 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tmrl_like.errors import ConfigError
from tmrl_like.replay.columns import Array, Rows

_FAN_OUT = 32
_TOP = 1024


@dataclass(frozen=True, kw_only=True)
class Prioritised:
    """How a memory draws by TD errors; see `ReplayMemory(prioritised=…)`.

    Attributes:
        alpha: how much errors count: 0 draws uniformly, 1 in proportion to the error.
        beta: how far importance weights make up for it to begin with, 0 to 1; it grows to 1.
        beta_batches: batches until it is 1.
        epsilon: added to each error, in the units of the agent's values, so that none is never drawn again.
    """

    alpha: float = 0.6
    beta: float = 0.4
    beta_batches: int = 100_000
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        if not (self.alpha >= 0 and 0 <= self.beta <= 1 and self.beta_batches >= 1 and self.epsilon > 0):
            raise ConfigError(f"{self}: alpha is 0 or more, beta 0 to 1, beta_batches 1 or more, epsilon above 0")


class SumTree:
    """Numbers, 0 or more, that can be drawn in proportion to themselves; each inner node is the sum of 32 below.

    Every step is one numpy operation over the whole batch. Sums are always computed again from what is below them, so
    that no rounding piles up.
    """

    def __init__(self, size: int) -> None:
        self._levels: list[Array] = []  # leaves first; the last has at most `_TOP` nodes
        while True:
            blocks = -(-size // _FAN_OUT)
            self._levels.append(np.zeros(blocks * _FAN_OUT))
            if size <= _TOP:
                break
            size = blocks
        self.leaves = self._levels[0]  # the numbers: float64 [size or a few more], to be read

    @property
    def total(self) -> float:
        return float(self._levels[-1].sum())

    def put(self, leaves: Rows, values: Array | float) -> None:
        self._levels[0][leaves] = values
        for below, level in zip(self._levels, self._levels[1:], strict=False):
            leaves = leaves // _FAN_OUT
            level[leaves] = below.reshape(-1, _FAN_OUT)[leaves].sum(axis=1)

    def find(self, marks: Array) -> Rows:
        """The leaves at which the running sum of all numbers passes `marks`, each 0 <= mark < total: int [B].

        No leaf that is zero is ever found, as long as one is not: rounding is kept within the node above.
        """
        cumulated = self._levels[-1].cumsum()
        marks = np.minimum(marks, np.nextafter(cumulated[-1], 0))
        nodes = cumulated.searchsorted(marks, side="right")
        marks = marks - (cumulated[nodes] - self._levels[-1][nodes])
        each = np.arange(len(marks))
        for level in self._levels[-2::-1]:
            children = level.reshape(-1, _FAN_OUT)[nodes]
            sums = children.cumsum(axis=1)
            marks = np.minimum(np.maximum(marks, 0), np.nextafter(sums[:, -1], 0))
            chosen = (sums <= marks[:, None]).sum(axis=1)
            marks -= sums[each, chosen] - children[each, chosen]
            nodes = nodes * _FAN_OUT + chosen
        return nodes


class Priorities:
    """The priority of each row of a memory; 0: it ends no whole transition.

    Attributes:
        options: see `Prioritised`.
        batches: drawn so far.
        largest: the largest |TD error| + epsilon so far; new transitions get it.
        powers: p^alpha of each row, float64 [capacity or a few more], to be read.
    """

    def __init__(self, capacity: int, options: Prioritised) -> None:
        self.options = options
        self.batches = 0
        self.largest = 1.0
        self._tree = SumTree(capacity)
        self.powers = self._tree.leaves

    @property
    def beta(self) -> float:
        """Exponent of the importance weights."""
        share = min(1.0, self.batches / self.options.beta_batches)
        return self.options.beta + (1.0 - self.options.beta) * share

    def admit(self, rows: Rows) -> None:
        """These rows end whole transitions from now on."""
        self._tree.put(rows, self.largest**self.options.alpha)

    def discard(self, rows: Rows) -> None:
        """These rows do not any more."""
        self._tree.put(rows, 0.0)

    def draw(self, rng: np.random.Generator, count: int, length: int) -> tuple[Rows, Array]:
        """Draw B = `count` of the N = `length` rows with a priority, one out of each of B equal parts of their sum.

        Returns the rows, int [B], and their importance weights, float32 [B], at most 1.
        """
        total = self._tree.total
        rows = self._tree.find((np.arange(count) + rng.random(count)) * (total / count))
        weights = (length / total * self.powers.take(rows)) ** -self.beta
        self.batches += 1
        return rows, (weights / weights.max()).astype(np.float32)

    def update(self, rows: Rows, td_error: Array) -> None:
        """Set priorities from TD errors; what is not finite, and rows without a priority, are left as they are."""
        errors = np.abs(td_error.astype(np.float64)) + self.options.epsilon
        counts = np.isfinite(errors) & (self.powers.take(rows) > 0)
        if counts.any():
            self.largest = max(self.largest, float(errors[counts].max()))
            self._tree.put(rows[counts], errors[counts] ** self.options.alpha)
