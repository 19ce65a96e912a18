"""Data sets that memories start from: packet logs (of `tmrl-like record`, a trainer, a worker), and Minari's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from tmrl_like.delivery.log import SUFFIX, PacketLog, Segment, lock_folder, segments_in
from tmrl_like.delivery.receiver import Receiver
from tmrl_like.errors import CheckpointError, ConfigError
from tmrl_like.replay.minari import episodes_of, find_minari
from tmrl_like.types import Buffer, Info, Receipt, StepTiming
from tmrl_like.wire.messages import WireVersionError
from tmrl_like.wire.packet import Compressor, PacketWriter
from tmrl_like.wire.records import sealed_packet

_SEGMENT_BYTES = 64 << 20
_PACKET_BYTES = 256 << 10


def read_data_set(path: Path) -> Iterator[Buffer]:
    """Yield the samples of a data set, in order.

    Args:
        path: a folder with a packet log, one file of a log, or a Minari data set (its folder or its HDF5 file).

    Raises:
        ConfigError: there is none at `path`.
        CheckpointError: it cannot be read.
        MissingExtraError: a data set of Minari, and what reads it is not installed.
    """
    if (found := find_minari(path)) is not None:
        yield from episodes_of(found)
        return
    segments = [Segment(file) for file in log_files(path)]
    try:
        yield from Receiver().replay(segments)
    except WireVersionError as error:
        raise CheckpointError(f"the data set {path} cannot be read: it holds {error}") from None


def write_data_set(folder: str | Path, buffers: Iterable[Buffer]) -> int:
    """Write samples as a packet log; returns how many. Each stream becomes a process of its own.

    Args:
        folder: made if it is not there; must hold no log.
        buffers: samples of one or more streams, of any length.

    Raises:
        EncodingError: a sample holds something that cannot be stored; the message names the field.
    """
    sequences: dict[str, int] = {}  # by stream
    episodes: dict[str, tuple[int, bool]] = {}  # by stream: number of the newest one, whether its reset came last

    def sealed(stream: str, writer: PacketWriter) -> tuple[bytes, int]:
        sequences[stream] = sequences.get(stream, 0) + 1
        name = Receipt("data set", list(sequences).index(stream) + 1, sequences[stream])
        return sealed_packet(name, 0, writer, (), Compressor()), writer.samples

    def records() -> Iterator[tuple[bytes, int]]:
        for buffer in buffers:
            writer = PacketWriter()
            for sample in buffer.memory:
                info = sample.info if isinstance(sample.info, Info) else Info(sample.info)
                plain = (*sample[:5], dict(info))
                number, was_reset = episodes.get(buffer.stream, (-1, False))
                number += info.is_reset and not was_reset
                episodes[buffer.stream] = number, info.is_reset
                writer.append(plain, info.timing or StepTiming(0.0, 0.0, 0.0, 0), info.is_reset, max(0, number))
                if writer.size_bytes >= _PACKET_BYTES:
                    yield sealed(buffer.stream, writer)
                    writer = PacketWriter()
            if writer.samples:
                yield sealed(buffer.stream, writer)

    return write_log(Path(folder), records())


def write_log(folder: Path, records: Iterable[tuple[bytes | memoryview, int]]) -> int:
    """Write sealed packets with their numbers of samples as a log; returns the sum. ConfigError: not in this folder."""
    refuse_taken(folder)
    try:
        lock = lock_folder(folder)
    except OSError as error:
        raise ConfigError(f"cannot write the data set to {folder}: {error}") from None
    if lock is None:
        raise ConfigError(f"{folder} is being written to by another process: choose another folder")
    packet_log = PacketLog(folder, lock, _SEGMENT_BYTES)
    total = 0
    try:
        for record, samples in records:
            if packet_log.append(record, 0.0, samples) is None:
                raise ConfigError(packet_log.alarm)
            total += samples
    finally:
        packet_log.close()
    return total


def refuse_taken(folder: Path) -> None:
    """Raise ConfigError where a folder holds a packet log."""
    if segments_in(folder):
        raise ConfigError(f"{folder} holds a packet log already: choose another folder")


def log_files(path: Path) -> list[Path]:
    """The files of the packet log at `path`; raises ConfigError where there is none."""
    files = [path] if path.is_file() and path.suffix == SUFFIX else segments_in(path)
    if files:
        return files
    pickled = path if path.suffix == ".pkl" else path / "data.pkl"
    if pickled.is_file():
        raise ConfigError(
            f"{pickled} is a pickle: reading one runs whatever its writer put in it, so it is not read; record the "
            "data set again with `tmrl-like record`"
        )
    raise ConfigError(
        f"there is no data set at {path}: expected a folder that `tmrl-like record` wrote, the log of a trainer or a "
        "worker, or a data set of Minari; tutorials/lerobot_data_set.py makes one of LeRobot's"
    )
