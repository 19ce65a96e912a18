"""Observations, actions and numbers out of rows.

Each row is read by one gather per column, for a whole batch and for a single transition alike: both
hold the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from tmrl_like.replay.collate import to_tensor
from tmrl_like.replay.columns import Array, Column, FieldColumns, Rows
from tmrl_like.replay.lanes import Lanes, follow
from tmrl_like.replay.layout import FramePadding
from tmrl_like.replay.store import ACT, OBS, Store


class Tensors:
    """Tensors [B, ...] on a device, numbers as float32 [B]."""

    def __init__(self, device: str) -> None:
        self._device = device

    def leaves(self, column: Column, values: Array) -> Sequence[Any]:
        """`values` [K, B, ...] -> one leaf for each of the K."""
        return to_tensor(values, self._device).unbind(0)

    def number(self, values: Array, column: Column | None = None) -> Any:
        """`values` [B, ...], one number each, of a column or (None) computed."""
        return to_tensor(values.reshape(len(values)).astype(np.float32, copy=False), self._device)


class AsStored:
    """Of a batch of one: what was stored, of the type that it had. Otherwise as `Tensors`."""

    def leaves(self, column: Column, values: Array) -> Sequence[Any]:
        return [column.restored(value) for value in values]

    def number(self, values: Array, column: Column | None = None) -> Any:
        return values.item() if column is None else column.restored(values)


Form: TypeAlias = Tensors | AsStored
"""What becomes of the values that were gathered."""


class Rebuilder:
    """Reads observations, actions and numbers from rows; puts action buffers and stacks of frames together again."""

    def __init__(self, lanes: Lanes, store: Store, act_buf_len: int, frame_padding: FramePadding) -> None:
        """See `ReplayMemory` for the last two."""
        self.lanes = lanes
        self.store = store
        self._act_buf_len = act_buf_len
        self._pads_with_zeros = frame_padding == "zero"

    def steps(self, rows: Rows, ends: Rows, form: Form) -> tuple[Any, Any, Any]:
        """Observation before, action, and observation after B steps, or sequences of steps.

        Args:
            rows: int [B], what the first actions led to.
            ends: int [B], what the last ones led to.
            form: what they become.
        """
        length = self._act_buf_len
        walk = follow(self.lanes.parent, rows, max(1, length))
        before, after = walk[1:], walk[:-1] if ends is rows else follow(self.lanes.parent, ends, max(1, length) - 1)
        last_obs, obs = self._gather(OBS, np.stack((before[0], after[0])), form)
        actions = rows[None] if not length else np.concatenate((rows[None], before[::-1], after[::-1]))
        act, *buffers = self._gather(ACT, actions, form)
        return (*last_obs, *buffers[:length]) if length else last_obs, act, (*obs, *buffers[length:]) if length else obs

    def number(self, field: int, rows: Rows, form: Form) -> Any:
        """The number of a field at `rows`, int [B]."""
        (column,) = self.store.fields[field].columns
        return form.number(column.array.take(rows, axis=0), column)

    def numbers(self, field: int, rows: Rows) -> Array:
        """The numbers of a field at `rows`: an array of their shape."""
        return self.store.fields[field].columns[0].array.take(rows, axis=0).reshape(rows.shape)

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
                if size and self._pads_with_zeros:
                    _blank_padding(values, oldest_first[..., -size:])
                leaves.append(form.leaves(column, values))
        return [field.tree([leaf[k] for leaf in leaves]) for k in range(len(rows))]


def _blank_padding(stacked: Array, rows: Rows) -> None:
    """Put zeros where frames of `rows`, int [2, B, k], oldest first, are repeats of an episode's first one."""
    is_repeat = rows[..., :-1] == rows[..., 1:]
    if is_repeat.any():
        stacked[:, :, :-1][is_repeat] = 0
