"""Entries on their way from the control loop to the link, in files that both map into memory.

A `Segment` is one file. The control loop (`SampleLog`) fills one after the other, and fills those
again that are free; the link (`Source`) reads them. They share nothing else. Each word of the head
has one writer, and is written in one store of 8 bytes::

    head      128 bytes: the words below
    records   one after the other, up to END, each from a multiple of 8 bytes on:
              4 bytes   size with this head, times 8, and the kind
              4 bytes   CRC-32, where the folder is on a disk, of which a power cut may leave parts
              content, padded to a multiple of 8 bytes

A sample, a report and a break are an entry each; the entries of a process are numbered 1, 2, 3, … A
reader can begin with any segment: its head says which entry is its first, and a structure comes
before the first sample.
"""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tmrl_like.base.files import map_file

SUFFIX = ".rows"
MAGIC = int.from_bytes(b"tmrlSL3\n", "little")

# the words of the head; the writer's …
(
    _MAGIC,
    INCARNATION,
    # 1, 2, 3, … in the order in which the segments of an incarnation are filled; written last
    NUMBER,
    FIRST,  # the number of the first entry
    END,  # offset behind the last record that is whole
    BREAKS,  # before the first entry
    LOST,  # samples that no segment had room for
    CHECKED,  # 1: records have a CRC-32
    NEXT,  # the file that is filled after this one; 0: this one is the newest
) = range(9)
# … and the reader's
(
    FREED,  # NUMBER, once nobody needs the segment any more: it may be filled again
    STORED,  # entries up to this one are stored, as it was known while this segment was the oldest
    DROPPED,  # samples that were given up before this segment
) = range(9, 12)
HEAD_BYTES = 128

STRUCTURE, ROW, FREE_ROW, REPORT, BREAK = range(5)
"""Kinds of records: a structure (msgpack); a sample as a row of fixed size, or of any size, of that
structure; a finished episode (msgpack); a break."""
RECORD_BYTES = 8  # the head of a record
MAX_RECORD_BYTES = (1 << 29) - 1


