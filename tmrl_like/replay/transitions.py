"""Transitions out of rows: of one step, or of n with the sum of their rewards.

Each row is read by one gather per column, for a whole batch and for a single transition alike: both
hold the same bits.

n-step returns: for a transition whose action led to reward r(1), with k <= n steps that the same episode went on,

    y = r(1) + gamma r(2) + ... + gamma^(k-1) r(k) + gamma^k (1 - terminated(k)) V(obs(k))

(Sutton and Barto, "Reinforcement Learning", 2018, section 7.1). k is smaller than n where the episode ends first,
terminated or truncated, at the first action that was not greedy, if those are to end it, and where the memory holds no
more of it yet: a shorter return is as true as a longer one. k is counted when samples arrive (`Lanes.steps`), and
rewards and potentials are stored step by step; they are summed up when a transition is drawn, so that gamma and the
weight of the potentials may change at any time.

With potentials phi of weight w each reward becomes r + w (gamma phi(s') - phi(s)) (Ng, Harada and Russell, "Policy
invariance under reward transformations", 1999, equation 2). Over k steps all but two cancel out:

    y' = y + w (gamma^k phi(obs(k)) - phi(obs(0)))

phi is 0 where an episode terminated or a mini-race (see `mini_races`) is over, without which the best policy would
change with phi.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tmrl_like.replay.collate import to_tensor
from tmrl_like.replay.columns import Array, Column, FieldColumns, Rows
from tmrl_like.replay.lanes import Lanes, follow
from tmrl_like.replay.layout import FramePadding
from tmrl_like.replay.store import ACT, COLUMNS, OBS, REW, Store
from tmrl_like.types import Batch


@dataclass(frozen=True)
class Tensors:
    """Tensors [B, ...] on a device, numbers as float32 [B]."""

    device: str

    def leaves(self, column: Column, values: Array) -> Sequence[Any]:
        """`values` [K, B, ...] -> one leaf for each of the K."""
        return to_tensor(values, self.device).unbind(0)

    def number(self, values: Array, column: Column | None = None) -> Any:
        """`values` [B, ...], one number each, of a column or (None) computed."""
        return to_tensor(values.reshape(len(values)).astype(np.float32, copy=False), self.device)


class AsStored:
    """Of a batch of one: what was stored, of the type that it had. Otherwise as `Tensors`."""

    def leaves(self, column: Column, values: Array) -> Sequence[Any]:
        return [column.restored(value) for value in values]

    def number(self, values: Array, column: Column | None = None) -> Any:
        return values.item() if column is None else column.restored(values)


Form: TypeAlias = Tensors | AsStored
"""What becomes of the values that were gathered."""


@dataclass(eq=False)
class Rebuilder:
    """Makes transitions of rows; puts action buffers and stacks of frames together again.

    See `ReplayMemory` for the last five.
    """

    lanes: Lanes
    store: Store
    originals: Mapping[int, Any]  # CRC debugging: what the environment produced, by row
    act_buf_len: int
    frame_padding: FramePadding
    n_steps: int
    columns: Sequence[str]
    powers: Array  # gamma^k, float64 [n + 1]

    def transitions(
        self, rows: Rows, form: Form, shaping: float = 0.0, left: Rows | None = None, race: int = 1
    ) -> Batch:
        """The transitions that begin with the steps to `rows`, int [B].

        Args:
            rows: which; `discount` is gamma^k, None where n is 1 and there are no races.
            form: of what is in them.
            shaping: w, weight of the potentials.
            left: of a race of `race` steps, how many are left at the older observation, int [B]; None: no races.
            race: T.
        """
        columns = {name: self._gather(COLUMNS + k, rows[None], form)[0] for k, name in enumerate(self.columns)}
        beside: dict[str, Any] = {}
        if self.n_steps == 1 and left is None and not shaping:
            ends, rew = rows, self._number(REW, rows, form)
        else:
            ahead, counts = self._ahead(rows)
            if left is not None:
                counts = np.minimum(counts, left)
            ends = ahead[counts - 1, np.arange(len(rows))]
            rewards, discounts = self._discounted_sum(self._numbers(REW, ahead), counts), self.powers.take(counts)
            is_over = self._numbers(REW + 1, ends) != 0
            if left is not None:
                is_over |= counts == left
                beside = {"time_left": form.number(left / race), "next_time_left": form.number((left - counts) / race)}
            if shaping:
                before, after = self._potentials(self.lanes.parent.take(rows).astype(np.intp)), self._potentials(ends)
                rewards += shaping * (np.where(is_over, 0.0, discounts * after) - before)
            rew = form.number(rewards)
            if self.n_steps > 1 or left is not None:
                beside["discount"] = form.number(discounts)
        last_obs, act, obs = self._ends_of(rows, ends, form)
        terminated, truncated = (self._number(REW + k, ends, form) for k in (1, 2))
        if left is not None:
            terminated = form.number(is_over)
        return Batch(last_obs, act, rew, obs, terminated, truncated, columns=columns or None, **beside)

    def original(self, row: int) -> tuple[Any, ...] | None:
        """CRC debugging: what the environment produced of the transition that begins with the step to a row."""
        if self.n_steps == 1:
            return self.originals.get(row)
        ahead, counts = self._ahead(np.array([row]))
        steps = [original for row in ahead[: counts[0], 0].tolist() if (original := self.originals.get(row))]
        if len(steps) < counts[0]:
            return None
        rewards = np.array([[float(np.asarray(step[2]).item())] for step in steps])
        return (*steps[0][:2], self._discounted_sum(rewards, counts).item(), *steps[-1][3:6])

    def _ends_of(self, rows: Rows, ends: Rows, form: Form) -> tuple[Any, Any, Any]:
        """Observation before, action, and observation after B steps, or sequences of steps.

        The first actions led to `rows`, int [B], the last ones to `ends`, int [B].
        """
        length = self.act_buf_len
        walk = follow(self.lanes.parent, rows, max(1, length))
        before, after = walk[1:], walk[:-1] if ends is rows else follow(self.lanes.parent, ends, max(1, length) - 1)
        last_obs, obs = self._gather(OBS, np.stack((before[0], after[0])), form)
        actions = rows[None] if not length else np.concatenate((rows[None], before[::-1], after[::-1]))
        act, *buffers = self._gather(ACT, actions, form)
        return (*last_obs, *buffers[:length]) if length else last_obs, act, (*obs, *buffers[length:]) if length else obs

    def _number(self, field: int, rows: Rows, form: Form) -> Any:
        """The number of a field at `rows`, int [B]."""
        (column,) = self.store.fields[field].columns
        return form.number(column.array.take(rows, axis=0), column)

    def _numbers(self, field: int, rows: Rows) -> Array:
        """The numbers of a field at `rows`: an array of their shape."""
        return self.store.fields[field].columns[0].array.take(rows, axis=0).reshape(rows.shape)

    def _potentials(self, rows: Rows) -> Array:
        return self._numbers(COLUMNS + self.columns.index("potential"), rows).astype(np.float64)

    def _ahead(self, rows: Rows) -> tuple[Rows, Rows]:
        """The rows that the steps from `rows`, int [B], end in, int [n, B], and how many of them count: k, int [B]."""
        following, steps = self.lanes.following, self.lanes.steps
        if following is None or steps is None:
            return rows[None], np.ones(len(rows), np.intp)
        return follow(following, rows, self.n_steps - 1), steps.take(rows).astype(np.intp)

    def _discounted_sum(self, rewards: Array, counts: Rows) -> Array:
        """Sum up the first `counts`, int [B], of rewards [n, B]; float64 [B]."""
        total = np.zeros(rewards.shape[1:])
        for k, reward in enumerate(rewards):  # one after the other: a sum of a batch has the bits of a single one
            total += np.where(k < counts, self.powers[k] * reward.astype(np.float64), 0.0)
        return total

    def _gather(self, index: int, rows: Rows, form: Form) -> list[Any]:
        """`rows` int [K, B] -> K structures of a field."""
        field: FieldColumns = self.store.fields[index]
        stacks = self.store.stacks if index == OBS else ()
        leaves = []
        if not any(stacks):
            leaves = [form.leaves(column, column.array.take(rows, axis=0)) for column in field.columns]
        else:
            older = self.lanes.parent if self.lanes.older_frame is None else self.lanes.older_frame
            oldest_first = follow(older, rows, max(stacks) - 1)[::-1].transpose(1, 2, 0)
            for column, size in zip(field.columns, stacks, strict=True):
                values = column.array.take(oldest_first[..., -size:] if size else rows, axis=0)
                if size and self.frame_padding == "zero":
                    _blank_padding(values, oldest_first[..., -size:])
                leaves.append(form.leaves(column, values))
        return [field.tree([leaf[k] for leaf in leaves]) for k in range(len(rows))]


def _blank_padding(stacked: Array, rows: Rows) -> None:
    """Put zeros where frames of `rows`, int [2, B, k], oldest first, are repeats of an episode's first one."""
    is_repeat = rows[..., :-1] == rows[..., 1:]
    if is_repeat.any():
        stacked[:, :, :-1][is_repeat] = 0
