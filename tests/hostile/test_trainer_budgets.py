"""What a worker's key may cost the trainer at most, in memory for each byte that it sends.

Packets of every shape that has much in few bytes, each as small as zstandard makes it, which is refused; with as many
zeros behind it as are needed to be taken; and uncompressed, likewise.
"""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any, NamedTuple

import msgspec
import pytest
import zstandard

from tmrl_like.delivery.receiver import Receiver
from tmrl_like.errors import OversizeError
from tmrl_like.types import Delivery, EpisodeStats
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import LIMITS, decode_body, encode_packet

MEMORY = 20  # bytes that the trainer holds for each byte that it is sent
FIXED_BYTES = 1 << 16  # that a packet may cost whatever it holds


class Shape(NamedTuple):
    """Packets of one form: the schema of the first item of a sample, its buffers, and the sizes of those of text."""

    schema: Any
    buffers: bytes
    sizes: tuple[int, ...] = ()
    rows: int = 1
    segments: int = 1


def texts(text: bytes, rows: int, columns: int = 1) -> Shape:
    """Columns of a text, as msgpack writes it."""
    column = b"\xdd" + rows.to_bytes(4, "big") + text * rows
    schema = ("t", [("p", "bytes" if text[0] == 0xC4 else "str")] * columns)
    return Shape(schema, column * columns, (len(column),) * columns, rows)


def columns(leaf: Any, size: int, number: int = 3000) -> Shape:
    return Shape(("t", [leaf] * number), bytes(size * number))


SHAPES = {
    "black pictures": Shape(("a", "|u1", [1 << 22]), bytes(1 << 22)),
    "short texts": texts(b"\xa2ab", 100_000),
    "empty texts": texts(b"\xa0", 100_000),
    "wide texts": texts(b"\xa4\xf0\x9f\x9a\x97", 50_000),
    "bytes": texts(b"\xc4\x01\x01", 50_000),
    "many columns of texts": texts(b"\xa2\xc3\xa9", 2000, 50),
    "many columns of a text": texts(b"\xa2\xc3\xa9", 1, 1000),
    "nothing, often": Shape(("p", "none"), b"", (), 50_000),
    "columns": columns(("p", "int"), 8),
    "columns of booleans": columns(("p", "bool"), 1),
    "columns of nothing": columns(("p", "none"), 0),
    "columns of bytes": columns(("s", "|u1"), 1),
    "columns of empty arrays": columns(("a", "|u1", [0]), 0),
    "columns of deep arrays": columns(("a", "|u1", [1] * 30), 1, 1000),
    "columns of an array in an array": columns(("l", [("l", [("a", "<f8", [1])])]), 8),
    "columns with names": Shape(("d", [f"k{i}" for i in range(1000)], [("p", "int")] * 1000), bytes(8 * 1000)),
    "empty containers": columns(("t", []), 0, 9000),
    "segments": Shape(("p", "none"), b"", segments=1500),
    "hardly anything": Shape(("p", "none"), b""),
}


def body_of(shape: Shape) -> bytes:
    schema = ("t", [shape.schema] + [("p", "none")] * 5)
    head = msgspec.msgpack.encode([(shape.rows, schema, shape.sizes)] * shape.segments)
    rows = shape.rows * shape.segments
    return struct.pack("<I", len(head)) + head + shape.buffers * shape.segments + bytes(26 * rows)


def taken(receiver: Receiver, message: bytes) -> list[Delivery]:
    """What the trainer holds of a message."""
    packet, body = m.decode(message)
    assert isinstance(packet, m.SamplePacket)
    return list(receiver.take(packet, body, message, 0.0, lambda packet: True))


def assert_is_within(message: bytes, times: int) -> list[Delivery]:
    """The trainer holds no more than it may of a message that comes so often, each time from another process."""
    taken(Receiver(), message)  # its structure is kept from packet to packet
    receivers = [Receiver() for _ in range(times)]
    tracemalloc.start()
    try:
        held = [delivery for receiver in receivers for delivery in taken(receiver, message)]
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes <= FIXED_BYTES + MEMORY * times * len(message)
    return held


def as_small_as_is_taken(packet: m.SamplePacket, data: bytes) -> bytes:
    """With as many zeros behind it as are asked for."""
    try:
        decode_body(packet, data)
    except OversizeError as error:
        words = str(error).split()
        data = data.ljust(-(-int(words[words.index("in") - 1]) // LIMITS.ratio), b"\0")
        if not packet.compressed:
            packet.body_bytes = len(data)
        return as_small_as_is_taken(packet, data)
    return data


def message_of(shape: Shape, way: str) -> bytes:
    body = data = body_of(shape)
    is_compressed = "uncompressed" not in way
    if is_compressed:
        data = zstandard.ZstdCompressor(level=9).compress(body)
    rows = shape.rows * shape.segments
    packet = m.SamplePacket("w", 1, 1, rows, 1, 0, rows, len(body), is_compressed)
    if "is taken" in way:
        data = as_small_as_is_taken(packet, data)
    return encode_packet(packet, data)


@pytest.mark.fault(
    "peers",
    "a worker sends a few hundred bytes that unpack to megabytes",
    "the trainer holds 20 times what it was sent, at most",
)
@pytest.mark.parametrize("way", ["as small as can be", "as small as is taken", "uncompressed, as small as is taken"])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_packets_come_to_in_memory_is_bounded_by_their_size(shape: str, way: str) -> None:
    held = assert_is_within(message_of(SHAPES[shape], way), 3)
    assert all(len(delivery.buffer) for delivery in held) == ("is taken" in way)


def test_reports_of_episodes_are_within_the_budget() -> None:
    episodes = tuple((i + 1, EpisodeStats("w", False, 0.0, 0, False, False, 0.0, 0)) for i in range(m.MAX_EPISODES))
    message = encode_packet(m.SamplePacket("w", 1, 1, m.MAX_EPISODES, 1, 0, 0, 0, False, episodes=episodes))
    assert len(assert_is_within(message, 100)[-1].episodes) == m.MAX_EPISODES
