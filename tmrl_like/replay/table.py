"""The columns of `ReplayMemory`: each leaf of a sample is one array [capacity, ...]; what does not fit is refused."""

from __future__ import annotations

import math
import mmap
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any, TypeAlias

import msgspec
import numpy as np

from tmrl_like.base import tree
from tmrl_like.base.files import allocate
from tmrl_like.errors import ConfigError, MemoryContractError
from tmrl_like.replay.compressor import stacks_in
from tmrl_like.replay.replay_options import STEPS_TO_END, ReplayOptions
from tmrl_like.replay.row_set import Array
from tmrl_like.replay.sample_check import (
    NAMES,
    NUMBERS,
    FieldForm,
    LeafForm,
    item,
    parts_of,
    refuse_change,
    refuse_missing,
    refuse_no_number,
)
from tmrl_like.replay.streams import info_of
from tmrl_like.types import Buffer
from tmrl_like.wire.rows import columns_of
from tmrl_like.wire.schema import ArrayLeaf, Leaf, Node, PlainLeaf, ScalarLeaf, TupleNode, fill, schema_of

_NOT_FINISHED = 2**31 - 1
_SINGLE_NUMBERS = item("greedy"), item("potential")  # that rewards depend on
_MOST_STRUCTURES = 256

Places: TypeAlias = dict[str, list[int]]
"""Which leaves of a sample are those of each field; items of info may be missing."""


class Arrival:
    """Samples of one stream as columns, whichever way they came.

    Attributes:
        stream: its name.
        segments: samples of one structure each, and whether all of them are of resets.
        is_reset: bool [N].
        episode: uint8 [N], see `Info`.
        buffer: the same.
    """

    def __init__(self, buffer: Buffer, columns: Sequence[str]) -> None:
        """Take of info what `columns` name, at least."""
        self.stream, self.buffer = buffer.stream, buffer
        if buffer.blocks:
            segments = [segment for block in buffer.blocks for segment in block.segments]
            self.is_reset = np.concatenate([block.is_reset for block in buffer.blocks])
            self.episode = np.concatenate([block.episode for block in buffer.blocks])
        else:
            plain = [(*s[:5], {name: s.info[name] for name in columns if name in s.info}) for s in buffer.memory]
            segments = [columns_of(list(run)) for _, run in groupby(plain, schema_of)]
            self.is_reset = np.array([info_of(sample).is_reset for sample in buffer.memory], np.bool_)
            self.episode = np.array([info_of(sample).episode for sample in buffer.memory], np.uint8)
        ends = accumulate(segment.rows for segment in segments)
        self.segments = [
            (one, bool(self.is_reset[end - one.rows : end].all())) for one, end in zip(segments, ends, strict=True)
        ]


@dataclass(eq=False)
class Column:
    """One leaf of a sample, and its values: `array` [capacity, *shape of the leaf]."""

    leaf: Leaf
    array: Array

    def restored(self, values: Array) -> Any:
        """What `values` [1, ...], taken from here, were when they were stored; a stack is an array."""
        if isinstance(self.leaf, ArrayLeaf) or values.ndim > 1:
            return values.reshape(values.shape[1:])
        return values[0] if isinstance(self.leaf, ScalarLeaf) else values[0].item()

    def widen(self, dtype: np.dtype[Any]) -> None:
        """Make whole numbers fit for those of another dtype, fractions among them."""
        if dtype == self.array.dtype or self.array.dtype.kind == "f":
            return
        dtype = np.result_type(self.array.dtype, dtype)
        self.array = self.array.astype(dtype, copy=False)
        if isinstance(self.leaf, PlainLeaf):
            self.leaf = PlainLeaf("float" if dtype.kind == "f" else "int")
        else:
            self.leaf = msgspec.structs.replace(self.leaf, dtype=dtype.str)


class Field:
    """A field of a sample, or an item of its info: its structure and a column per leaf, left to right.

    Attributes:
        part: of the first sample.
        columns: one per leaf.
        stacks: how many frames are stacked in each leaf; 0: it is not a stack.
        missing: what stands in the rows of samples that lack it.
    """

    def __init__(self, part: FieldForm, columns: list[Column], stacks: Sequence[int] = (), missing: int = 0) -> None:
        """Take the columns."""
        self.part = part
        self.columns = columns
        self.stacks = stacks or [0] * len(columns)
        self.missing = missing
        node = part.node
        self._is_leaf = isinstance(node, Leaf)
        self._is_flat_tuple = isinstance(node, TupleNode) and all(isinstance(item, Leaf) for item in node.items)

    def tree(self, leaves: Sequence[Any]) -> Any:
        """Put leaves, left to right, into the field's structure. The two common structures are short cuts."""
        if self._is_flat_tuple:
            return tuple(leaves)
        return leaves[0] if self._is_leaf else fill(self.part.node, iter(leaves))


