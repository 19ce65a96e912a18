"""Packets as a worker sends them: of samples, or of bytes that nobody decodes."""

from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tmrl_like.delivery.log import PacketLog, entries_of, lock_folder
from tmrl_like.types import EpisodeStats, Receipt, StepTiming
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import Compressor, PacketWriter
from tmrl_like.wire.records import seal, sealed_packet

TIMING = StepTiming(1e9, 0.0, 0.0, 1)


def numbered(number: float) -> tuple[Any, ...]:
    """A sample whose observation is this number."""
    return None, np.float32(number), 0.0, False, False, {}


def record_of(
    sequence: int,
    *samples: tuple[Any, ...],
    worker: str = "w",
    incarnation: int = 7,
    episodes: tuple[EpisodeStats, ...] = (),
) -> bytes:
    """A packet of these samples as it travels."""
    writer = PacketWriter()
    for sample in samples:
        writer.append(sample, TIMING)
    return sealed_packet(Receipt(worker, incarnation, sequence), 0, writer, episodes, Compressor())


def opaque(sequence: int, size: int = 50) -> bytes:
    """A packet as a log keeps it; its body is noise."""
    header = m.SamplePacket("w", 7, sequence, 0, 3, size, False)
    return seal(m.frame_of(header), Random(sequence).randbytes(size))


class Logs:
    """Opens packet logs in a folder, one after the other, and closes all of them at the end."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack

    def __call__(self, segment_bytes: int = 1 << 20, *arguments: Any) -> PacketLog:
        log = PacketLog(self._folder, lock_folder(self._folder), segment_bytes, *arguments)
        self._stack.callback(log.close)
        return log


def sequences(log: PacketLog) -> list[int]:
    """Of the packets in a log."""
    return [e.message.sequence for s in log.segments for e in entries_of(s) if isinstance(e.message, m.SamplePacket)]
