"""Samples on their way from the control loop to sealed packets, in files that two processes map into memory.

A `Segment` is one file. The control loop (`sample_log`) fills one after the other, and fills those again that are free;
the one that sends (`reader`) reads them. They share nothing else. Each word of the head, and each mark, has one writer
and is written in one store of 8 bytes::

    head      128 bytes: the words below
    records   one after the other, up to END, each from a multiple of 8 bytes on:
              8 bytes   mark: of the last sample or report of a packet, the packet's sequence, written by the reader
              4 bytes   size with this head, times 8, and the kind
              4 bytes   CRC-32, where the folder is on a disk, of which a power cut may leave parts
              content, padded to a multiple of 8 bytes

A reader can begin with any segment: it begins with the structure of its samples, and its head says what came before.

A power cut leaves pages of different moments. Then only what is certain is read: from where a packet begins (RESUME),
as far as records are whole, and marks and segments follow each other. What was written last may be lost.
"""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from tmrl_like.base.files import map_file
from tmrl_like.wire.schema import Node

SUFFIX = ".rows"
MAGIC = int.from_bytes(b"tmrlSL2\n", "little")

# the words of the head; the writer's …
(
    _MAGIC,
    INCARNATION,
    NUMBER,  # 1, 2, 3, … in the order in which the segments of an incarnation are filled
    END,  # offset behind the last record that is whole
    BREAKS,  # before the first record
    SEAL,  # what lies before this offset is to leave soon, whatever it is; 0: nothing is
    LOST,  # samples that no segment had room for
    CHECKED,  # 1: records have a CRC-32
) = range(8)
# … and the reader's
(
    FREED,  # the NUMBER up to which all is in sealed packets: the segment may be filled again
    SEALED,  # newest packet that began in a segment before this one, and is sealed
    DROPPED,  # samples that were given up after they were sealed
) = range(8, 11)
SAMPLES = 11  # the writer's, too: samples of the incarnation before the first record
RESUME = 12  # the reader's: offset behind all that is in packets up to SEALED; 0: the next packet began earlier
HEAD_BYTES = 128

STRUCTURE, ROW, FREE_ROW, REPORT, BREAK, NEXT = range(6)
"""Kinds of records: a structure (msgpack); a row of fixed size, or a row of any size, of that structure; an episode
(msgpack); a break; and the file that comes next (8 bytes), the last record of a segment."""
RECORD_BYTES = 16  # the head of a record
NEXT_BYTES = RECORD_BYTES + 8
MAX_RECORD_BYTES = (1 << 29) - 1


def padded(size: int) -> int:
    """The next multiple of 8."""
    return -(-size // 8) * 8


class Structure(msgspec.Struct, array_like=True):
    """The rows that follow have this structure."""

    schema: Node


class Segment:
    """One file, mapped by one of the two.

    What is stored before `release` and `acquire` are called, in this order, is visible to other processors before what
    is stored after it, and likewise what is loaded. Processors other than x86 reorder both; the two calls, on a lock
    that nobody else uses, order them, and take 60 ns.

    Attributes:
        path: the file; `number` is its name's.
        map: its bytes.
        words: the same, as unsigned 8-byte integers in the machine's order.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = int(path.stem)
        self.map = map_file(path)
        if len(self.map) < HEAD_BYTES or len(self.map) % 8:
            self.map.close()
            raise ValueError(f"{path} is cut off")
        self._bytes = memoryview(self.map)
        lock = threading.Lock()
        lock.acquire()
        self.release, self.acquire = lock.release, lock.acquire
        self.words = self._bytes.cast("Q")

    @property
    def size_bytes(self) -> int:
        return len(self.map)

    @property
    def is_free(self) -> bool:
        """Whether all that was written to it is in sealed packets."""
        return self.words[FREED] == self.words[NUMBER]

    @property
    def is_begun(self) -> bool:
        """Whether anything was ever written to it."""
        return self.words[_MAGIC] == MAGIC

    def begin(self, incarnation: int, number: int, breaks: int, lost: int, samples: int, is_checked: bool) -> None:
        """Be filled (again)."""
        words = self.words
        words[INCARNATION], words[END], words[BREAKS] = incarnation, HEAD_BYTES, breaks
        words[SEAL], words[LOST], words[CHECKED] = 0, lost, is_checked
        words[SEALED] = words[DROPPED] = 0
        words[RESUME] = HEAD_BYTES if number == 1 else 0
        words[SAMPLES] = samples
        words[NUMBER] = number
        self.release()
        self.acquire()
        words[_MAGIC] = MAGIC

    def write(self, kind: int, content: bytes | bytearray) -> None:
        """Append a record, for which there must be room."""
        at, words = self.words[END], self.words
        size = RECORD_BYTES + len(content)
        self.map[at + RECORD_BYTES : at + size] = content
        words[at >> 3] = 0
        words[(at >> 3) + 1] = size << 3 | kind
        if words[CHECKED]:
            self.check(at, size)
        self.release()
        self.acquire()
        words[END] = at + padded(size)

    def check(self, at: int, size: int) -> None:
        """Give the record that lies there its checksum."""
        self.words[(at >> 3) + 1] |= self._checksum(at, size) << 32

    def _checksum(self, at: int, size: int) -> int:
        """With the number: after a power cut a record of what the segment held before may lie there."""
        return zlib.crc32(self._bytes[at + RECORD_BYTES : at + size], self.words[NUMBER] & 0xFFFFFFFF)

    def content(self, at: int, size: int) -> bytes:
        """Of the record that lies there."""
        return self.map[at + RECORD_BYTES : at + size]

    def runs(self, at: int, end: int, is_checked: bool = False) -> Iterator[tuple[int, int, int, int]]:
        """Yield (kind, offset, size, count) of records: rows of one size that lie one after the other together.

        Ends early where there is no record; with `is_checked` also before the first that is not what was written.
        """
        end = min(end, self.size_bytes)
        while at + RECORD_BYTES <= end:
            word = self.words[(at >> 3) + 1] & 0xFFFFFFFF
            size, kind, count = word >> 3, word & 7, 1
            if size < RECORD_BYTES or at + size > end:
                return
            if kind == ROW:
                column = np.ndarray((end - at) // size, np.uint32, self.map, at + 8, size)
                others = np.flatnonzero(column != word)  # what follows the first of them is no such column
                count = int(others[0]) if len(others) else len(column)
            whole = self._whole(at, size, count) if is_checked and self.words[CHECKED] else count
            if whole:
                yield kind, at, size, whole
            if whole < count:
                return
            at += count * padded(size)

    def _whole(self, at: int, size: int, count: int) -> int:
        starts = range(at, at + count * size, size)
        sums = (self.words[(start >> 3) + 1] >> 32 == self._checksum(start, size) for start in starts)
        return next((i for i, is_whole in enumerate(sums) if not is_whole), count)

    def close(self) -> None:
        self.words.release()
        self._bytes.release()
        self.map.close()

    def remove(self) -> None:
        self.close()
        with contextlib.suppress(OSError):  # Windows keeps one that another process has mapped
            self.path.unlink()


def segments_in(folder: Path) -> list[Path]:
    """The files of sample logs in a folder."""
    return [path for path in folder.glob(f"*{SUFFIX}") if path.stem.isdecimal()]


def path_of(folder: Path, file: int) -> Path:
    """Of a file with this number."""
    return folder / f"{file:06d}{SUFFIX}"
