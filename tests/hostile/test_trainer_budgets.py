"""What a worker's key may cost the trainer at most, in memory and in work for each byte that it sends.

Packets of every shape that has much in few bytes, each as small as zstandard makes it, which is refused; with as many
zeros behind it as are needed to be taken; and uncompressed. The training thread takes nothing meanwhile: all that was
read is held.
"""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any, NamedTuple

import msgspec
import pytest
import zstandard

from tmrl_like.delivery.receiver import Receiver
from tmrl_like.types import EpisodeStats
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import LIMITS, PacketLimits, _new_form
from tmrl_like.wire.records import seal

MEMORY = 20  # bytes that the trainer holds for each byte that it is sent
FIXED_BYTES = 1 << 16  # that a bundle may cost whatever it holds


class Shape(NamedTuple):
    """Packets of one form: the schema of the first item of a sample, and the bytes of its buffers for a row."""

    schema: Any
    row: tuple[bytes, ...]
    rows: int = 1
    packets: int = 4
    segments: int = 1


def texts(column: bytes, rows: int) -> bytes:
    return b"\xdd" + rows.to_bytes(4, "big") + column * rows


def named(columns: int, kind: str) -> Any:
    return ("d", [f"k{i}" for i in range(columns)], [("p", kind)] * columns)


SHAPES = {
    "black pictures": Shape(("a", "|u1", [1 << 22]), (bytes(1 << 22),)),
    "short texts": Shape(("p", "str"), (texts(b"\xa2ab", 100_000),), 100_000, 2),
    "empty texts": Shape(("p", "str"), (texts(b"\xa0", 100_000),), 100_000, 2),
    "wide texts": Shape(("p", "str"), (texts(b"\xa4\xf0\x9f\x9a\x97", 50_000),), 50_000, 2),
    "bytes": Shape(("p", "bytes"), (texts(b"\xc4\x01\x01", 50_000),), 50_000, 2),
    "nothing, often": Shape(("p", "none"), (b"",), 50_000),
    "columns": Shape(("t", [("p", "int")] * 3000), (bytes(8),) * 3000),
    "columns with names": Shape(named(1000, "int"), (bytes(8),) * 1000),
    "columns of a text": Shape(named(1000, "str"), (texts(b"\xa2ab", 1),) * 1000),
    "segments": Shape(("p", "none"), (b"",), 1, 2, 1500),
    "very small packets": Shape(("p", "none"), (b"",), 1, m.MAX_BUNDLE_PACKETS),
}


def body_of(shape: Shape) -> bytes:
    schema = ("t", [shape.schema] + [("p", "none")] * 5)
    buffers = shape.row if len(shape.row[0]) > 8 or len(shape.row) > 1 else tuple(r * shape.rows for r in shape.row)
    sizes = (*map(len, buffers), 0, 0, 0, 0, 0)
    head = msgspec.msgpack.encode(([(shape.rows, schema, sizes)] * shape.segments, False))
    rows = shape.rows * shape.segments
    return struct.pack("<I", len(head)) + head + b"".join(buffers) * shape.segments + bytes(8 + 18 * rows)


def bundle_of(shape: Shape, way: str) -> tuple[m.Bundle, bytes]:
    body = data = body_of(shape)
    if way != "uncompressed":
        data = zstandard.ZstdCompressor(level=9).compress(body)
    if way == "as small as is taken":
        head = body[4 : 4 + int.from_bytes(body[:4], "little")]
        extra = _new_form(head, PacketLimits(columns=1 << 30, values=1 << 40)).extra_bytes
        data = data.ljust(-(-(len(body) + extra) // LIMITS.ratio), b"\0")
    rows, is_compressed = shape.rows * shape.segments, way != "uncompressed"
    packets = (m.SamplePacket("w", 1, i + 1, 0, rows, len(body), is_compressed) for i in range(shape.packets))
    return m.Bundle("w", 1, rows * shape.packets), b"".join(seal(m.encode(packet, data)) for packet in packets)


def assert_is_within(bundle: m.Bundle, body: bytes) -> int:
    """How many samples the trainer holds of it."""
    receiver = Receiver()
    view = memoryview(body)
    tracemalloc.start()
    try:
        held = list(receiver.take(bundle, view, 0.0, lambda packet: True))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes <= FIXED_BYTES + MEMORY * len(body)
    return sum(len(delivery.buffer) for delivery in held)


@pytest.mark.fault(
    "peers",
    "a worker sends a few hundred bytes that unpack to megabytes",
    "the trainer holds 20 times what it was sent, at most",
)
@pytest.mark.parametrize("way", ["as small as can be", "as small as is taken", "uncompressed"])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_packets_come_to_in_memory_is_bounded_by_their_size(shape: str, way: str) -> None:
    bundle, body = bundle_of(SHAPES[shape], way)
    samples = assert_is_within(bundle, body)
    assert samples == (0 if way == "as small as can be" else bundle.samples)


def test_reports_of_episodes_are_within_the_budget() -> None:
    episodes = (EpisodeStats("w", False, 0.0, 0, False, False, 0.0, 0),) * m.MAX_EPISODES
    packets = (m.SamplePacket("w", 1, i + 1, 0, 0, 0, False, episodes=episodes) for i in range(m.MAX_BUNDLE_PACKETS))
    assert_is_within(m.Bundle("w", 1, 0), b"".join(seal(m.encode(packet)) for packet in packets))
