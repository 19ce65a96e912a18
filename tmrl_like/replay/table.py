"""The columns of `ReplayMemory`: each leaf of a sample is one array [capacity, ...]. Samples that
do not fit are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import msgspec
import numpy as np
import psutil

from tmrl_like.base import tree
from tmrl_like.errors import ConfigError, MemoryContractError
from tmrl_like.replay.compressor import stacks_in
from tmrl_like.replay.replay_options import ReplayOptions
from tmrl_like.replay.row_set import Array
from tmrl_like.replay.sample_check import (
    NAMES,
    NUMBERS,
    LeafForm,
    PartForm,
    item,
    parts_of,
    refuse_change,
    refuse_missing,
    refuse_no_number,
)
from tmrl_like.replay.streams import NO_TIMING, info_of
from tmrl_like.types import Block, Buffer, Observation
from tmrl_like.wire.packet import PacketWriter
from tmrl_like.wire.schema import (
    ArrayLeaf,
    Leaf,
    Node,
    PlainLeaf,
    ScalarLeaf,
    TupleNode,
    fill,
)

STEPS_TO_END = "steps_to_end"  # a column that is computed
NOT_FINISHED = 2**31 - 1
_STEPS_TO_END = LeafForm(STEPS_TO_END, 0, ScalarLeaf("<i4"))
_SINGLE_NUMBERS = {*NUMBERS, item("greedy"), item("potential")}  # rewards depend on them
_MOST_STRUCTURES = 256  # of which it is known where the values are

log = logging.getLogger("tmrl_like.replay")

Places: TypeAlias = list[int | None]
"""For each column, the place of its leaf in a sample; None: an item of info that is missing."""


class Arrival:
    """Samples of one stream as columns, whether they arrived as columns or one by one.

    Attributes:
        buffer: the samples as they arrived.
        is_reset: bool [N].
        is_context: bool [N], see `Info`.
        episode: uint8 [N], see `Info`.
        segments: samples of one structure each, and whether all of them are of resets.
    """

    def __init__(self, buffer: Buffer, columns: Sequence[str]) -> None:
        """Take from info at least the items that `columns` name."""
        blocks = buffer.blocks or (block_of(buffer, columns),)
        self.buffer = buffer
        self.is_reset = np.concatenate([block.is_reset for block in blocks])
        self.is_context = np.zeros(len(self.is_reset), np.bool_)  # what was sent is no context
        if not buffer.blocks:
            self.is_context[:] = [info_of(sample).is_context for sample in buffer.memory]
        self.episode = np.concatenate([block.episode for block in blocks])
        self.segments = []
        start = 0
        for segment in chain.from_iterable(block.segments for block in blocks):
            end = start + segment.rows
            self.segments.append((segment, bool(self.is_reset[start:end].all())))
            start = end


def block_of(buffer: Buffer, columns: Sequence[str] = ()) -> Block:
    """Return samples that arrived one by one as columns; of info, only the items in `columns`."""
    writer = PacketWriter()
    for sample in buffer.memory:
        info = info_of(sample)
        kept = {name: sample.info[name] for name in columns if name in sample.info}
        writer.append((*sample[:5], kept), NO_TIMING, info.is_reset, info.episode)
    return writer.block()


@dataclass(eq=False)
class Column:
    """The values of one leaf in all samples."""

    leaf: Leaf  # as it is returned: a stack is an array
    array: Array  # [capacity, *shape in one sample]
    frames: int  # how many make a stack; 0: not a stack

    def widen(self, values: Array) -> None:
        """Give a column of whole numbers a dtype that holds these values as well, fractions
        included.
        """
        if values.dtype == self.array.dtype or self.array.dtype.kind == "f":
            return
        dtype = np.result_type(self.array.dtype, values.dtype)
        self.array = self.array.astype(dtype, copy=False)
        if isinstance(self.leaf, PlainLeaf):
            self.leaf = PlainLeaf("float" if dtype.kind == "f" else "int")
        else:
            self.leaf = msgspec.structs.replace(self.leaf, dtype=dtype.str)


@dataclass(eq=False)
class Field:
    """A field of a sample, or an item of its info: its form in the first sample, and a column per
    leaf, left to right.
    """

    form: PartForm
    columns: list[Column]

    def __post_init__(self) -> None:
        node = self.form.node
        self._is_flat_tuple = isinstance(node, TupleNode) and all(
            isinstance(item, Leaf) for item in node.items
        )

    def tree(self, leaves: Sequence[Observation]) -> Observation:
        """Put leaves, left to right, into the field's structure; the most common one has a fast
        path.
        """
        return tuple(leaves) if self._is_flat_tuple else fill(self.form.node, iter(leaves))


class Table:
    """A ring of rows. Its columns are made for the first step of an episode, whose form all other
    samples must have.

    Attributes:
        fields: those in `NAMES`, and the kept items of info as `item(name)`.
        row_bytes: size of a row, over all columns.
    """

    def __init__(self, first: Node, capacity: int, options: ReplayOptions) -> None:
        """Reserve the columns.

        Raises:
            MemoryContractError: a sample holds something other than arrays and numbers.
            ConfigError: the columns are larger than RAM.
        """
        self.capacity = capacity
        self._items = [item(name) for name in options.kept if name != STEPS_TO_END]
        # of the newest structures of samples and of resets
        self._places: dict[tuple[Node, bool], Places] = {}
        parts = parts_of(first)
        if options.act_buf_len and not isinstance(parts["obs"].node, TupleNode):
            raise MemoryContractError(
                f"act_buf_len is {options.act_buf_len}, but obs is not a tuple: the environment's "
                "observation is a tuple that ends in the action buffer, and the compressor leaves "
                "the rest of it"
            )
        for name in self._items:
            refuse_missing(name, parts)
        forms = {name: parts[name] for name in (*NAMES, *self._items)}
        for name in _SINGLE_NUMBERS & forms.keys():
            refuse_no_number(name, forms[name])
        if STEPS_TO_END in options.kept:
            forms[item(STEPS_TO_END)] = PartForm(_STEPS_TO_END.leaf, {STEPS_TO_END: _STEPS_TO_END})
        frames = {
            f"obs{tree.name_of(path)}": size
            for path, size in stacks_in(options.frame_stack).items()
        }
        for path in frames.keys() - parts["obs"].leaves.keys():
            raise MemoryContractError(
                f"frame_stack says that {path} is a stack of frames; it is not a single array: the "
                f"arrays are {', '.join(parts['obs'].leaves)}"
            )
        self.fields: dict[str, Field] = {}
        self.columns: list[Column] = []
        for name, form in forms.items():
            columns = [
                self._column(leaf, frames.get(path, 0)) for path, leaf in form.leaves.items()
            ]
            self.fields[name] = Field(form, columns)
            self.columns += columns
        self.row_bytes = sum(column.array.nbytes for column in self.columns) // capacity
        size = self.row_bytes * capacity
        ram = psutil.virtual_memory().total
        if size > ram:
            # the system may promise more than there is, and kill the process when it is used
            log.warning(
                "memory_size %s takes %.1f GB once it is full, and this machine has %.1f GB: make "
                "it smaller",
                f"{capacity:,}",
                size / 1e9,
                ram / 1e9,
            )

    def _column(self, form: LeafForm, frames: int) -> Column:
        dtype, shape = form.numbers
        leaf = ArrayLeaf(dtype.str, (frames, *shape)) if frames else form.leaf
        try:
            # the system takes up its memory as rows are written
            return Column(leaf, np.zeros((self.capacity, *shape), dtype), frames)
        except MemoryError as error:
            raise ConfigError(
                f"memory_size {self.capacity:,} is more than fits here: {error}; make it smaller"
            ) from None

    def places_in(self, schema: Node, only_resets: bool) -> Places:
        """Return where samples of one structure hold the values of the columns. Those of resets may
        be cast, because no transition ends there.

        Raises:
            MemoryContractError: something does not fit.
        """
        key = schema, only_resets
        if key in self._places:
            return self._places[key]
        parts = parts_of(schema)
        for name in ("act", "obs", *self._items):
            if not only_resets:
                refuse_missing(name, parts)
            if name in parts:
                refuse_change(
                    name,
                    self.fields[name].form,
                    parts[name],
                    "same_kind" if only_resets else "safe",
                )
        for name in NUMBERS:
            refuse_no_number(name, parts[name])
        places: Places = []
        for name, field in self.fields.items():
            leaves = parts[name].leaves if name in parts else {}
            places += [leaves[path].place if path in leaves else None for path in field.form.leaves]
        if len(self._places) >= _MOST_STRUCTURES:
            self._places.clear()
        self._places[key] = places
        return places

    def numbers(self, field: str, row: int, n: int) -> Array:
        """Return the numbers of a field in n rows, from `row` on: [n]."""
        return self.fields[field].columns[0].array[row : row + n].reshape(n)

    def write(
        self, row: int, n: int, arrival: Arrival, start: int, found: Sequence[Places]
    ) -> None:
        """Write n samples of an arrival, from its sample `start` on, to n rows, from `row` on;
        `found` has the `places_in` each of its segments.

        Items of info that samples lack become zeros.
        """
        (rewards,) = self.fields["rew"].columns
        at = row - start  # the row of the segment's first sample, if it were written
        for (segment, only_resets), places in zip(arrival.segments, found, strict=True):
            low, high = max(row, at), min(row + n, at + segment.rows)
            if low < high:
                for column, place in zip(self.columns, places, strict=True):
                    if place is None:
                        column.array[low:high] = 0
                        continue
                    values = segment.leaves[place][low - at : high - at]
                    if column is rewards and not only_resets:  # those of resets may be cast
                        column.widen(values)
                    target = column.array[low:high]
                    target[...] = values.reshape(target.shape)
            at += segment.rows
