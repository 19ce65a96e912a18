"""Samples of one structure as rows of bytes, which are later combined into columns.

A `RowFormat` converts samples to rows, one at a time, in the control loop: a small function,
compiled once per structure, checks the sample's structure and packs all of it, in about a
microsecond for a drone's sample. `RowColumns` converts many rows at a time, outside the control
loop, to the buffers of a packet.

A row of fixed size::

    26 bytes  `TIMING`
    leaves    left to right, those of 1 KiB and more last; padded to a multiple of 8 bytes

A row with text or bytes is msgpack: a row as above of the leaves of fixed size, and a list of the
others.
"""

from __future__ import annotations

import itertools
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
    MAX_SCHEMA_BYTES,
    PLAIN_KINDS,
    ArrayLeaf,
    DictNode,
    Leaf,
    Node,
    ScalarLeaf,
    TupleNode,
    array_form,
    schema_of,
    travels,
)

TIMING: dict[str, np.dtype[Any]] = {  # sent with each sample: its `StepTiming`, and the episode
    "observed_at_s": np.dtype("<f8"),  # Unix time
    "inference_s": np.dtype("<f4"),
    "period_error_s": np.dtype("<f4"),
    "policy_version": np.dtype("<i8"),
    "source": np.dtype("u1"),
    # the episode's number in its lane modulo `EPISODES`, plus `RESET` in samples of a reset
    "episode": np.dtype("u1"),
}
RESET = 128  # added to `episode` in a sample of a reset
EPISODES = 100  # numbers of episodes wrap around here
_TIMING_FORMAT = "<dffqBB"
_LARGE_BYTES = 1 << 10  # leaves of at least this size are copied separately
_PLAIN_TYPES = {kind: type_ for type_, kind in PLAIN_KINDS.items()}
_STRUCT_CODES = {"<f4": "f", "<f8": "d", "<i4": "i", "<i8": "q", "|u1": "B", "|b1": "?"}
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[tuple[bytes, tuple[Any, ...]]] = msgspec.msgpack.Decoder(
    tuple[bytes, tuple[Any, ...]]
)


class RowFormat:
    """Converts samples of one structure to rows; `row_of` finds the format for a sample.

    Attributes:
        encoded_schema: the structure, as msgpack.
        layout: layout of the columns that the rows become.
        size_bytes: size of a row; 0: sizes vary.
        fields: dtype of a row, or of its part of fixed size: the fields of `TIMING`, and "0", "1",
            … for the leaves, as bytes.
        pack: `pack(into, at, sample, observed_at_s, inference_s, period_error_s, policy_version,
            source, episode)` writes what `fields` describe into a writable buffer, and returns True
            (or the sample's texts and bytes, if it has any). If the sample has another structure,
            it writes nothing and returns False.
    """

    def __init__(self, schema: Node) -> None:
        """Compile the format; raise EncodingError if the structure is too large."""
        self.layout = Layout(schema)
        if self.layout.nodes > MAX_NODES:
            raise EncodingError(
                f"sample has {self.layout.nodes} values, at most {MAX_NODES} can be sent: use "
                "numpy arrays"
            )
        self.encoded_schema = msgspec.Raw(_encoder.encode(schema))
        if (size := len(self.encoded_schema)) > MAX_SCHEMA_BYTES:
            raise EncodingError(
                f"sample has a structure of {size} bytes, at most {MAX_SCHEMA_BYTES} can be sent: "
                "use numpy arrays and shorter keys"
            )
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
        """Return the row of a sample, or None if the sample has another structure."""
        row = bytearray(self.fields.itemsize)
        texts = self.pack(row, 0, sample, *timing)
        if texts is False:
            return None
        return row if self.size_bytes else _encoder.encode((row, texts))


@lru_cache(maxsize=256)
def format_for(schema: Node) -> RowFormat:
    """Return the format of a structure; it is compiled once and cached."""
    return RowFormat(schema)


