"""Samples of one structure as stacked buffers. `Columns` view the buffers as arrays `[N, ...]`
without copying, and can be split into rows again. The buffers are made in `rows`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from tmrl_like.errors import DecodingError
from tmrl_like.wire.messages import decoded
from tmrl_like.wire.schema import (
    ArrayForm,
    DictNode,
    Leaf,
    Node,
    PlainLeaf,
    ScalarLeaf,
    TupleNode,
    array_form,
    count_nodes,
    fill,
    leaves_of,
)

_ROW_BYTES = 32
_OBJECT_BYTES = 128  # of a container or a value
_DECODERS: dict[str, msgspec.msgpack.Decoder[Any]] = {
    "str": msgspec.msgpack.Decoder(list[str]),
    "bytes": msgspec.msgpack.Decoder(list[bytes]),
}


@dataclass(frozen=True, slots=True)
class Columns:
    """N samples of one structure.

    Attributes:
        schema: the structure of one sample.
        rows: N.
        leaves: one column per leaf of the schema: an array [N, *shape] (a read-only view of the
            packet), a list for text and bytes, None for None.
    """

    schema: Node
    rows: int
    leaves: tuple[Any, ...]

    def tree(self) -> Any:
        """Return the sample's structure with whole columns as leaves; columns of Python numbers are
        arrays, too.
        """
        return fill(self.schema, iter(self.leaves))

    def to_rows(self) -> list[Any]:
        """Return the samples. Their arrays are writable and independent of the packet."""
        return _rows(self.schema, iter(self.leaves), self.rows)

    def after(self, skip: int) -> Columns:
        """Return the samples after the first `skip`, without copying."""
        leaves = tuple(None if leaf is None else leaf[skip:] for leaf in self.leaves)
        return Columns(self.schema, self.rows - skip, leaves)


class Layout:
    """How the columns of one structure are laid out in bytes; computed once per structure.

    Attributes:
        schema: the structure.
        nodes: number of its containers and leaves.
        sizes: size of one value of each leaf, in bytes; None for text and bytes, whose sizes vary.
        varying: indices of the leaves whose sizes vary.
    """

    def __init__(self, schema: Node) -> None:
        """Compute the layout; raise DecodingError if the structure is nested too deeply, or has an
        invalid dictionary.
        """
        self.schema = schema
        self.nodes = count_nodes(schema)
        self._leaves = [(leaf, array_form(leaf)) for leaf in leaves_of(schema)]
        self.sizes = [_size_of(leaf, numbers) for leaf, numbers in self._leaves]
        self.varying = [i for i, size in enumerate(self.sizes) if size is None]

    def memory(self, rows: int) -> int:
        """Return about how many bytes `rows` samples take, in addition to their buffers, when they
        are split into rows.
        """
        return rows * (_ROW_BYTES + _OBJECT_BYTES * self.nodes)

    def columns(self, rows: int, sizes: Sequence[int], data: memoryview) -> tuple[Columns, int]:
        """View the start of `data` as `rows` samples; `sizes` are the sizes of the varying buffers,
        in bytes.

        Returns:
            The columns, and the number of bytes that they take.

        Raises:
            DecodingError: the buffers do not match the structure and the number of rows.
        """
        if len(sizes) != len(self.varying):
            raise DecodingError(
                f"the sizes of {len(sizes)} buffers of text; expected {len(self.varying)}"
            )
        varying = iter(sizes)
        start = 0
        columns: list[Any] = []
        for (leaf, numbers), value_bytes in zip(self._leaves, self.sizes, strict=True):
            size = next(varying) if value_bytes is None else rows * value_bytes
            if size > len(data) - start:
                raise DecodingError(f"a buffer of {size} bytes where {len(data) - start} are left")
            if numbers is not None:
                columns.append(_array(rows, *numbers, data, start))
            else:
                columns.append(
                    None if value_bytes == 0 else _texts(leaf, rows, data[start : start + size])
                )
            start += size
        return Columns(self.schema, rows, tuple(columns)), start


def _size_of(leaf: Leaf, numbers: ArrayForm | None) -> int | None:
    if numbers is not None:
        return numbers.dtype.itemsize * math.prod(numbers.shape)
    return 0 if leaf == PlainLeaf("none") else None


def _array(
    rows: int, dtype: np.dtype[Any], shape: tuple[int, ...], data: memoryview, start: int
) -> Any:
    try:
        return np.ndarray((rows, *shape), dtype, data, start)
    except ValueError:
        raise DecodingError(f"an array of shape {(rows, *shape)} is not possible") from None


def _texts(leaf: Leaf, rows: int, buffer: memoryview) -> list[Any]:
    assert isinstance(leaf, PlainLeaf)
    values: list[Any] = decoded(_DECODERS[leaf.kind], buffer, f"a column of {leaf.kind}")
    if len(values) != rows:
        raise DecodingError(f"{len(values)} values in a column of {rows} rows")
    return values


def _rows(node: Node, leaves: Iterator[Any], rows: int) -> list[Any]:
    if isinstance(node, Leaf):
        return leaf_rows(node, next(leaves), rows)
    columns = [_rows(item, leaves, rows) for item in node.items]
    tuples: list[Any] = list(zip(*columns, strict=True)) if columns else [()] * rows
    if isinstance(node, TupleNode):
        return tuples
    if isinstance(node, DictNode):
        return [dict(zip(node.keys, items, strict=True)) for items in tuples]
    return list(map(list, tuples))


def leaf_rows(leaf: Leaf, column: Any, rows: int) -> list[Any]:
    """Return the values of a leaf in N samples, from its column; arrays are copies."""
    if column is None:
        return [None] * rows
    if isinstance(leaf, ScalarLeaf) or isinstance(column, list):
        return list(column)
    if isinstance(leaf, PlainLeaf):
        values: list[Any] = column.tolist()
        return values
    copy = column.copy()
    return list(copy) if leaf.shape else [copy[i, ...] for i in range(rows)]
