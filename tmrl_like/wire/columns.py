"""Samples of one structure as stacked buffers: rows in, columns on the wire, rows or columns out.

`ColumnWriter` takes samples of one structure one at a time. A small function, compiled once per
structure, checks each sample's structure and copies each leaf's bytes away, in about a
microsecond for a drone. A sample of another structure starts another writer.

`Columns` is the other end: buffers and a schema, viewed as arrays `[N, ...]` without copying, or taken
apart into rows again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tmrl_like.base.functional import prod
from tmrl_like.errors import DecodingError, EncodingError
from tmrl_like.wire.messages import MAX_BODY_BYTES
from tmrl_like.wire.schema import (
    MAX_DIMENSIONS,
    MAX_LEAVES,
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
    schema_of,
    travels,
)

MAX_ROWS = 1_000_000
_PLANNED_LEAVES = 64  # of a structure; for larger ones no plans are kept
Leaf = ArrayLeaf | ScalarLeaf | PlainLeaf
_PLAIN_DTYPE = {"bool": "|b1", "int": "<i8", "float": "<f8", "complex": "<c16"}
_PLAIN_TYPE = {
    "none": type(None),
    "bool": bool,
    "int": int,
    "bigint": int,
    "float": float,
    "complex": complex,
    "str": str,
    "bytes": bytes,
    "numpy str": np.str_,
    "numpy bytes": np.bytes_,
}
_TEXTS = ("str", "bytes", "numpy str", "numpy bytes")
_TO_PLAIN = {  # what is stored of a value that msgpack does not know
    "bigint": "{0}.to_bytes({0}.bit_length() // 8 + 1, 'little', signed=True)",
    "complex": "complex_bytes({0}.real, {0}.imag)",
    "numpy str": "str({0})",
    "numpy bytes": "bytes({0})",
}
_NONE = PlainLeaf("none")
_text_decoder = msgspec.msgpack.Decoder(list[str])
_bytes_decoder = msgspec.msgpack.Decoder(list[bytes])


class ColumnWriter:
    """Collects samples that share one structure.

    `push(sample)` copies what it stores, so the environment may reuse its arrays, and returns it: the leaves that have
    a value, as bytes, numbers and text. It returns None, having stored nothing, when the sample has another structure.
    """

    def __init__(self, schema: Node) -> None:
        """Start empty."""
        self.schema = schema
        self._leaves, self._fixed_bytes, self._texts, make_push = _compile(schema)
        self._columns: list[list[Any]] = [[] for _ in self._leaves]
        self.push: Callable[[Any], tuple[Any, ...] | None] = make_push(*(column.append for column in self._columns))

    def push_leaves(self, values: Sequence[Any]) -> None:
        """Store what another writer's `push` returned."""
        kept = [column for leaf, column in zip(self._leaves, self._columns, strict=True) if leaf != _NONE]
        for column, value in zip(kept, values, strict=True):
            column.append(value)

    def row_bytes(self) -> int:
        """About how many bytes a sample takes; text and bytes are taken to be as long as the newest."""
        return self._fixed_bytes + sum(len(self._columns[i][-1]) for i in self._texts)

    def buffers(self) -> list[bytes]:
        """One buffer per leaf, in the schema's order; empty for None."""
        return [_join_column(leaf, column) for leaf, column in zip(self._leaves, self._columns, strict=True)]


@lru_cache(maxsize=256)
def _compile(schema: Node) -> tuple[list[Leaf], int, tuple[int, ...], Callable[..., Callable[[Any], Any]]]:
    """Leaves of a structure, bytes of those of fixed size, which are text, and the maker of `push(sample)`.

    Generated rather than interpreted because it runs in the control loop: first every check, then every
    copy, each on a local variable. Only indices and lengths are written into the source; every value
    (dtype, shape, key) is passed in by name.
    """
    leaves = leaves_of(schema)
    if len(leaves) > MAX_LEAVES:
        raise EncodingError(f"sample has {len(leaves)} values, at most {MAX_LEAVES} can be sent: use numpy arrays")
    source = _PushSource()
    source.visit(schema, "s")
    lines = [
        f"def make_push({', '.join(f'a{i}' for i in range(len(leaves)))}):",
        " def push(s):",
        *source.checks,
        *source.stores,
        f"  return ({', '.join([*source.stored, ''])})",
        " return push",
    ]
    namespace = dict(source.constants)
    exec("\n".join(lines), namespace)
    texts = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, PlainLeaf) and leaf.kind in _TEXTS)
    return leaves, sum(map(_fixed_bytes, leaves)), texts, namespace["make_push"]


def _fixed_bytes(leaf: Leaf) -> int:
    if isinstance(leaf, PlainLeaf):
        return np.dtype(_PLAIN_DTYPE[leaf.kind]).itemsize if leaf.kind in _PLAIN_DTYPE else 0
    return int(np.dtype(leaf.dtype).itemsize * prod(leaf.shape if isinstance(leaf, ArrayLeaf) else ()))


