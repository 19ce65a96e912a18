"""The columns of `ReplayMemory`: each leaf of a sample is one array [capacity, ...]; what does not fit is refused."""

from __future__ import annotations

import math
import mmap
import tempfile
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from tmrl_like.base.files import allocate
from tmrl_like.errors import ConfigError, MemoryContractError
from tmrl_like.replay.columns import Array, FieldColumns, field_slices
from tmrl_like.replay.layout import FrameStack, stack_sizes
from tmrl_like.types import Block, Buffer, Sample
from tmrl_like.wire.columns import Columns
from tmrl_like.wire.rows import columns_of
from tmrl_like.wire.schema import DictNode, Node, ScalarLeaf, TupleNode, schema_of

NAMES = ("act", "obs", "rew", "terminated", "truncated")  # a sample without its info
ACT, OBS, REW = range(3)
COLUMNS = len(NAMES)  # fields from here on are those of info
_SINGLE_NUMBERS = ("greedy", "potential")  # items of info that rewards depend on
STEPS_TO_END = "steps_to_end"  # a column that is computed
NOT_FINISHED = 2**31 - 1
_CHECKED_STRUCTURES = 256


class RowBlock:
    """Single samples in the form of a packet's block."""

    def __init__(self, samples: list[Sample], columns: Sequence[str]) -> None:
        """Take of info what `columns` name."""
        self._samples = samples
        plain = [
            (*sample[:COLUMNS], {name: sample.info[name] for name in columns if name in sample.info})
            for sample in samples
        ]
        self.segments = tuple(columns_of(list(run)) for _, run in groupby(plain, schema_of))
        self.is_reset = np.array([getattr(sample.info, "is_reset", False) for sample in samples], np.bool_)
        self.episode = np.array([getattr(sample.info, "episode", 0) for sample in samples], np.uint8)

    def samples(self) -> list[Sample]:
        return self._samples


def blocks_of(buffer: Buffer, columns: Sequence[str]) -> Sequence[Block | RowBlock]:
    """The samples as columns, whichever way they came, with these items of info at least."""
    return buffer.blocks or (RowBlock(buffer.memory, columns),)


def nodes_of(schema: Node) -> Sequence[Node]:
    """The structures of a sample's fields, without info."""
    assert isinstance(schema, TupleNode)  # whatever comes over the wire has been checked there
    return schema.items[:COLUMNS]


def columns_in(schema: Node, columns: Sequence[str]) -> list[tuple[Node, slice] | None]:
    """The structure of each item of info, and which of a sample's leaves are its; None: there is no such item."""
    assert isinstance(schema, TupleNode)
    info = schema.items[COLUMNS]
    keys, items = (info.keys, info.items) if isinstance(info, DictNode) else ((), ())
    slices = field_slices([*nodes_of(schema), *items])[COLUMNS:]
    found = dict(zip(keys, zip(items, slices, strict=True), strict=True))
    return [found.get(name) for name in columns if name != STEPS_TO_END]


class Slices(NamedTuple):
    """What of a sample's structure belongs where."""

    schema: Node
    leaves: list[slice | None]  # per field; None: it has none of it
    rew: Node | None  # that the column of rewards must hold; None: a reset's, which may be cast


