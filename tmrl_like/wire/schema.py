"""The structure of one sample, as data: which containers, which leaves, which dtypes and shapes.

A schema is what makes a packet of raw buffers readable again. It is typed (msgspec), so bytes that do
not describe a schema are refused before anything is built from them. There is no code in it.

Kept apart, so that what comes out is what went in: tuples and lists, arrays and numpy scalars, numpy
scalars and Python's own numbers, float32 and float64, 0-dimensional arrays and scalars.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from tmrl_like.errors import DecodingError, EncodingError

MAX_DIMENSIONS = 32
MAX_DEPTH = 32
MAX_LEAVES = 10_000
_INT64 = range(-(2**63), 2**63)
_DTYPE_KINDS = "biufcMmSU"  # no objects, no structured types: they cannot travel as plain bytes
_DTYPE = re.compile(rf"[<>|][{_DTYPE_KINDS}]\d{{1,9}}(\[\d{{0,6}}[A-Za-z]{{1,2}}\])?")


class ArrayLeaf(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    """A numpy array: dtype string with byte order ("<f4"), shape."""

    dtype: str
    shape: tuple[int, ...]


class ScalarLeaf(msgspec.Struct, frozen=True, array_like=True, tag="s"):
    """A numpy scalar such as np.float32(1)."""

    dtype: str


PlainKind = Literal["none", "bool", "int", "float", "str", "bytes"]


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


Node: TypeAlias = ArrayLeaf | ScalarLeaf | PlainLeaf | TupleNode | ListNode | DictNode


PLAIN_KINDS: dict[type, PlainKind] = {
    type(None): "none",
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    bytes: "bytes",
}


def schema_of(value: Any, name: str = "sample", depth: int = 0) -> Node:
    """Describe `value`; raises EncodingError, which names where (`info['car']`), for what cannot travel."""
    if depth > MAX_DEPTH:
        raise EncodingError(f"{name} is nested more than {MAX_DEPTH} levels deep")
    kind = type(value)
    if kind is np.ndarray:
        return ArrayLeaf(_dtype_string(value.dtype, name), value.shape)
    if isinstance(value, np.generic) and not isinstance(value, np.character):
        return ScalarLeaf(_dtype_string(value.dtype, name))
    if kind is int and value not in _INT64:
        raise EncodingError(f"{name} is {value}; integers that can be sent have 64 bits")
    if kind is str and not travels(value):
        raise EncodingError(f"{name} is text with a lone surrogate, which has no UTF-8 form")
    if kind in PLAIN_KINDS:
        return PlainLeaf(PLAIN_KINDS[kind])
    if kind is tuple or kind is list:
        children = tuple(schema_of(v, f"{name}[{i}]", depth + 1) for i, v in enumerate(value))
        return TupleNode(children) if kind is tuple else ListNode(children)
    if kind is dict:
        for key in value:
            if (type(key) is not str or not travels(key)) and (type(key) is not int or key not in _INT64):
                raise EncodingError(
                    f"{name} has the key {key!r}; keys that can be sent are strings and 64-bit integers"
                )
        return DictNode(tuple(value), tuple(schema_of(v, f"{name}[{k!r}]", depth + 1) for k, v in value.items()))
    raise EncodingError(
        f"{name} is a {kind.__module__}.{kind.__qualname__}, which cannot be sent; use numpy arrays, numbers, "
        "strings, tuples, lists and dicts, or drop it in the sample_compressor"
    )


def travels(text: str) -> bool:
    """Whether text has a UTF-8 form."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _dtype_string(dtype: np.dtype[Any], name: str) -> str:
    if dtype.kind not in _DTYPE_KINDS or (dtype.kind in "fc" and dtype.itemsize > 8 * (1 + (dtype.kind == "c"))):
        raise EncodingError(f"{name} is an array of dtype {dtype}, which cannot be sent as plain bytes")
    return dtype.str


def checked_dtype(text: str) -> np.dtype[Any]:
    """Turn a dtype string from the wire into a dtype; raises DecodingError where it is not a plain one."""
    if not _DTYPE.fullmatch(text):
        raise DecodingError(f"{text!r:.40} is not a dtype that travels")
    try:
        dtype = np.dtype(text)
    except (TypeError, ValueError):
        raise DecodingError(f"{text!r:.40} is not a dtype") from None
    if dtype.str != text:
        raise DecodingError(f"{text!r:.40} is not a dtype that travels")
    return dtype


def check_schema(node: Node) -> None:
    """Raise DecodingError for what is nested too deeply, too many leaves, or a dictionary of other keys than items."""
    leaves = 0
    level: list[Node] = [node]
    for _ in range(MAX_DEPTH + 2):
        containers = [n for n in level if isinstance(n, TupleNode | ListNode | DictNode)]
        leaves += len(level) - len(containers)
        for n in containers:
            if isinstance(n, DictNode) and not len(n.keys) == len(set(n.keys)) == len(n.items):
                raise DecodingError(f"a dictionary of {len(n.keys)} keys and {len(n.items)} items")
        level = [item for n in containers for item in n.items]
    if level or leaves > MAX_LEAVES:
        raise DecodingError(f"a structure of more than {MAX_LEAVES} leaves or {MAX_DEPTH} levels")


def fill(node: Node, leaves: Iterator[Any]) -> Any:
    """Put values, left to right, into the structure."""
    if isinstance(node, DictNode):
        return {key: fill(item, leaves) for key, item in zip(node.keys, node.items, strict=True)}
    if isinstance(node, TupleNode | ListNode):
        items = [fill(item, leaves) for item in node.items]
        return items if isinstance(node, ListNode) else tuple(items)
    return next(leaves)


def leaves_of(node: Node) -> list[ArrayLeaf | ScalarLeaf | PlainLeaf]:
    """All leaves, left to right: the order of a packet's buffers."""
    if isinstance(node, TupleNode | ListNode | DictNode):
        return [leaf for item in node.items for leaf in leaves_of(item)]
    return [node]
