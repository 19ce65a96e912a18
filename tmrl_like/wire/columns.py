"""Samples of one structure as stacked buffers: `Columns` are buffers and a schema, viewed as arrays `[N, ...]` without
copying, or taken apart into rows again. The buffers are made in `rows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tmrl_like.base.functional import prod
from tmrl_like.errors import DecodingError
from tmrl_like.wire.messages import MAX_BODY_BYTES
from tmrl_like.wire.schema import (
    MAX_DIMENSIONS,
    PLAIN_KINDS,
    ArrayLeaf,
    DictNode,
    ListNode,
    Node,
    PlainLeaf,
    ScalarLeaf,
    TupleNode,
    check_schema,
    checked_dtype,
    fill,
    leaves_of,
)

MAX_ROWS = 1_000_000
_PLANNED_LEAVES = 64  # of a structure; for larger ones no plans are kept
Leaf = ArrayLeaf | ScalarLeaf | PlainLeaf
NUMBERS = {"bool": "|b1", "int": "<i8", "float": "<f8"}
PLAIN_TYPES: dict[str, type] = {kind: type_ for type_, kind in PLAIN_KINDS.items()}
_text_decoder = msgspec.msgpack.Decoder(list[str])
_bytes_decoder = msgspec.msgpack.Decoder(list[bytes])


@dataclass(frozen=True, slots=True)
class Columns:
    """N samples of one structure.

    Attributes:
        schema: the structure of one sample.
        rows: N.
        leaves: one per leaf of the schema: an array [N, *shape] (of a single packet read-only, a view of it), a list
            for text and bytes, None for None.
    """

    schema: Node
    rows: int
    leaves: tuple[Any, ...]

    def tree(self) -> Any:
        """The sample's structure with whole columns as leaves (Python's own numbers as arrays, too)."""
        return fill(self.schema, iter(self.leaves))

    def to_rows(self) -> list[Any]:
        """The samples themselves. Their arrays are writable and independent of the packet."""
        return _rows(self.schema, iter(self.leaves), self.rows)


class Layout:
    """How the buffers of one structure are read; worked out once per structure, used per packet."""

    def __init__(self, schema: Node) -> None:
        """Check the structure; DecodingError: a dtype, shape or dictionary that cannot be, too many leaves."""
        check_schema(schema)
        self.schema = schema
        self._columns = [_ColumnLayout(leaf) for leaf in leaves_of(schema)]
        self.leaves = len(self._columns)
        self.objects = objects_in(leaves_of(schema))
        self._plan_of = lru_cache(maxsize=64 if self.leaves <= _PLANNED_LEAVES else 0)(self._plan)

    def is_fixed(self, rows: int, sizes: Sequence[int]) -> bool:
        """Whether these are the sizes of so many rows whatever is in them: `columns` can join such packets."""
        plan = self._plan_of(rows) if 0 <= rows <= MAX_ROWS else None
        return plan is not None and plan.sizes == sizes

    def columns(self, rows: int, sizes: Sequence[int], data: memoryview, packets: int = 1) -> tuple[Columns, int]:
        """View the start of `data` as `rows` samples whose buffers have these sizes.

        Args:
            rows: of one packet.
            sizes: of its buffers, in bytes.
            data: the packet's bytes, or those of several one after the other, each as long as the others.
            packets: how many; above 1 only where `is_fixed`.

        Returns:
            The columns of N = `rows` x `packets` samples, and how many bytes of one packet they took.

        Raises:
            DecodingError: number or size of the buffers does not follow from structure and rows.
        """
        if len(sizes) != len(self._columns) or not 0 <= rows <= MAX_ROWS:
            raise DecodingError(f"{len(sizes)} buffers of {rows} rows for a structure of {len(self._columns)} leaves")
        plan, step = self._plan_of(rows), len(data) // packets
        if plan and plan.sizes == tuple(sizes) and plan.dtype.itemsize <= step:
            whole = np.ndarray(packets, plan.dtype, data, 0, (step,))
            leaves = [whole[name].reshape(shape) for name, shape in plan.views]
            return Columns(self.schema, rows * packets, tuple(leaves)), plan.dtype.itemsize
        if packets > 1:
            raise DecodingError(f"packets of {step} bytes each for buffers of {sum(sizes)}")
        return self._columns_one_by_one(rows, sizes, data)

    def _plan(self, rows: int) -> _Plan | None:
        """Where every column is, if that follows from the number of rows alone."""
        sizes = tuple(rows * column.row_bytes for column in self._columns)
        if not all(sizes) or sum(sizes) > MAX_BODY_BYTES:  # something without a size, or without a fixed one
            return None
        names = [f"leaf {i}" for i in range(self.leaves)]
        fields = [(name, c.dtype, (rows, *c.shape)) for name, c in zip(names, self._columns, strict=True)]
        views = [(name, (-1, *c.shape)) for name, c in zip(names, self._columns, strict=True)]
        return _Plan(sizes, np.dtype(fields), views)

    def _columns_one_by_one(self, rows: int, sizes: Sequence[int], data: memoryview) -> tuple[Columns, int]:
        start = 0
        leaves = []
        for column, size in zip(self._columns, sizes, strict=True):
            if not 0 <= size <= len(data) - start:
                raise DecodingError(f"a buffer of {size} bytes where {len(data) - start} are left")
            leaves.append(column.view(rows, data[start : start + size]))
            start += size
        return Columns(self.schema, rows, tuple(leaves)), start


def objects_in(leaves: Sequence[Leaf]) -> int:
    """How many of these columns hold an object of Python's in each row: text, bytes."""
    return sum(isinstance(leaf, PlainLeaf) and leaf.kind not in NUMBERS and leaf.kind != "none" for leaf in leaves)


