"""The structure of one sample, as data: which containers, which leaves, which dtypes and shapes.

A schema is what makes a packet of raw buffers readable again. It is typed (msgspec), so bytes that
do not describe a schema are refused before anything is built from them. There is no code in it.

Kept apart, so that what comes out is what went in: tuples and lists, arrays and numpy scalars,
numpy scalars and Python's own numbers, float32 and float64, 0-dimensional arrays and scalars.
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
_INT64 = range(-(2**63), 2**63)
_DTYPE = r"\A(\|[biu]1|[<>][iuf][248])\Z"  # booleans, integers, floats

# as numpy writes it, with the byte order: "<f4"
Dtype = Annotated[str, msgspec.Meta(pattern=_DTYPE)]
Size = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
Shape = Annotated[tuple[Size, ...], msgspec.Meta(max_length=MAX_DIMENSIONS)]
PlainKind = Literal["none", "bool", "int", "float", "str", "bytes"]


class ArrayLeaf(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    """A numpy array."""

    dtype: Dtype
    shape: Shape


class ScalarLeaf(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """A numpy scalar such as np.float32(1)."""

    dtype: Dtype


class PlainLeaf(msgspec.Struct, frozen=True, array_like=True, tag="p"):
    """One of Python's own immutable values; integers of 64 bits."""

    kind: PlainKind


class TupleNode(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    """A tuple."""

    items: tuple[Node, ...]


class ListNode(msgspec.Struct, frozen=True, array_like=True, tag="l"):
    """A list."""

    items: tuple[Node, ...]


class DictNode(msgspec.Struct, frozen=True, array_like=True, tag="d"):
    """A dictionary with its keys in their order; keys are strings or integers."""

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
    """Describe `value`; raises EncodingError, which names where (`info['car']`), for what cannot
    travel.
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


def _dtype_of(value: np.ndarray[Any, Any] | np.generic, name: str) -> str:
    if not re.search(_DTYPE, value.dtype.str) or value.ndim > MAX_DIMENSIONS:
        raise EncodingError(
            f"{name} has the dtype {value.dtype} and {value.ndim} dimensions, which cannot be "
            "sent; use booleans, integers or floats of at most 64 bits in at most "
            f"{MAX_DIMENSIONS} dimensions"
        )
    return value.dtype.str


def travels(value: Any) -> bool:
    """Whether an integer has 64 bits and a text a UTF-8 form; anything else does travel."""
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
    """How many containers and leaves there are; DecodingError: nested too deeply, or a dictionary
    that cannot be.
    """
    if depth > MAX_DEPTH:
        raise DecodingError(f"a structure of more than {MAX_DEPTH} levels")
    if isinstance(node, Leaf):
        return 1
    if isinstance(node, DictNode) and not len(node.keys) == len(set(node.keys)) == len(node.items):
        raise DecodingError(f"a dictionary of {len(node.keys)} keys and {len(node.items)} items")
    return 1 + sum(count_nodes(item, depth + 1) for item in node.items)


def fill(node: Node, leaves: Iterator[Any]) -> Any:
    """Put values, left to right, into the structure."""
    if isinstance(node, Leaf):
        return next(leaves)
    items = [fill(item, leaves) for item in node.items]
    if isinstance(node, DictNode):
        return dict(zip(node.keys, items, strict=True))
    return items if isinstance(node, ListNode) else tuple(items)


class ArrayForm(NamedTuple):
    """What a leaf of numbers is in one sample, as an array."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def array_form(leaf: Leaf) -> ArrayForm | None:
    """None: the leaf is text, bytes or None."""
    if isinstance(leaf, PlainLeaf):
        return ArrayForm(_NUMBERS[leaf.kind], ()) if leaf.kind in _NUMBERS else None
    return ArrayForm(np.dtype(leaf.dtype), leaf.shape if isinstance(leaf, ArrayLeaf) else ())


def leaves_of(node: Node) -> list[Leaf]:
    """All leaves, left to right: the order of a packet's buffers."""
    if isinstance(node, Leaf):
        return [node]
    return [leaf for item in node.items for leaf in leaves_of(item)]
