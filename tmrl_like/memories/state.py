"""A memory's state as bytes, without pickle: what goes in comes out, and nothing in the bytes is code.

`encode` takes nested dicts, lists, tuples and deques of numpy arrays, numbers, strings, bytes, None, and of
`Info`, `Sample`, `Transition` and `StepTiming`. Long lists are stored as columns: their items are grouped by
structure, each group is one buffer per leaf, and the order in which groups alternate is one small array. So
100,000 samples of a few small arrays cost about as much as their bytes.

Layout::

    magic     `_MAGIC`
    8 bytes   length of the head, little-endian
    4 bytes   CRC-32 of head and buffers
    head      one `Node` (msgpack)
    buffers   in the head's order
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from tmrl_like.errors import DecodingError, EncodingError
from tmrl_like.types import ActionSource, Info, Sample, StepTiming, Transition
from tmrl_like.util import prod
from tmrl_like.wire.columns import ColumnWriter, Layout
from tmrl_like.wire.schema import ArrayLeaf, DictNode, ListNode, TupleNode, checked_dtype, schema_of
from tmrl_like.wire.schema import Node as Schema

_MAGIC = b"tmrl_like state 1\n"
_COLUMNS_FROM = 32  # from this length on a list is stored as columns
_LONG_ITEM = 256  # a list whose items are themselves this long is stored item by item
_CHUNK = 250_000  # items per group of columns; well below the wire's limit of rows
_TAG = "\0tmrl_like."  # starts the only key of the dict that stands for one of our own types
_TUPLES: dict[str, Any] = {t.__name__: t for t in (Sample, Transition)}
_INFO = f"{_TAG}Info"

Piece: TypeAlias = bytes | memoryview
SequenceKind = Literal["list", "tuple", "deque"]


class _Array(msgspec.Struct, frozen=True, array_like=True, tag="array"):
    """One array, its bytes as they are."""

    dtype: str
    shape: tuple[int, ...]


class _Group(msgspec.Struct, frozen=True, array_like=True):
    """Items of one structure, as columns."""

    schema: Schema
    rows: int
    sizes: tuple[int, ...]


class _Chunk(msgspec.Struct, frozen=True, array_like=True):
    """Items of a list; with several groups, an int32 array follows that says whose turn it is."""

    groups: tuple[_Group, ...]


class _Rows(msgspec.Struct, frozen=True, array_like=True, tag="rows"):
    """A sequence stored as columns."""

    kind: SequenceKind
    maxlen: int | None
    chunks: tuple[_Chunk, ...]


class _Items(msgspec.Struct, frozen=True, array_like=True, tag="items"):
    """A short sequence, or one of long ones: each item for itself."""

    kind: SequenceKind
    maxlen: int | None
    items: tuple[Node, ...]


class _Map(msgspec.Struct, frozen=True, array_like=True, tag="map"):
    """A dict."""

    keys: Node
    values: Node


class _Value(msgspec.Struct, frozen=True, array_like=True, tag="value"):
    """Anything else, as a column of one row."""

    group: _Group


Node: TypeAlias = _Array | _Rows | _Items | _Map | _Value
_head_decoder: msgspec.msgpack.Decoder[Node] = msgspec.msgpack.Decoder(Node)


def encode(value: Any) -> bytes:
    """Turn a state into bytes.

    Raises:
        EncodingError: it holds something that cannot be stored; the message names where.
    """
    return b"".join(encode_pieces(value))


def encode_pieces(value: Any) -> list[Piece]:
    """As `encode`, in pieces that can be written one after the other; large arrays are not copied."""
    pieces: list[Piece] = []
    head = msgspec.msgpack.encode(_Encoder(pieces).node(value, "state"))
    checksum = zlib.crc32(head)
    for piece in pieces:
        checksum = zlib.crc32(piece, checksum)
    return [b"".join((_MAGIC, len(head).to_bytes(8, "little"), checksum.to_bytes(4, "little"), head)), *pieces]


def decode(data: bytes | memoryview) -> Any:
    """Turn bytes back into the state. Arrays are writable and independent of `data`.

    Raises:
        DecodingError: not a state, or damaged.
    """
    data = memoryview(data)
    start = len(_MAGIC) + 12
    if len(data) < start or data[: len(_MAGIC)] != _MAGIC:
        raise DecodingError("not a state that tmrl_like has written")
    length = int.from_bytes(data[start - 12 : start - 4], "little")
    if length > len(data) - start or zlib.crc32(data[start:]) != int.from_bytes(data[start - 4 : start], "little"):
        raise DecodingError("the state is damaged or incomplete: its checksum does not match")
    try:
        head = _head_decoder.decode(data[start : start + length])
        decoder = _Decoder(data[start + length :])
        value = decoder.value(head)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError) as error:
        raise DecodingError(f"the state does not decode: {error}") from None
    decoder.finish()
    return value


class _Encoder:
    def __init__(self, pieces: list[Piece]) -> None:
        self._pieces = pieces

    def node(self, value: Any, path: str) -> Node:
        kind = type(value)
        if kind is np.ndarray:
            return self._array(value, path)
        if kind is dict:
            return _Map(self.node(list(value), f"keys of {path}"), self._sequence(list(value.values()), "list", path))
        if kind is list:
            return self._sequence(value, "list", path)
        if kind is tuple:
            return self._sequence(value, "tuple", path)
        if kind is deque:
            return self._sequence(value, "deque", path, value.maxlen)
        return _Value(self._rows_of_one(value, path))

    def _array(self, array: np.ndarray[Any, Any], path: str) -> Node:
        schema = schema_of(array, path)
        assert isinstance(schema, ArrayLeaf)
        if array.size:
            flat = np.ascontiguousarray(array).reshape(-1)
            self._pieces.append(flat.view(np.uint8).data)
        return _Array(schema.dtype, schema.shape)

    def _sequence(self, values: Any, kind: SequenceKind, path: str, maxlen: int | None = None) -> Node:
        if len(values) < _COLUMNS_FROM or any(map(_is_long, values)):
            items = tuple(self.node(item, f"{path}[{i}]") for i, item in enumerate(values))
            return _Items(kind, maxlen, items)
        rest = iter(values)
        chunks: list[_Chunk] = []
        while chunk := list(islice(rest, _CHUNK)):
            chunks.append(self._chunk(chunk, path, _CHUNK * len(chunks)))
        return _Rows(kind, maxlen, tuple(chunks))

    def _chunk(self, items: Sequence[Any], path: str, first: int) -> _Chunk:
        groups: dict[Schema, int] = {}
        writers: list[ColumnWriter] = []
        counts: list[int] = []
        turns: list[int] = []
        turn = -1
        for i, item in enumerate(items):
            plain = _to_plain(item)
            if turn < 0 or not writers[turn].push(plain):
                schema = schema_of(plain, f"{path}[{first + i}]")
                turn = groups.setdefault(schema, len(groups))
                if turn == len(writers):
                    writers.append(ColumnWriter(schema))
                    counts.append(0)
                if not writers[turn].push(plain):
                    raise EncodingError(f"{path}[{first + i}] changes while it is stored")
            counts[turn] += 1
            turns.append(turn)
        if len(writers) > 1:
            self._pieces.append(np.array(turns, "<i4").tobytes())
        return _Chunk(tuple(map(self._group, writers, counts)))

    def _rows_of_one(self, value: Any, path: str) -> _Group:
        plain = _to_plain(value)
        writer = ColumnWriter(schema_of(plain, path))
        writer.push(plain)
        return self._group(writer, 1)

    def _group(self, writer: ColumnWriter, rows: int) -> _Group:
        buffers = writer.buffers()
        self._pieces.extend(buffers)
        return _Group(writer.schema, rows, tuple(map(len, buffers)))


class _Decoder:
    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._builders = {_Array: self._array, _Rows: self._rows, _Items: self._items, _Map: self._map}

    def value(self, node: Node) -> Any:
        if isinstance(node, _Value):
            return _single(self._group(node.group))
        return self._builders[type(node)](node)

    def finish(self) -> None:
        if len(self._data):
            raise DecodingError(f"{len(self._data)} bytes too many in the state")

    def _take(self, size: int) -> memoryview:
        if not 0 <= size <= len(self._data):
            raise DecodingError(f"{size} bytes where {len(self._data)} are left in the state")
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    def _array(self, node: Any) -> np.ndarray[Any, Any]:
        dtype = checked_dtype(node.dtype)
        if any(n < 0 for n in node.shape):
            raise DecodingError(f"an array of shape {node.shape} is not possible")
        data = self._take(prod(node.shape) * dtype.itemsize)
        try:
            array = np.empty(node.shape, dtype)
            if len(data):
                array.reshape(-1).view(np.uint8)[:] = np.frombuffer(data, np.uint8)
        except (ValueError, MemoryError):
            raise DecodingError(f"an array of shape {node.shape} is not possible") from None
        return array

    def _rows(self, node: Any) -> Any:
        return _sequence(node.kind, node.maxlen, [item for chunk in node.chunks for item in self._chunk(chunk)])

    def _chunk(self, chunk: _Chunk) -> list[Any]:
        if len(chunk.groups) == 1:
            return self._group(chunk.groups[0])
        counts = [group.rows for group in chunk.groups]
        turns = np.frombuffer(self._take(4 * sum(counts)), "<i4")
        if not np.array_equal(np.bincount(np.maximum(turns, 0), minlength=len(counts)), counts) or turns.min() < 0:
            raise DecodingError("the order of a list does not fit its groups")
        groups = [iter(self._group(group)) for group in chunk.groups]
        return [next(groups[turn]) for turn in turns.tolist()]

    def _items(self, node: Any) -> Any:
        return _sequence(node.kind, node.maxlen, [self.value(item) for item in node.items])

    def _map(self, node: Any) -> dict[Any, Any]:
        keys, values = self.value(node.keys), self.value(node.values)
        if not (isinstance(keys, list) and isinstance(values, list) and len(keys) == len(values)):
            raise DecodingError("keys and values of a dict do not fit")
        return dict(zip(keys, values, strict=True))

    def _group(self, group: _Group) -> list[Any]:
        columns, used = Layout(group.schema).columns(group.rows, group.sizes, self._data)
        self._take(used)
        rows = columns.to_rows()
        return [_from_plain(row) for row in rows] if _has_tag(group.schema) else rows


def _single(rows: list[Any]) -> Any:
    if len(rows) != 1:
        raise DecodingError(f"{len(rows)} values where one was announced")
    return rows[0]


def _sequence(kind: SequenceKind, maxlen: int | None, items: list[Any]) -> Any:
    if kind == "list":
        return items
    return tuple(items) if kind == "tuple" else deque(items, maxlen)


def _is_long(value: Any) -> bool:
    """True for a container that holds a long list: it is stored item by item, so that the list is columns."""
    if isinstance(value, list | deque | tuple | dict):
        children: Iterable[Any] = value.values() if isinstance(value, dict) else value
        return len(value) >= _LONG_ITEM or any(map(_is_long, children))
    return False


def _to_plain(value: Any) -> Any:
    """Replace our own types by tagged dicts of what the wire's columns know."""
    kind = type(value)
    if kind is Info:
        timing = None if value.timing is None else _plain_timing(value.timing)
        original = _to_plain(value.original)
        return {_INFO: (_to_plain(dict(value)), value.is_reset, value.is_context, timing, original)}
    if kind is dict:
        if any(type(key) is str and key.startswith(_TAG) for key in value):
            raise EncodingError(f"keys that start with {_TAG!r} are reserved")
        return {key: _to_plain(item) for key, item in value.items()}
    if kind is list:
        return [_to_plain(item) for item in value]
    if kind is tuple:
        return tuple([_to_plain(item) for item in value])
    if kind is StepTiming:
        return {_TAG + kind.__name__: _plain_timing(value)}
    if _TUPLES.get(kind.__name__) is kind:
        return {_TAG + kind.__name__: tuple([_to_plain(item) for item in value])}
    return value


