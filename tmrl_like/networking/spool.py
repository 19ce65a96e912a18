"""Packets on disk, so that they outlive the worker's process.

::

    SPOOL/                              what the user names; several workers may share it
      WORKER/                           the packets of one worker; locked by the process that uses it
        lock
        NUMBER-SESSION.packets          segments, in the order in which they were begun

A segment belongs to one process and is only ever appended to: records of a mark, the length and the CRC-32 of
a message, and the message as it travels (`wire.messages`). A process that is killed leaves at most one record
that is cut off, at the end; it is ignored. Bytes that are damaged elsewhere cost the records they are in. A
segment is removed when all its packets are stored.

What is written is in the system's hands at once: it survives the process, killed at any point. It is not
flushed to the disk (no fsync): the last seconds before a power cut may be lost.

All of this is for the connection's thread; the environment's thread never comes here.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import secrets
import socket
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import quote, unquote

import filelock

from tmrl_like.errors import ConfigError, DecodingError
from tmrl_like.wire import messages as m

log = logging.getLogger("tmrl_like.worker")
T = TypeVar("T")

_MARK = b"tSP\x01"
_HEAD = struct.Struct("<4sII")  # mark, length of the message, its CRC-32
_SUFFIX = ".packets"
_FILE_NAME = re.compile(r"([0-9]{10})-([0-9a-f]{16})\.packets")
_LARGEST_SESSION = 2**63 - 1
_FUTILE_CHECKS = 10  # times the size of a file: how much of it is read in search of whole messages behind damage
_SEGMENT_BYTES = 4 << 20
_RENEW_AT_BYTES = 256 << 10  # a segment of this size is replaced when all in it is stored
_TRY_AGAIN_S = 10.0
_LOCK_WITHIN_S = 2.0  # a process that was just killed may need a moment to end
_MAX_FOLDER_NAME = 200


@dataclass(eq=False, slots=True)
class Segment:
    """One file."""

    path: Path
    session: int
    size_bytes: int = 0
    kept: int = 0  # its packets that are not stored yet


class Place(NamedTuple):
    """Where a message lies."""

    segment: Segment
    offset: int
    length: int


class Record(NamedTuple):
    """A packet of an earlier process, found on disk."""

    sequence: int
    samples: int
    place: Place


class Spool:
    """The folder of one worker. Writing and reading raise nothing: see `append` and `read`."""

    def __init__(self, folder: Path, worker: str, lock: filelock.BaseFileLock, max_bytes: int) -> None:
        """Read what is there; use `open_spool`, which locks the folder."""
        self.worker = worker
        self.alarm = ""  # what the worker's user should know; empty: all is well
        self.size_bytes = 0
        self.max_bytes = max_bytes
        self._folder = folder
        self._lock = lock
        self._segment_bytes = max(1, min(_SEGMENT_BYTES, max_bytes // 4))
        self._number = 0
        self._session = 0
        self._file: io.FileIO | None = None
        self._current: Segment | None = None
        self._try_again_at = 0.0
        self.predecessors = self._read_folder()  # session: its packets, in order

    # -- writing -------------------------------------------------------------------------------------

    def begin(self, session: int) -> None:
        """What is appended from now on is this process'."""
        self._session = session
        self._try(self._begin_segment)

    @property
    def takes_more(self) -> bool:
        """False for a while after writing failed."""
        return self._session != 0 and time.monotonic() >= self._try_again_at

    def append(self, message: bytes) -> Place | None:
        """Write a message; None when that fails, which is said once and may be tried again after a while."""
        if not self.takes_more:
            return None
        return self._try(lambda: self._append(message))

    def _append(self, message: bytes) -> Place:
        if self._current is None or self._current.size_bytes >= self._segment_bytes:
            self._begin_segment()
        segment, file = self._current, self._file
        assert segment is not None
        assert file is not None
        record = memoryview(b"".join((_HEAD.pack(_MARK, len(message), zlib.crc32(message)), message)))
        rest = record
        while rest:
            rest = rest[file.write(rest) :]
        place = Place(segment, segment.size_bytes + _HEAD.size, len(message))
        segment.size_bytes += len(record)
        segment.kept += 1
        self.size_bytes += len(record)
        return place

    def _begin_segment(self) -> None:
        number = self._number + 1
        path = self._folder / f"{number:010d}-{self._session:016x}{_SUFFIX}"
        file = path.open("xb", buffering=0)
        self._end_segment()
        self._number, self._file, self._current = number, file, Segment(path, self._session)

    def _end_segment(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
        segment, self._file, self._current = self._current, None, None
        if segment is not None and segment.kept == 0:
            self._remove(segment)

    def _try(self, write: Callable[[], T]) -> T | None:
        try:
            result = write()
        except OSError as error:
            self._say_it_failed(error)
            return None
        if self.alarm:
            log.info("the spool %s can be written again", self._folder)
            self.alarm = ""
        return result

    def _say_it_failed(self, error: OSError) -> None:
        self._try_again_at = time.monotonic() + _TRY_AGAIN_S
        self._end_segment()  # it may end in half a record
        if not self.alarm:
            self.alarm = f"cannot write the spool {self._folder}: {error.strerror or error}; samples are in memory only"
            log.error("%s. Trying again every %.0f s", self.alarm, _TRY_AGAIN_S)

    # -- reading and forgetting ----------------------------------------------------------------------

    def read(self, place: Place) -> bytes | None:
        """The message that was written there; None when it cannot be read, which is said."""
        try:
            with place.segment.path.open("rb", buffering=0) as file:
                file.seek(place.offset - _HEAD.size)
                record = _read_exactly(file, _HEAD.size + place.length)
        except OSError as error:
            log.error("cannot read the spool: %s", error)
            return None
        if _message_at(record, 0) != (_HEAD.size, place.length):
            log.error("the spool's file %s is damaged", place.segment.path)
            return None
        return record[_HEAD.size :]

    def forget(self, place: Place) -> None:
        """The packet need not be kept any more; the file goes when that is true of all that are in it."""
        segment = place.segment
        segment.kept -= 1
        if segment.kept:
            return
        if segment is not self._current:
            self._remove(segment)
        elif segment.size_bytes >= min(_RENEW_AT_BYTES, self._segment_bytes):
            self._try(self._begin_segment)

    def _remove(self, segment: Segment) -> None:
        self.size_bytes -= segment.size_bytes
        try:
            segment.path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("cannot remove %s, whose packets are all stored: %s", segment.path, error)

    def files_of(self, session: int) -> Path:
        """The pattern that matches the files of a process."""
        return self._folder / f"*-{session:016x}{_SUFFIX}"

    def close(self) -> None:
        """Leave the folder to the next process. Twice is fine."""
        self._end_segment()
        self._session = 0
        self._lock.release()

    # -- what earlier processes left -----------------------------------------------------------------

    def _read_folder(self) -> dict[int, list[Record]]:
        found: dict[int, list[Record]] = {}
        for path in sorted(self._folder.glob(f"*-*{_SUFFIX}")):
            name = _FILE_NAME.fullmatch(path.name)
            try:
                if name is None or not 0 < int(name[2], 16) <= _LARGEST_SESSION:
                    raise ValueError(f"expected NUMBER-SESSION{_SUFFIX}, 10 digits and 16 hexadecimal ones")
                segment = Segment(path, int(name[2], 16))
                data = path.read_bytes()
                self._number = max(self._number, int(name[1]))
            except (OSError, ValueError) as error:
                log.error("cannot read the spool's file %s, which is left as it is: %s", path, error)
                continue
            records = found.setdefault(segment.session, [])
            if len(found) > m.MAX_TAKEN_OVER:
                del found[segment.session]
                log.warning("the spool %s holds packets of too many processes: the rest waits", self._folder)
                break
            self._read_segment(segment, data, records)
        return found

    def _read_segment(self, segment: Segment, data: bytes, records: list[Record]) -> None:
        """Add the packets of one file to those of its process."""
        segment.size_bytes = len(data)
        self.size_bytes += len(data)
        last = records[-1].sequence if records else 0
        damaged = 0
        for offset, length in _messages_in(data):
            try:
                header = self._header_of(memoryview(data)[offset : offset + length], segment.session)
            except _ForeignError as error:
                log.error("%s holds packets of %s: start that one to send them, or remove it", segment.path, error)
                self.size_bytes -= segment.size_bytes
                return
            if header is None or header.sequence <= last:
                damaged += 1
                continue
            last = header.sequence
            segment.kept += 1
            records.append(Record(header.sequence, header.samples, Place(segment, offset, length)))
        if damaged:
            log.error("the spool's file %s is damaged in %d places: packets in it are lost", segment.path, damaged)
        if segment.kept == 0:
            self._remove(segment)

    def _header_of(self, message: memoryview, session: int) -> m.SamplePacket | None:
        """The header of a packet; None if it is none. Raises _ForeignError where this process may not send it."""
        try:
            header, _ = m.decode(message)
        except m.WireVersionError as error:
            raise _ForeignError(error) from None
        except DecodingError:
            return None
        if not isinstance(header, m.SamplePacket) or header.session != session:
            return None
        if header.worker != self.worker:
            raise _ForeignError(f"worker {header.worker}")
        return header


class _ForeignError(Exception):
    """A packet of somebody else."""


def open_spool(root: Path, name: str | None, max_bytes: int) -> Spool:
    """Lock a worker's folder in a spool, and read what earlier processes left there.

    Args:
        root: the spool; made if it is not there.
        name: the worker's; None: that of the first folder that no process uses, or a new one.
        max_bytes: what the folder may hold.

    Raises:
        ConfigError: a living process uses the folder of this name, or the spool cannot be used at all.
    """
    try:
        if name is None:
            for folder in sorted(path for path in _made(root).iterdir() if path.is_dir()):
                lock = _lock(folder, 0.0)
                if lock is not None:
                    return Spool(folder, unquote(folder.name), lock, max_bytes)
        name = name or new_worker_name()
        folder = _made(root / _folder_name(name))
        lock = _lock(folder, _LOCK_WITHIN_S)
    except OSError as error:
        raise ConfigError(f"cannot use the spool {root}: {error}; choose another folder, or spool nothing") from None
    if lock is None:
        raise ConfigError(
            f"another process uses the spool of worker {name} ({folder}): end it, or give this worker another name"
        )
    return Spool(folder, name, lock, max_bytes)


def packets_in(folder: Path) -> Iterator[tuple[m.SamplePacket, memoryview]]:
    """The packets in a worker's folder, header and body, oldest first. Changes nothing.

    Raises:
        OSError: a file cannot be read.
    """
    for path in sorted(folder.glob(f"*-*{_SUFFIX}")):
        data = path.read_bytes()
        for offset, length in _messages_in(data):
            with contextlib.suppress(DecodingError):
                header, body = m.decode(memoryview(data)[offset : offset + length])
                if isinstance(header, m.SamplePacket):
                    yield header, body


def new_worker_name() -> str:
    """A name that no other process has."""
    return f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(2)}"


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _lock(folder: Path, within_s: float) -> filelock.BaseFileLock | None:
    """Lock a folder for this process; None where another one has it."""
    lock = filelock.FileLock(folder / "lock", thread_local=False)
    try:
        lock.acquire(timeout=within_s)
    except filelock.Timeout:
        return None
    return lock


