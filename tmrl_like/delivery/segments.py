"""Memory-mapped files that carry entries from the control loop to the link.

A `Segment` is one file. The control loop (`SampleLog`) fills one segment after the other, and
reuses those that are free; the link (`Source`) reads them. They share nothing else. Each word of
the head has one writer, and is written in one store of 8 bytes::

    head      128 bytes: the words below
    records   one after the other, up to END, each at a multiple of 8 bytes:
              4 bytes   size including this head, times 8, plus the kind
              4 bytes   CRC-32, if the folder is on a disk, where a power cut may lose parts
              content, padded to a multiple of 8 bytes

Each sample, report and break is one entry; the entries of a process are numbered 1, 2, 3, … A
reader can begin with any segment: its head contains the number of its first entry, and a structure
precedes its first sample.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from tmrl_like.base.files import map_file

SUFFIX = ".entries"  # another format needs another one: versions leave each other's files alone

# the words of the head: first those of the writer …
(
    INCARNATION,
    # 1, 2, 3, … in the order in which the segments of an incarnation are filled; written last
    NUMBER,
    FIRST,  # the number of the first entry
    END,  # offset after the last complete record
    BREAKS,  # number of breaks before the first entry
    LOST,  # number of samples that no segment had room for
    CHECKED,  # 1: records have a CRC-32
    NEXT,  # the file that is filled after this one; 0: this one is the newest
) = range(8)
# … then those of the reader
(
    FREED,  # set to NUMBER once the segment is no longer needed: it may be filled again
    STORED,  # entries up to this one are stored, as known while this segment was the oldest
) = range(8, 10)
# set to NUMBER by whoever removes the file; on Windows, it is there until nobody has it mapped
REMOVED = 10
HEAD_BYTES = 128

STRUCTURE, ROW, FREE_ROW, REPORT, BREAK = range(5)
"""Kinds of records: a structure (msgpack); a sample of that structure as a row of fixed size, or of
any size; a finished episode (msgpack); a break."""
RECORD_BYTES = 8  # the head of a record
MAX_RECORD_BYTES = (1 << 29) - 1
_MAX_RUN = 2000  # rows that are looked at, and checked, at once


def padded(size: int) -> int:
    """Round up to a multiple of 8."""
    return -(-size // 8) * 8


class Segment:
    """One file, mapped by the writer or by the reader.

    Calling `release` and then `acquire` acts as a memory barrier: stores before the calls become
    visible to other processors before stores after them, and loads are ordered likewise. Processors
    other than x86 reorder both. The two calls, on a lock that nothing else uses, take 60 ns.

    Attributes:
        path: path of the file.
        file: number of the file among those of its process.
        map: the bytes of the file.
        words: the same bytes as unsigned 8-byte integers in the machine's byte order.
    """

    def __init__(self, path: Path) -> None:
        """Map the file; raise OSError, or ValueError if it is truncated."""
        self.path = path
        self.file = file_of(path)
        self.map = map_file(path)
        if len(self.map) < HEAD_BYTES or len(self.map) % 8:
            self.map.close()
            raise ValueError(f"{path} is cut off")
        self._bytes = memoryview(self.map)
        self.words = self._bytes.cast("Q")
        lock = threading.Lock()
        lock.acquire()
        self.release, self.acquire = lock.release, lock.acquire

    @property
    def size_bytes(self) -> int:
        return len(self.map)

    @property
    def is_free(self) -> bool:
        """Whether the segment is no longer needed and may be filled again."""
        return self.words[FREED] == self.words[NUMBER]

    @property
    def is_removed(self) -> bool:
        """Whether the other process has removed the file; on Windows, it then stays until this one
        removes it as well.
        """
        return 0 < self.words[REMOVED] == self.words[NUMBER]

    def begin(
        self, incarnation: int, number: int, first: int, breaks: int, lost: int, is_checked: bool
    ) -> None:
        """Prepare the segment to be filled from its start."""
        words = self.words
        words[INCARNATION], words[FIRST], words[END], words[BREAKS] = (
            incarnation,
            first,
            HEAD_BYTES,
            breaks,
        )
        words[LOST], words[CHECKED], words[NEXT] = lost, is_checked, 0
        words[STORED] = 0
        self.order()
        words[NUMBER] = number

    def order(self) -> None:
        """Order stores before this call before those after it; likewise loads."""
        self.release()
        self.acquire()

    def write(self, kind: int, content: bytes | bytearray) -> None:
        """Append a record; there must be room for it."""
        at, words = self.words[END], self.words
        size = RECORD_BYTES + len(content)
        self.map[at + RECORD_BYTES : at + size] = content
        words[at >> 3] = size << 3 | kind
        if words[CHECKED]:
            self.check(at, size)
        self.order()
        words[END] = at + padded(size)

    def check(self, at: int, size: int) -> None:
        """Write the checksum of the record at this offset."""
        self.words[at >> 3] |= self._checksum(at, size) << 32

    def _checksum(self, at: int, size: int) -> int:
        """Return the checksum of a record, including the segment's number.

        The number detects a record of the file's previous content, which a power cut may leave.
        """
        return zlib.crc32(
            self._bytes[at + RECORD_BYTES : at + size], self.words[NUMBER] & 0xFFFFFFFF
        )

    def content(self, at: int, size: int) -> bytes:
        """Return the content of the record at this offset."""
        return self.map[at + RECORD_BYTES : at + size]

    def runs(self, at: int, is_checked: bool = False) -> Iterator[tuple[int, int, int, int]]:
        """Yield (kind, offset, size, count) of runs of records; consecutive rows of the same size
        form one run.

        With `is_checked`, end before the first damaged record.
        """
        end = min(self.words[END], self.size_bytes)
        self.order()
        while at + RECORD_BYTES <= end:
            word = self.words[at >> 3] & 0xFFFFFFFF
            size, kind, count = word >> 3, word & 7, 1
            if size < RECORD_BYTES or at + size > end:
                return
            if kind == ROW:
                rows = min((end - at) // size, _MAX_RUN)
                column = np.ndarray(rows, np.uint32, self.map, at, size)
                # the run ends at the first record with another size or kind
                others = np.flatnonzero(column != word)
                count = int(others[0]) if len(others) else len(column)
            whole = self._whole(at, size, count) if is_checked and self.words[CHECKED] else count
            if whole:
                yield kind, at, size, whole
            if whole < count:
                return
            at += count * padded(size)

    def _whole(self, at: int, size: int, count: int) -> int:
        """Return how many of these records are undamaged, up to the first damaged one."""
        starts = range(at, at + count * size, size)
        sums = (self.words[start >> 3] >> 32 == self._checksum(start, size) for start in starts)
        return next((i for i, is_whole in enumerate(sums) if not is_whole), count)

    def close(self) -> None:
        self.words.release()
        self._bytes.release()
        with contextlib.suppress(BufferError):  # an error's traceback may hold references to rows
            self.map.close()

    def remove(self) -> None:
        """Close and remove the file; on Windows, the last one that has it mapped removes it."""
        self.words[REMOVED] = self.words[NUMBER]
        self.close()
        with contextlib.suppress(OSError):
            self.path.unlink()


def path_of(folder: Path, incarnation: int, file: int) -> Path:
    """Return the path of the file with this number of a process."""
    return folder / f"{incarnation:016x}-{file:06d}{SUFFIX}"


def file_of(path: Path) -> int:
    """Return the number of a file."""
    return int(path.stem.rpartition("-")[2])


def segments_of(folder: Path, incarnation: int) -> list[Path]:
    """Return the files of one process."""
    own = re.compile(rf"{incarnation:016x}-[0-9]+{re.escape(SUFFIX)}")  # a copy has another name
    names = os.listdir(folder)  # a spool may hold thousands, for which a `Path` each takes long
    return [folder / name for name in names if own.fullmatch(name)]


def incarnations_in(folder: Path) -> list[int]:
    """Return the incarnations of the processes that left files in a folder, oldest first."""
    found = set()
    for path in folder.glob(f"*-*{SUFFIX}"):
        with contextlib.suppress(ValueError):  # not one of our files
            found.add(int(path.stem.partition("-")[0], 16))
    return sorted(found)


def bytes_of(folder: Path, incarnations: Iterable[int]) -> int:
    """Return the size of the files of these processes."""
    starts = {f"{incarnation:016x}" for incarnation in incarnations}
    with os.scandir(folder) as files:
        return sum(file.stat().st_size for file in files if file.name.partition("-")[0] in starts)


def new_incarnation() -> int:
    """Return a new incarnation, which is higher than earlier ones, as far as the clock is right."""
    # milliseconds, as some clocks tick only every 15; the rest tells processes of one tick apart
    return time.time_ns() // 1_000_000 << 21 | secrets.randbits(21)