class _Plan(NamedTuple):
    sizes: tuple[int, ...]
    dtype: np.dtype[Any]  # of the buffers one after the other
    views: list[tuple[str, tuple[int, ...]]]  # name in the dtype, shape


class _ColumnLayout:
    def __init__(self, leaf: Leaf) -> None:
        self.leaf = leaf
        self.shape = leaf.shape if isinstance(leaf, ArrayLeaf) else ()
        if isinstance(leaf, PlainLeaf):
            self.dtype = np.dtype(NUMBERS[leaf.kind]) if leaf.kind in NUMBERS else None
        else:
            self.dtype = checked_dtype(leaf.dtype)
        if len(self.shape) > MAX_DIMENSIONS - 2 or any(n < 0 for n in self.shape):
            raise DecodingError(f"an array of shape {self.shape} is not possible")
        self.row_bytes = prod(self.shape) * self.dtype.itemsize if self.dtype else 0

    def view(self, rows: int, buffer: memoryview) -> Any:
        if self.dtype is None:
            return _variable(self.leaf, rows, buffer)
        if len(buffer) != rows * self.row_bytes:
            raise DecodingError(f"{len(buffer)} bytes for {rows} rows of {self.row_bytes}")
        try:
            return np.ndarray((rows, *self.shape), self.dtype, buffer if len(buffer) else None)
        except (ValueError, MemoryError):
            raise DecodingError(f"an array of shape {(rows, *self.shape)} is not possible") from None


def _variable(leaf: Leaf, rows: int, buffer: memoryview) -> list[Any] | None:
    assert isinstance(leaf, PlainLeaf)
    if leaf.kind == "none":
        if len(buffer):
            raise DecodingError(f"{len(buffer)} bytes for a column of None, which needs none")
        return None
    try:
        values: list[Any] = (_text_decoder if leaf.kind == "str" else _bytes_decoder).decode(buffer)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DecodingError(f"a column of {leaf.kind} does not decode: {error}") from None
    if len(values) != rows:
        raise DecodingError(f"{len(values)} values in a column of {rows} rows")
    return values


def _rows(node: Node, leaves: Any, rows: int) -> list[Any]:
    if isinstance(node, TupleNode | ListNode | DictNode):
        columns = [_rows(item, leaves, rows) for item in node.items]
        tuples: list[Any] = list(zip(*columns, strict=True)) if columns else [()] * rows
        if isinstance(node, TupleNode):
            return tuples
        if isinstance(node, ListNode):
            return [list(t) for t in tuples]
        return [dict(zip(node.keys, t, strict=True)) for t in tuples]
    return _leaf_rows(node, next(leaves), rows)


def _leaf_rows(leaf: Leaf, column: Any, rows: int) -> list[Any]:
    if isinstance(leaf, ArrayLeaf):
        copy = column.copy()
        return list(copy) if leaf.shape else [copy[i : i + 1].reshape(()) for i in range(rows)]
    if isinstance(leaf, ScalarLeaf):
        return list(column)
    if leaf.kind == "none":
        return [None] * rows
    values: list[Any] = column.tolist() if leaf.kind in NUMBERS else column
    return values
