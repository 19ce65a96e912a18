"""A journal that a kill at any moment leaves readable: what was appended whole is found again, in order.

Two files of fixed size take turns, both reserved on the disk before the first record, so that a full disk stops
no record. The first record of a file is its *head*, which replaces everything before it. When a file is full the
other one begins with a new head, and the full one gets a last record that says so.

A record::

    4 bytes   length of the payload
    4 bytes   CRC-32 of the next 8 bytes and the payload
    4 bytes   generation: which turn the file is in
    4 bytes   the record's place in the file; 0: the head
    payload   padded to a multiple of 8

A record that was cut off by a kill is the last one, and is dropped. A damaged one with whole ones behind it, or
a head that is missing though the other file announces it, is damage.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

from tmrl_like.errors import DecodingError
from tmrl_like.files import reserve

_NAMES = ("journal-0", "journal-1")
_SIZE = 1 << 20
_HEADER = struct.Struct("<IIII")
_OVER = b"\xff"  # payload of a file's last record
_OVER_BYTES = 24


class Journal:
    """Appends records; see the module. Use it from one thread at a time."""

    def __init__(self, folder: Path, generation: int, place: int, used: int) -> None:
        """Take the two files of `folder`; go on after `place` records, which take `used` bytes."""
        self._files: list[IO[Any]] = [(folder / name).open("r+b", buffering=0) for name in _NAMES]
        self._size = min((folder / name).stat().st_size for name in _NAMES)
        self._generation = generation
        self._place = place
        self._used = used
        self._active.seek(used)

    @classmethod
    def create(cls, folder: Path, head: bytes) -> Journal:
        """Make a journal that begins with `head`; it is there from the moment at which the head is.

        Raises:
            OSError: disk full, no permission.
        """
        size = max(_SIZE, 8 * len(head))
        record = _record(1, 0, head)
        for name in _NAMES:
            reserve(folder / f"{name}.draft", size)
        with (folder / f"{_NAMES[1]}.draft").open("r+b", buffering=0) as file:
            _write_all(file, record)
        for name in _NAMES:
            (folder / f"{name}.draft").replace(folder / name)
        return cls(folder, 1, 1, len(record))

    @classmethod
    def open(cls, folder: Path) -> tuple[Journal, list[bytes]] | None:
        """Read a journal, and go on with it after a `rotate`.

        Returns:
            The journal, and its records from the newest head on; None where none was completed.

        Raises:
            DecodingError: it is damaged.
            OSError: it cannot be read.
        """
        if not all((folder / name).is_file() for name in _NAMES):
            return None
        contents = [(folder / name).read_bytes() for name in _NAMES]
        generation, used, records = max(map(_read, contents))
        if not generation:
            raise DecodingError("its journal has no head that can be read")
        if _goes_on(contents[generation % 2], used, generation, len(records)):
            raise DecodingError("a record in its journal is damaged")
        if records[-1] == _OVER:
            raise DecodingError("the newer half of its journal cannot be read")
        return cls(folder, generation, len(records), used), records

    def append(self, payload: bytes) -> bool:
        """Add a record; False, nothing done: the file is full, `rotate`.

        Raises:
            OSError: it cannot be written.
        """
        if self._used + _HEADER.size + len(payload) + 8 + _OVER_BYTES > self._size:
            return False
        self._write(payload)
        return True

    def rotate(self, head: bytes) -> None:
        """Go on in the other file. From the moment at which the head is written it is what counts.

        Raises:
            OSError: it cannot be written; the old file is still whole.
        """
        needed = 2 * len(head) + _OVER_BYTES
        full, last = self._active, _record(self._generation, self._place, _OVER)
        self._generation, self._place, self._used = self._generation + 1, 0, 0
        if needed > self._size:
            self._grow(needed * 2)
        self._active.seek(0)
        self._write(head)
        _write_all(full, last)

    def close(self) -> None:
        """Let go of the files. Twice is fine."""
        for file in self._files:
            file.close()

    @property
    def _active(self) -> IO[Any]:
        return self._files[self._generation % 2]

    def _write(self, payload: bytes) -> None:
        record = _record(self._generation, self._place, payload)
        _write_all(self._active, record)
        self._place += 1
        self._used += len(record)

    def _grow(self, size: int) -> None:
        """Both files, by zeros at their ends."""
        for file in self._files:
            place = file.tell()
            end = file.seek(0, 2)
            _write_all(file, bytes(size - end))
            file.seek(place)
        self._size = size


def _record(generation: int, place: int, payload: bytes) -> bytes:
    numbers = struct.pack("<II", generation, place)
    checksum = zlib.crc32(payload, zlib.crc32(numbers))
    return b"".join((struct.pack("<II", len(payload), checksum), numbers, payload, bytes(-len(payload) % 8)))


def _write_all(file: IO[Any], data: bytes) -> None:
    left = memoryview(data)
    while len(left):
        left = left[file.write(left) :]


def _read(data: bytes) -> tuple[int, int, list[bytes]]:
    """The generation of a file, the bytes that its records take, and the records; (0, 0, []) without a head."""
    generation = _HEADER.unpack_from(data)[2] if len(data) >= _HEADER.size else 0
    records: list[bytes] = []
    used = 0
    while (payload := _payload(data, used, generation, len(records))) is not None:
        records.append(payload)
        used += _HEADER.size + len(payload) + -len(payload) % 8
    return (generation, used, records) if records else (0, 0, [])


def _payload(data: bytes, offset: int, generation: int, place: int) -> bytes | None:
    """The record at `offset`, None if it is not the one expected or not whole."""
    if offset + _HEADER.size > len(data):
        return None
    length, checksum, *numbers = _HEADER.unpack_from(data, offset)
    start = offset + _HEADER.size
    if numbers != [generation, place] or start + length > len(data):
        return None
    payload = data[start : start + length]
    return payload if zlib.crc32(payload, zlib.crc32(data[offset + 8 : start])) == checksum else None


def _goes_on(data: bytes, offset: int, generation: int, place: int) -> bool:
    """Whether a later record of this generation lies whole behind `offset`."""
    pairs = max(0, (len(data) - offset - 8) // 8)
    numbers = np.frombuffer(data, "<u4", 2 * pairs, min(len(data), offset + 8)).reshape(-1, 2)
    candidates = np.flatnonzero((numbers[:, 0] == generation) & (numbers[:, 1] > place))
    return any(
        _payload(data, offset + 8 * int(k), generation, int(numbers[k, 1])) is not None for k in candidates.tolist()
    )
