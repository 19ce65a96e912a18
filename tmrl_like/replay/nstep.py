"""n-step returns, computed when a transition is drawn: from the rows after it, not stored.

For a transition whose action led to reward r(1), with k <= n steps that the same episode went on,

    y = r(1) + gamma r(2) + ... + gamma^(k-1) r(k) + gamma^k (1 - terminated(k)) V(obs(k))

(Sutton and Barto, "Reinforcement Learning", 2018, section 7.1). k is smaller than n where the episode ends first,
terminated or truncated, and where the memory holds no more of it yet: a shorter return is as true as a longer one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tmrl_like.replay.columns import Array
from tmrl_like.replay.lanes import Lanes, Rows


@dataclass(frozen=True, slots=True)
class Ahead:
    """The steps that B transitions span.

    Attributes:
        rows: int [n, B], the rows that each step ends in.
        is_taken: bool [n, B], False from the end of the episode on.
        counts: int [B], how many are taken: k.
        ends: int [B], the last row of them.
    """

    rows: Rows
    is_taken: np.ndarray[Any, np.dtype[np.bool_]]
    counts: Rows
    ends: Rows


def look_ahead(lanes: Lanes, rows: Rows, steps: int, terminated: Array, truncated: Array) -> Ahead:
    """Follow each of `rows`, int [B], for up to `steps` steps in all, to the end of its episode.

    Args:
        lanes: knows which row follows which.
        rows: rows that transitions end in.
        steps: n.
        terminated: [capacity].
        truncated: [capacity].
    """
    walked = lanes.walk_ahead(rows, steps - 1)
    is_taken = np.ones(walked.shape, np.bool_)
    for k in range(1, steps):
        before = walked[k - 1]
        ended = terminated.take(before).astype(np.bool_) | truncated.take(before).astype(np.bool_)
        is_taken[k] = is_taken[k - 1] & (walked[k] != before) & ~ended
    counts = is_taken.sum(axis=0)
    return Ahead(walked, is_taken, counts, walked[counts - 1, np.arange(len(rows))])


def discounted_sum(rewards: Array, is_taken: Array, gamma: float) -> Array:
    """Sum up rewards [n, B]; float64 [B]."""
    total = np.zeros(rewards.shape[1:])
    for k in range(len(rewards)):
        total += np.where(is_taken[k], gamma**k * rewards[k].astype(np.float64), 0.0)
    return total


def joined(steps: Sequence[Sequence[Any]], gamma: float) -> tuple[Any, ...]:
    """One transition out of consecutive ones, each (last_obs, act, rew, obs, terminated, truncated, …)."""
    rew = 0.0
    for k, step in enumerate(steps):
        rew += gamma**k * float(np.asarray(step[2]).item())
    return (*steps[0][:2], rew, *steps[-1][3:6])
