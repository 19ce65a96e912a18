"""Bytes that are not what they claim to be: refused with a `DecodingError`, whatever they are."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
import zstandard

from tmrl_like.errors import DecodingError, OversizeError
from tmrl_like.wire import messages
from tmrl_like.wire.packet import LIMITS, Compressor, PacketLimits, PacketWriter, decode_body
from tmrl_like.wire.schema import MAX_LEAVES

from .samples import TIMING, announce, drone_sample, packet_of

MEGABYTE = 1 << 20
MAX_BODY_BYTES = LIMITS.body_bytes


def drone_packet() -> tuple[messages.SamplePacket, bytes]:
    rng, writer = np.random.default_rng(0), PacketWriter()
    for i in range(20):
        writer.append(drone_sample(i, rng), TIMING, is_reset=i == 0)
    return packet_of(writer)


def mixed_packet() -> tuple[messages.SamplePacket, bytes]:
    writer = PacketWriter()
    for i in range(6):
        info = {"text": "héllo" * i, "raw": b"x" * i, "n": None, 3: [1.5, (True, 1.0)]}
        writer.append((np.zeros((0, 3)), np.array(1.0), np.int8(i), i, False, info), TIMING)
        writer.append(("a", np.array(["é", ""]), np.datetime64("2020"), "t", [], {}), TIMING)
    return packet_of(writer)


def decode_all(body: bytes, samples: int) -> None:
    """Everything that a trainer does with a packet; DecodingError is the only way to fail."""
    try:
        block = decode_body(announce(body, samples), body)
        for segment in block.segments:
            segment.tree()
        assert len(block.samples()) == samples
    except DecodingError:
        pass


@pytest.mark.parametrize("packet_and_body", [drone_packet(), mixed_packet()], ids=["drone", "mixed"])
def test_flipped_bytes_do_no_harm(
    packet_and_body: tuple[messages.SamplePacket, bytes],
) -> None:
    packet, body = packet_and_body
    rng = random.Random(0)
    head_bytes = 4 + int.from_bytes(body[:4], "little")
    for i in range(6000):
        damaged = bytearray(body)
        for _ in range(rng.choice((1, 1, 2, 5))):
            damaged[rng.randrange(head_bytes if i % 4 else len(body))] = rng.randrange(256)
        decode_all(bytes(damaged), packet.samples)


@pytest.mark.parametrize("packet_and_body", [drone_packet(), mixed_packet()], ids=["drone", "mixed"])
def test_truncated_and_extended_packets_are_refused(packet_and_body: tuple[messages.SamplePacket, bytes]) -> None:
    packet, body = packet_and_body
    for length in (*range(0, len(body) - 1, 7), len(body) - 1):
        with pytest.raises(DecodingError):
            decode_body(announce(body[:length], packet.samples), body[:length])
    for extended in (body + b"\0", body + body):
        with pytest.raises(DecodingError):
            decode_body(announce(extended, packet.samples), extended)


def test_another_number_of_samples_than_announced_is_refused() -> None:
    packet, body = drone_packet()
    for samples in (0, packet.samples - 1, packet.samples + 1):
        with pytest.raises(DecodingError):
            decode_body(announce(body, samples), body)


def forged(
    schema: Any,
    rows: int = 1,
    sizes: tuple[int, ...] = (),
    buffers: bytes = b"",
    timing: bytes | None = None,
) -> bytes:
    head = msgspec.msgpack.encode(([(rows, schema, sizes)],))
    return struct.pack("<I", len(head)) + head + buffers + bytes(8) + (bytes(18 * rows) if timing is None else timing)


def six(leaf: Any) -> Any:
    return ("t", [leaf, *[("p", "none")] * 5])


def nested(levels: int) -> Any:
    node: Any = ("p", "none")
    for _ in range(levels):
        node = ("l", [node])
    return node


LIES: dict[str, Callable[[], bytes]] = {
    "a dtype that is code": lambda: forged(six(("a", "O", [1])), sizes=(8, 0, 0, 0, 0, 0), buffers=bytes(8)),
    "a structured dtype": lambda: forged(six(("a", "f4,f4", [1])), sizes=(8, 0, 0, 0, 0, 0), buffers=bytes(8)),
    "a dtype of gigabytes": lambda: forged(six(("a", "<U2000000000", [1])), sizes=(0,) * 6),
    "a dtype beyond everything": lambda: forged(six(("a", "<U99999999999999999999", [1])), sizes=(0,) * 6),
    "a shape of exabytes": lambda: forged(six(("a", "<f4", [2**60, 2**60])), sizes=(0,) * 6),
    "an empty shape of exabytes": lambda: forged(six(("a", "<f4", [0, 2**62, 2**62])), sizes=(0,) * 6),
    "a negative shape": lambda: forged(six(("a", "<f4", [-1, -4])), sizes=(16, 0, 0, 0, 0, 0), buffers=bytes(16)),
    "forty dimensions": lambda: forged(six(("a", "<f4", [1] * 40)), sizes=(4, 0, 0, 0, 0, 0), buffers=bytes(4)),
    "a buffer that is not there": lambda: forged(six(("a", "<f4", [4])), sizes=(16, 0, 0, 0, 0, 0)),
    "a negative size": lambda: forged(six(("a", "<f4", [4])), sizes=(-16, 0, 0, 0, 0, 0)),
    "too few sizes": lambda: forged(six(("a", "<f4", [4])), sizes=(16,), buffers=bytes(16)),
    "a billion rows": lambda: struct.pack("<I", 0),
    "keys without items": lambda: forged(six(("d", ["a", "b"], [("p", "none")])), sizes=(0,) * 6),
    "items without keys": lambda: forged(six(("d", [], [("p", "none")])), sizes=(0,) * 6),
    "a key twice": lambda: forged(six(("d", ["a", "a"], [("p", "none")] * 2)), sizes=(0,) * 7),
    "nesting without end": lambda: forged(six(nested(400)), sizes=(0,) * 6),
    "more nesting without end": lambda: forged(msgspec.Raw(b"\x92\xa1l\x91" * 100_000 + b"\x92\xa1p\xa4none")),
    "leaves without end": lambda: forged(six(("t", [("p", "none")] * (MAX_LEAVES + 1))), sizes=(0,) * (MAX_LEAVES + 6)),
    "five items": lambda: forged(("t", [("p", "none")] * 5), sizes=(0,) * 5),
    "a list for a tuple": lambda: forged(("l", [("p", "none")] * 6), sizes=(0,) * 6),
    "a dict for a tuple": lambda: forged(("d", list("abcdef"), [("p", "none")] * 6), sizes=(0,) * 6),
    "a leaf for a tuple": lambda: forged(("p", "none")),
    "an unknown kind": lambda: forged(six(("p", "code")), sizes=(0,) * 6),
    "text that is none": lambda: forged(six(("p", "str")), sizes=(3, 0, 0, 0, 0, 0), buffers=b"\x91\xa1\xff"),
    "too few texts": lambda: forged(six(("p", "str")), sizes=(1, 0, 0, 0, 0, 0), buffers=b"\x90"),
    "a text for bytes": lambda: forged(six(("p", "bytes")), sizes=(3, 0, 0, 0, 0, 0), buffers=b"\x91\xa1a"),
    "too little timing": lambda: forged(six(("p", "none")), sizes=(0,) * 6, timing=bytes(17)),
    "a negative version": lambda: forged(six(("p", "none")), sizes=(0,) * 6, timing=bytes(8) + b"\xff" * 8 + bytes(2)),
    "too much timing": lambda: forged(six(("p", "none")), sizes=(0,) * 6, timing=bytes(19)),
    "a head of four gigabytes": lambda: struct.pack("<I", 2**32 - 1) + bytes(100),
    "three bytes": lambda: b"abc",
    "nothing": lambda: b"",
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_packet_is_refused_without_allocating(lie: str) -> None:
    body = LIES[lie]()
    before = _rss()
    with pytest.raises(DecodingError):
        decode_body(announce(body, 1), body)
    assert _rss() - before < 100 * MEGABYTE


def test_the_forger_can_also_tell_the_truth() -> None:
    timing = bytes(16) + struct.pack("<2q2B2B", 1, 2, 0, 3, 128 + 99, 7)
    body = forged(six(("a", "<f4", [2])), 2, (16, 0, 0, 0, 0, 0), bytes(16), timing)
    block = decode_body(announce(body, 2), body)
    assert block.samples()[1].act.tolist() == [0, 0]
    assert block.timing.policy_version.tolist() == [1, 2]
    assert block.timing.source.tolist() == [0, 3]
    assert block.is_reset.tolist() == [True, False]
    assert block.episode.tolist() == [99, 7]


# sizes


def test_a_body_above_the_limit_is_refused_before_anything_is_read() -> None:
    packet, body = drone_packet()
    with pytest.raises(OversizeError, match=f"{len(body)} in memory; at most {len(body) - 1}"):
        decode_body(packet, body, PacketLimits(body_bytes=len(body) - 1))


def test_a_compression_bomb_is_refused_before_it_is_unpacked() -> None:
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(MAX_BODY_BYTES + 1))
    before = _peak()
    with pytest.raises(OversizeError):
        decode_body(announce(bomb, 1, raw_bytes=MAX_BODY_BYTES + 1), bomb)
    for claimed in (0, 1, 1000, MAX_BODY_BYTES):
        with pytest.raises(DecodingError):
            decode_body(announce(bomb, 1, raw_bytes=claimed), bomb)
    assert _peak() - before < 50 * MEGABYTE


def test_a_frame_that_hides_its_size_is_refused() -> None:
    bomb = zstandard.ZstdCompressor(level=1, write_content_size=False).compress(bytes(100 * MEGABYTE))
    before = _peak()
    for claimed in (1000, 100 * MEGABYTE, 2**64 - 1, 2**63 - 1):
        with pytest.raises(DecodingError):
            decode_body(announce(bomb, 1, raw_bytes=claimed), bomb)
    assert _peak() - before < 50 * MEGABYTE


def test_a_small_packet_that_unpacks_to_columns_of_a_million_texts_is_refused_for_its_head_alone() -> None:
    rows, columns = 1_000_000, 40
    schema = ("t", [("t", [("p", "str")] * columns), *[("p", "none")] * 5])
    column = b"\xdd" + rows.to_bytes(4, "big") + b"\xa0" * rows
    body = forged(schema, rows, (len(column),) * columns + (0,) * 5, column * columns)
    bomb = zstandard.ZstdCompressor(level=1).compress(body)
    announced = announce(bomb, rows, raw_bytes=len(body))
    del body
    assert len(bomb) < 20_000
    generous = PacketLimits(ratio=10_000)
    for limits in (LIMITS, generous):
        before = _peak()
        with pytest.raises(OversizeError):
            decode_body(announced, bomb, limits)
        assert _peak() - before < 20 * MEGABYTE


@pytest.mark.parametrize("kind", ["pictures", "texts", "columns"])
def test_a_compressed_packet_comes_to_so_many_times_its_size_and_one_of_ours_stays_below(kind: str) -> None:
    writer = PacketWriter()
    values: Any = {"pictures": np.zeros(100_000, np.uint8), "texts": ("ab" * 20,) * 50, "columns": (1.5,) * 2000}[kind]
    for _ in range(20):
        writer.append((values, 0, 0.0, False, False, {}), TIMING)
    body = writer.encode()
    bomb = zstandard.ZstdCompressor(level=1).compress(body)
    ours, is_compressed = Compressor()(body, writer.rows().extra_bytes)
    assert is_compressed
    assert len(decode_body(announce(ours, 20, raw_bytes=len(body)), ours)) == 20
    for small in (bomb, ours[:-1]):
        with pytest.raises(OversizeError, match=f"unpacks from {len(small)} bytes to"):
            decode_body(announce(small, 20, raw_bytes=len(body)), small)


def test_a_packet_may_not_hold_segments_without_samples() -> None:
    segments = [(0, six(("p", "none")), (0,) * 6)] * 10 + [(1, six(("p", "none")), (0,) * 6)]
    head = msgspec.msgpack.encode((segments,))
    body = struct.pack("<I", len(head)) + head + bytes(8)
    with pytest.raises(DecodingError, match="segment"):
        decode_body(announce(body, 1), body)


@pytest.mark.parametrize(("segments", "leaves"), [(LIMITS.columns // 7 + 1, 1), (100, 2000)])
def test_segments_and_columns_of_a_packet_are_counted_before_any_is_made(segments: int, leaves: int) -> None:
    schema = ("t", [("t", [("p", "int")] * leaves), *[("p", "none")] * 5])
    sizes = (8,) * leaves + (0,) * 5
    head = msgspec.msgpack.encode(([(1, schema, sizes)] * segments,))
    body = struct.pack("<I", len(head)) + head + bytes(8 * segments * (leaves + 1))
    with pytest.raises(OversizeError, match="columns"):
        decode_body(announce(body, segments), body, PacketLimits(head_bytes=4 * MEGABYTE))


def test_a_structure_is_checked_before_the_packet_is_unpacked() -> None:
    packet, body = drone_packet()
    small = zstandard.ZstdCompressor(level=1).compress(body)
    head_bytes = 4 + int.from_bytes(body[:4], "little")
    cut = zstandard.ZstdCompressor(level=1).compress(body[:head_bytes])  # nothing follows the head
    assert len(cut) < len(small)

    def refuse(schema: Any) -> None:
        raise OversizeError("not this one")

    with pytest.raises(OversizeError, match="not this one"):
        decode_body(announce(small, packet.samples, raw_bytes=len(body)), small, check=refuse)


def test_compressed_nonsense_is_refused() -> None:
    rng = random.Random(1)
    _, body = drone_packet()
    whole = zstandard.ZstdCompressor(level=1).compress(body * 5)
    for _ in range(500):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        damaged = damaged[: rng.randrange(len(damaged))] if rng.random() < 0.5 else damaged
        with pytest.raises(DecodingError):
            decode_body(announce(bytes(damaged), 1, raw_bytes=len(body) * 5), bytes(damaged))


def _rss() -> int:
    rss: int = psutil.Process().memory_info().rss
    return rss


def _peak() -> int:
    """The most memory that this process ever had."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
