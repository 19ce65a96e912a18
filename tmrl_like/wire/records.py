"""Records: a packet as it is kept and sent, the same bytes in every log and on the wire.

A record is a mark, the size and the CRC-32 of a message, and the message as it travels (`wire.messages`).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tmrl_like.errors import DecodingError
from tmrl_like.types import EpisodeStats, Receipt
from tmrl_like.wire import messages as m

if TYPE_CHECKING:
    from tmrl_like.wire.packet import Compressor, PacketRows, PacketWriter

MARK = b"tPL\x01"
RECORD = struct.Struct("<4sII")  # mark, size of the message, its CRC-32


def seal(*pieces: bytes | memoryview) -> bytes:
    """The record of a message that is given in pieces."""
    return b"".join((record_head(*pieces), *pieces))


def record_head(*pieces: bytes | memoryview) -> bytes:
    """What comes before a message in its record."""
    size, checksum = 0, 0
    for piece in pieces:
        size += len(piece)
        checksum = zlib.crc32(piece, checksum)
    return RECORD.pack(MARK, size, checksum)


def sealed_packet(
    name: Receipt, breaks: int, writer: PacketWriter, episodes: tuple[EpisodeStats, ...], compress: Compressor
) -> bytes:
    """The record of a packet: it is never rewritten from here on."""
    return b"".join(packet_pieces(name, breaks, writer.rows(), episodes, compress))


def packet_pieces(
    name: Receipt, breaks: int, rows: PacketRows, episodes: tuple[EpisodeStats, ...], compress: Compressor
) -> tuple[bytes, bytes]:
    """The record of a packet, in two pieces: copying a large body costs more than all the rest."""
    body = rows.encode()
    data, compressed = compress(body, rows.extra_bytes)
    header = m.SamplePacket(
        *name,
        breaks=breaks,
        samples=rows.samples,
        body_bytes=len(body),
        compressed=compressed,
        observed_at_s=rows.observed_at_s,
        policy_version=rows.policy_version,
        episodes=episodes,
    )
    frame = m.frame_of(header)
    return record_head(frame, data) + frame, data


def unseal(data: memoryview) -> Iterator[tuple[memoryview, memoryview]]:
    """Yield (record, message) of records that lie one after the other; raises DecodingError where they are damaged."""
    while data:
        found = message_at(data, 0)
        if found is None:
            raise DecodingError(f"no whole packet in the last {len(data)} bytes of a bundle")
        end = found[0] + found[1]
        yield data[:end], data[found[0] : end]
        data = data[end:]


def message_at(data: memoryview, at: int) -> tuple[int, int] | None:
    """(start, size) of the message whose record begins there; None if none does, or not a whole one."""
    start = at + RECORD.size
    if start > len(data):
        return None
    mark, size, checksum = RECORD.unpack_from(data, at)
    if mark != MARK or not 0 < size <= len(data) - start:  # one of no size may be a head that was torn, and zeros
        return None
    return (start, size) if zlib.crc32(data[start : start + size]) == checksum else None


def newest_in(body: memoryview) -> tuple[int, int]:
    """How many packets a bundle's body holds, and the sequence of the last one; no checksum is looked at.

    Raises:
        DecodingError: it does not hold whole records of packets.
    """
    packets = start = end = 0
    while end < len(body):
        start = end + RECORD.size
        if start > len(body):
            raise DecodingError("a bundle ends in the middle of a record")
        end = start + RECORD.unpack_from(body, end)[1]
        packets += 1
    if end != len(body) or not packets:
        raise DecodingError("a bundle ends in the middle of a record")
    packet, _ = m.decode(body[start:])
    if not isinstance(packet, m.SamplePacket):
        raise DecodingError("a bundle holds something else than packets")
    return packets, packet.sequence