class Store:
    """A ring of rows; the first step of an episode decides the columns.

    Attributes:
        capacity: rows.
        fields: as `NAMES`, and those of info; empty before the first step of an episode.
        stacks: how many frames are stacked in each leaf of an observation; 0: it is not a stack.
    """

    def __init__(
        self,
        capacity: int,
        act_buf_len: int,
        frame_stack: FrameStack,
        scratch_dir: str | None,
        columns: Sequence[str] = (),
    ) -> None:
        """Start without columns; see `ReplayMemory` for the arguments."""
        self.capacity = capacity
        self.fields: list[FieldColumns] = []
        self.stacks: list[int] = []
        self._scratch_dir = scratch_dir
        self._columns = [name for name in columns if name != STEPS_TO_END]
        self._counts_down = len(self._columns) < len(columns)
        self._act_buf_len = act_buf_len
        self._frame_stack = frame_stack
        self._checked: dict[tuple[int, bool], Slices] = {}  # structures that fit, by id

    def fields_for(self, blocks: Sequence[Block | RowBlock]) -> list[FieldColumns]:
        """Columns for the structure of the first sample that is not a reset; none if there is none."""
        for block in blocks:
            for segment, is_reset in _with_resets(block):
                if not is_reset.all():
                    self._checked.clear()
                    return self._columns_for(segment.schema)
        return []

    def _columns_for(self, schema: Node) -> list[FieldColumns]:
        nodes = nodes_of(schema)
        if self._act_buf_len and not isinstance(nodes[OBS], TupleNode):
            raise MemoryContractError(
                f"act_buf_len is {self._act_buf_len}, but obs is not a tuple: the environment's observation is a tuple "
                "that ends in the action buffer, and the compressor leaves the rest of it"
            )
        self.stacks = stack_sizes(self._frame_stack, nodes[OBS])
        try:
            fields = [FieldColumns(name, node, self._reserve) for name, node in zip(NAMES, nodes, strict=False)]
            for name, found in zip(self._columns, columns_in(schema, self._columns), strict=True):
                if found is None:
                    raise _missing(name, schema)
                fields.append(FieldColumns(f"info[{name!r}]", found[0], self._reserve))
                if name in _SINGLE_NUMBERS:
                    fields[-1].check_is_number(found[0])
            if self._counts_down:
                fields.append(FieldColumns(STEPS_TO_END, ScalarLeaf("<i4"), self._reserve))
            return fields
        except MemoryError as error:
            raise ConfigError(
                f"memory_size {self.capacity:,} is more than fits here: {error}; make it smaller"
            ) from None
        except OSError as error:
            raise ConfigError(f"scratch_dir does not take memory_size {self.capacity:,}: {error}") from None

    def _reserve(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        whole = self.capacity, *shape
        if self._scratch_dir is None:
            return np.zeros(whole, dtype)  # taken up as rows are written
        size = max(1, math.prod(whole) * dtype.itemsize)
        with tempfile.TemporaryFile(buffering=0, dir=self._scratch_dir) as file:  # gone when nothing is mapped any more
            allocate(file, size)
            return np.ndarray(whole, dtype, mmap.mmap(file.fileno(), size))

    def check(self, fields: Sequence[FieldColumns], block: Block | RowBlock) -> list[Slices]:
        """The slices of each segment; checks a structure when it is met for the first time."""
        slices = []
        for segment, is_reset in _with_resets(block):
            key = id(segment.schema), bool(is_reset.all())
            if key not in self._checked:
                if len(self._checked) >= _CHECKED_STRUCTURES:
                    self._checked.clear()
                self._checked[key] = _check(fields, segment.schema, self._columns, only_resets=key[1])
            slices.append(self._checked[key])
        return slices

    def numbers(self, field: int, row: int, n: int) -> Array:
        """The numbers of a field at n rows, [n]."""
        return self.fields[field].columns[0].array[row : row + n].reshape(n)

    def write(self, row: int, n: int, segment: Columns, start: int, slices: list[slice | None]) -> None:
        """Write the part of a segment that falls on n rows; its first sample belongs `start` rows behind the first."""
        low, high = max(0, -start), min(segment.rows, n - start)
        if low >= high:
            return
        if self._counts_down:
            self.fields[-1].columns[0].array[row + start + low : row + start + high] = NOT_FINISHED
        for field, leaves in zip(self.fields, slices, strict=False):
            values = [None] * len(field.columns) if leaves is None else segment.leaves[leaves]
            for column, leaf in zip(field.columns, values, strict=True):
                target = column.array[row + start + low : row + start + high]
                target[...] = 0 if leaf is None else leaf[low:high].reshape(target.shape)


def _with_resets(block: Block | RowBlock) -> Iterator[tuple[Columns, Array]]:
    """Each segment with its part of `is_reset`."""
    start = 0
    for segment in block.segments:
        yield segment, block.is_reset[start : start + segment.rows]
        start += segment.rows


def _check(fields: Sequence[FieldColumns], schema: Node, columns: Sequence[str], only_resets: bool) -> Slices:
    """Refuse samples that do not fit. What a reset sample brings may be cast: no transition ends there."""
    nodes = nodes_of(schema)
    for field, node in zip(fields[:REW], nodes, strict=False):
        field.check_fits(node, is_lossless=not only_resets)
    for field, node in zip(fields[REW:COLUMNS], nodes[REW:], strict=True):
        field.check_is_number(node)
    leaves: list[slice | None] = [*field_slices(nodes)]
    for field, name, found in zip(fields[COLUMNS:], columns, columns_in(schema, columns), strict=False):
        if found is not None:
            field.check_fits(found[0], is_lossless=not only_resets)
        elif not only_resets:
            raise _missing(name, schema)
        leaves.append(None if found is None else found[1])
    return Slices(schema, leaves, None if only_resets else nodes[REW])


def _missing(name: str, schema: Node) -> MemoryContractError:
    info = schema.items[COLUMNS] if isinstance(schema, TupleNode) else None
    there = ", ".join(map(repr, info.keys)) if isinstance(info, DictNode) else ""
    return MemoryContractError(
        f"info has no {name!r}, which the memory keeps in a column; it has {there or 'nothing'}: let the environment "
        "give it, or the actor beside its action, or take it out of the memory's columns"
    )
