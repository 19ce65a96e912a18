"""Samples of one structure as rows of bytes, which become columns together.

A `RowFormat` turns samples into rows, one at a time, in the control loop: a small function, compiled once per
structure, checks the sample's structure and packs all of it, in about a microsecond for a drone. `RowColumns` turns
rows, many at a time and elsewhere, into the buffers of a packet.

A row of fixed size::

    24 bytes  observed_at_s, inference_s, period_error_s: float64
     8 bytes  policy_version: int64
     2 bytes  source, episode: its number in its lane modulo 100, and 128 more in samples of a reset
    leaves    left to right, those of 1 KiB and more behind the others; padded to a multiple of 8 bytes

A row with text or bytes is msgpack: the leaves, and the same six.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from tmrl_like.base.functional import prod
from tmrl_like.errors import EncodingError
from tmrl_like.types import Sample
from tmrl_like.wire.columns import NUMBERS, PLAIN_TYPES, Columns, Layout, Leaf
from tmrl_like.wire.schema import (
    MAX_LEAVES,
    ArrayLeaf,
    DictNode,
    ListNode,
    Node,
    PlainLeaf,
    ScalarLeaf,
    TupleNode,
    leaves_of,
    schema_of,
    travels,
)

TIMING = {  # the six that come with a sample, in a row
    "observed_at_s": "<f8",
    "inference_s": "<f8",
    "period_error_s": "<f8",
    "policy_version": "<i8",
    "source": "u1",
    "episode": "u1",
}
RESET = 128  # what a sample of a reset has in `episode` beside the number
EPISODES = 100  # numbers of episodes go round
_TIMING_FORMAT = "<dddqBB"
_LARGE_BYTES = 1 << 10  # from here on a leaf is copied by itself
_FORMATS = {"bool": "?", "int": "q", "float": "d"}
_SCALARS = {"<f4": "f", "<f8": "d", "<i4": "i", "<i8": "q", "|u1": "B", "|b1": "?"}
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[tuple[tuple[Any, ...], tuple[float, float, float, int, int, int]]] = (
    msgspec.msgpack.Decoder(tuple[tuple[Any, ...], tuple[float, float, float, int, int, int]])
)


class RowFormat:
    """How samples of one structure become rows; `format_of` has the one for a sample.

    Attributes:
        schema: the structure.
        size_bytes: of a row; 0: each row has its own size.
        pack: `pack(into, at, sample, observed_at_s, inference_s, period_error_s, policy_version, source, episode)`
            writes a row of fixed size into a writable buffer; returns False, having written nothing, where the sample
            has another structure.
        fields: dtype of a row of fixed size: the fields of `TIMING`, and "0", "1", … as bytes.
    """

    def __init__(self, schema: Node) -> None:
        """Compile it; raises EncodingError where it has too many leaves."""
        self.schema = schema
        self.leaves = leaves_of(schema)
        if len(self.leaves) > MAX_LEAVES:
            raise EncodingError(
                f"sample has {len(self.leaves)} values, at most {MAX_LEAVES} can be sent: use numpy arrays"
            )
        self.size_bytes = 0
        source = _Source()
        source.visit(schema, "s")
        sizes = list(map(_fixed_bytes, self.leaves))
        self._take: Callable[[Any], tuple[Any, ...] | None] = source.compile("take(s)", [source.values()])
        if None not in sizes:
            self._fix([size or 0 for size in sizes], source)

    def _fix(self, sizes: list[int], source: _Source) -> None:
        small = [i for i, size in enumerate(sizes) if size < _LARGE_BYTES]
        large = [i for i, size in enumerate(sizes) if size >= _LARGE_BYTES]
        end = struct.calcsize(_TIMING_FORMAT)
        offsets = {}
        for i in small + large:
            offsets[i] = end
            end += sizes[i]
        self.size_bytes = -(-end // 8) * 8
        self.fields = np.dtype(
            {
                "names": [*TIMING, *map(str, offsets)],
                "formats": [*TIMING.values(), *(f"V{sizes[i]}" for i in offsets)],
                "offsets": [0, 8, 16, 24, 32, 33, *offsets.values()],
                "itemsize": self.size_bytes,
            }
        )
        timing = ", ".join(TIMING)
        packing = struct.Struct(_TIMING_FORMAT + "".join(source.formats[i] for i in small))
        source.constants["pack_into"] = packing.pack_into
        stores = [f"pack_into({', '.join(['into', 'at', timing, *(v for i in small if (v := source.packed[i]))])})"]
        for i in large:  # `tobytes` where an array is not contiguous, or the buffer takes nothing but bytes
            place = f"into[at + {offsets[i]} : at + {offsets[i] + sizes[i]}]"
            stores += [
                f"try: {place} = {source.names[i]}",
                f"except (TypeError, ValueError, BufferError): {place} = {source.names[i]}.tobytes()",
            ]
        self.pack: Callable[..., bool] = source.compile(f"pack(into, at, s, {timing})", stores, "True", "False")

    def row(self, sample: Any, *timing: Any) -> bytes | bytearray | None:
        """The row of a sample, of whatever size; None where the sample has another structure."""
        if self.size_bytes:
            row = bytearray(self.size_bytes)
            return row if self.pack(row, 0, sample, *timing) else None
        leaves = self._take(sample)
        return None if leaves is None else _encoder.encode((leaves, timing))


@lru_cache(maxsize=256)
def format_for(schema: Node) -> RowFormat:
    """The format of a structure, compiled when it is first asked for."""
    return RowFormat(schema)


def format_of(sample: tuple[Any, ...]) -> RowFormat:
    """The format for samples like this one: (act, obs, rew, terminated, truncated, info[, original]).

    Raises:
        EncodingError: it holds something that cannot travel; the message names the field.
    """
    try:
        return format_for(schema_of(sample))
    except EncodingError as error:
        text = str(error)
        for i, field in enumerate((*Sample._fields, "original")):
            text = text.replace(f"sample[{i}]", field)
        raise EncodingError(text) from None


class RowColumns:
    """The rows of one format, as columns.

    Attributes:
        format: theirs.
        rows: how many.
        buffers: one per leaf, in the schema's order; empty for None.
        timing: one column per name of `TIMING`.
    """

    def __init__(self, form: RowFormat, rows: np.ndarray[Any, Any] | Sequence[bytes | bytearray | memoryview]) -> None:
        """Take rows one by one, or those of fixed size as an array [N] that has `form.fields`."""
        self.format = form
        self.rows = len(rows)
        if form.size_bytes:
            fixed = rows if isinstance(rows, np.ndarray) else np.frombuffer(b"".join(rows), form.fields)
            self.timing = [fixed[name] for name in TIMING]
            self.buffers = [fixed[str(i)].tobytes() for i in range(len(form.leaves))]
            return
        decoded = list(map(_decoder.decode, rows))
        self.timing = [
            np.array(column, dtype)
            for column, dtype in zip(zip(*(timing for _, timing in decoded), strict=True), TIMING.values(), strict=True)
        ]
        columns = zip(*(leaves for leaves, _ in decoded), strict=True)
        none = PlainLeaf("none")
        self.buffers = [b"" if leaf == none else _join_column(leaf, next(columns)) for leaf in form.leaves]


def columns_of(samples: Sequence[Any]) -> Columns:
    """Stack samples as if they had crossed the wire; EncodingError: several structures, or what cannot travel."""
    form = format_for(schema_of(samples[0]))
    rows = []
    for i, sample in enumerate(samples):
        row = form.row(sample, 0.0, 0.0, 0.0, 0, 0, 0)
        if row is None:
            raise EncodingError(f"sample {i} has another structure than the first")
        rows.append(row)
    buffers = RowColumns(form, rows).buffers
    data = memoryview(b"".join(buffers))
    return Layout(form.schema).columns(len(samples), [len(b) for b in buffers], data)[0]


def _fixed_bytes(leaf: Leaf) -> int | None:
    if isinstance(leaf, PlainLeaf):
        return np.dtype(NUMBERS[leaf.kind]).itemsize if leaf.kind in NUMBERS else 0 if leaf.kind == "none" else None
    return int(np.dtype(leaf.dtype).itemsize * prod(leaf.shape if isinstance(leaf, ArrayLeaf) else ()))


def _join_column(leaf: Leaf, column: Sequence[Any]) -> bytes:
    if isinstance(leaf, ArrayLeaf | ScalarLeaf):
        return b"".join(column)
    if leaf.kind in NUMBERS:
        return np.array(column, dtype=NUMBERS[leaf.kind]).tobytes()
    return msgspec.msgpack.encode(column)


class _Source:
    """The checks of a structure, and how each leaf is packed, as source.

    Generated rather than interpreted because it runs in the control loop: every check, then every copy, each on a local
    variable. Only indices and lengths are written into the source; every value (dtype, shape, key) is passed in by
    name.
    """

    def __init__(self) -> None:
        self.checks: list[str] = []
        self.names: list[str] = []  # of each leaf: the variable,
        self.formats: list[str] = []  # its format in a `struct`,
        self.packed: list[str] = []  # what is packed,
        self.taken: list[str] = []  # and what is stored in a row of any size
        self.constants: dict[str, Any] = {
            "ndarray": np.ndarray,
            "INT64": range(-(2**63), 2**63),
            "travels": travels,
        }
        self._count = 0

    def values(self) -> str:
        return f"return ({', '.join([*filter(None, self.taken), ''])})"

    def compile(self, signature: str, then: list[str], done: str = "None", refused: str = "None") -> Any:
        lines = [f"def {signature}:", *self.checks, *(f"  {line}" for line in then), f"  return {done}"]
        namespace = dict(self.constants)
        exec("\n".join(lines).replace("REFUSED", refused), namespace)
        return namespace[signature.partition("(")[0]]

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
        self.names.append(value)
        taken = packed = f"{value}.tobytes()"
        form = f"{_fixed_bytes(leaf)}s"
        if isinstance(leaf, ArrayLeaf):
            dtype, shape = self._constant(np.dtype(leaf.dtype)), self._constant(tuple(leaf.shape))
            self._refuse_if(f"type({value}) is not ndarray or {value}.shape != {shape}")
            self._refuse_if(f"{value}.dtype is not {dtype} and {value}.dtype != {dtype}")  # most are the same object
        elif isinstance(leaf, ScalarLeaf):
            scalar = np.dtype(leaf.dtype)
            self._refuse_if(f"type({value}) is not {self._constant(scalar.type)}")
            if leaf.dtype in _SCALARS:  # `tobytes` takes a quarter of a microsecond
                packed, form = value, _SCALARS[leaf.dtype]
            else:
                self._refuse_if(f"{value}.dtype != {self._constant(scalar)}")
        else:
            taken = packed = "" if leaf.kind == "none" else value
            form = _FORMATS.get(leaf.kind, "")
            self._check_plain(leaf, value)
        self.formats.append(form)
        self.packed.append(packed)
        self.taken.append(taken)

    def _check_plain(self, leaf: PlainLeaf, value: str) -> None:
        self._refuse_if(f"type({value}) is not {self._constant(PLAIN_TYPES[leaf.kind])}")
        if leaf.kind == "str":
            self._refuse_if(f"not travels({value})")
        if leaf.kind == "int":
            self._refuse_if(f"{value} not in INT64")

    def _refuse_if(self, condition: str) -> None:
        self.checks.append(f"  if {condition}: return REFUSED")

    def _name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def _constant(self, value: Any) -> str:
        name = self._name("c")
        self.constants[name] = value
        return name
