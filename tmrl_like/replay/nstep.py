"""n-step returns, computed when a transition is drawn: from the rows after it, not stored.

For a transition whose action led to reward r(1), with k <= n steps that the same episode went on,

    y = r(1) + gamma r(2) + ... + gamma^(k-1) r(k) + gamma^k (1 - terminated(k)) V(obs(k))

(Sutton and Barto, "Reinforcement Learning", 2018, section 7.1). k is smaller than n where the episode ends first,
terminated or truncated, and where the memory holds no more of it yet: a shorter return is as true as a longer one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tmrl_like.replay.columns import Array, Rows
from tmrl_like.replay.lanes import follow
from tmrl_like.replay.store import REW
from tmrl_like.replay.views import Form, Rebuilder
from tmrl_like.types import Batch


class NSteps:
    """A transition is one step of the environment, or up to n with the discounted sum of their rewards."""

    def __init__(self, rebuilder: Rebuilder, originals: Mapping[int, Any], steps: int, gamma: float) -> None:
        """Look at a memory's rows; `steps` is n, `originals` what the environment produced, by row (CRC debugging)."""
        self._rebuilder = rebuilder
        self._originals = originals
        self._steps = steps
        self._powers = np.array([gamma**k for k in range(steps + 1)])

    def transitions(self, rows: Rows, form: Form) -> Batch:
        """The transitions that begin with the steps to `rows`, int [B]; `discount` is gamma^k, None where n is 1."""
        if self._steps == 1:
            ends, rew, discount = rows, self._rebuilder.number(REW, rows, form), None
        else:
            ahead, counts = self._look_ahead(rows)
            ends = ahead[counts - 1, np.arange(len(rows))]
            rew = form.number(self._discounted_sum(self._rebuilder.numbers(REW, ahead), counts))
            discount = form.number(self._powers.take(counts))
        last_obs, act, obs = self._rebuilder.steps(rows, ends, form)
        terminated, truncated = (self._rebuilder.number(REW + k, ends, form) for k in (1, 2))
        return Batch(last_obs, act, rew, obs, terminated, truncated, discount=discount)

    def original(self, row: int) -> tuple[Any, ...] | None:
        """CRC debugging: what the environment produced of the transition that begins with the step to a row."""
        if self._steps == 1:
            return self._originals.get(row)
        ahead, counts = self._look_ahead(np.array([row]))
        steps = [original for row in ahead[: counts[0], 0].tolist() if (original := self._originals.get(row))]
        if len(steps) < counts[0]:
            return None
        rewards = np.array([[float(np.asarray(step[2]).item())] for step in steps])
        return (*steps[0][:2], self._discounted_sum(rewards, counts).item(), *steps[-1][3:6])

    def _look_ahead(self, rows: Rows) -> tuple[Rows, Rows]:
        """The rows that the steps from `rows`, int [B], end in, int [n, B], and how many of them count: k, int [B]."""
        following = self._rebuilder.lanes.following
        assert following is not None
        ahead = follow(following, rows, self._steps - 1)
        ended = np.logical_or(*(self._rebuilder.numbers(REW + k, ahead[:-1]) for k in (1, 2)))
        goes_on = (ahead[1:] != ahead[:-1]) & ~ended
        return ahead, 1 + np.logical_and.accumulate(goes_on).sum(axis=0)

    def _discounted_sum(self, rewards: Array, counts: Rows) -> Array:
        """Sum up the first `counts`, int [B], of rewards [n, B]; float64 [B]."""
        total = np.zeros(rewards.shape[1:])
        for k, reward in enumerate(rewards):  # one after the other: a sum of a batch has the bits of a single one
            total += np.where(k < counts, self._powers[k] * reward.astype(np.float64), 0.0)
        return total