class _PushSource:
    def __init__(self) -> None:
        self.checks: list[str] = []
        self.stores: list[str] = []
        self.stored: list[str] = []
        self.constants: dict[str, Any] = {
            "ndarray": np.ndarray,
            "INT64": range(-(2**63), 2**63),
            "travels": travels,
            "complex_bytes": struct.Struct("<2d").pack,
        }
        self._names = 0
        self._leaves = 0

    def visit(self, node: Node, value: str) -> None:
        if isinstance(node, TupleNode | ListNode):
            self._sequence(node, value)
        elif isinstance(node, DictNode):
            self._dict(node, value)
        else:
            self._leaf(node, value)

    def _sequence(self, node: TupleNode | ListNode, value: str) -> None:
        kind = "tuple" if isinstance(node, TupleNode) else "list"
        self._refuse_if(f"type({value}) is not {kind} or len({value}) != {len(node.items)}")
        names = [self._name("v") for _ in node.items]
        if names:
            self.checks.append(f"  {', '.join(names)}, = {value}")
        for name, item in zip(names, node.items, strict=True):
            self.visit(item, name)

    def _dict(self, node: DictNode, value: str) -> None:
        keys = self._constant(tuple(node.keys))
        self._refuse_if(f"type({value}) is not dict or tuple({value}) != {keys}")
        if node.keys:  # 1, 1.0 and True are equal
            types = self._constant([type(key) for key in node.keys])
            self._refuse_if(f"[*map(type, {value})] != {types}")
        for i, item in enumerate(node.items):
            name = self._name("v")
            self.checks.append(f"  {name} = {value}[{keys}[{i}]]")
            self.visit(item, name)

    def _leaf(self, leaf: Leaf, value: str) -> None:
        append = f"a{self._leaves}"
        self._leaves += 1
        if isinstance(leaf, ArrayLeaf):
            dtype, shape = self._constant(np.dtype(leaf.dtype)), self._constant(tuple(leaf.shape))
            self._refuse_if(f"type({value}) is not ndarray or {value}.dtype != {dtype} or {value}.shape != {shape}")
            self._store(append, f"{value}.tobytes()")
        elif isinstance(leaf, ScalarLeaf):
            scalar = np.dtype(leaf.dtype)
            names = self._constant(scalar.type), self._constant(scalar)
            self._refuse_if(f"type({value}) is not {names[0]} or {value}.dtype != {names[1]}")
            self._store(append, f"{value}.tobytes()")
        else:
            self._plain_leaf(leaf, value, append)

    def _plain_leaf(self, leaf: PlainLeaf, value: str, append: str) -> None:
        self._refuse_if(f"type({value}) is not {self._constant(_PLAIN_TYPE[leaf.kind])}")
        if leaf.kind in ("str", "numpy str"):
            self._refuse_if(f"not travels({value})")
        if leaf.kind in ("int", "bigint"):
            self._refuse_if(f"({value} in INT64) is {leaf.kind == 'bigint'}")
        if leaf.kind != "none":
            self._store(append, _TO_PLAIN.get(leaf.kind, "{0}").format(value))

    def _store(self, append: str, value: str) -> None:
        self.stored.append(self._name("b"))
        self.stores.append(f"  {self.stored[-1]} = {value}; {append}({self.stored[-1]})")

    def _refuse_if(self, condition: str) -> None:
        self.checks.append(f"  if {condition}: return None")

    def _name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def _constant(self, value: Any) -> str:
        name = self._name("c")
        self.constants[name] = value
        return name


def _join_column(leaf: Leaf, column: list[Any]) -> bytes:
    if isinstance(leaf, ArrayLeaf | ScalarLeaf) or leaf.kind in ("none", "complex"):
        return b"".join(column)
    if leaf.kind in _PLAIN_DTYPE:
        return np.array(column, dtype=_PLAIN_DTYPE[leaf.kind]).tobytes()
    return msgspec.msgpack.encode(column)


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
        """Check the structure.

        Raises:
            DecodingError: a dtype or shape that cannot be, too many leaves, a dictionary that is none.
        """
        check_schema(schema)
        self.schema = schema
        self._columns = [_ColumnLayout(leaf) for leaf in leaves_of(schema)]
        self.leaves = len(self._columns)
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


class _Plan(NamedTuple):
    sizes: tuple[int, ...]
    dtype: np.dtype[Any]  # of the buffers one after the other
    views: list[tuple[str, tuple[int, ...]]]  # name in the dtype, shape


class _ColumnLayout:
    def __init__(self, leaf: Leaf) -> None:
        self.leaf = leaf
        self.shape = leaf.shape if isinstance(leaf, ArrayLeaf) else ()
        if isinstance(leaf, PlainLeaf):
            self.dtype = np.dtype(_PLAIN_DTYPE[leaf.kind]) if leaf.kind in _PLAIN_DTYPE else None
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


def columns_of(samples: Sequence[Any]) -> Columns:
    """Stack samples that share one structure, as if they had crossed the wire.

    Raises:
        EncodingError: they do not share one structure, or hold something that cannot travel.
    """
    writer = ColumnWriter(schema_of(samples[0]))
    for i, sample in enumerate(samples):
        if writer.push(sample) is None:
            raise EncodingError(f"sample {i} has another structure than the first")
    buffers = writer.buffers()
    data = memoryview(b"".join(buffers))
    return Layout(writer.schema).columns(len(samples), [len(b) for b in buffers], data)[0]


def _variable(leaf: Leaf, rows: int, buffer: memoryview) -> list[Any] | None:
    assert isinstance(leaf, PlainLeaf)
    if leaf.kind == "none":
        if len(buffer):
            raise DecodingError(f"{len(buffer)} bytes for a column of None, which needs none")
        return None
    try:
        values: list[Any] = (_text_decoder if leaf.kind in ("str", "numpy str") else _bytes_decoder).decode(buffer)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DecodingError(f"a column of {leaf.kind} does not decode: {error}") from None
    if len(values) != rows:
        raise DecodingError(f"{len(values)} values in a column of {rows} rows")
    if leaf.kind == "bigint":
        return [int.from_bytes(value, "little", signed=True) for value in values]
    return list(map(_PLAIN_TYPE[leaf.kind], values)) if leaf.kind in ("numpy str", "numpy bytes") else values


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
    values: list[Any] = column.tolist() if leaf.kind in _PLAIN_DTYPE else column
    return values
