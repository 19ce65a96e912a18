"""Rebuilds transitions from rows: of one step, or of n steps with the sum of their rewards.

Rows are read with one gather per column, for a whole batch and for a single transition alike, so
both hold the same bits.

n-step returns: for a transition whose action led to reward r(1), in an episode that went on for
k <= n steps,

    y = r(1) + gamma r(2) + ... + gamma^(k-1) r(k) + gamma^k (1 - terminated(k)) V(obs(k))

(Sutton and Barto, "Reinforcement Learning", 2018, section 7.1). k is smaller than n if the episode
ends first (terminated or truncated), if an action is not greedy and such actions end the sum, or if
the memory does not hold more of the episode yet. A shorter return is as valid as a longer one. k is
counted when samples arrive (`RowIndex.steps`). Rewards and potentials are stored step by step and
summed up when a transition is drawn, so gamma and the weight of the potentials may change at any
time.

With potentials phi of weight w, each reward becomes r + w (gamma phi(s') - phi(s)) (Ng, Harada and
Russell, "Policy invariance under reward transformations", 1999, equation 2). Over k steps, all but
two terms cancel out:

    y' = y + w (gamma^k phi(obs(k)) - phi(obs(0)))

phi is 0 where an episode terminated or a mini-race is over; otherwise, the best policy would change
with phi.

Mini-races are a view in which each transition is at some moment of a race of T steps. When a
transition is drawn, so is u, the number of steps left in its race, uniformly from 1 to T. Rewards
beyond the end of the race are left out:

    k' = min(k, u)
    y  = r(1) + gamma r(2) + ... + gamma^(k'-1) r(k') + gamma^k' (1 - d) V(obs(k'), (u - k') / T)

d is 1 if the race is over (k' = u) or step k' terminated the episode, else 0. Beside the
observation, the network sees u / T. Its value is that of the next u steps alone, so gamma may be 1:

    V(obs, u / T) = E[r(1) + r(2) + ... + r(u)]

A worker always acts at the start of a race (u = T), and so chooses what brings the most reward in
the next T steps. Values that depend on the time left are from Pardo et al., "Time Limits in
Reinforcement Learning", 2018 (arXiv:1712.00378, section 3); drawing that time for each transition
is an idea of Linesight's, for TrackMania.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias, Union

import numpy as np

from tmrl_like.replay.collate import Six, to_tensor
from tmrl_like.replay.replay_options import ReplayOptions
from tmrl_like.replay.row_index import RowIndex, follow
from tmrl_like.replay.row_set import Array, Rows
from tmrl_like.replay.sample_check import item
from tmrl_like.replay.table import Table
from tmrl_like.types import Action, Batch, Observation
from tmrl_like.wire.columns import leaf_rows
from tmrl_like.wire.schema import Leaf

if TYPE_CHECKING:
    import torch

Number: TypeAlias = Union["torch.Tensor", float]
"""A number of one transition, or of a batch of them."""

_POTENTIAL = item("potential")


@dataclass(eq=False)
class Rebuilder:
    """Makes transitions from rows, and rebuilds action buffers and stacks of frames.

    A method that takes a device returns tensors [B, ...] on it, with numbers as float32 [B]. With
    None as device it serves batches of one, and returns what was stored, in its original type.
    """

    table: Table
    index: RowIndex
    options: ReplayOptions

    def batches(
        self,
        rows: Rows,
        device: str | None,
        gamma: float = 0.0,
        shaping: float = 0.0,
        left: Rows | None = None,
    ) -> list[Batch]:
        """Return M batches of the transitions that begin with the steps to `rows`, int [M, B].

        `discount` of a batch is gamma^k, or None if n is 1 and there are no races.

        Args:
            rows: the rows that the transitions' first steps lead to.
            device: of the tensors.
            gamma: discount per step.
            shaping: w, weight of the potentials.
            left: how many steps of a race are left at the older observation, int [M, B]; None: no
                races.
        """
        beside: dict[str, Sequence[Number]] = {}
        if self.options.n_steps == 1 and left is None and not shaping:
            ends = rows
            rew = self._number("rew", rows, device)
        else:
            ahead, counts = self._ahead(rows)
            if left is not None:
                counts = np.minimum(counts, left)
            ends = np.take_along_axis(ahead, counts[None] - 1, axis=0)[0]
            powers = _powers(gamma, self.options.n_steps)
            rewards = _summed(self._values("rew", ahead), counts, powers)
            discounts = powers.take(counts)
            is_over = self._values("terminated", ends) != 0
            if left is not None:
                is_over |= counts == left
                race_steps = self.options.race_steps
                beside["time_left"] = _numbers_of(left / race_steps, device)
                beside["next_time_left"] = _numbers_of((left - counts) / race_steps, device)
            if shaping:
                parents = self.index.parent.take(rows).astype(np.intp)
                before = self._values(_POTENTIAL, parents).astype(np.float64)
                after = self._values(_POTENTIAL, ends).astype(np.float64)
                rewards += shaping * (np.where(is_over, 0.0, discounts * after) - before)
            rew = _numbers_of(rewards, device)
            if self.options.n_steps > 1 or left is not None:
                beside["discount"] = _numbers_of(discounts, device)
        terminated = (
            self._number("terminated", ends, device)
            if left is None
            else _numbers_of(is_over, device)
        )
        truncated = self._number("truncated", ends, device)
        kept = {name: self._gather(item(name), rows, device) for name in self.options.kept}
        return [
            Batch(
                *(last_obs, act, rew[k], obs, terminated[k], truncated[k]),
                columns={name: leaves[k] for name, leaves in kept.items()} or None,
                **{name: leaves[k] for name, leaves in beside.items()},
            )
            for k, (last_obs, act, obs) in enumerate(self._ends_of(rows, ends, device))
        ]

    def original(self, row: int, originals: Mapping[int, Six | None], gamma: float) -> Six | None:
        """Return what the environment produced for the transition that begins with the step to a
        row, for CRC debugging; None if that is not known.

        `originals` are single steps, by their rows.
        """
        if self.options.n_steps == 1:
            return originals.get(row)
        ahead, counts = self._ahead(np.array([row]))
        steps: list[Six] = []
        rew = 0.0
        for k, at in enumerate(ahead[: counts[0], 0].tolist()):
            step = originals.get(at)
            if step is None:
                return None
            # added as in `_summed`, for the same bits: from Python 3.12 on, `sum` compensates
            rew += gamma**k * float(np.asarray(step[2]).item())
            steps.append(step)
        return (*steps[0][:2], rew, *steps[-1][3:6])

    def _ends_of(
        self, rows: Rows, ends: Rows, device: str | None
    ) -> Iterator[tuple[Observation, Action, Observation]]:
        """Yield, for each of M batches, the observation before, the action, and the observation
        after a step or a sequence of steps.

        The first actions led to `rows`, int [M, B], the last ones to `ends`, int [M, B].
        """
        parent = self.index.parent
        length = self.options.act_buf_len
        count = len(rows)
        walk = follow(parent, rows, max(1, length))
        before = walk[1:]
        after = walk[:-1] if ends is rows else follow(parent, ends, max(1, length) - 1)
        observations = self._gather("obs", np.concatenate((before[0], after[0])), device)
        buffers = (before[::-1], after[::-1]) if length else ()
        actions = self._gather(
            "act", np.concatenate((rows[None], *buffers)).reshape(-1, rows.shape[1]), device
        )
        for k in range(count):
            last_obs, obs = observations[k::count]
            act, *buffered = actions[k::count]
            if length:
                last_obs = (*last_obs, *buffered[:length])
                obs = (*obs, *buffered[length:])
            yield last_obs, act, obs

    def _number(self, field: str, rows: Rows, device: str | None) -> Sequence[Number]:
        """Return the numbers of a field at `rows`, int [M, B], as M leaves."""
        return (
            self._gather(field, rows, None)
            if device is None
            else _numbers_of(self._values(field, rows), device)
        )

    def _values(self, field: str, rows: Rows) -> Array:
        """Return the numbers of a field at `rows`, as an array of their shape."""
        return self.table.fields[field].columns[0].array.take(rows, axis=0).reshape(rows.shape)

    def _ahead(self, rows: Rows) -> tuple[Rows, Rows]:
        """Return the rows that the steps from `rows` on lead to, int [n, *rows.shape], and k, how
        many of them count.
        """
        ahead = follow(self.index.following, rows, self.options.n_steps - 1)
        return ahead, self.index.steps.take(rows).astype(np.intp)

    def _gather(self, name: str, rows: Rows, device: str | None) -> list[Observation]:
        """Return K structures of a field, for `rows` int [K, B]."""
        field = self.table.fields[name]
        leaves: list[Sequence[Observation]] = []
        for column in field.columns:
            if not column.frames:
                values = column.array.take(rows, axis=0)
            else:
                walk = follow(self.index.older_frame, rows, column.frames - 1)
                frames = walk[::-1].transpose(1, 2, 0)  # oldest first
                values = column.array.take(frames, axis=0)
            if device is None:
                leaves.append(leaf_rows(column.leaf, values[:, 0], len(rows)))
            else:
                leaves.append(to_tensor(values, device).unbind(0))
        if isinstance(field.form.node, Leaf):
            return list(leaves[0])
        return [field.tree([leaf[k] for leaf in leaves]) for k in range(len(rows))]


def _numbers_of(values: Array, device: str | None) -> Sequence[Number]:
    """Turn `values` [M, B] into M leaves."""
    if device is None:
        return list(values[:, 0].tolist())
    return to_tensor(values.astype(np.float32, copy=False), device).unbind(0)


@lru_cache(maxsize=8)
def _powers(gamma: float, n_steps: int) -> Array:
    """Return gamma^k for k from 0 to n: float64 [n + 1]."""
    return np.array([gamma**k for k in range(n_steps + 1)])


def _summed(rewards: Array, counts: Rows, powers: Array) -> Array:
    """Return the discounted sum of the first `counts`, int [B], of rewards [n, B]: float64 [B]."""
    total = np.zeros(rewards.shape[1:])
    # one after the other, so that a batch has the same bits as a single transition
    for k, reward in enumerate(rewards):
        total += np.where(k < counts, powers[k] * reward.astype(np.float64), 0.0)
    return total
