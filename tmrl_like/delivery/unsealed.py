"""The samples of the packet that is being filled, in files that outlive the process.

The control thread writes each sample to a file that is mapped into memory: no system call, and what `add` returned from
survives a kill at any point. The blocks of a file are reserved when it is made, by the connection's thread, so that a
full disk never meets the control thread.

A file::

    8 bytes   magic
    8 bytes   incarnation
    8 bytes   sequence of the packet; 0: the file is free
    8 bytes   breaks (see `wire.messages.SamplePacket`)
    rows      4 bytes size, 4 bytes CRC-32, and the row, msgpack; size 0: the end

Size and CRC-32 are written last: a row that was cut off is not there.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import mmap
import struct
import zlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from tmrl_like.base.files import map_file, reserve
from tmrl_like.delivery.log import sealed_packet
from tmrl_like.types import EpisodeStats, Receipt
from tmrl_like.wire.packet import Compressor, PacketWriter, Row, Structure

log = logging.getLogger("tmrl_like.delivery")

SUFFIX = ".unsealed"
_MAGIC = b"tmrlRW1\n"
_HEAD = struct.Struct("<8sQQQ")
_ROW = struct.Struct("<II")
_FREE = 3  # files that wait for packets


class Report(msgspec.Struct, array_like=True, tag="episode"):
    """A finished episode."""

    episode: EpisodeStats


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Structure | Row | Report] = msgspec.msgpack.Decoder(Structure | Row | Report)


class UnsealedFile:
    """One file; the control thread writes, the connection's thread makes and frees it.

    Attributes:
        needed_bytes: how large it should have been: it was full, and what came after that is not in it; 0: it was not.
    """

    def __init__(self, path: Path, size_bytes: int) -> None:
        """Make the file and map it.

        Raises:
            OSError: it does not fit on the disk.
        """
        reserve(path, size_bytes)
        self.path = path
        self._map = map_file(path, size_bytes)
        self._end = 0
        self.size_bytes = size_bytes
        self.needed_bytes = 0

    @property
    def has_room(self) -> bool:
        """Whether it takes more than a few samples."""
        return not self.needed_bytes and 2 * self._end < self.size_bytes

    def begin(self, incarnation: int, sequence: int, breaks: int) -> None:
        """Take the samples of a packet."""
        self._end = _HEAD.size
        _ROW.pack_into(self._map, self._end, 0, 0)
        _HEAD.pack_into(self._map, 0, _MAGIC, incarnation, sequence, breaks)

    def add(self, row: Structure | Row | Report) -> None:
        """Write what belongs to the packet; nothing, where the file is full (control thread)."""
        if self.needed_bytes:
            return
        data = _encoder.encode(row)
        start = self._end + _ROW.size
        end = start + len(data)
        if end + _ROW.size > len(self._map):
            self.needed_bytes = 2 * end
            return
        self._map[start:end] = data
        _ROW.pack_into(self._map, end, 0, 0)
        _ROW.pack_into(self._map, self._end, len(data), zlib.crc32(data))
        self._end = end

    def free(self) -> None:
        """Its packet is sealed."""
        _HEAD.pack_into(self._map, 0, _MAGIC, 0, 0, 0)

    def remove(self) -> None:
        """It is not needed any more."""
        self._map.close()
        self.path.unlink(missing_ok=True)


class UnsealedFiles:
    """A few files that take turns: one is filled, others wait to be sealed, or to be filled."""

    def __init__(self, folder: Path, size_bytes: int = 1 << 20) -> None:
        """Nothing is made yet; `refill` comes first."""
        self._folder = folder
        self._size_bytes = size_bytes
        self._free: deque[UnsealedFile] = deque()
        self._all: list[UnsealedFile] = []
        self._numbers = itertools.count()
        self._failed = False

    def take(self) -> UnsealedFile | None:
        """A file for the next packet (control thread); None: there is none just now."""
        try:
            return self._free.popleft()
        except IndexError:
            return None

    @property
    def are_all_in_use(self) -> bool:
        """Whether there is no file for the next packet until one of those that are closed is sealed."""
        return not self._free and len(self._all) > 1

    def refill(self) -> None:
        """Have files ready (connection's thread); those that proved too small are replaced."""
        small = [file for file in list(self._free) if file.size_bytes < self._size_bytes]
        while len(self._free) - len(small) < _FREE and not self._failed:
            try:
                file = UnsealedFile(self._folder / f"{next(self._numbers)}{SUFFIX}", self._size_bytes)
            except FileExistsError:  # of a dead process, and could not be taken over
                continue
            except OSError as error:
                self._failed = True
                log.error("%s: samples are kept from when their packet is sealed: %s", self._folder, error)
                return
            self._all.append(file)
            self._free.append(file)
        for file in small:
            with contextlib.suppress(ValueError):  # the control thread has just taken it
                self._free.remove(file)
                self._remove(file)

    def give_back(self, file: UnsealedFile) -> None:
        """Its packet is sealed (connection's thread). One that was too small is replaced."""
        self._size_bytes = max(self._size_bytes, file.needed_bytes)
        if file.size_bytes < self._size_bytes:
            self._remove(file)
        else:
            file.free()
            self._free.append(file)

    def close(self) -> None:
        """Remove the files; what is in them is sealed. Twice is fine."""
        self._free.clear()
        for file in list(self._all):
            self._remove(file)

    def _remove(self, file: UnsealedFile) -> None:
        self._all.remove(file)
        file.remove()


class Recovered(NamedTuple):
    """A packet that a dead process of a worker was filling; its file goes when the packet is in the log."""

    name: Receipt
    samples: int
    record: bytes
    path: Path


def recover(folder: Path, worker: str) -> list[Recovered]:
    """The packets that dead processes of a worker were filling, each one's in order; files of nothing are removed."""
    packets = []
    for path in folder.glob(f"*{SUFFIX}"):
        try:
            if path.stat().st_size < _HEAD.size:  # killed while it was made
                path.unlink()
                continue
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                magic, incarnation, sequence, breaks = _HEAD.unpack_from(data)
                found = _refill(data) if magic == _MAGIC and sequence else None
        except (OSError, ValueError, struct.error, msgspec.MsgspecError) as error:
            log.error("cannot read %s, which is left as it is: %s", path, error)
            continue
        if found is not None and (found[0].samples or found[1]):
            name = Receipt(worker, incarnation, sequence)
            record = sealed_packet(name, breaks, found[0], tuple(found[1]), Compressor())
            packets.append(Recovered(name, found[0].samples, record, path))
        else:
            path.unlink(missing_ok=True)
    return sorted(packets)


def _refill(data: mmap.mmap) -> tuple[PacketWriter, list[EpisodeStats]]:
    writer, episodes = PacketWriter(), list[EpisodeStats]()
    for row in _rows(data):
        if isinstance(row, Report):
            episodes.append(row.episode)
        else:
            writer.restore(row)
    return writer, episodes


def _rows(data: mmap.mmap) -> Iterator[Structure | Row | Report]:
    at = _HEAD.size
    while at + _ROW.size <= len(data):
        size, checksum = _ROW.unpack_from(data, at)
        row = data[at + _ROW.size : at + _ROW.size + size]
        if not size or zlib.crc32(row) != checksum:
            return
        yield _decoder.decode(row)
        at += _ROW.size + size
