"""Transitions out of rows: one at a time, or a batch by one gather per column. Both ways give the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import eq
from typing import Any, Protocol

import numpy as np

from tmrl_like.replay.collate import to_tensor
from tmrl_like.replay.columns import Array, Column, FieldColumns
from tmrl_like.replay.lanes import Lanes, Rows
from tmrl_like.replay.layout import FramePadding, FrameStack, stack_sizes
from tmrl_like.replay.nstep import Ahead, discounted_sum, joined, look_ahead
from tmrl_like.replay.samples import ACT, OBS, REW
from tmrl_like.replay.store import Store
from tmrl_like.types import Batch, Info, Transition


class Settings(Protocol):
    """What of `ReplayMemory` the views depend on."""

    act_buf_len: int
    frame_stack: FrameStack
    frame_padding: FramePadding
    n_steps: int
    gamma: float | None
    device: str


class Views:
    """Rebuilds action buffers, stacks of frames and n-step returns from the rows of a store."""

    def __init__(self, lanes: Lanes, store: Store, settings: Settings, originals: Mapping[int, Any]) -> None:
        """Look at a memory's rows.

        Args:
            lanes: which row follows which.
            store: the rows.
            settings: the memory's.
            originals: CRC debugging: row -> what the environment produced.
        """
        self._lanes = lanes
        self._store = store
        self._settings = settings
        self._originals = originals

    @property
    def _gamma(self) -> float:
        return 1.0 if self._settings.gamma is None else self._settings.gamma

    # ---- one

    def transition(self, row: int) -> Transition:
        """The transition that begins with the step to a row."""
        if self._settings.n_steps == 1:
            return self._one_step(row)
        steps = [self._one_step(row) for row in self._episode_from(row)]
        return Transition._make((*joined(steps, self._gamma), Info(original=self._joined_originals(steps))))

    def _one_step(self, row: int) -> Transition:
        """The transition that ends in a row."""
        walk: list[int] = self._lanes.walk(np.array([row]), max(1, self._settings.act_buf_len))[:, 0].tolist()
        act, _, rew, terminated, truncated = self._store.fields
        last_obs, new_obs = self._observation(walk[1]), self._observation(walk[0])
        if self._settings.act_buf_len:
            last_obs, new_obs = last_obs + self._action_buffer(walk[1:]), new_obs + self._action_buffer(walk[:-1])
        info = Info(original=self._originals.get(row))
        flags = terminated.value(row), truncated.value(row)
        return Transition(last_obs, act.value(row), rew.value(row), new_obs, *flags, info)

    def _episode_from(self, row: int) -> Iterator[int]:
        """A row, and those after it in the same episode, up to `n_steps` of them."""
        for _ in range(self._settings.n_steps):
            yield row
            after = int(self._lanes.walk_ahead(np.array([row]), 1)[1, 0])
            if after == row or any(bool(flag.value(row)) for flag in self._store.fields[REW + 1 :]):
                return
            row = after

    def _joined_originals(self, steps: Sequence[Transition]) -> tuple[Any, ...] | None:
        originals = [step.info.original for step in steps if isinstance(step.info, Info) and step.info.original]
        return joined(originals, self._gamma) if len(originals) == len(steps) else None

    @property
    def _stacks(self) -> list[int]:
        """How many frames are stacked in each leaf of an observation."""
        return (
            stack_sizes(self._settings.frame_stack, self._store.fields[OBS].node) if self._settings.frame_stack else []
        )

    def _observation(self, row: int) -> Any:
        """What the environment observed at a row, without the action buffer."""
        field, stacks = self._store.fields[OBS], self._stacks
        if not any(stacks):
            return field.value(row)
        frames = self._lanes.walk_frames(np.array([row]), max(stacks) - 1)[:, 0].tolist()
        pairs = zip(field.columns, stacks, strict=True)
        return field.tree([self._stack(c, frames[:size]) if size else c.value(row) for c, size in pairs])

    def _stack(self, column: Column, newest_first: list[int]) -> Array:
        frames = [np.asarray(column.value(row)) for row in newest_first]
        if self._settings.frame_padding == "zero":
            repeats = [False, *map(eq, newest_first, newest_first[1:])]
            frames = [np.zeros_like(f) if is_repeat else f for f, is_repeat in zip(frames, repeats, strict=True)]
        return np.stack(frames[::-1])

    def _action_buffer(self, newest_first: list[int]) -> tuple[Any, ...]:
        return tuple([self._store.fields[ACT].value(row) for row in reversed(newest_first)])

    # ---- a batch

    def batch(self, rows: Rows) -> Batch:
        """The transitions that begin with the steps to `rows`, int [B], as tensors."""
        if self._settings.n_steps > 1:
            return self._gather_n_steps(rows)
        walk = self._lanes.walk(rows, max(1, self._settings.act_buf_len))
        last_obs, act, obs = self._gather_structures(walk[1:], rows, walk[:-1])
        rew, terminated, truncated = (self._gather_numbers(field, rows) for field in self._store.fields[REW:])
        return Batch(last_obs, act, rew, obs, terminated, truncated)

    def _gather_n_steps(self, rows: Rows) -> Batch:
        """The transitions that begin with the step to each of `rows`, int [B]."""
        ahead = self._ahead(rows)
        before = self._lanes.walk(rows, max(1, self._settings.act_buf_len))[1:]
        last_obs, act, obs = self._gather_structures(before, rows, self._lanes.walk(ahead.ends, len(before) - 1))
        rewards = self._store.fields[REW].columns[0].array.take(ahead.rows, axis=0).reshape(ahead.rows.shape)
        rew = to_tensor(discounted_sum(rewards, ahead.is_taken, self._gamma).astype(np.float32), self._settings.device)
        terminated, truncated = (self._gather_numbers(field, ahead.ends) for field in self._store.fields[REW + 1 :])
        return Batch(last_obs, act, rew, obs, terminated, truncated, discount=self._powers(ahead))

    def _ahead(self, rows: Rows) -> Ahead:
        flags = (field.columns[0].array for field in self._store.fields[REW + 1 :])
        return look_ahead(self._lanes, rows, self._settings.n_steps, *flags)

    def discount(self, rows: Rows) -> Any:
        """What the value of next_obs counts in each of these transitions: float32 [B]."""
        return self._powers(self._ahead(rows))

    def _powers(self, ahead: Ahead) -> Any:
        powers = np.array([self._gamma**k for k in range(self._settings.n_steps + 1)], np.float32)
        return to_tensor(powers.take(ahead.counts), self._settings.device)

    def _gather_structures(self, before: Rows, rows: Rows, after: Rows) -> tuple[Any, Any, Any]:
        """Older observation, action and newer observation of B transitions.

        Args:
            before: int [max(1, act_buf_len), B], a walk from the rows of the older observations.
            rows: int [B], rows of the actions.
            after: int, as `before`, from the rows of the newer observations.
        """
        length = self._settings.act_buf_len
        last_obs, obs = self._gather_observations(np.stack((before[0], after[0])))
        if not length:
            return last_obs, self._gather_field(self._store.fields[ACT], rows[None])[0], obs
        act, *buffers = self._gather_field(
            self._store.fields[ACT], np.concatenate((rows[None], before[::-1], after[::-1]))
        )
        return (*last_obs, *buffers[:length]), act, (*obs, *buffers[length:])

    def _gather_observations(self, rows: Rows) -> list[Any]:
        """`rows` int [2, B] -> 2 observations of tensors [B, ...] without action buffers."""
        field, stacks = self._store.fields[OBS], self._stacks
        if not any(stacks):
            return self._gather_field(field, rows)
        oldest_first = self._lanes.walk_frames(rows, max(stacks) - 1)[::-1].transpose(1, 2, 0)
        leaves = []
        for column, size in zip(field.columns, stacks, strict=True):
            stacked = column.array.take(oldest_first[..., -size:] if size else rows, axis=0)
            if size and self._settings.frame_padding == "zero":
                _blank_padding(stacked, oldest_first[..., -size:])
            leaves.append(to_tensor(stacked, self._settings.device).unbind(0))
        return [field.tree([leaf[k] for leaf in leaves]) for k in range(len(rows))]

    def _gather_field(self, field: FieldColumns, rows: Rows) -> list[Any]:
        """`rows` int [K, B] -> K structures of tensors [B, ...], each with memory of its own."""
        leaves = [to_tensor(c.array.take(rows, axis=0), self._settings.device).unbind(0) for c in field.columns]
        return [field.tree([leaf[k] for leaf in leaves]) for k in range(len(rows))]

    def _gather_numbers(self, field: FieldColumns, rows: Rows) -> Any:
        """`rows` int [B] -> float32 [B]."""
        numbers = field.columns[0].array.take(rows, axis=0).reshape(len(rows))
        return to_tensor(numbers.astype(np.float32, copy=False), self._settings.device)


def _blank_padding(stacked: Array, rows: Rows) -> None:
    """Put zeros where frames of `rows`, int [2, B, k], oldest first, are repeats of an episode's first one."""
    is_repeat = rows[..., :-1] == rows[..., 1:]
    if is_repeat.any():
        stacked[:, :, :-1][is_repeat] = 0
