"""Packets of numbered entries for an engine's parts, which never look into their columns."""

from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import encode_packet

INCARNATION = 7


def header(first, last=None, worker="w", oldest=1, **more):
    """Return the header of a packet with these entries, all samples."""
    last = first if last is None else last
    fields = {"incarnation": INCARNATION, "breaks": 0, "body_bytes": 0, "compressed": False, **more}
    return m.SamplePacket(
        worker, first=first, last=last, oldest=oldest, samples=last - first + 1, **fields
    )


def message(first, last=None, worker="w", size=0, **more):
    """Return a whole message, with `size` bytes of columns."""
    return encode_packet(header(first, last, worker, body_bytes=size, **more), bytes(size))
