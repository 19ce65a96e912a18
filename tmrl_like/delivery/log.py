"""An append-only log of packets: what a worker keeps until it is stored, what a trainer has stored, a data set.

::

    FOLDER/
      lock              held by the process that writes
      0000000001.log    segments, in the order in which they were begun
      0000000002.log

A segment is a row of records (`wire.records`), and only ever appended to. The first record of a segment is its `Head`:
what the segments before it have come to.

A process that is killed leaves at most one record that is cut off, at the end: it is passed over. A byte that is
damaged elsewhere costs the record that it is in. What is written is in the system's hands at once: it survives the
process, killed at any point.

With `sync_every_s` it survives a power cut, too, once `settle` has said so. Records are synced in groups, one group at
a time: nothing is written while one is, a segment is begun when all before it is on the disk, and behind each group
comes a *mark*, a record of its own. So a power cut can damage nothing but what lies behind the newest mark. There the
first damage is the end: what comes behind it is whole by chance, and was not promised to anybody.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import filelock
import msgspec

from tmrl_like.base.budgets import Bucket
from tmrl_like.base.files import disk
from tmrl_like.errors import DecodingError
from tmrl_like.types import Receipt
from tmrl_like.wire import messages as m
from tmrl_like.wire.records import MARK, RECORD, message_at, seal

log = logging.getLogger("tmrl_like.delivery")
T = TypeVar("T")

SUFFIX = ".log"
_HEAD = b"\x00"  # where a message has its wire version
_SYNCED = b"\x00synced"  # the message of a mark; what is torn may end in zeros, and is none
_RETRY_S = 2.0
_SLOW_S = 1.0  # a sync that takes longer is worth a line
_SLOW_AGAIN_S = 600.0
_FUTILE_CHECKS = 10  # of a whole file, at most, in search of records behind damage


class Head(msgspec.Struct, array_like=True):
    """The first record of a segment.

    Attributes:
        run: which training the samples belong to; empty in a worker's log and in a data set.
        samples: in all segments before this one, those that are removed by now included.
        receipts: the newest packet of each worker process in the segments before this one.
    """

    run: str = ""
    samples: int = 0
    receipts: tuple[Receipt, ...] = ()


_head_decoder = msgspec.msgpack.Decoder(Head)


@dataclass(eq=False, slots=True)
class Segment:
    """One file."""

    path: Path
    size_bytes: int = 0
    samples: int = 0
    kept: int = 0  # its packets that are still needed


class Place(NamedTuple):
    """Where a record lies."""

    segment: Segment
    offset: int
    size_bytes: int


class Entry(NamedTuple):
    """A record of a segment that was read."""

    place: Place
    record: memoryview
    message: Head | m.AnyMessage
    body: memoryview

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """The packets that it names."""
        if isinstance(self.message, Head):
            return self.message.receipts
        return (self.message.receipt,) if isinstance(self.message, m.SamplePacket) else ()


class PacketLog:
    """The log in one folder, for the process that holds its lock.

    Nothing here raises OSError: what fails is logged once, and tried again after a while.

    Attributes:
        alarm: why nothing can be written; empty: all is well.
        make_head: called when a segment begins.
    """

    def __init__(
        self,
        folder: Path,
        lock: filelock.BaseFileLock,
        segment_bytes: int = 4 << 20,
        sync_every_s: float = 0.0,
        beside: Executor | None = None,
    ) -> None:
        """Take over what is in the folder, whose lock (`lock_folder`) `close` releases.

        Args:
            folder: of the log.
            lock: its lock.
            segment_bytes: a segment of this size is followed by another one.
            sync_every_s: records are synced at most so long, in seconds, after they were written; 0: they are not.
            beside: where that is done; None: by the caller of `settle`.

        Raises:
            OSError: it cannot be read, or what a power cut has left cannot be synced.
        """
        self.folder = folder
        self.alarm = ""
        self.size_bytes = 0
        self._lock = lock
        self._segment_bytes = segment_bytes
        self._segments: deque[Segment] = deque()
        self._number = 0
        for path in segments_in(folder):
            self._number = int(path.stem)
            self._segments.append(Segment(path, path.stat().st_size))
            self.size_bytes += self._segments[-1].size_bytes
        self._file: io.FileIO | None = None
        self._current: Segment | None = None
        self._retry_at = 0.0
        self.make_head: Callable[[], Head] = Head
        self._sync_every_s = sync_every_s
        self._beside = beside
        self._synced: Segment | None = None  # the current one, as it was synced last; None: its name is not, either
        self._unsynced_since: float | None = None  # None: all that was appended is synced
        self._syncing: Future[None] | None = None
        self._sync_began_at = 0.0
        self._slow = Bucket(1, 1 / _SLOW_AGAIN_S)  # lines about it
        self._shall_mend = False
        self._is_given_up = False  # the current segment, of which a part could not be synced
        if sync_every_s and self._segments:
            self._settle_newest(self._segments[-1])

    def _settle_newest(self, segment: Segment) -> None:
        """Have on the disk what is in the log from here on, after a kill or a power cut."""
        with disk.open(segment.path) as file:
            whole = _whole_of(memoryview(file.readall()))
            if whole < segment.size_bytes:
                log.info("%s: the last %d bytes were not synced", segment.path, segment.size_bytes - whole)
                disk.truncate(file, whole)
                self.size_bytes += whole - segment.size_bytes
                segment.size_bytes = whole
            disk.sync(file)
        if not whole:
            self.remove(segment)
        disk.sync_folder(self.folder)

    @property
    def segments(self) -> list[Segment]:
        """Those that earlier processes left, oldest first."""
        return [segment for segment in self._segments if segment is not self._current]

    def read(self, place: Place) -> bytes | None:
        """The record that was written there; None where it cannot be read, which is logged."""
        try:
            with place.segment.path.open("rb") as file:
                file.seek(place.offset)
                record = file.read(place.size_bytes)
        except OSError as error:
            log.error("cannot read the packet log: %s", error)
            return None
        if message_at(memoryview(record), 0) != (RECORD.size, place.size_bytes - RECORD.size):
            log.error("%s is damaged: a packet in it is lost", place.segment.path)
            return None
        return record

    def can_write(self, now: float) -> bool:
        """False for a while after writing failed, and while what was written is synced."""
        return now >= self._retry_at and self._syncing is None

    def append(self, record: bytes | memoryview, now: float, samples: int = 0, packets: int = 1) -> Place | None:
        """Write a record, or several; where they lie, None where they could not be written."""
        if not self.can_write(now):
            return None
        place = self._try(lambda: self._append(record, samples, packets), now, is_proof=not self._sync_every_s)
        if place is not None and self._sync_every_s and self._unsynced_since is None:
            self._unsynced_since = now
        return place

    def _append(self, record: bytes | memoryview, samples: int, packets: int) -> Place:
        if self._shall_mend:
            self._mend()
        segment = self._current
        is_done = segment is None or self._is_given_up or segment.size_bytes >= self._segment_bytes
        if segment is None or (is_done and self._unsynced_since is None):
            segment = self._begin_segment()
        self._extend(segment, record)
        segment.samples += samples
        segment.kept += packets
        return Place(segment, segment.size_bytes - len(record), len(record))

    def _extend(self, segment: Segment, data: bytes | memoryview) -> None:
        assert self._file is not None
        disk.write(self._file, data)
        segment.size_bytes += len(data)
        self.size_bytes += len(data)

    def settle(self, now: float) -> bool | None:
        """See what was appended onto the disk, if that is wanted, when it is time; `now` as in `append`.

        Returns:
            True: all that was appended is stored. False: what was appended since the last True is not, and is taken out
            of the log: append it again. None: not yet.
        """
        if self._unsynced_since is None:
            return True
        if self._syncing is None:
            if now < self._unsynced_since + self._sync_every_s:
                return None
            self._syncing, self._sync_began_at = self._begin_sync(), now
        if _SLOW_S < now - self._sync_began_at < math.inf and self._slow.take(1, now):
            line = "the disk of %s is slow: it takes more than %g s to store samples, which workers keep meanwhile; "
            log.warning(line + "nothing else waits; a faster disk is the cure", self.folder, _SLOW_S)
        if not self._syncing.done():
            return None
        syncing, self._syncing, self._unsynced_since = self._syncing, None, None
        segment = self._try(lambda: self._end_sync(syncing), now)
        if segment is None:
            return False
        self._try(lambda: self._extend(segment, seal(_SYNCED)), now)
        return True

    def _begin_sync(self) -> Future[None]:
        if self._beside is not None:
            with contextlib.suppress(RuntimeError):  # the interpreter exits, and starts no thread any more
                return self._beside.submit(self._sync)
        done: Future[None] = Future()
        try:
            self._sync()
            done.set_result(None)
        except OSError as error:
            done.set_exception(error)
        return done

    def _sync(self) -> None:
        assert self._file is not None
        disk.sync(self._file)
        if self._synced is None:
            disk.sync_folder(self.folder)

    def _end_sync(self, syncing: Future[None]) -> Segment:
        """Take note of it. What a system could not write it may forget: after an error another sync proves nothing."""
        segment = self._current
        assert segment is not None
        try:
            syncing.result()
        except OSError:
            before = self._synced or Segment(segment.path)
            self.size_bytes -= segment.size_bytes - before.size_bytes
            segment.size_bytes, segment.samples, segment.kept = before.size_bytes, before.samples, before.kept
            self._is_given_up = True
            raise
        self._synced = replace(segment)
        return segment

    def begin_segment(self, now: float) -> None:
        """Let what comes next lie in a file of its own."""
        self._try(self._begin_segment, now)

    def _begin_segment(self) -> Segment:
        path = self.folder / f"{self._number + 1:010d}{SUFFIX}"
        file = disk.open(path, new=True)
        self._end_segment()
        self._number += 1
        self._file, self._current = file, Segment(path)
        self._segments.append(self._current)
        self._extend(self._current, seal(_HEAD, bytes((m.WIRE_VERSION,)), msgspec.msgpack.encode(self.make_head())))
        return self._current

    def _end_segment(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
        self._file, self._current, self._synced = None, None, None
        self._shall_mend = self._is_given_up = False

    def _try(self, write: Callable[[], T], now: float, is_proof: bool = True) -> T | None:
        """The result, None for an OSError; `is_proof`: otherwise all is well."""
        try:
            result = write()
        except OSError as error:
            self._take_back()
            self._retry_at = now + _RETRY_S
            if not self.alarm:
                self.alarm = (
                    f"cannot write to {self.folder}: {error.strerror or error}; samples are in memory only, trying "
                    f"again every {_RETRY_S:.0f} s"
                )
                log.error("%s", self.alarm)
            return None
        if self.alarm and is_proof:
            log.info("%s can be written to again", self.folder)
            self.alarm = ""
        return result

    def _take_back(self) -> None:
        """Remove what was written in part: however often it is tried, a disk that is full gets no fuller."""
        try:
            self._mend()
        except OSError:
            if not self._sync_every_s:
                self._end_segment()  # it may end in half a record

    def _mend(self) -> None:
        """Cut off what is not to be in the current segment."""
        segment = self._current
        if segment is None or self._file is None:
            return
        self._shall_mend = True
        disk.truncate(self._file, segment.size_bytes)
        if self._is_given_up:
            disk.sync(self._file)  # else a power cut might bring it back
        self._shall_mend = False
        if not segment.size_bytes:
            self._end_segment()
            self.remove(segment)

    def forget(self, place: Place, now: float) -> None:
        """A packet need not be kept any more: a segment goes when that is true of all that are in it."""
        segment = place.segment
        segment.kept -= 1
        if segment.kept > 0:
            return
        if segment is not self._current:
            self.remove(segment)
        elif segment.size_bytes >= self._segment_bytes // 16:
            self.begin_segment(now)
            if segment is not self._current:
                self.remove(segment)

    def keep_newest(self, samples: int) -> None:
        """Remove the oldest segments for as long as the others hold so many samples, and those of reports alone."""
        for segment in list(self._segments)[:-1]:
            if segment.kept and not segment.samples:  # else it is an earlier process's that could not be read
                self.remove(segment)
        held = sum(segment.samples for segment in self._segments)
        while len(self._segments) > 1 and held - self._segments[0].samples >= samples:
            held -= self._segments[0].samples
            self.remove(self._segments[0])

    def remove(self, segment: Segment) -> None:
        self._segments.remove(segment)
        self.size_bytes -= segment.size_bytes
        try:
            disk.remove(segment.path)
        except OSError as error:
            log.warning("cannot remove %s, which is not needed any more: %s", segment.path, error)

    def clear(self) -> None:
        """Remove all that earlier processes left."""
        for segment in self.segments:
            self.remove(segment)
        if self._sync_every_s:
            disk.sync_folder(self.folder)

    def close(self) -> None:
        """Leave the folder to the next process, when all that was appended is stored. Twice is fine."""
        if self._syncing is not None:
            wait([self._syncing])
        self._beside = None
        self.settle(math.inf)
        current = self._current
        self._end_segment()
        if current is not None and not current.kept and current in self._segments:
            self.remove(current)
        self._lock.release()


def segments_in(folder: Path) -> list[Path]:
    """The files of a log, oldest first."""
    return sorted(path for path in folder.glob(f"*{SUFFIX}") if path.stem.isdecimal())


def head_of(segment: Segment) -> Head | None:
    """The first record of a file; None where it cannot be read."""
    first = next(entries_of(segment), None)
    return first.message if first is not None and isinstance(first.message, Head) else None


def entries_of(segment: Segment) -> Iterator[Entry]:
    """The records of a file; what is damaged is logged and passed over; WireVersionError for another version."""
    try:
        data = memoryview(segment.path.read_bytes())
    except OSError as error:
        log.error("cannot read %s, which is left as it is: %s", segment.path, error)
        return
    damaged = 0
    for offset, found in _records_in(data):
        if found is not None and _is_mark(data, found):
            continue
        entry = found and _entry(segment, data, offset, *found)
        if entry is None:
            damaged += 1
        else:
            yield entry
    if damaged:
        log.error("%s is damaged in %d places: packets in it are lost", segment.path, damaged)


def _entry(segment: Segment, data: memoryview, offset: int, start: int, size: int) -> Entry | None:
    place, record = Place(segment, offset, start + size - offset), data[offset : start + size]
    content = data[start : start + size]
    try:
        if content[:1] != _HEAD:
            return Entry(place, record, *m.decode(content))
        if content[1] != m.WIRE_VERSION:
            raise m.WireVersionError(content[1])
        return Entry(place, record, _head_decoder.decode(content[2:]), content[:0])
    except m.WireVersionError:
        raise
    except (DecodingError, msgspec.MsgspecError, IndexError):
        return None


def _records_in(data: memoryview) -> Iterator[tuple[int, tuple[int, int] | None]]:
    """(offset of a record, start and size of its message) of each whole one; None for something that is damaged.

    Damage after which no whole record comes is the end of one that was cut off: it is passed over. Where marks that
    begin no record are many, the search ends early: each may claim the whole rest of the file.
    """
    at, damaged, futile = 0, False, 0
    raw: bytes | None = None
    while 0 <= at < len(data) and futile <= _FUTILE_CHECKS * len(data):
        found = message_at(data, at)
        if found is None:
            damaged = True
            raw = bytes(data) if raw is None else raw
            futile += min(int.from_bytes(raw[at + 4 : at + 8], "little"), len(data) - at)
            at = raw.find(MARK, at + 1)
            continue
        if damaged:
            yield at, None
            damaged = False
        yield at, found
        at = sum(found)
    if 0 <= at < len(data):
        yield at, None


def _is_mark(data: memoryview, found: tuple[int, int]) -> bool:
    return data[found[0] : sum(found)] == _SYNCED


def _whole_of(data: memoryview) -> int:
    """How much of the newest segment counts: up to the first damage behind the newest mark."""
    end, is_whole = 0, True
    for _, found in _records_in(data):
        is_whole = found is not None and (is_whole or _is_mark(data, found))
        if found is not None and is_whole:
            end = sum(found)
    return end


def lock_folder(folder: Path, within_s: float = 0.0, name: str = "lock") -> filelock.BaseFileLock | None:
    """Lock a log's folder for this process; None where another has it, OSError where it cannot be made."""
    disk.make_folder(folder)
    lock = filelock.FileLock(folder / name, thread_local=False)
    try:
        lock.acquire(timeout=within_s)
    except filelock.Timeout:
        return None
    return lock
