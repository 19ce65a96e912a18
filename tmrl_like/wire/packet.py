"""The body of a `SamplePacket`: conversion of samples to bytes and back.

The body begins with 4 bytes of CRC-32 over the frame before it and the columns after it. It is
verified whenever a packet is read, from a connection or from a disk. The columns, before
compression::

    4 bytes   length of the head, little-endian
    head      `_Segment`s (msgpack)
    buffers   one after the other: for each segment, those of its leaves
    timing    one column after the other: `wire.rows.TIMING`

A segment holds consecutive samples of one structure; most packets have one.
"""

from __future__ import annotations

import itertools
import threading
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import zstandard

from tmrl_like.errors import DecodingError, OversizeError
from tmrl_like.types import ActionSource, Info, Sample, StepTiming
from tmrl_like.wire.columns import Columns, Layout
from tmrl_like.wire.messages import MAX_BODY_BYTES, SamplePacket, decoded, frame_of
from tmrl_like.wire.rows import EPISODES, RESET, TIMING, RowColumns, RowFormat, row_of
from tmrl_like.wire.schema import MAX_NODES, MAX_SCHEMA_BYTES, Array, Node, ScalarLeaf, TupleNode

_FIELDS = (6, 7)  # of a sample; the seventh, for CRC debugging, is the transition as produced

MAX_HEAD_BYTES = 2 * MAX_SCHEMA_BYTES  # the sizes of texts take less than the schema
MAX_MEMORY_BYTES = MAX_BODY_BYTES
"""Maximum size of one packet in memory, everything included. It is checked before anything is
unpacked or allocated.
"""
_BYTES_PER_HEAD_BYTE = 32  # in memory, about: a column takes at least 7 bytes of the head
_KEPT_BYTES = 16 << 10  # layouts of larger encoded structures are not cached


class _Segment(msgspec.Struct, frozen=True, array_like=True):
    rows: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    schema: msgspec.Raw  # a `Node`
    # sizes of the buffers that hold text or bytes
    sizes: tuple[Annotated[int, msgspec.Meta(ge=0, le=MAX_BODY_BYTES)], ...]


class _OfThread(threading.local):
    """A decompressor per thread: creating one takes longer than decompressing a packet."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor()


_of_thread = _OfThread()
_encoder = msgspec.msgpack.Encoder()
_head_decoder = msgspec.msgpack.Decoder(tuple[_Segment, ...])
_TIMING_LAYOUT = Layout(TupleNode(tuple(ScalarLeaf(dtype.str) for dtype in TIMING.values())))
_schema_decoder: msgspec.msgpack.Decoder[Node] = msgspec.msgpack.Decoder(Node)


class Timing(NamedTuple):
    """The `StepTiming` of N samples and their episodes, as columns: those of `wire.rows.TIMING`."""

    observed_at_s: Array  # [N] float64, Unix time
    inference_s: Array  # [N] float32
    period_error_s: Array  # [N] float32
    policy_version: Array  # [N] int64
    source: Array  # [N] uint8, `ActionSource`
    episode: Array  # [N] uint8, with `RESET` in samples of a reset


@dataclass(frozen=True, slots=True)
class SampleBlock:
    """The samples of one packet, as columns.

    Attributes:
        segments: consecutive samples, with one structure per segment.
        timing: the timing of the N steps.
        size_bytes: approximate size of the packet in memory.
    """

    segments: tuple[Columns, ...]
    timing: Timing
    size_bytes: int = 0

    @property
    def is_reset(self) -> Array:
        """Whether each sample is one of a reset, bool [N]."""
        return self.timing.episode >= RESET

    @property
    def episode(self) -> Array:
        """The number of each sample's episode in its lane, modulo 100, uint8 [N]."""
        return self.timing.episode % np.uint8(RESET)

    def __len__(self) -> int:
        return len(self.timing.episode)

    def samples(self) -> list[Sample]:
        """Return the samples; each `info` is an `Info`."""
        rows = [row for segment in self.segments for row in segment.to_rows()]
        *numbers, sources, _ = (column.tolist() for column in self.timing)
        steps = map(StepTiming, *numbers, map(ActionSource, sources))
        columns = self.is_reset.tolist(), self.episode.tolist(), steps
        return [_to_sample(*of_sample) for of_sample in zip(rows, *columns, strict=True)]

    def after(self, skip: int) -> SampleBlock:
        """Return the samples after the first `skip`, without copying."""
        if not skip:
            return self
        segments = []
        start = 0
        for segment in self.segments:
            if start + segment.rows > skip:
                segments.append(segment.after(max(0, skip - start)))
            start += segment.rows
        timing = Timing(*(column[skip:] for column in self.timing))
        return SampleBlock(tuple(segments), timing, self.size_bytes)