def padded(size: int) -> int:
    """The next multiple of 8."""
    return -(-size // 8) * 8


class Segment:
    """One file, mapped by one of the two.

    What is stored before `release` and `acquire` are called, in this order, is visible to other
    processors before what is stored after it, and likewise what is loaded. Processors other than
    x86 reorder both; the two calls, on a lock that nobody else uses, order them, and take 60 ns.

    Attributes:
        path: the file; `file` is its number among those of its process.
        map: its bytes.
        words: the same, as unsigned 8-byte integers in the machine's order.
    """

    def __init__(self, path: Path) -> None:
        """Map it; raises OSError, and ValueError where it is cut off."""
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
    def is_begun(self) -> bool:
        """Whether anything was ever written to it."""
        return self.words[_MAGIC] == MAGIC

    @property
    def is_free(self) -> bool:
        """Whether nobody needs what is in it."""
        return self.words[FREED] == self.words[NUMBER]

    def begin(
        self, incarnation: int, number: int, first: int, breaks: int, lost: int, is_checked: bool
    ) -> None:
        """Let it be filled, from its start on."""
        words = self.words
        words[INCARNATION], words[FIRST], words[END], words[BREAKS] = (
            incarnation,
            first,
            HEAD_BYTES,
            breaks,
        )
        words[LOST], words[CHECKED], words[NEXT] = lost, is_checked, 0
        words[STORED] = words[DROPPED] = 0
        self.order()
        words[_MAGIC] = MAGIC
        words[NUMBER] = number

    def order(self) -> None:
        """What was stored before this call is seen before what is stored after it; loads
        likewise.
        """
        self.release()
        self.acquire()

    def write(self, kind: int, content: bytes | bytearray) -> None:
        """Append a record, for which there must be room."""
        at, words = self.words[END], self.words
        size = RECORD_BYTES + len(content)
        self.map[at + RECORD_BYTES : at + size] = content
        words[at >> 3] = size << 3 | kind
        if words[CHECKED]:
            self.check(at, size)
        self.order()
        words[END] = at + padded(size)

    def check(self, at: int, size: int) -> None:
        """Give the record that lies there its checksum."""
        self.words[at >> 3] |= self._checksum(at, size) << 32

    def _checksum(self, at: int, size: int) -> int:
        """With the segment's number: after a power cut a record of what the file held before may
        lie there.
        """
        return zlib.crc32(
            self._bytes[at + RECORD_BYTES : at + size], self.words[NUMBER] & 0xFFFFFFFF
        )

    def content(self, at: int, size: int) -> bytes:
        """Of the record that lies there."""
        return self.map[at + RECORD_BYTES : at + size]

    def runs(self, at: int, is_checked: bool = False) -> Iterator[tuple[int, int, int, int]]:
        """Yield (kind, offset, size, count) of records: rows of one size that lie one after the
        other together.

        With `is_checked` it ends before the first record that is not what was written.
        """
        end = min(self.words[END], self.size_bytes)
        self.order()
        while at + RECORD_BYTES <= end:
            word = self.words[at >> 3] & 0xFFFFFFFF
            size, kind, count = word >> 3, word & 7, 1
            if size < RECORD_BYTES or at + size > end:
                return
            if kind == ROW:
                column = np.ndarray((end - at) // size, np.uint32, self.map, at, size)
                # what follows the first of them is no such column
                others = np.flatnonzero(column != word)
                count = int(others[0]) if len(others) else len(column)
            whole = self._whole(at, size, count) if is_checked and self.words[CHECKED] else count
            if whole:
                yield kind, at, size, whole
            if whole < count:
                return
            at += count * padded(size)

    def _whole(self, at: int, size: int, count: int) -> int:
        """How many of these records are what was written, up to the first that is not."""
        starts = range(at, at + count * size, size)
        sums = (self.words[start >> 3] >> 32 == self._checksum(start, size) for start in starts)
        return next((i for i, is_whole in enumerate(sums) if not is_whole), count)

    def close(self) -> None:
        self.words.release()
        self._bytes.release()
        with contextlib.suppress(BufferError):  # an error's traceback may hold rows
            self.map.close()

    def remove(self) -> None:
        self.close()
        with contextlib.suppress(OSError):  # Windows keeps one that another process has mapped
            self.path.unlink()


def path_of(folder: Path, incarnation: int, file: int) -> Path:
    """Of a file with this number, of a process."""
    return folder / f"{incarnation:016x}-{file:06d}{SUFFIX}"


def file_of(path: Path) -> int:
    """The number of a file."""
    return int(path.stem.rpartition("-")[2])


def segments_of(folder: Path, incarnation: int) -> list[Path]:
    """The files of one process."""
    name = f"{incarnation:016x}-"
    # glob keeps each pattern
    return sorted(path for path in folder.glob(f"*{SUFFIX}") if path.name.startswith(name))


def incarnations_in(folder: Path) -> list[int]:
    """The processes that left files in a folder, the one that began first as far as is known
    first.
    """
    began: dict[int, float] = {}
    for path in folder.glob(f"*-*{SUFFIX}"):
        with contextlib.suppress(OSError, ValueError):  # just removed; a file of somebody else's
            incarnation, at = int(path.stem.partition("-")[0], 16), path.stat().st_mtime
            began[incarnation] = min(at, began.get(incarnation, at))
    return sorted(began, key=began.__getitem__)


def remove_never_filled(folder: Path) -> None:
    """Remove what processes that are dead had made, and did not fill."""
    for path in folder.glob(f"*-*{SUFFIX}"):
        try:
            segment = Segment(path)
        except OSError:  # it may hold entries
            continue
        except ValueError:  # just made: without a size
            path.unlink(missing_ok=True)
            continue
        if segment.is_begun:
            segment.close()
        else:
            segment.remove()
