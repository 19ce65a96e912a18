"""The structure of one sample, as data: its containers and leaves, with dtypes and shapes.

A schema is needed to read the raw buffers of a packet. It is typed (msgspec), so that bytes that do
not describe a schema are refused before anything is built from them. It contains no code.

Types are preserved: tuples and lists are distinguished, and so are arrays and numpy scalars, numpy
scalars and Python's own numbers, float32 and float64, 0-dimensional arrays and scalars.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from tmrl_like.errors import DecodingError, EncodingError

MAX_DIMENSIONS = 30  # of an array; a column has one more
MAX_DEPTH = 32
MAX_NODES = 10_000
MAX_SCHEMA_BYTES = 512 << 10  # encoded
_INT64 = range(-(2**63), 2**63)
_DTYPE = r"\A(\|[biu]1|[<>][iuf][248])\Z"  # booleans, integers, floats

# in numpy's notation, with the byte order: "<f4"
Dtype = Annotated[str, msgspec.Meta(pattern=_DTYPE)]
Size = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
Shape = Annotated[tuple[Size, ...], msgspec.Meta(max_length=MAX_DIMENSIONS)]
Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
PlainKind = Literal["none", "bool", "int", "float", "str", "bytes"]


class ArrayLeaf(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    """A numpy array."""

    dtype: Dtype
    shape: Shape


class ScalarLeaf(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """A numpy scalar such as np.float32(1)."""

    dtype: Dtype


class PlainLeaf(msgspec.Struct, frozen=True, array_like=True, tag="p"):
    """One of Python's own immutable values; integers have 64 bits."""

    kind: PlainKind


class TupleNode(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    """A tuple."""

    items: tuple[Node, ...]


class ListNode(msgspec.Struct, frozen=True, array_like=True, tag="l"):
    """A list."""

    items: tuple[Node, ...]


class DictNode(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    """A dictionary, with its keys in order; keys are strings or integers."""

    keys: tuple[str | int, ...]
    items: tuple[Node, ...]


Leaf: TypeAlias = ArrayLeaf | ScalarLeaf | PlainLeaf
Node: TypeAlias = Leaf | TupleNode | ListNode | DictNode

_NUMBERS = {"bool": np.dtype("|b1"), "int": np.dtype("<i8"), "float": np.dtype("<f8")}

PLAIN_KINDS: dict[type, PlainKind] = {
    type(None): "none",
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    bytes: "bytes",
}


def schema_of(value: Any, name: str = "sample", depth: int = 0) -> Node:
    """Return the schema of `value`; raise EncodingError, with the place (`info['car']`), if a part
    of it cannot be sent.
    """
    if depth > MAX_DEPTH:
        raise EncodingError(f"{name} is nested more than {MAX_DEPTH} levels deep")
    kind = type(value)
    if kind is np.ndarray:
        return ArrayLeaf(_dtype_of(value, name), value.shape)
    if isinstance(value, np.generic):
        return ScalarLeaf(_dtype_of(value, name))
    if kind in PLAIN_KINDS:
        if not travels(value):
            raise EncodingError(
                f"{name} is an integer of more than 64 bits or a text without a UTF-8 form"
            )
        return PlainLeaf(PLAIN_KINDS[kind])
    if kind is tuple:
        return TupleNode(_items_of(enumerate(value), name, depth))
    if kind is list:
        return ListNode(_items_of(enumerate(value), name, depth))
    if kind is dict:
        for key in value:
            if type(key) not in (str, int) or not travels(key):
                raise EncodingError(
                    f"{name} has the key {key!r}; keys that can be sent are strings and 64-bit "
                    "integers"
                )
        return DictNode(tuple(value), _items_of(value.items(), name, depth))
    raise EncodingError(
        f"{name} is a {kind.__module__}.{kind.__qualname__}, which cannot be sent; use numpy "
        "arrays, numbers, strings, tuples, lists and dicts, or drop it in the sample_compressor"
    )


def _items_of(items: Any, name: str, depth: int) -> tuple[Node, ...]:
    return tuple(schema_of(item, f"{name}[{key!r}]", depth + 1) for key, item in items)


def _dtype_of(value: Array | np.generic, name: str) -> str:
    if not re.search(_DTYPE, value.dtype.str) or value.ndim > MAX_DIMENSIONS:
        raise EncodingError(
            f"{name} has the dtype {value.dtype} and {value.ndim} dimensions, which cannot be "
            "sent; use booleans, integers or floats of at most 64 bits in at most "
            f"{MAX_DIMENSIONS} dimensions"
        )
    return value.dtype.str


def travels(value: Any) -> bool:
    """Whether a value can be sent: an integer must have 64 bits, a text a UTF-8 form; other types
    always can.
    """
    if type(value) is int:
        return value in _INT64
    if type(value) is not str or value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def count_nodes(node: Node, depth: int = 0) -> int:
    """Return the number of containers and leaves; raise DecodingError if the schema is nested too
    deeply, or has an invalid dictionary.
    """
    if depth > MAX_DEPTH:
        raise DecodingError(f"a structure of more than {MAX_DEPTH} levels")
    if isinstance(node, Leaf):
        return 1
    if isinstance(node, DictNode) and not len(node.keys) == len(set(node.keys)) == len(node.items):
        raise DecodingError(f"a dictionary of {len(node.keys)} keys and {len(node.items)} items")
    return 1 + sum(count_nodes(item, depth + 1) for item in node.items)


def fill(node: Node, leaves: Iterator[Any]) -> Any:
    """Return the structure with the given leaves, left to right."""
    if isinstance(node, Leaf):
        return next(leaves)
    items = [fill(item, leaves) for item in node.items]
    if isinstance(node, DictNode):
        return dict(zip(node.keys, items, strict=True))
    return items if isinstance(node, ListNode) else tuple(items)


class ArrayForm(NamedTuple):
    """The dtype and shape of a numeric leaf in one sample."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def array_form(leaf: Leaf) -> ArrayForm | None:
    """Return the dtype and shape of a numeric leaf, or None for text, bytes and None."""
    if isinstance(leaf, PlainLeaf):
        return ArrayForm(_NUMBERS[leaf.kind], ()) if leaf.kind in _NUMBERS else None
    return ArrayForm(np.dtype(leaf.dtype), leaf.shape if isinstance(leaf, ArrayLeaf) else ())


def leaves_of(node: Node) -> list[Leaf]:
    """Return all leaves, left to right, which is the order of a packet's buffers."""
    if isinstance(node, Leaf):
        return [node]
    return [leaf for item in node.items for leaf in leaves_of(item)]
