"""A packet's body: what `SamplePacket` announces, from samples to bytes and back.

Body, before compression::

    4 bytes   length of the head, little-endian
    head      `_Head` (msgpack): segments, sizes of all buffers
    buffers   one after the other, in the head's order
    timing    Unix time of the first observation (float64), then one column after the other, `_TIMING`

A segment holds consecutive samples of one structure; most packets have one. Packets of as many samples of one structure
have the same head, and where no size varies they are taken apart together: what Python does for each column it does
once for all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
import numpy as np
import zstandard

from tmrl_like.errors import DecodingError, EncodingError, OversizeError
from tmrl_like.types import ActionSource, Info, Sample, StepTiming
from tmrl_like.wire.columns import Columns, Layout, objects_in
from tmrl_like.wire.messages import MAX_BODY_BYTES, SamplePacket
from tmrl_like.wire.rows import EPISODES, RESET, RowColumns, RowFormat, format_of
from tmrl_like.wire.schema import Node, TupleNode

_FIELDS = (6, 7)  # of a sample; the seventh is for CRC debugging, the transition as produced
_TIMING: dict[str, np.dtype[Any]] = {  # the columns of `StepTiming`, and the episode (`wire.rows`)
    "observed_us": np.dtype("<u4"),  # microseconds after the packet's first observation
    "inference_ms": np.dtype("<f2"),  # 3 digits
    "period_error_ms": np.dtype("<f2"),
    "policy_version": np.dtype("<i8"),
    "source": np.dtype("u1"),
    "episode": np.dtype("u1"),
}
_START = np.dtype("<f8")
_US = 1e6
_MS = 1e3
_MS_32 = np.float32(_MS)
_SOURCES = tuple(ActionSource)


@dataclass(frozen=True, kw_only=True)
class PacketLimits:
    """What one packet may cost the one who reads it. All of it is compared before anything is unpacked.

    Attributes:
        body_bytes: of the body, unpacked.
        ratio: a compressed body may come to so many times its size in memory. Senders keep to it: see `Compressor`.
        head_bytes: of the head.
        columns: over all segments, one per leaf and one more per segment.
        values: samples times leaves, over all segments.
    """

    body_bytes: int = MAX_BODY_BYTES
    ratio: int = 16
    head_bytes: int = 1 << 20
    columns: int = 50_000
    values: int = 2_000_000


LIMITS = PacketLimits()
_ROW_BYTES, _OBJECT_BYTES, _COLUMN_BYTES = 32, 128, 300  # in memory, about, beside the unpacked body
_CACHED_HEAD_BYTES = 16 << 10
_AT_ONCE_BYTES = 1 << 20  # what is unpacked before its head is looked at


class _Segment(msgspec.Struct, frozen=True, array_like=True):
    rows: int
    schema: msgspec.Raw  # a `Node`
    sizes: tuple[int, ...]  # of the segment's buffers


class _Head(msgspec.Struct, frozen=True, array_like=True):
    segments: tuple[_Segment, ...]


class _Form(NamedTuple):
    """What a head says, with what reads it."""

    segments: tuple[tuple[int, tuple[int, ...], Layout], ...]  # rows, sizes of the buffers
    samples: int
    extra_bytes: int  # see `_extra_bytes`


class _OfThread(threading.local):
    """One for each thread: making one takes longer than decompressing a packet."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor()


_of_thread = _OfThread()
_head_encoder = msgspec.msgpack.Encoder()
_head_decoder = msgspec.msgpack.Decoder(_Head)
_schema_decoder: msgspec.msgpack.Decoder[Node] = msgspec.msgpack.Decoder(Node)


@dataclass(frozen=True, slots=True)
class Timing:
    """`StepTiming` of N samples, as columns."""

    observed_at_s: np.ndarray[Any, np.dtype[np.float64]]  # [N] Unix time
    inference_s: np.ndarray[Any, np.dtype[np.float32]]  # [N]
    period_error_s: np.ndarray[Any, np.dtype[np.float32]]  # [N]
    policy_version: np.ndarray[Any, np.dtype[np.int64]]  # [N]
    source: np.ndarray[Any, np.dtype[np.uint8]]  # [N] `ActionSource`

    def rows(self) -> Iterator[StepTiming]:
        """One `StepTiming` per sample."""
        columns = (self.observed_at_s, self.inference_s, self.period_error_s, self.policy_version)
        sources = map(_SOURCES.__getitem__, self.source.tolist())
        return map(StepTiming, *(column.tolist() for column in columns), sources)


