"""Packets of numbered entries as an engine's parts see them: nobody looks into their columns."""

from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import encode_packet

INCARNATION = 7


def header(first, last=None, worker="w", oldest=1, **more):
    """The header of a packet with these entries, each a sample."""
    last = first if last is None else last
    fields = {"incarnation": INCARNATION, "breaks": 0, "body_bytes": 0, "compressed": False, **more}
    return m.SamplePacket(
        worker, first=first, last=last, oldest=oldest, samples=last - first + 1, **fields
    )


def message(first, last=None, worker="w", size=0, **more):
    """A whole message, with so many bytes of columns."""
    return encode_packet(header(first, last, worker, body_bytes=size, **more), bytes(size))