class Table:
    """A ring of rows, whose columns are made for a first step of an episode: all others have its form.

    Attributes:
        fields: as `NAMES`, and the kept items of info as `item(name)`.
    """

    def __init__(self, first: Node, capacity: int, options: ReplayOptions) -> None:
        """Reserve the columns.

        Raises:
            MemoryContractError: there is something else than arrays and numbers.
            ConfigError: they are larger than RAM, or than the disk.
        """
        self.capacity = capacity
        self._scratch_dir = options.scratch_dir
        self._items = [item(name) for name in options.kept if name != STEPS_TO_END]
        self._known: dict[tuple[Node, bool], Places] = {}
        parts = parts_of(first)
        if options.act_buf_len and not isinstance(parts["obs"].node, TupleNode):
            raise MemoryContractError(
                f"act_buf_len is {options.act_buf_len}, but obs is not a tuple: the environment's observation is a "
                "tuple that ends in the action buffer, and the compressor leaves the rest of it"
            )
        for name in self._items:
            refuse_missing(name, parts)
        for name in parts.keys() & {*NUMBERS, *_SINGLE_NUMBERS}:
            refuse_no_number(parts[name])
        stacks = {"obs": _stack_sizes(options, parts["obs"])}
        try:
            self.fields = {
                name: Field(parts[name], list(map(self._column, parts[name].leaves)), stacks.get(name, ()))
                for name in (*NAMES, *self._items)
            }
            if STEPS_TO_END in options.kept:
                counted = LeafForm(0, STEPS_TO_END, ScalarLeaf("<i4"))
                part = FieldForm(STEPS_TO_END, counted.leaf, [counted])
                self.fields[item(STEPS_TO_END)] = Field(part, [self._column(counted)], missing=_NOT_FINISHED)
        except MemoryError as error:
            raise ConfigError(f"memory_size {capacity:,} is more than fits here: {error}; make it smaller") from None
        except OSError as error:
            raise ConfigError(f"scratch_dir does not take memory_size {capacity:,}: {error}") from None
        columns = [column for field in self.fields.values() for column in field.columns]
        self.row_bytes = sum(column.array.nbytes for column in columns) // capacity

    def _column(self, leaf: LeafForm) -> Column:
        shape, dtype = (self.capacity, *leaf.shape), leaf.column_dtype()
        if self._scratch_dir is None:
            return Column(leaf.leaf, np.zeros(shape, dtype))  # taken up as rows are written
        size = max(1, math.prod(shape) * dtype.itemsize)
        with tempfile.TemporaryFile(buffering=0, dir=self._scratch_dir) as file:  # gone when nothing is mapped any more
            allocate(file, size)
            return Column(leaf.leaf, np.ndarray(shape, dtype, mmap.mmap(file.fileno(), size)))

    def fits(self, arrival: Arrival) -> list[Places]:
        """Where each segment has what goes into the columns; MemoryContractError: something does not fit."""
        found = []
        for segment, only_resets in arrival.segments:
            known = segment.schema, only_resets
            if known not in self._known:
                if len(self._known) >= _MOST_STRUCTURES:
                    self._known.clear()
                self._known[known] = self._places(*known)
            found.append(self._known[known])
        return found

    def _places(self, schema: Node, only_resets: bool) -> Places:
        """Refuse samples that do not fit. What a reset sample brings may be cast: no transition ends there."""
        parts = parts_of(schema)
        for name in ("act", "obs", *self._items):
            if not only_resets:
                refuse_missing(name, parts)
            if name in parts:
                refuse_change(self.fields[name].part, parts[name], "same_kind" if only_resets else "safe")
        for name in NUMBERS:
            refuse_no_number(parts[name])
        return {name: [leaf.place for leaf in parts[name].leaves] for name in self.fields if name in parts}

    def numbers(self, field: str, row: int, n: int) -> Array:
        """The numbers of a field at n rows, [n]."""
        return self.fields[field].columns[0].array[row : row + n].reshape(n)

    def write(self, row: int, n: int, arrival: Arrival, start: int, found: Sequence[Places]) -> None:
        """Write the n samples of an arrival that begin with its sample `start` to n rows; `found`: what `fits` says."""
        at = row - start  # where the first sample of the segment would be
        for (segment, only_resets), places in zip(arrival.segments, found, strict=True):
            low, high = max(0, row - at), min(segment.rows, row + n - at)
            if low < high:
                if not only_resets:  # else it may be cast
                    self.fields["rew"].columns[0].widen(segment.leaves[places["rew"][0]].dtype)
                rows = slice(at + low, at + high)
                for name, field in self.fields.items():
                    if name not in places:
                        for column in field.columns:
                            column.array[rows] = field.missing
                        continue
                    for column, place in zip(field.columns, places[name], strict=True):
                        target = column.array[rows]
                        target[...] = segment.leaves[place][low:high].reshape(target.shape)
            at += segment.rows


def _stack_sizes(options: ReplayOptions, obs: FieldForm) -> list[int]:
    """How many frames are stacked in each leaf, left to right, of a (compressed) observation; 0: it is not a stack."""
    named = {f"obs{tree.name_of(path)}": size for path, size in stacks_in(options.frame_stack).items()}
    places = [leaf.path for leaf in obs.leaves]
    for name in named:
        if name not in places:
            raise MemoryContractError(
                f"frame_stack says that {name} is a stack of frames; it is not a single array: the arrays are "
                f"{', '.join(places)}"
            )
    return [named.get(place, 0) for place in places]
