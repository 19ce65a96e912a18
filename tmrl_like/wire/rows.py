"""Samples of one structure as rows of bytes, which become columns together.

A `RowFormat` turns samples into rows, one at a time, in the control loop: a small function,
compiled once per structure, checks the sample's structure and packs all of it, in about a
microsecond for a drone. `RowColumns` turns rows, many at a time and elsewhere, into the buffers of
a packet.

A row of fixed size::

    26 bytes  `TIMING`
    leaves    left to right, those of 1 KiB and more last; padded to a multiple of 8 bytes

A row with text or bytes is msgpack: such a row of what has a fixed size, and a list of the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from tmrl_like.errors import EncodingError
from tmrl_like.types import Sample
from tmrl_like.wire.columns import Columns, Layout
from tmrl_like.wire.schema import (
    MAX_NODES,
    PLAIN_KINDS,
    ArrayLeaf,
    DictNode,
    Leaf,
    Node,
    PlainLeaf,
    ScalarLeaf,
    TupleNode,
    schema_of,
    travels,
)

TIMING: dict[str, np.dtype[Any]] = {  # what comes with a sample: its `StepTiming`, and the episode
    "observed_at_s": np.dtype("<f8"),  # Unix time
    "inference_s": np.dtype("<f4"),
    "period_error_s": np.dtype("<f4"),
    "policy_version": np.dtype("<i8"),
    "source": np.dtype("u1"),
    # its number in its lane modulo `EPISODES`, and `RESET` more in samples of a reset
    "episode": np.dtype("u1"),
}
RESET = 128  # what a sample of a reset has in `episode` beside the number
EPISODES = 100  # numbers of episodes go round
_TIMING_FORMAT = "<dffqBB"
_LARGE_BYTES = 1 << 10  # from here on a leaf is copied by itself
_PLAIN_TYPES = {kind: type_ for type_, kind in PLAIN_KINDS.items()}
_PLAIN_FORMATS = {"bool": "?", "int": "q", "float": "d"}
_SCALAR_FORMATS = {"<f4": "f", "<f8": "d", "<i4": "i", "<i8": "q", "|u1": "B", "|b1": "?"}
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[tuple[bytes, tuple[Any, ...]]] = msgspec.msgpack.Decoder(
    tuple[bytes, tuple[Any, ...]]
)


class RowFormat:
    """How samples of one structure become rows; `format_of` has the one for a sample.

    Attributes:
        encoded_schema: the structure, as msgpack.
        layout: of the columns that they become.
        size_bytes: of a row; 0: each row has its own size.
        fields: dtype of a row, or of the part of it that has a fixed size: the fields of `TIMING`,
            and "0", "1", … for the leaves, as bytes.
        pack: `pack(into, at, sample, observed_at_s, inference_s, period_error_s, policy_version,
            source, episode)` writes what `fields` describe into a writable buffer, and returns True
            (or the sample's texts and bytes, where it has any); False, having written nothing: the
            sample has another structure.
    """

    def __init__(self, schema: Node) -> None:
        """Compile it; raises EncodingError where it is too large."""
        self.layout = Layout(schema)
        if self.layout.nodes > MAX_NODES:
            raise EncodingError(
                f"sample has {self.layout.nodes} values, at most {MAX_NODES} can be sent: use "
                "numpy arrays"
            )
        self.encoded_schema = msgspec.Raw(_encoder.encode(schema))
        fixed = [
            (str(i), f"V{size}") for i, size in enumerate(self.layout.sizes) if size is not None
        ]
        fixed.sort(key=lambda field: np.dtype(field[1]).itemsize >= _LARGE_BYTES)
        fields = [*TIMING.items(), *fixed]
        padding = -np.dtype(fields).itemsize % 8
        self.fields = np.dtype([*fields, ("padding", f"V{padding}")])
        self.size_bytes = 0 if self.layout.varying else self.fields.itemsize
        self.pack: Callable[..., Any] = _PackSource(schema, self.fields).compile()

    def row(self, sample: Any, *timing: Any) -> bytes | bytearray | None:
        """The row of a sample, of whatever size; None where the sample has another structure."""
        row = bytearray(self.fields.itemsize)
        texts = self.pack(row, 0, sample, *timing)
        if texts is False:
            return None
        return row if self.size_bytes else _encoder.encode((row, texts))


@lru_cache(maxsize=256)
def format_for(schema: Node) -> RowFormat:
    """The format of a structure, compiled when it is first asked for."""
    return RowFormat(schema)


def format_of(sample: tuple[Any, ...]) -> RowFormat:
    """The format for samples like this one: (act, obs, rew, terminated, truncated, info[,
    original]).

    Raises:
        EncodingError: it holds something that cannot travel; the message names the field.
    """
    named = zip((*Sample._fields, "original"), sample, strict=False)
    return format_for(TupleNode(tuple(schema_of(value, name, depth=1) for name, value in named)))


def row_of(
    sample: tuple[Any, ...], known: RowFormat | None, *timing: Any
) -> tuple[RowFormat, bytes | bytearray]:
    """The row of a sample, in the format that is known if it has that structure, and the format; as
    `format_of`.
    """
    row = None if known is None else known.row(sample, *timing)
    if known is None or row is None:
        known = format_of(sample)
        row = known.row(sample, *timing)
        if row is None:
            raise EncodingError(
                "a sample does not match its own structure; is another thread changing it?"
            )
    return known, row


class RowColumns:
    """The rows of one format, as columns.

    Attributes:
        format: theirs.
        rows: how many.
        buffers: one per leaf, in the schema's order; empty for None.
        timing: one column per name of `TIMING`.
    """

    def __init__(self, form: RowFormat, rows: Sequence[Any]) -> None:
        """Take rows one by one, as bytes, or those of fixed size in pieces: arrays [n] that have
        `form.fields`.
        """
        texts: Sequence[tuple[str | bytes, ...]] = ()
        if not form.size_bytes:
            rows, texts = zip(*map(_decoder.decode, rows), strict=True)
        if not isinstance(rows[0], np.ndarray):
            rows = [np.frombuffer(b"".join(rows), form.fields)]
        fixed = rows[0] if len(rows) == 1 else np.concatenate(rows)
        columns = zip(*texts, strict=True)
        self.format = form
        self.rows = len(fixed)
        self.timing = [fixed[name] for name in TIMING]
        self.buffers = [
            fixed[str(i)].tobytes() if size is not None else _encoder.encode(next(columns))
            for i, size in enumerate(form.layout.sizes)
        ]

    @property
    def varying_sizes(self) -> tuple[int, ...]:
        """Of the buffers that hold text or bytes, in bytes."""
        return tuple(len(self.buffers[i]) for i in self.format.layout.varying)

    def columns(self) -> Columns:
        """The same as arrays, as who receives the buffers has them."""
        data = memoryview(b"".join(self.buffers))
        return self.format.layout.columns(self.rows, self.varying_sizes, data)[0]


class _PackSource:
    """The source of a `RowFormat`'s function.

    Generated rather than interpreted because it runs in the control loop: every check, then every
    copy, each on a local variable. Only indices, lengths and offsets are written into the source;
    every value (dtype, shape, key) is passed in by name.
    """

    def __init__(self, schema: Node, fields: np.dtype[Any]) -> None:
        self._lines = [f"def pack(into, at, s, {', '.join(TIMING)}):"]
        self._constants: dict[str, Any] = {"ndarray": np.ndarray, "travels": travels}
        self._leaves: list[tuple[Leaf, str]] = []  # with the variable that has the value
        self._count = 0
        self._check(schema, "s")
        self._store(fields)

    def compile(self) -> Any:
        exec("\n  ".join(self._lines), self._constants)
        return self._constants["pack"]

    def _check(self, node: Node, value: str) -> None:
        """Refuse a value that is not of this structure."""
        if isinstance(node, Leaf):
            self._leaves.append((node, value))
            self._check_leaf(node, value)
            return
        names = [self._name("v") for _ in node.items]
        if isinstance(node, DictNode):
            self._refuse_if(
                f"type({value}) is not dict or tuple({value}) != {self._constant(node.keys)}"
            )
            if names:  # 1, 1.0 and True are equal
                self._refuse_if(
                    f"[*map(type, {value})] != {self._constant([*map(type, node.keys)])}"
                )
            value += ".values()"
        else:
            kind = "tuple" if isinstance(node, TupleNode) else "list"
            self._refuse_if(f"type({value}) is not {kind} or len({value}) != {len(names)}")
        if names:
            self._lines.append(f"{', '.join(names)}, = {value}")
        for name, item in zip(names, node.items, strict=True):
            self._check(item, name)

    def _check_leaf(self, leaf: Leaf, value: str) -> None:
        if isinstance(leaf, ArrayLeaf):
            dtype = self._constant(np.dtype(leaf.dtype))
            self._refuse_if(
                f"type({value}) is not ndarray or {value}.shape != {self._constant(leaf.shape)}"
            )
            # most are the same object
            self._refuse_if(f"{value}.dtype is not {dtype} and {value}.dtype != {dtype}")
        elif isinstance(leaf, ScalarLeaf):
            self._refuse_if(f"type({value}) is not {self._constant(np.dtype(leaf.dtype).type)}")
        else:
            self._refuse_if(f"type({value}) is not {self._constant(_PLAIN_TYPES[leaf.kind])}")
            if leaf.kind in ("int", "str"):
                self._refuse_if(f"not travels({value})")

    def _store(self, fields: np.dtype[Any]) -> None:
        places: Any = fields.fields
        packed = ["into", "at", *TIMING]
        form = _TIMING_FORMAT
        large = []
        texts = ""
        for i, (leaf, value) in enumerate(self._leaves):
            if str(i) not in places:
                texts += f"{value}, "
                continue
            dtype, offset = places[str(i)]
            if dtype.itemsize >= _LARGE_BYTES:  # `tobytes` where an array is not contiguous
                place = f"into[at + {offset} : at + {offset + dtype.itemsize}]"
                large.append(f"try: {place} = {value}")
                large.append(
                    f"except (TypeError, ValueError, BufferError): {place} = {value}.tobytes()"
                )
            elif code := _format_of(leaf):
                form += code
                packed.append(value)
            elif dtype.itemsize:
                form += f"{dtype.itemsize}s"
                packed.append(f"{value}.tobytes()")
        self._constants["pack_into"] = struct.Struct(form).pack_into
        self._lines += [
            f"pack_into({', '.join(packed)})",
            *large,
            f"return ({texts})" if texts else "return True",
        ]

    def _refuse_if(self, condition: str) -> None:
        self._lines.append(f"if {condition}: return False")

    def _name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def _constant(self, value: Any) -> str:
        name = self._name("c")
        self._constants[name] = value
        return name


def _format_of(leaf: Leaf) -> str | None:
    """The code of `struct` for a single number, packed as it is: `tobytes` takes a quarter of a
    microsecond.
    """
    if isinstance(leaf, ScalarLeaf):
        return _SCALAR_FORMATS.get(leaf.dtype)
    return _PLAIN_FORMATS.get(leaf.kind) if isinstance(leaf, PlainLeaf) else None
