"""Packets as a worker sends them, of samples or of random bytes, and stores of them."""

import struct
from random import Random

import msgspec
import numpy as np

from tmrl_like.base.files import lock_folder
from tmrl_like.delivery.sample_store import SampleStore, StoreHead
from tmrl_like.types import StepTiming
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import Compressor, PacketWriter, encode_packet

TIMING = StepTiming(1e9, 0.0, 0.0, 1)
INCARNATION = 7


def numbered(number):
    """Return a sample whose observation is this number."""
    return None, np.float32(number), 0.0, False, False, {}


def packet_of(
    first,
    *samples,
    worker="w",
    incarnation=INCARNATION,
    reports=(),
    begins_with_break=False,
    **header,
):
    """Return the message of a packet whose entries, from `first` on, are an optional break, these
    samples and these reports.
    """
    writer = PacketWriter()
    for sample in samples:
        writer.append(sample, TIMING)
    next_entry = first + begins_with_break + len(samples)
    header = {
        "worker": worker,
        "incarnation": incarnation,
        "first": first,
        "last": next_entry + len(reports) - 1,
        "oldest": 1,
        "breaks": int(begins_with_break),
        "episodes": tuple(enumerate(reports, start=next_entry)),
        **header,
    }
    return writer.message(Compressor(), **header)


def header(first, last=None, worker="w", incarnation=INCARNATION, **more):
    """Return the header of a packet with these entries, all samples, whose columns have no
    bytes.
    """
    last = first if last is None else last
    fields = {"oldest": 1, "breaks": 0, "samples": last - first + 1, "body_bytes": 0, **more}
    return m.SamplePacket(worker, incarnation, first, last, **{"compressed": False, **fields})


def noise(entry, size=50):
    """Return the message of a packet of three entries, the first of which is `entry`, with random
    bytes as columns.
    """
    return encode_packet(header(entry, entry + 2, body_bytes=size), Random(entry).randbytes(size))


def forged(schema, rows=1, sizes=(), buffers=b"", timing=None, segments=1):
    """Return columns as a packet holds them, of what may be no samples."""
    head = msgspec.msgpack.encode([(rows, schema, sizes)] * segments)
    timing = bytes(26 * rows * segments) if timing is None else timing
    return struct.pack("<I", len(head)) + head + buffers * segments + timing


def answers_of(receiver):
    """Return the messages that are due to the workers, which are then sent."""
    sent = []
    receiver.answer(lambda data: sent.append(m.decode(data)[0]) or True)
    return sent


def header_of(message):
    packet, _ = m.decode(message)
    assert isinstance(packet, m.SamplePacket)
    return packet


class Stores:
    """Opens stores in one folder, one after the other, and closes all of them at the end."""

    def __init__(self, folder, stack):
        self.folder, self._stack = folder, stack

    def __call__(self, *arguments):
        lock = lock_folder(self.folder)
        assert lock is not None, "the store before is not closed"
        store = SampleStore(self.folder, lock, *arguments)
        self._stack.callback(store.close)
        return store


def head_of(*messages, before=0):
    """Return the head of a file with these messages, after `before` earlier samples."""
    packets = [header_of(message) for message in messages]
    held = sum(packet.samples for packet in packets)
    progress = {packet.receipt[:2]: packet.receipt for packet in packets}
    parts = tuple((len(message), 0) for message in messages)
    return StoreHead("run", before + held, held, tuple(progress.values()), parts)


def write(folder, *groups):
    """Store each of these groups of messages as a file."""
    lock = lock_folder(folder)
    assert lock is not None
    store, samples = SampleStore(folder, lock), 0
    for messages in groups:
        head = head_of(*messages, before=samples)
        store.write(head, messages, 0.0)
        assert store.is_settled(0.0), store.alarm
        samples = head.samples
    store.close()


def entries(store):
    """Return the first entry of each packet in a store."""
    return [packet.first for file in store.files() for packet, *_ in file.packets()]