@dataclass(frozen=True, slots=True)
class SampleBlock:
    """The samples of one packet, as columns.

    Attributes:
        segments: consecutive samples, of one structure each.
        is_reset: bool [N], True for the samples of a reset.
        episode: uint8 [N], the episode's number in its lane modulo 100.
        timing: N steps.
    """

    segments: tuple[Columns, ...]
    is_reset: np.ndarray[Any, np.dtype[np.bool_]]
    episode: np.ndarray[Any, np.dtype[np.uint8]]
    timing: Timing

    def __len__(self) -> int:
        return len(self.is_reset)

    def samples(self) -> list[Sample]:
        """The samples themselves; each `info` is an `Info`."""
        rows = [row for segment in self.segments for row in segment.to_rows()]
        columns = self.is_reset.tolist(), self.episode.tolist(), self.timing.rows()
        return [_to_sample(*of_sample) for of_sample in zip(rows, *columns, strict=True)]


def _to_sample(row: tuple[Any, ...], is_reset: bool, episode: int, timing: StepTiming) -> Sample:
    act, obs, rew, terminated, truncated, info, *rest = row
    if type(info) is dict:
        info = Info(info, is_reset, timing=timing, original=rest[0] if rest else None, episode=episode)
    return Sample(act, obs, rew, terminated, truncated, info)


class PacketRows:
    """The samples of a packet, as rows that become columns.

    Attributes:
        samples: how many.
        observed_at_s: Unix time of the first observation; 0: there is none.
        policy_version: the oldest published version that chose an action; 0: none did.
        extra_bytes: what they come to in memory beside the body, about, where they are received.
    """

    def __init__(self, segments: Sequence[RowColumns]) -> None:
        """Join segments."""
        self._segments = segments
        self.extra_bytes = sum(
            _extra_bytes(segment.rows, len(segment.buffers), objects_in(segment.format.leaves)) for segment in segments
        )
        self.samples = sum(segment.rows for segment in segments)
        columns = zip(*(segment.timing for segment in segments), strict=True)
        self._timing = [column[0] if len(column) == 1 else np.concatenate(column) for column in columns]
        self.observed_at_s, self.policy_version = 0.0, 0
        if self.samples:
            versions = self._timing[3]
            self.observed_at_s = float(self._timing[0][0])
            self.policy_version = int(min(versions[versions > 0], default=0))

    def encode(self) -> bytes:
        """The body, uncompressed."""
        segments = [
            _Segment(segment.rows, _encode_schema(segment.format.schema), tuple(map(len, segment.buffers)))
            for segment in self._segments
        ]
        head = _head_encoder.encode(_Head(tuple(segments)))
        buffers = (buffer for segment in self._segments for buffer in segment.buffers)
        return b"".join((len(head).to_bytes(4, "little"), head, *buffers, *self._timing_buffers()))

    def _timing_buffers(self) -> Iterator[bytes]:
        yield np.array(self.observed_at_s, _START).tobytes()
        if not self.samples:
            return
        observed, inference, error, *rest = self._timing
        observed_us = _between(0, (observed - self.observed_at_s) * _US, 2**32 - 1)
        columns = (observed_us, _between(-6e4, inference * _MS, 6e4), _between(-6e4, error * _MS, 6e4), *rest)
        for column, dtype in zip(columns, _TIMING.values(), strict=True):
            yield column.astype(dtype).tobytes()


class PacketWriter:
    """A packet of samples given one by one."""

    def __init__(self) -> None:
        """Start empty."""
        self.samples = 0
        self.size_bytes = 0  # about, uncompressed
        self._segments: list[tuple[RowFormat, list[bytes | bytearray]]] = []

    def append(self, sample: tuple[Any, ...], timing: StepTiming, is_reset: bool = False, episode: int = 0) -> None:
        """Store one sample: (act, obs, rew, terminated, truncated, info[, original]); raises as `format_of`."""
        episode = episode % EPISODES + RESET * is_reset
        row = self._segments[-1][0].row(sample, *timing, episode) if self._segments else None
        if row is None:
            form = format_of(sample)
            row = form.row(sample, *timing, episode)
            if row is None:
                raise EncodingError("a sample does not match its own structure; is another thread changing it?")
            self._segments.append((form, []))
        self._segments[-1][1].append(row)
        self.samples += 1
        self.size_bytes += len(row)

    def rows(self) -> PacketRows:
        """What was appended so far."""
        return PacketRows([RowColumns(form, rows) for form, rows in self._segments])

    def encode(self) -> bytes:
        return self.rows().encode()


def _between(low: float, values: np.ndarray[Any, Any], high: float) -> np.ndarray[Any, Any]:
    limited: np.ndarray[Any, Any] = np.minimum(np.maximum(values, low), high)  # a third of np.clip's time
    return limited


