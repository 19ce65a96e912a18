"""Packets of numbered entries as an engine's parts see them: nobody looks into their columns."""

from typing import Any

from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import encode_packet

INCARNATION = 7


def header(first: int, last: int | None = None, worker: str = "w", oldest: int = 1, **more: Any) -> m.SamplePacket:
    """The header of a packet with these entries, each a sample."""
    last = first if last is None else last
    fields = {"incarnation": INCARNATION, "breaks": 0, "body_bytes": 0, "compressed": False, **more}
    return m.SamplePacket(worker, first=first, last=last, oldest=oldest, samples=last - first + 1, **fields)


def message(first: int, last: int | None = None, worker: str = "w", size: int = 0, **more: Any) -> bytes:
    """A whole message, with so many bytes of columns."""
    return encode_packet(header(first, last, worker, body_bytes=size, **more), bytes(size))
