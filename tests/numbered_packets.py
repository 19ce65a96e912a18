"""Packets whose samples are numbered, a memory that knows which it was given, and the way of a packet in a trainer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from tmrl_like.delivery.receiver import Receiver
from tmrl_like.replay import ReplayMemory
from tmrl_like.trainer.schedule import TrainingOffline
from tmrl_like.types import Buffer, Receipt, StepTiming
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import Compressor, PacketWriter
from tmrl_like.wire.records import sealed_packet

SIZE = 300  # of the memory, in samples
LARGEST = 20
SEGMENT_BYTES = 4000  # some ten packets


class RecordingMemory(ReplayMemory):
    """Knows the numbers of all samples that it was given, by worker and in order."""

    def __init__(self, *args, **kwargs) -> None:
        self.numbers: dict[str, list[int]] = defaultdict(list)
        self.damaged = 0
        super().__init__(*args, **kwargs)

    def append(self, buffer: Buffer) -> None:
        super().append(buffer)
        for block in buffer.blocks:
            for segment in block.segments:
                act, obs, rew = segment.leaves[:3]
                self.numbers[buffer.stream.split("/")[0]] += rew.astype(int).tolist()
                whole = np.array_equal(obs, np.stack((rew, rew * rew), 1)) and np.array_equal(act[:, 0], rew % 1000)
                self.damaged += not whole


def end_of(sequence: int) -> int:
    """How many samples there are in all packets of a worker up to this one."""
    return sum(1 + k * 7919 % LARGEST for k in range(1, sequence + 1))


def record(worker: str, sequence: int) -> bytes:
    """A packet as it travels."""
    writer = PacketWriter()
    for k in range(end_of(sequence - 1), end_of(sequence)):
        sample = (np.float32([k % 1000]), np.float64([k, k * k]), float(k), False, False, {})
        writer.append(sample, StepTiming(1e9 + k, 0.0, 0.0, 1), is_reset=k % 50 == 49)
    return sealed_packet(Receipt(worker, 1, sequence), 0, writer, (), Compressor())


def take(
    training: TrainingOffline, receiver: Receiver, worker: str, sequence: int, now: float
) -> Iterator[tuple[str, int]]:
    """What the trainer's threads do with a packet; yields which worker may forget its packets, and up to which one."""
    data = record(worker, sequence)
    bundle = m.Bundle(worker, 1, end_of(sequence) - end_of(sequence - 1), sequence - 1)
    for delivery in receiver.take(bundle, memoryview(data), now, lambda packet: True):
        training.memory.append(delivery.buffer)
        training.total_samples += len(delivery.buffer)
        receiver.confirm([delivery.receipt])
    receiver.write(now)
    for ack in receiver.due():
        if isinstance(ack, m.Ack) and ack.stored:
            yield ack.worker, ack.stored