@lru_cache(maxsize=64)
def _encode_schema(schema: Node) -> msgspec.Raw:
    return msgspec.Raw(_head_encoder.encode(schema))


class Compressor:
    """zstandard at its fastest level, as long as it pays.

    After a body that shrinks by less than a tenth, the next `PAUSE` bodies are sent as they are. One that shrinks by
    more than is taken (`PacketLimits.ratio`; black pictures) is made longer by zeros: who wants much memory of the
    receiver has to send much.
    """

    PAUSE = 50

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdCompressor(level=1, write_checksum=False)
        self._pause = 0

    def __call__(self, body: bytes, extra_bytes: int) -> tuple[bytes, bool]:
        """Return (bytes to send, whether they are compressed); `extra_bytes` are those of `PacketRows`."""
        if self._pause:
            self._pause -= 1
            return body, False
        small = self._zstd.compress(body).ljust(-(-(len(body) + extra_bytes) // LIMITS.ratio), b"\0")
        if len(small) > 0.9 * len(body):
            self._pause = self.PAUSE
            return body, False
        return small, True


def decode_body(
    packet: SamplePacket,
    body: bytes | memoryview,
    limits: PacketLimits = LIMITS,
    check: Callable[[Node], None] | None = None,
) -> SampleBlock:
    """Turn one packet's body back into columns; see `decode_bodies`."""
    return decode_bodies([(packet, body)], limits, check)[0]


def decode_bodies(
    packets: Iterable[tuple[SamplePacket, bytes | memoryview]],
    limits: PacketLimits = LIMITS,
    check: Callable[[Node], None] | None = None,
) -> list[SampleBlock]:
    """Turn the bodies of packets that follow each other back into columns; neighbours of one form make one block.

    The columns of a block of one packet are views of the (decompressed) body: copy what outlives it. Of a body of more
    than 1 MiB nothing but the head is decompressed before the head has passed the limits and `check`, which is called
    with the structure of each segment and raises what shall be raised.

    Raises:
        OversizeError: one costs more than `limits`.
        DecodingError: damaged, or not what its packet announces.
    """
    try:
        opened = [_opened(packet, _Source(packet, body, limits), limits, check) for packet, body in packets]
    except zstandard.ZstdError as error:
        raise DecodingError(f"the packet does not decompress: {error}") from None
    if len(opened) == 1:
        return [_block(*opened[0], 1)]
    blocks = []
    for _, group in groupby(opened, lambda one: (id(one[0]), len(one[1]))):
        (form, *_), bodies = zip(*group, strict=True)
        if len(bodies) > 1 and len(form.segments) == 1 and form.segments[0][2].is_fixed(*form.segments[0][:2]):
            blocks.append(_block(form, memoryview(b"".join(bodies)), len(bodies)))
        else:
            blocks += [_block(form, body, 1) for body in bodies]
    return blocks


def _opened(
    packet: SamplePacket, source: _Source, limits: PacketLimits, check: Callable[[Node], None] | None
) -> tuple[_Form, memoryview]:
    """What a packet's head says, and what comes after it."""
    length = int.from_bytes(source.read(4), "little")
    if length > limits.head_bytes:
        raise OversizeError(f"a packet head of {length} bytes; at most {limits.head_bytes} are allowed")
    head = bytes(source.read(length))
    form = (_cached_form if length <= _CACHED_HEAD_BYTES else _new_form)(head, limits)
    if form.samples != packet.samples:
        raise DecodingError(f"the packet announces {packet.samples} samples and holds another number")
    if check is not None:
        for _, _, layout in form.segments:
            check(layout.schema)
    if packet.compressed:
        source.refuse_above(packet.body_bytes + form.extra_bytes)
    return form, source.read(source.left)


def _block(form: _Form, data: memoryview, packets: int) -> SampleBlock:
    """The samples of so many packets of one form, whose buffers and timing lie one after the other in `data`."""
    segments = []
    used = 0
    for rows, sizes, layout in form.segments:
        columns, end = layout.columns(rows, sizes, data[used:], packets)
        segments.append(columns)
        used += end
    timing, episode = _decode_timing(form.samples, data, used, packets)
    return SampleBlock(tuple(segments), episode >= RESET, episode & np.uint8(RESET - 1), timing)


class _Source:
    """A body's bytes in their order, unpacked as far as they are read."""

    def __init__(self, packet: SamplePacket, body: bytes | memoryview, limits: PacketLimits) -> None:
        self.left = packet.body_bytes
        self._raw = memoryview(body)
        self._reader: Any = None
        self._sent_bytes = len(body)
        self._allowed = limits.body_bytes
        self.refuse_above(self.left)
        if packet.compressed:
            self._allowed = limits.ratio * len(body)
            self.refuse_above(self.left)
            if zstandard.frame_content_size(body) != self.left:
                raise DecodingError("the packet's length does not match its compressed frame")
            if self.left > _AT_ONCE_BYTES:
                self._reader = _of_thread.decompressor.stream_reader(body)
                return
            self._raw = memoryview(_of_thread.decompressor.decompress(body))
        if len(self._raw) != self.left:
            raise DecodingError(f"the packet announces {self.left} bytes and holds {len(self._raw)}")

    def refuse_above(self, size: int) -> None:
        """Raise OversizeError where the packet would come to more than is allowed."""
        if size > self._allowed:
            raise OversizeError(
                f"a packet that unpacks from {self._sent_bytes} bytes to {size} in memory; at most {self._allowed} are "
                "allowed"
            )

    def read(self, size: int) -> memoryview:
        """The next `size` bytes."""
        if size > self.left:
            raise DecodingError(f"a packet head of {size} bytes in the last {self.left} of a body")
        self.left -= size
        if self._reader is None:
            taken, self._raw = self._raw[:size], self._raw[size:]
            return taken
        taken = memoryview(self._reader.read(size) if size else b"")
        if len(taken) != size:
            raise DecodingError(f"the packet ends {size - len(taken)} bytes before what it announces")
        return taken


def _new_form(encoded: bytes, limits: PacketLimits) -> _Form:
    """Decode a head; refuses a packet that would cost too much."""
    try:
        head = _head_decoder.decode(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DecodingError(f"not a packet: {error}") from None
    if min((segment.rows for segment in head.segments), default=1) < 1:
        raise DecodingError("a segment without samples")
    segments = []
    columns = values = extra_bytes = 0
    for segment in head.segments:
        layout = _layout_of(segment.schema)
        extra_bytes += _extra_bytes(segment.rows, layout.leaves, layout.objects)
        columns += layout.leaves + 1
        values += segment.rows * layout.leaves
        if columns > limits.columns or values > limits.values:
            raise OversizeError(
                f"a packet of {columns} columns and {values} values or more; at most {limits.columns} and "
                f"{limits.values} are allowed"
            )
        if type(layout.schema) is not TupleNode or len(layout.schema.items) not in _FIELDS:
            raise DecodingError("a sample is not a tuple of 6 or 7 items")
        segments.append((segment.rows, segment.sizes, layout))
    return _Form(tuple(segments), sum(segment.rows for segment in head.segments), extra_bytes)


def _extra_bytes(rows: int, leaves: int, objects: int) -> int:
    """What a segment comes to in memory, about, beside its buffers."""
    return rows * (_ROW_BYTES + objects * _OBJECT_BYTES) + (leaves + 1) * _COLUMN_BYTES


_cached_form = lru_cache(maxsize=256)(_new_form)


def _layout_of(schema: msgspec.Raw) -> Layout:
    """What reads this structure; large ones are not kept."""
    encoded = bytes(schema)
    return _cached_layout(encoded) if len(encoded) <= _CACHED_HEAD_BYTES else _new_layout(encoded)


def _new_layout(schema: bytes) -> Layout:
    try:
        return Layout(_schema_decoder.decode(schema))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DecodingError(f"not a structure: {error}") from None


_cached_layout = lru_cache(maxsize=64)(_new_layout)


def _decode_timing(
    rows: int, data: memoryview, start: int, packets: int
) -> tuple[Timing, np.ndarray[Any, np.dtype[np.uint8]]]:
    dtype, step = _timing_dtype(rows), len(data) // packets
    if step - start != dtype.itemsize:
        raise DecodingError(f"{step - start} bytes of timing for {rows} samples, which need {dtype.itemsize}")
    columns = np.ndarray(packets, dtype, data, start, (step,))
    version, source = columns["policy_version"].ravel(), columns["source"].ravel()
    if rows and (version.min() < 0 or source.max() >= len(_SOURCES)):
        raise DecodingError("policy versions or sources of actions that do not exist")
    with np.errstate(invalid="ignore"):  # damaged, but only a number
        timing = Timing(
            (columns["started_at_s"][:, None] + columns["observed_us"] * (1 / _US)).ravel(),
            columns["inference_ms"].ravel().astype(np.float32) / _MS_32,
            columns["period_error_ms"].ravel().astype(np.float32) / _MS_32,
            version,
            source,
        )
    return timing, columns["episode"].ravel()


@lru_cache(maxsize=256)
def _timing_dtype(rows: int) -> np.dtype[Any]:
    return np.dtype([("started_at_s", _START), *((name, dtype, (rows,)) for name, dtype in _TIMING.items())])