def _has_tag(schema: Schema) -> bool:
    if isinstance(schema, DictNode) and any(type(key) is str and key.startswith(_TAG) for key in schema.keys):
        return True
    return isinstance(schema, DictNode | TupleNode | ListNode) and any(map(_has_tag, schema.items))


def _from_plain(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        tag = next(iter(value), None) if len(value) == 1 else None
        if type(tag) is str and tag.startswith(_TAG):
            return _tagged(tag, value[tag])
        return {key: _from_plain(item) for key, item in value.items()}
    if kind is list:
        return [_from_plain(item) for item in value]
    if kind is tuple:
        return tuple([_from_plain(item) for item in value])
    return value


def _tagged(tag: str, content: Any) -> Any:
    if tag == _INFO:
        items, is_reset, is_context, timing, original = content
        timing = None if timing is None else _to_timing(*timing)
        return Info(_from_plain(items), is_reset, is_context, timing, _from_plain(original))
    name = tag.removeprefix(_TAG)
    if name == StepTiming.__name__:
        return _to_timing(*content)
    if name not in _TUPLES:
        raise DecodingError(f"the state holds a {name!r:.40}, which this version does not know")
    return _TUPLES[name](*map(_from_plain, content))


def _plain_timing(timing: StepTiming) -> tuple[Any, ...]:
    return (*timing[:4], int(timing.source))


def _to_timing(
    observed_at_s: float, inference_s: float, period_error_s: float, policy_version: int, source: int = 0
) -> StepTiming:
    return StepTiming(observed_at_s, inference_s, period_error_s, policy_version, ActionSource(source))
