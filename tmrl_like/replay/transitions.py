"""Transitions out of rows: of one step, or of n with the sum of their rewards.

Each row is read by one gather per column, for a whole batch and for a single transition alike: both
hold the same bits.

n-step returns: for a transition whose action led to reward r(1), with k <= n steps that the same episode went on,

    y = r(1) + gamma r(2) + ... + gamma^(k-1) r(k) + gamma^k (1 - terminated(k)) V(obs(k))

(Sutton and Barto, "Reinforcement Learning", 2018, section 7.1). k is smaller than n where the episode ends first,
terminated or truncated, at the first action that was not greedy, if those are to end it, and where the memory holds no
more of it yet: a shorter return is as true as a longer one. k is counted when samples arrive (`RowIndex.steps`), and
rewards and potentials are stored step by step; they are summed up when a transition is drawn, so that gamma and the
weight of the potentials may change at any time.

With potentials phi of weight w each reward becomes r + w (gamma phi(s') - phi(s)) (Ng, Harada and Russell, "Policy
invariance under reward transformations", 1999, equation 2). Over k steps all but two cancel out:

    y' = y + w (gamma^k phi(obs(k)) - phi(obs(0)))

phi is 0 where an episode terminated or a mini-race (see `mini_races`) is over, without which the best policy would
change with phi.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from tmrl_like.replay.collate import to_tensor
from tmrl_like.replay.replay_options import ReplayOptions
from tmrl_like.replay.row_index import RowIndex, follow
from tmrl_like.replay.row_set import Array, Rows
from tmrl_like.replay.sample_check import item
from tmrl_like.replay.table import Column, Table
from tmrl_like.types import Batch


class Rebuilder:
    """Makes transitions of rows; puts action buffers and stacks of frames together again.

    Where a method takes a device, it gives tensors [B, ...] on it, numbers as float32 [B]; without one, of a batch of
    one, what was stored, of the type that it had.
    """

    def __init__(self, table: Table, index: RowIndex, options: ReplayOptions) -> None:
        """Read from these."""
        self.table = table
        self.index = index
        self.options = options
        self.columns = {name: item(name) for name in options.kept}
        self.race = options.race_steps

    def transitions(
        self, rows: Rows, device: str | None, gamma: float = 0.0, shaping: float = 0.0, left: Rows | None = None
    ) -> Batch:
        """The transitions that begin with the steps to `rows`, int [B].

        Args:
            rows: which; `discount` is gamma^k, None where n is 1 and there are no races.
            device: of the tensors.
            gamma: discount per step.
            shaping: w, weight of the potentials.
            left: of a race, how many steps are left at the older observation, int [B]; None: no races.
        """
        columns = {name: self._gather(field, rows[None], device)[0] for name, field in self.columns.items()}
        beside: dict[str, Any] = {}
        if self.options.n_steps == 1 and left is None and not shaping:
            ends, rew = rows, self._number("rew", rows, device)
        else:
            ahead, counts = self._ahead(rows)
            if left is not None:
                counts = np.minimum(counts, left)
            ends = ahead[counts - 1, np.arange(len(rows))]
            powers = _powers(gamma, self.options.n_steps)
            rewards, discounts = _summed(self._values("rew", ahead), counts, powers), powers.take(counts)
            is_over = self._values("terminated", ends) != 0
            if left is not None:
                is_over |= counts == left
                shares = {"time_left": left, "next_time_left": left - counts}
                beside = {name: _number_of(steps / self.race, device) for name, steps in shares.items()}
            if shaping:
                potential = self.columns["potential"]
                before = self._values(potential, self.index.parent.take(rows).astype(np.intp)).astype(np.float64)
                after = self._values(potential, ends).astype(np.float64)
                rewards += shaping * (np.where(is_over, 0.0, discounts * after) - before)
            rew = _number_of(rewards, device)
            if self.options.n_steps > 1 or left is not None:
                beside["discount"] = _number_of(discounts, device)
        last_obs, act, obs = self._ends_of(rows, ends, device)
        terminated, truncated = (self._number(name, ends, device) for name in ("terminated", "truncated"))
        if left is not None:
            terminated = _number_of(is_over, device)
        return Batch(last_obs, act, rew, obs, terminated, truncated, columns=columns or None, **beside)

    def original(self, row: int, originals: dict[int, Any], gamma: float) -> tuple[Any, ...] | None:
        """CRC debugging: what the environment produced of the transition that begins with the step to a row.

        `originals` are single steps, by their rows.
        """
        if self.options.n_steps == 1:
            return originals.get(row)
        ahead, counts = self._ahead(np.array([row]))
        steps = [original for row in ahead[: counts[0], 0].tolist() if (original := originals.get(row))]
        if len(steps) < counts[0]:
            return None
        rewards = np.array([[float(np.asarray(step[2]).item())] for step in steps])
        rew = _summed(rewards, counts, _powers(gamma, self.options.n_steps)).item()
        return (*steps[0][:2], rew, *steps[-1][3:6])

    def _ends_of(self, rows: Rows, ends: Rows, device: str | None) -> tuple[Any, Any, Any]:
        """Observation before, action, and observation after B steps, or sequences of steps.

        The first actions led to `rows`, int [B], the last ones to `ends`, int [B].
        """
        parent, length = self.index.parent, self.options.act_buf_len
        walk = follow(parent, rows, max(1, length))
        before, after = walk[1:], walk[:-1] if ends is rows else follow(parent, ends, max(1, length) - 1)
        last_obs, obs = self._gather("obs", np.stack((before[0], after[0])), device)
        if not length:
            return last_obs, self._gather("act", rows[None], device)[0], obs
        act, *actions = self._gather("act", np.concatenate((rows[None], before[::-1], after[::-1])), device)
        return (*last_obs, *actions[:length]), act, (*obs, *actions[length:])

    def _number(self, field: str, rows: Rows, device: str | None) -> Any:
        """The number of a field at `rows`, int [B]."""
        column = self.table.fields[field].columns[0]
        values = column.array.take(rows, axis=0)
        return column.restored(values) if device is None else _number_of(values, device)

    def _values(self, field: str, rows: Rows) -> Array:
        """The numbers of a field at `rows`: an array of their shape."""
        return self.table.fields[field].columns[0].array.take(rows, axis=0).reshape(rows.shape)

    def _ahead(self, rows: Rows) -> tuple[Rows, Rows]:
        """The rows that the steps from `rows`, int [B], end in, int [n, B], and how many of them count: k, int [B]."""
        if self.index.steps is None or self.index.following is None:
            return rows[None], np.ones(len(rows), np.intp)
        ahead = follow(self.index.following, rows, self.options.n_steps - 1)
        return ahead, self.index.steps.take(rows).astype(np.intp)

    def _gather(self, name: str, rows: Rows, device: str | None) -> list[Any]:
        """`rows` int [K, B] -> K structures of a field."""
        field = self.table.fields[name]
        if any(field.stacks):
            older = self.index.parent if self.index.older_frame is None else self.index.older_frame
            frames = follow(older, rows, max(field.stacks) - 1)[::-1].transpose(1, 2, 0)  # oldest first
        leaves = []
        for column, size in zip(field.columns, field.stacks, strict=True):
            values = column.array.take(frames[..., -size:] if size else rows, axis=0)
            if size and self.options.frame_padding == "zero":
                _blank_padding(values, frames[..., -size:])
            leaves.append(_leaves_of(column, values, device))
        return [field.tree([leaf[k] for leaf in leaves]) for k in range(len(rows))]


def _leaves_of(column: Column, values: Array, device: str | None) -> Any:
    """`values` [K, B, ...] -> one leaf for each of the K."""
    return [column.restored(value) for value in values] if device is None else to_tensor(values, device).unbind(0)


def _number_of(values: Array, device: str | None) -> Any:
    """`values` [B, ...], one number each."""
    if device is None:
        return values.item()
    return to_tensor(values.reshape(len(values)).astype(np.float32, copy=False), device)


@lru_cache(maxsize=8)
def _powers(gamma: float, n_steps: int) -> Array:
    """gamma^k, float64 [n + 1]."""
    return np.array([gamma**k for k in range(n_steps + 1)])


def _summed(rewards: Array, counts: Rows, powers: Array) -> Array:
    """Sum up the first `counts`, int [B], of rewards [n, B], discounted; float64 [B]."""
    total = np.zeros(rewards.shape[1:])
    for k, reward in enumerate(rewards):  # one after the other: a sum of a batch has the bits of a single one
        total += np.where(k < counts, powers[k] * reward.astype(np.float64), 0.0)
    return total


def _blank_padding(stacked: Array, rows: Rows) -> None:
    """Put zeros where frames of `rows`, int [2, B, k], oldest first, are repeats of an episode's first one."""
    is_repeat = rows[..., :-1] == rows[..., 1:]
    if is_repeat.any():
        stacked[:, :, :-1][is_repeat] = 0
