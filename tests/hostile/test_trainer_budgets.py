"""The most memory that a worker's key may cost the trainer: packets of all shapes that describe
much in few bytes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import zstandard
from kit.allocations import peak_of
from kit.episodes import episode
from kit.packets import answers_of, forged, header
from kit.trainings import taken

from tmrl_like.delivery.receiver import Receiver
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import encode_packet

MEMORY = 20  # bytes that the trainer may hold for each byte that it receives
FIXED_BYTES = 1 << 16  # that a packet may cost regardless of its contents


class Shape(NamedTuple):
    """A form of packets: the schema of a sample's first item, its buffers, and the sizes of those
    that hold text.
    """

    schema: Any
    buffers: bytes
    sizes: tuple[int, ...] = ()
    rows: int = 1
    segments: int = 1


def texts(text, rows, columns=1):
    """Return columns of a repeated text, given as msgpack."""
    column = b"\xdd" + rows.to_bytes(4, "big") + text * rows
    schema = ("t", [("p", "bytes" if text[0] == 0xC4 else "str")] * columns)
    return Shape(schema, column * columns, (len(column),) * columns, rows)


def columns(leaf, size, number=3000):
    return Shape(("t", [leaf] * number), bytes(size * number))


SHAPES = {
    "black pictures": Shape(("a", "|u1", [1 << 22]), bytes(1 << 22)),
    "short texts": texts(b"\xa2ab", 20_000),
    "wide texts": texts(b"\xa4\xf0\x9f\x9a\x97", 10_000),
    "many columns of texts": texts(b"\xa2\xc3\xa9", 2000, 50),
    "nothing, often": Shape(("p", "none"), b"", (), 10_000),
    "columns of empty arrays": columns(("a", "|u1", [0]), 0),
    "columns of deep arrays": columns(("a", "|u1", [1] * 30), 1, 1000),
    "columns of an array in an array": columns(("l", [("l", [("a", "<f8", [1])])]), 8),
    "columns with names": Shape(
        ("d", [f"k{i}" for i in range(1000)], [("p", "int")] * 1000), bytes(8 * 1000)
    ),
    "empty containers": columns(("t", []), 0, 9000),
    "empty arrays, often": Shape(("t", [("a", "|u1", [0])] * 100), b"", (), 500),
    "segments": Shape(("p", "none"), b"", segments=1500),
    "hardly anything": Shape(("p", "none"), b""),
}


def body_of(shape):
    schema = ("t", [shape.schema] + [("p", "none")] * 5)
    return forged(schema, shape.rows, shape.sizes, shape.buffers, segments=shape.segments)


def message_of(shape, is_compressed, first=1):
    body = data = body_of(shape)
    if is_compressed:
        data = zstandard.ZstdCompressor(level=9).compress(body)
    last = first + shape.rows * shape.segments - 1
    packet = header(first, last, body_bytes=len(body), compressed=is_compressed)
    return encode_packet(packet, data)


@pytest.mark.parametrize(
    ("shape", "is_compressed"), [*((shape, True) for shape in SHAPES), ("black pictures", False)]
)
def test_a_packet_takes_no_more_memory_than_it_counts_for(shape, is_compressed):
    message = message_of(SHAPES[shape], is_compressed)
    taken(Receiver(), message)  # its structure is cached from packet to packet
    held, peak_bytes = peak_of(lambda: [taken(Receiver(), message)[0] for _ in range(3)])
    (block,) = held[0].buffer.blocks
    assert peak_bytes <= FIXED_BYTES + 4 * (block.size_bytes + len(message))  # 3, and a third
    assert peak_of(block.samples)[1] <= FIXED_BYTES + block.size_bytes


@pytest.mark.fault(
    "peers",
    "a worker sends a few hundred bytes that unpack to megabytes",
    "the trainer holds no more than it may hold of all workers",
)
def test_what_is_held_of_packets_that_are_much_in_few_bytes_is_bounded():
    receiver = Receiver(total_bytes=16 << 20)
    messages = [message_of(SHAPES["black pictures"], True, first) for first in range(1, 50)]
    assert sum(map(len, messages)) < 1 << 20
    held, peak_bytes = peak_of(
        lambda: [delivery for message in messages for delivery in taken(receiver, message)]
    )
    assert 2 <= len(held) <= 5
    assert peak_bytes < (16 + 2 * 4) << 20
    assert answers_of(receiver) == [], "what there is no room for comes later"


def test_reports_of_episodes_are_within_the_budget():
    episodes = tuple((i + 1, episode()) for i in range(m.MAX_EPISODES))
    message = encode_packet(header(1, m.MAX_EPISODES, samples=0, episodes=episodes))
    held, peak_bytes = peak_of(lambda: [taken(Receiver(), message) for _ in range(100)])
    assert len(held[-1][-1].episodes) == m.MAX_EPISODES
    assert peak_bytes <= FIXED_BYTES + 100 * MEMORY * len(message)