def _to_sample(row: tuple[Any, ...], is_reset: bool, episode: int, timing: StepTiming) -> Sample:
    act, obs, rew, terminated, truncated, info, *rest = row
    if type(info) is dict:
        info = Info(
            info, is_reset, timing=timing, original=rest[0] if rest else None, episode=episode
        )
    return Sample(act, obs, rew, terminated, truncated, info)


class PacketWriter:
    """Collects samples for a packet.

    Attributes:
        samples: number of samples.
        size_bytes: their approximate size, uncompressed.
        schema_bytes: size of the structures, encoded.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.samples = self.size_bytes = self.schema_bytes = 0
        self._rows: list[tuple[RowFormat, list[Any]]] = []  # consecutive rows of one format each

    def append(
        self, sample: tuple[Any, ...], timing: StepTiming, is_reset: bool = False, episode: int = 0
    ) -> None:
        """Add a sample (act, obs, rew, terminated, truncated, info[, original]); raises like
        `row_of`.
        """
        known = self._rows[-1][0] if self._rows else None
        form, row = row_of(sample, known, *timing, episode % EPISODES + RESET * is_reset)
        self.add(form, row, len(row))

    def add(self, form: RowFormat, rows: Any, size_bytes: int, samples: int = 1) -> None:
        """Add rows of one format: a single one as bytes, or an array of several."""
        if not self._rows or self._rows[-1][0] is not form:
            self._rows.append((form, []))
            self.schema_bytes += len(form.encoded_schema)
        self._rows[-1][1].append(rows)
        self.samples += samples
        self.size_bytes += size_bytes

    def _joined(self) -> tuple[list[RowColumns], list[Any]]:
        """Return the rows as columns, for each format, and the timing of all of them."""
        segments = [RowColumns(form, rows) for form, rows in self._rows]
        columns = zip(*(segment.timing for segment in segments), strict=True)
        return segments, [np.concatenate(column) for column in columns]

    def block(self) -> SampleBlock:
        """Return the samples (at least one) in the form in which the receiver has them."""
        segments, timing = self._joined()
        return SampleBlock(tuple(segment.columns() for segment in segments), Timing(*timing))

    def message(self, compress: Compressor, **header: Any) -> bytes:
        """Return the message of a packet with these samples; `header` has the fields of
        `SamplePacket` that do not follow from the samples.
        """
        segments, timing = self._joined()
        observed_at_s, policy_version = 0.0, 0
        if self.samples:
            observed, _, _, versions, _, _ = timing
            observed_at_s = float(observed[0])
            published = versions[versions > 0]
            policy_version = int(published.min()) if len(published) else 0
        parts = [_Segment(s.rows, s.format.encoded_schema, s.varying_sizes) for s in segments]
        head = _encoder.encode(parts)
        buffers = (buffer for part in segments for buffer in part.buffers)
        body = b"".join((len(head).to_bytes(4, "little"), head, *buffers, *timing))
        columns, is_compressed = compress(body)
        packet = SamplePacket(
            samples=self.samples,
            body_bytes=len(body),
            compressed=is_compressed,
            observed_at_s=observed_at_s,
            policy_version=policy_version,
            **header,
        )
        return encode_packet(packet, columns)


class Compressor:
    """Compresses columns with zstandard at its fastest level, if that is worthwhile.

    After columns that shrink by less than a tenth, the next `PAUSE` columns are not compressed.
    """

    PAUSE = 50

    def __init__(self) -> None:
        self._zstd = zstandard.ZstdCompressor(level=1, write_checksum=False)
        self._pause = 0

    def __call__(self, columns: bytes) -> tuple[bytes, bool]:
        """Return the bytes to send, and whether they are compressed."""
        if self._pause:
            self._pause -= 1
            return columns, False
        small = self._zstd.compress(columns)
        if len(small) > 0.9 * len(columns):
            self._pause = self.PAUSE
            return columns, False
        return small, True


def encode_packet(packet: SamplePacket, columns: bytes = b"") -> bytes:
    """Encode a packet with its columns, compressed or not, and their checksum as a message."""
    frame = frame_of(packet)
    checksum = zlib.crc32(columns, zlib.crc32(frame))
    return b"".join((frame, checksum.to_bytes(4, "little"), columns))


def samples_up_to(packet: SamplePacket, entry: int) -> int:
    """Return how many of a packet's samples are entries up to `entry`; the packet must be one that
    `refuse_misnumbered` accepts.
    """
    entries = min(entry, packet.last) - packet.first + 1
    reports = sum(number <= entry for number, _ in packet.episodes)
    return max(0, entries - reports - _breaks_in(packet))


def _breaks_in(packet: SamplePacket) -> int:
    return packet.last - packet.first + 1 - packet.samples - len(packet.episodes)


def refuse_misnumbered(packet: SamplePacket) -> None:
    """Raise DecodingError unless a packet's entries are its samples, reports of its worker, and at
    most one break, which comes first.
    """
    numbers = [
        packet.first + _breaks_in(packet) - 1,
        *(number for number, _ in packet.episodes),
        packet.last + 1,
    ]
    is_rising = all(before < number for before, number in itertools.pairwise(numbers))
    if _breaks_in(packet) not in (0, 1) or not is_rising:
        raise DecodingError(
            f"the entries {packet.first} to {packet.last} are not those that the packet holds"
        )
    if any(episode.worker != packet.worker for _, episode in packet.episodes):
        raise DecodingError("a packet reports an episode of another worker")


def columns_in(message: bytes | memoryview, body: memoryview) -> memoryview:
    """Return the columns in a packet's body, which is the end of its message; raise DecodingError
    if the message is damaged.
    """
    columns = body[4:]
    frame = memoryview(message)[: len(message) - len(body)]
    if int.from_bytes(body[:4], "little") != zlib.crc32(columns, zlib.crc32(frame)):
        raise DecodingError("a packet is damaged: its checksum is another")
    return columns


def decode_body(packet: SamplePacket, columns: bytes | memoryview) -> SampleBlock:
    """Decode a packet's columns, as they were sent, to samples.

    The block's columns are views of the (decompressed) bytes: copy what you keep longer.

    Raises:
        OversizeError: the samples would take more than `MAX_MEMORY_BYTES`.
        DecodingError: the columns are damaged, or are not what the packet announces.
    """
    data = _unpacked(packet, columns)
    head_bytes = int.from_bytes(data[:4], "little")
    if head_bytes > MAX_HEAD_BYTES:
        raise OversizeError(
            f"a packet head of {head_bytes} bytes; at most {MAX_HEAD_BYTES} are allowed"
        )
    end = 4 + head_bytes
    parts = [
        (part, _layout_of(bytes(part.schema)))
        for part in decoded(_head_decoder, data[4:end], "a packet")
    ]
    size_bytes = packet.body_bytes + _BYTES_PER_HEAD_BYTE * head_bytes
    size_bytes += sum(layout.memory(part.rows) for part, layout in parts)
    if size_bytes > MAX_MEMORY_BYTES:
        raise OversizeError(
            f"a packet of {size_bytes} bytes in memory; at most {MAX_MEMORY_BYTES} are allowed"
        )
    if sum(part.rows for part, _ in parts) != packet.samples:
        raise DecodingError(
            f"the packet announces {packet.samples} samples and holds another number"
        )
    segments = []
    for part, layout in parts:
        segment, size = layout.columns(part.rows, part.sizes, data[end:])
        segments.append(segment)
        end += size
    timing = Timing(*_TIMING_LAYOUT.columns(packet.samples, (), data[end:])[0].leaves)
    if segments and (timing.policy_version.min() < 0 or timing.source.max() >= len(ActionSource)):
        raise DecodingError("policy versions or sources of actions that do not exist")
    return SampleBlock(tuple(segments), timing, size_bytes)


def _unpacked(packet: SamplePacket, columns: bytes | memoryview) -> memoryview:
    data = memoryview(columns)
    if packet.compressed:
        try:
            if zstandard.frame_content_size(columns) != packet.body_bytes:
                raise DecodingError("the packet's length does not match its compressed frame")
            data = memoryview(_of_thread.decompressor.decompress(columns))
        except zstandard.ZstdError as error:
            raise DecodingError(f"the packet does not decompress: {error}") from None
    if len(data) != packet.body_bytes:
        raise DecodingError(f"the packet announces {packet.body_bytes} bytes and holds {len(data)}")
    return data


def _layout_of(schema: bytes) -> Layout:
    """Return the layout of an encoded structure; layouts of large ones are not cached."""
    return (_kept_layout if len(schema) <= _KEPT_BYTES else _new_layout)(schema)


def _new_layout(schema: bytes) -> Layout:
    layout = Layout(decoded(_schema_decoder, schema, "a structure"))
    if layout.nodes > MAX_NODES:
        raise DecodingError(
            f"a structure of {layout.nodes} values; at most {MAX_NODES} can be sent"
        )
    if type(layout.schema) is not TupleNode or len(layout.schema.items) not in _FIELDS:
        raise DecodingError("a sample is not a tuple of 6 or 7 items")
    return layout


_kept_layout = lru_cache(maxsize=64)(_new_layout)
