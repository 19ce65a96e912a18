"""Packets whose samples are numbered, a memory that knows which it was given, and the way of a packet in a trainer."""

from collections import defaultdict

import numpy as np

from tmrl_like.replay import ReplayMemory
from tmrl_like.types import StepTiming
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import Compressor, PacketWriter, encode_rows

SIZE = 300  # of the memory, in samples
LARGEST = 20
SMALL_BYTES = 4000  # some ten packets


class RecordingMemory(ReplayMemory):
    """Knows the numbers of all samples that it was given, by worker and in order."""

    def __init__(self, *args, **kwargs):
        self.numbers = defaultdict(list)
        self.damaged = 0
        super().__init__(*args, **kwargs)

    def append(self, buffer):
        super().append(buffer)
        for block in buffer.blocks:
            for segment in block.segments:
                act, obs, rew = segment.leaves[:3]
                self.numbers[buffer.stream.split("/")[0]] += rew.astype(int).tolist()
                whole = np.array_equal(obs, np.stack((rew, rew * rew), 1)) and np.array_equal(act[:, 0], rew % 1000)
                self.damaged += not whole


def end_of(number):
    """How many samples, and so entries, there are in all packets of a worker up to this one: 1, 2, 3, …"""
    return sum(1 + k * 7919 % LARGEST for k in range(1, number + 1))


def number_of(entry):
    """The packet that ends with this entry; 0: there is none before it."""
    number = 0
    while end_of(number) < entry:
        number += 1
    return number


def message(worker, number):
    """A packet as it travels."""
    writer = PacketWriter()
    first, end = end_of(number - 1), end_of(number)
    for k in range(first, end):
        sample = (np.float32([k % 1000]), np.float64([k, k * k]), float(k), False, False, {})
        writer.append(sample, StepTiming(1e9 + k, 0.0, 0.0, 1), is_reset=k % 50 == 49)
    header = {"worker": worker, "incarnation": 1, "first": first + 1, "last": end, "oldest": 1, "breaks": 0}
    return encode_rows(writer.rows(), Compressor(), **header)


def take(training, receiver, worker, number, now):
    """What the trainer's threads do with a packet; yields which worker may forget its packets, and up to which one."""
    data = message(worker, number)
    packet, body = m.decode(data)
    assert isinstance(packet, m.SamplePacket)
    for delivery in receiver.take(packet, body, data, now, lambda packet: True):
        training.memory.append(delivery.buffer)
        training.total_samples += len(delivery.buffer)
        receiver.confirm([delivery.receipt])
    receiver.write(now)
    for ack in receiver.due():
        if isinstance(ack, m.Ack) and ack.stored:
            yield ack.worker, number_of(ack.stored)
