"""Preallocated columns for one field of a sample: each leaf of the structure is one array [capacity, ...]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, repeat
from typing import Any, TypeAlias

import msgspec
import numpy as np

from tmrl_like.base import tree
from tmrl_like.base.functional import prod
from tmrl_like.errors import MemoryContractError
from tmrl_like.wire.schema import (
    ArrayLeaf,
    DictNode,
    Leaf,
    ListNode,
    Node,
    PlainLeaf,
    ScalarLeaf,
    TupleNode,
    fill,
    leaves_of,
)

Array: TypeAlias = np.ndarray[Any, Any]
Rows: TypeAlias = np.ndarray[Any, np.dtype[np.intp]]
Reserve: TypeAlias = Callable[[tuple[int, ...], np.dtype[Any]], Array]
"""Makes an array [capacity, *shape] of zeros."""
_NUMBERS = "biuf"  # numpy's kinds
_PLAIN_DTYPE = {"bool": np.dtype(np.bool_), "int": np.dtype(np.int64), "float": np.dtype(np.float64)}


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


class FieldColumns:
    """One field (observation, action, …): its structure and a column per leaf, left to right.

    Attributes:
        node: the structure of the field in one sample.
        columns: one per leaf.
    """

    def __init__(self, name: str, node: Node, reserve: Reserve) -> None:
        """Reserve the columns; MemoryContractError: a leaf is neither an array nor a number."""
        self.name = name
        self.node = node
        self.columns = [
            Column(leaf, reserve(shape_of(leaf), dtype_of(leaf, path))) for path, leaf in named_leaves(node, name)
        ]
        self._is_leaf = _is_leaf(node)
        self._is_flat_tuple = isinstance(node, TupleNode) and all(map(_is_leaf, node.items))

    def check_fits(self, node: Node, is_lossless: bool) -> None:
        """Refuse samples that these columns cannot hold: exactly, or after a cast within the same kind.

        Raises:
            MemoryContractError: another structure, shape or dtype; the message names the leaf.
        """
        if node == self.node:
            return
        own, other = named_leaves(self.node, self.name), named_leaves(node, self.name)
        if [path for path, _ in own] != [path for path, _ in other] or _containers(self.node) != _containers(node):
            raise MemoryContractError(
                f"{self.name} has changed its structure: it began as {_listed(own)} and is now {_listed(other)}"
            )
        casting = "safe" if is_lossless else "same_kind"
        for column, (path, leaf) in zip(self.columns, other, strict=True):
            shape, dtype = shape_of(leaf), dtype_of(leaf, path)
            first_shape, first_dtype = column.array.shape[1:], column.array.dtype
            if shape != first_shape or not np.can_cast(dtype, first_dtype, casting):  # type: ignore[arg-type]
                raise MemoryContractError(
                    f"{path} began as {first_dtype} {first_shape} and is now {dtype} {shape}: it must keep its "
                    "dtype and shape; convert it in the environment or in the sample_compressor"
                )

    def check_is_number(self, node: Node) -> None:
        """Raise MemoryContractError for what is not a single number."""
        if (
            isinstance(node, TupleNode | ListNode | DictNode)
            or prod(getattr(node, "shape", ())) != 1
            or dtype_of(node, self.name).kind not in _NUMBERS
        ):
            raise MemoryContractError(f"{self.name} is not a single number but {node}")

    def widen(self, node: Node) -> None:
        """Make a column of single numbers fit for those of `node`: fractions where there were whole numbers."""
        if node == self.node:
            return
        column = self.columns[0]
        dtype = np.result_type(column.array.dtype, dtype_of(node, self.name))  # type: ignore[arg-type]
        if column.array.dtype.kind != "f" and dtype != column.array.dtype:
            column.array = column.array.astype(dtype)
            if isinstance(column.leaf, PlainLeaf):
                self.node = column.leaf = PlainLeaf("float" if dtype.kind == "f" else "int")
            else:
                self.node = column.leaf = msgspec.structs.replace(column.leaf, dtype=dtype.str)

    def tree(self, leaves: Sequence[Any]) -> Any:
        """Put leaves, left to right, into the field's structure. The two common structures are short cuts."""
        if self._is_flat_tuple:
            return tuple(leaves)
        return leaves[0] if self._is_leaf else fill(self.node, iter(leaves))


def _is_leaf(node: Node) -> bool:
    return not isinstance(node, TupleNode | ListNode | DictNode)


def _containers(node: Node) -> Any:
    return fill(node, repeat(None))


def named_leaves(node: Node, name: str) -> list[tuple[str, Leaf]]:
    """All leaves, left to right, with where they are, e.g. `obs[2]`."""
    return [(name + tree.name_of(path), leaf) for path, leaf in tree.walk(fill(node, iter(leaves_of(node))))]


def field_slices(nodes: Sequence[Node]) -> list[slice]:
    """Which leaves of a sample belong to which of its fields."""
    ends = list(accumulate([len(leaves_of(node)) for node in nodes], initial=0))
    return [slice(start, end) for start, end in pairwise(ends)]


def shape_of(leaf: Leaf) -> tuple[int, ...]:
    """The shape of a leaf in one sample."""
    return leaf.shape if isinstance(leaf, ArrayLeaf) else ()


def dtype_of(leaf: Leaf, name: str) -> np.dtype[Any]:
    """The dtype of a leaf's column; raises MemoryContractError for text, bytes, times, None and the like."""
    if isinstance(leaf, ArrayLeaf | ScalarLeaf):
        dtype, found = np.dtype(leaf.dtype), f"an array of {leaf.dtype}"
    else:
        dtype, found = _PLAIN_DTYPE.get(leaf.kind), f"a Python {leaf.kind}"  # type: ignore[assignment]
    if dtype is None or dtype.kind not in f"{_NUMBERS}c":
        raise MemoryContractError(
            f"{name} is {found}; ReplayMemory stores arrays and numbers: drop it in the sample_compressor"
        )
    return dtype


def _listed(leaves: list[tuple[str, Leaf]]) -> str:
    return ", ".join(path for path, _ in leaves) or "empty"
