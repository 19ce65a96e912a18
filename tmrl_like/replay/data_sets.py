"""Data sets that memories start from: samples stored by `tmrl-like record` or a trainer, and Minari
data sets.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tmrl_like.base.files import lock_folder, writing
from tmrl_like.delivery.receiver import Receiver
from tmrl_like.delivery.sample_store import (
    SUFFIX,
    SampleStore,
    StoreHead,
    files_in,
    read_file,
)
from tmrl_like.errors import CheckpointError, ConfigError
from tmrl_like.replay.labels import labels_beside
from tmrl_like.replay.minari import episodes_of, find_minari
from tmrl_like.replay.streams import NO_TIMING, info_of
from tmrl_like.types import Buffer, Sample
from tmrl_like.wire.messages import WireVersionError
from tmrl_like.wire.packet import Compressor, PacketWriter

_PACKET_BYTES = 256 << 10
_FILE_PACKETS = 64

Packet = tuple[bytes, int]  # message, number of samples


def read_data_set(path: str | Path) -> Iterator[Buffer]:
    """Yield the samples of a data set, in order.

    Args:
        path: a sample store, one file of it, a trainer's checkpoint folder, or a Minari data set
            (its folder or its HDF5 file).

    Raises:
        ConfigError: there is no data set at `path`.
        CheckpointError: it cannot be read.
        MissingExtraError: it is a Minari data set, and the package that reads it is not installed.
    """
    path = Path(path)
    try:
        if (found := find_minari(path)) is not None:
            yield from episodes_of(found)
            return
        for store in _stores_at(path):
            files = (read_file(_now(path)) for path in _log_files(store))
            yield from Receiver().replay(filter(None, files))
    except WireVersionError as error:
        raise CheckpointError(
            f"the data set {path} cannot be read: it holds {error}; read it with the tmrl_like "
            "that wrote it"
        ) from None
    except OSError as error:
        raise CheckpointError(f"the data set {path} cannot be read: {error}") from None


@dataclass
class _Stream:
    """Writes one stream as the entries of one process, and counts them."""

    incarnation: int
    entries: int = 0
    episode: int = -1
    was_reset: bool = False
    was_end: bool = False

    def append(self, sample: Sample, writer: PacketWriter) -> None:
        info = info_of(sample)
        if self.was_end and not info.is_reset:
            raise ConfigError(
                f"sample {self.entries + writer.samples} follows the end of an episode and is not "
                "marked as a reset, so two episodes would be joined: give the first sample of each "
                "episode the info Info(is_reset=True), of tmrl_like.types"
            )
        self.was_end = bool(sample.terminated or sample.truncated)
        self.episode += info.is_reset and not self.was_reset
        self.was_reset = info.is_reset
        writer.append(
            (*sample[:5], dict(sample.info or {})),
            info.timing or NO_TIMING,
            info.is_reset,
            max(0, self.episode),
        )

    def packet(self, writer: PacketWriter) -> Packet:
        first = self.entries + 1
        self.entries += writer.samples
        message = writer.message(
            Compressor(),
            worker="data set",
            incarnation=self.incarnation,
            oldest=1,
            breaks=0,
            first=first,
            last=self.entries,
        )
        return message, writer.samples


def write_data_set(folder: str | Path, buffers: Iterable[Buffer]) -> int:
    """Write samples as a sample store; return their number. Each stream becomes a process of its
    own.

    Args:
        folder: created if it does not exist; must hold no samples.
        buffers: samples of one or more streams, of any length.

    Raises:
        EncodingError: a sample holds something that cannot be stored; the message names the field.
        ConfigError: the folder is in use, holds samples or has labels beside it, or an episode does
            not begin with a reset.
    """
    packets = _packets_of(buffers)
    files = iter(lambda: list(itertools.islice(packets, _FILE_PACKETS)), [])
    return write_log(Path(folder), files)


def _packets_of(buffers: Iterable[Buffer]) -> Iterator[Packet]:
    streams: dict[str, _Stream] = {}
    for buffer in buffers:
        stream = streams.setdefault(buffer.stream, _Stream(len(streams) + 1))
        writer = PacketWriter()
        for sample in buffer.memory:
            stream.append(sample, writer)
            if writer.size_bytes >= _PACKET_BYTES:
                yield stream.packet(writer)
                writer = PacketWriter()
        if writer.samples:
            yield stream.packet(writer)


def write_log(folder: Path, files: Iterable[Sequence[Packet]]) -> int:
    """Write packets as a sample store, each file in one write; return the number of their samples.

    Raises:
        ConfigError: the folder is in use, holds samples or has labels beside it, or the disk does
            not accept them.
    """
    refuse_taken(folder)
    with writing("the data set", folder):
        lock = lock_folder(folder)
    if lock is None:
        raise ConfigError(f"{folder} is being written to by another process: choose another folder")
    store = SampleStore(folder, lock)
    total = 0
    try:
        for packets in filter(None, files):
            held = sum(samples for _, samples in packets)
            messages = [message for message, _ in packets]
            parts = tuple((len(message), 0) for message in messages)
            head = StoreHead(samples=total + held, held=held, parts=parts)
            try:
                store.write(head, messages, 0.0).result()
            except OSError as error:
                raise ConfigError(
                    f"cannot write the data set to {folder}: {error}; it holds the {total:,} "
                    "samples before"
                ) from None
            store.is_settled(0.0)  # so that the next group may begin
            total += held
    finally:
        store.close()
    return total


def refuse_taken(folder: Path) -> None:
    """Raise ConfigError if a folder holds a sample store, or if there are labels of an earlier one
    beside it.
    """
    if files_in(folder):
        raise ConfigError(f"{folder} holds samples already: choose another folder")
    if (labels := labels_beside(folder)).exists():
        raise ConfigError(
            f"{labels} holds labels of an earlier data set: move it away, or choose another folder"
        )


def _stores_at(path: Path) -> list[Path]:
    """Return the sample stores of all ranks in a trainer's checkpoint folder; of any other path,
    itself.
    """
    stores = sorted([*path.glob("log"), *path.glob("rank-*/log")])
    return [path] if files_in(path) or not stores else stores


def _now(path: Path) -> Path:
    """Return the file that holds what `path` did: a training may have joined it to earlier ones."""
    found = [path] if path.exists() else [file for file in files_in(path.parent) if file < path]
    return max(found, default=path)


def _log_files(path: Path) -> list[Path]:
    """Return the files of the sample store at `path`. Raises ConfigError if there is none."""
    files = [path] if path.is_file() and path.suffix == SUFFIX else files_in(path)
    if files:
        return files
    pickled = path if path.suffix == ".pkl" else path / "data.pkl"
    if pickled.is_file():
        raise ConfigError(
            f"{pickled} is a pickle: reading one runs whatever its writer put in it, so it is not "
            "read; record the data set again with `tmrl-like record`"
        )
    raise ConfigError(
        f"there is no data set at {path}: expected a folder that `tmrl-like record` wrote, the log "
        "of a trainer, or a data set of Minari; "
        "tutorials/lerobot_data_set.py makes one of LeRobot's"
    )