def row_of(
    sample: tuple[Any, ...], known: RowFormat | None, *timing: Any
) -> tuple[RowFormat, bytes | bytearray]:
    """Return the format and the row of a sample (act, obs, rew, terminated, truncated, info[,
    original]): in the `known` format if the sample has that structure.

    Raises:
        EncodingError: the sample holds a value that cannot be sent; the message names the field.
    """
    row = None if known is None else known.row(sample, *timing)
    if known is None or row is None:
        named = zip((*Sample._fields, "original"), sample, strict=False)
        fields = tuple(schema_of(value, name, depth=1) for name, value in named)
        known = format_for(TupleNode(fields))
        row = known.row(sample, *timing)
        if row is None:
            raise EncodingError(
                "a sample does not match its own structure; is another thread changing it?"
            )
    return known, row


class RowColumns:
    """Rows of one format, as columns.

    Attributes:
        format: the format of the rows.
        rows: number of rows.
        buffers: one per leaf, in the schema's order; empty for None.
        timing: one column per name in `TIMING`.
    """

    def __init__(self, form: RowFormat, rows: Sequence[Any]) -> None:
        """Combine rows: a sequence of single rows as bytes or, if their size is fixed, of arrays
        [n] with the dtype `form.fields`.
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
        """Sizes of the buffers that hold text or bytes, in bytes."""
        return tuple(len(self.buffers[i]) for i in self.format.layout.varying)

    def columns(self) -> Columns:
        """Return the columns as arrays, in the form in which the receiver of the buffers has
        them.
        """
        data = memoryview(b"".join(self.buffers))
        return self.format.layout.columns(self.rows, self.varying_sizes, data)[0]


class _PackSource:
    """Generates the source of a `RowFormat`'s function.

    The source is generated, rather than the schema interpreted, because the function runs in the
    control loop: it makes every check, then every copy, each on a local variable. Only indices,
    lengths and offsets are written into the source; every value (dtype, shape, key) is passed in by
    name.
    """

    def __init__(self, schema: Node, fields: np.dtype[Any]) -> None:
        self._lines = [f"def pack(into, at, s, {', '.join(TIMING)}):"]
        self._constants: dict[str, Any] = {"ndarray": np.ndarray, "travels": travels}
        self._leaves: list[tuple[Leaf, str]] = []  # each with the name of its variable
        self._names = map("x{}".format, itertools.count())
        self._check(schema, "s")
        self._store(fields)

    def compile(self) -> Any:
        exec("\n  ".join(self._lines), self._constants)
        return self._constants["pack"]

    def _check(self, node: Node, value: str) -> None:
        """Generate checks that a value has this structure."""
        if isinstance(node, Leaf):
            self._leaves.append((node, value))
            self._check_leaf(node, value)
            return
        names = [next(self._names) for _ in node.items]
        if isinstance(node, DictNode):
            self._refuse_if(
                f"type({value}) is not dict or tuple({value}) != {self._constant(node.keys)}"
            )
            if names:  # compare types as well: 1, 1.0 and True are equal
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
            # the first comparison is fast: most dtypes are the same object
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
            if dtype.itemsize >= _LARGE_BYTES:  # `tobytes` only if an array is not contiguous
                place = f"into[at + {offset} : at + {offset + dtype.itemsize}]"
                large.append(f"try: {place} = {value}")
                large.append(
                    f"except (TypeError, ValueError, BufferError): {place} = {value}.tobytes()"
                )
            elif code := _code_of(leaf):
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

    def _constant(self, value: Any) -> str:
        name = next(self._names)
        self._constants[name] = value
        return name


def _code_of(leaf: Leaf) -> str | None:
    """Return the `struct` code for a single number, or None; packing it directly saves a `tobytes`,
    a quarter of a microsecond.
    """
    form = None if isinstance(leaf, ArrayLeaf) else array_form(leaf)
    return None if form is None else _STRUCT_CODES.get(form.dtype.str)