def _folder_name(worker: str) -> str:
    name = quote(worker, safe="").replace(".", "%2E")
    if not 0 < len(name) <= _MAX_FOLDER_NAME:
        raise ConfigError(f"a worker that spools needs a shorter name than {worker:.60}…, or one of plain letters")
    return name


def _messages_in(data: bytes) -> Iterator[tuple[int, int]]:
    """(offset, length) of each whole message; length 0 for something that is damaged.

    Damage after which no whole message comes is the end of a record that was cut off: it is passed over. Where marks
    that begin no message are many, the search ends early: each may claim the whole rest of the file.
    """
    at, damaged, futile = 0, False, 0
    while at >= 0 and futile <= _FUTILE_CHECKS * len(data):
        found = _message_at(data, at)
        if found is None:
            damaged = True
            futile += min(int.from_bytes(data[at + 4 : at + 8], "little"), len(data) - at)
            at = data.find(_MARK, at + 1)
            continue
        if damaged:
            yield at, 0
            damaged = False
        yield found
        at = sum(found)
    if at >= 0:
        yield at, 0


def _message_at(data: bytes, at: int) -> tuple[int, int] | None:
    """(offset, length) of the message whose record begins there; None if none does, or not a whole one."""
    start = at + _HEAD.size
    if start > len(data):
        return None
    mark, length, checksum = _HEAD.unpack_from(data, at)
    if mark != _MARK or length > len(data) - start:
        return None
    return (start, length) if zlib.crc32(memoryview(data)[start : start + length]) == checksum else None


def _read_exactly(file: io.FileIO, size: int) -> bytes:
    parts = []
    while size and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
