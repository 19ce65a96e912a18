"""The trainer's samples on disk: packets as they came, in files that are written once, whole or not
at all.

::

    FOLDER/
      lock              held by the process that writes
      0000000001.log    a group of packets
      0000000065.log    many small files become one, which has the name of the first

A file::

    frame, head   `StoreHead` (msgpack)
    messages      of packets, one after the other, each with its own checksum (`wire.packet`)
    head, frame   the same head again

A byte that is damaged costs the packet that it is in. A kill leaves whole files. One that comes
while files are joined leaves packets in two of them, and one that comes after an error may do so,
too: whoever reads takes each entry once, by its number.
"""

from __future__ import annotations

import logging
import math
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tmrl_like.base.budgets import Bucket
from tmrl_like.base.files import disk, remove_drafts, write_atomically
from tmrl_like.errors import DecodingError
from tmrl_like.types import Count
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import columns_in

if TYPE_CHECKING:
    import filelock

log = logging.getLogger("tmrl_like.delivery")

SUFFIX = ".log"
_UNSYNCED_EVERY_S = 0.05
_RETRY_S = 2.0
_SLOW_S = 1.0  # a group that takes longer is worth a line
_SLOW_AGAIN_S = 600.0
_MAGIC = b"tPS\x01"
# magic, wire version, length of the head, CRC-32 of the head from the version on
_FRAME = struct.Struct("<4sBII")


class StoredProgress(NamedTuple):
    """How much of a worker process is stored."""

    worker: m.Name
    incarnation: Count
    entry: Count  # up to this one
    lost_samples: Count  # as the worker said


class StoreHead(msgspec.Struct, array_like=True):
    """What a file says of itself.

    Attributes:
        run: which training the samples belong to; empty in a data set.
        samples: ever stored, in this file, in those before it and in those that were removed.
        held: samples in this file.
        progress: of all worker processes, up to the end of this file.
        sizes: of the messages, in bytes.
        begins: of the messages, the entries that they were taken from: what lies before is stored
            elsewhere, by a rank that is no more, perhaps. Empty: they were taken whole.
    """

    run: str = ""
    samples: Count = 0
    held: Count = 0
    progress: tuple[StoredProgress, ...] = ()
    sizes: tuple[Count, ...] = ()
    begins: tuple[Count, ...] = ()


_head_decoder = msgspec.msgpack.Decoder(StoreHead)
Messages = Sequence[bytes | memoryview]


class StoredPacket(NamedTuple):
    """A packet that is whole, and the entry that it was taken from."""

    packet: m.SamplePacket
    columns: memoryview
    message: memoryview
    begin: int


@dataclass(frozen=True)
class StoredFile:
    """A file that was read."""

    path: Path
    head: StoreHead
    messages: list[memoryview]

    @property
    def begins(self) -> tuple[int, ...]:
        """Of each message, the entry that it was taken from."""
        return self.head.begins or (0,) * len(self.messages)

    def packets(self) -> Iterator[StoredPacket]:
        """Yield each that is whole; what is damaged is logged, and passed over."""
        damaged = 0
        for message, begin in zip(self.messages, self.begins, strict=False):
            try:
                packet, body = m.decode(message)
                columns = columns_in(message, body)
            except DecodingError:
                damaged += 1
                continue
            if isinstance(packet, m.SamplePacket):
                yield StoredPacket(packet, columns, message, begin)
        if damaged:
            log.error("%s is damaged in %d places: packets in it are lost", self.path, damaged)


class _Counts(NamedTuple):
    """What of a file is needed to know when it is joined with others, and when it goes."""

    size_bytes: int
    samples: int = 0  # as far as it was read


class SampleStore:
    """The store in one folder, for the process that holds its lock: one group of packets after the
    other.

    Nothing here raises OSError but the constructor: what fails is logged once, and tried again
    after a while.

    Attributes:
        alarm: why nothing can be written; empty: all is well.
        keep_samples: when the newest files hold so many samples, those before them go.
    """

    def __init__(
        self,
        folder: Path,
        lock: filelock.BaseFileLock,
        sync_every_s: float = 0.0,
        beside: Executor | None = None,
        small_bytes: int = 1 << 20,
        small_files: int = 64,
    ) -> None:
        """Take over what is in the folder.

        Args:
            folder: of the store.
            lock: its lock (`base.files.lock_folder`), which `close` releases.
            sync_every_s: a group is due so long, in seconds, after the one before. 0: groups are
                not synced, and a power cut may take them; a kill does not.
            beside: where groups are written; None: by the caller.
            small_bytes: of a file; a smaller one is joined with its neighbours …
            small_files: … when so many of them follow each other.

        Raises:
            OSError: it cannot be read, or what a killed process has left cannot be synced.
        """
        self.folder = folder
        self.alarm = ""
        self.keep_samples = math.inf
        self._lock = lock
        self._is_synced = sync_every_s > 0
        self._every_s = sync_every_s or _UNSYNCED_EVERY_S
        self._beside = beside
        self._small_bytes, self._small_files = small_bytes, small_files
        self._files = {int(path.stem): _Counts(path.stat().st_size) for path in files_in(folder)}
        self._number = max(self._files, default=0)
        # that is being written, or was not yet
        self._group: tuple[StoreHead, Messages] | None = None
        self._writing: Future[None] | None = None
        self._began_at = self._due_at = -math.inf
        self._retry_at = -math.inf
        self._slow = Bucket(1, 1 / _SLOW_AGAIN_S)  # lines about it
        remove_drafts(folder)
        if self._is_synced:
            # who was killed may have put a file in place, and have said so to nobody
            disk.sync_folder(folder)

    # -- what there is -----------------------------------------------------------------------------

    def __bool__(self) -> bool:
        """Whether there are files."""
        return bool(self._files)

    def files(self) -> Iterator[StoredFile]:
        """Read all that earlier processes left, oldest first; WireVersionError: another version
        wrote it.
        """
        for number, counts in list(self._files.items()):
            file = read_file(self._path(number))
            if file is not None:
                self._files[number] = _Counts(counts.size_bytes, file.head.held)
                yield file

    @property
    def run(self) -> str:
        """The training whose samples these are; empty: there are none, or none that can be read."""
        files = (read_file(self._path(number)) for number in reversed(self._files))
        return next((file.head.run for file in files if file is not None), "")

    # -- writing -----------------------------------------------------------------------------------

    def is_due(self, now: float) -> bool:
        """Whether it is time for another group; more of them would be more files than help
        anybody.
        """
        return now >= self._due_at

    def write(self, head: StoreHead, messages: Messages, now: float) -> None:
        """Begin to write a group; `is_settled` says when it is stored, and was true just now."""
        head.sizes = tuple(map(len, messages))
        self._group = head, messages
        self._began_at, self._due_at = now, now + self._every_s
        self._begin(*self._group)

    def _begin(self, head: StoreHead, messages: Messages) -> None:
        if self._beside is not None:
            try:
                self._writing = self._beside.submit(self._store, head, messages)
            except RuntimeError:  # the interpreter exits, and starts no thread any more
                self._beside = None
        if self._beside is None:
            done: Future[None] = Future()
            try:
                self._store(head, messages)
                done.set_result(None)
            except (OSError, MemoryError) as error:
                done.set_exception(error)
            self._writing = done

    def is_settled(self, now: float) -> bool:
        """Whether all that was written is stored; what failed is tried again here when it is time.

        What is stored survives a kill and, where groups are synced, a power cut.
        """
        if self._group is None:
            return True
        if self._writing is None:
            if now < self._retry_at:
                return False
            self._began_at = now
            self._begin(*self._group)
        assert self._writing is not None
        if not self._writing.done():
            if now - self._began_at > _SLOW_S and self._slow.take(1, now):
                line = (
                    "the disk of %s is slow: it takes more than %g s to store samples, which "
                    "workers keep "
                )
                log.warning(
                    line + "meanwhile; nothing else waits; a faster disk is the cure",
                    self.folder,
                    _SLOW_S,
                )
            return False
        writing, self._writing = self._writing, None
        try:
            writing.result()
        except (OSError, MemoryError) as error:
            self._retry_at = now + _RETRY_S
            self._raise_alarm(error)
            return False
        if self.alarm:
            log.info("%s can be written to again", self.folder)
        self.alarm, self._group = "", None
        return True

    def _raise_alarm(self, error: OSError | MemoryError) -> None:
        if not self.alarm:
            reason = getattr(error, "strerror", None) or str(error) or "no memory is left"
            self.alarm = (
                f"cannot write to {self.folder}: {reason}; samples are in memory only, trying "
                f"again every {_RETRY_S:.0f} s"
            )
            log.error("%s", self.alarm)

    def wait(self) -> bool:
        """Wait for the group that is being written; whether there was one."""
        if self._writing is None:
            return False
        wait([self._writing])
        return True

    def _store(self, head: StoreHead, messages: Messages) -> None:
        """Write a group (in the thread beside, which alone changes the folder)."""
        self._join_small_files()
        self._number += 1
        self._put(self._number, head, messages)
        self._remove_old_files()

    def _put(self, number: int, head: StoreHead, messages: Messages) -> None:
        content = msgspec.msgpack.encode(head)
        frame = _FRAME.pack(
            _MAGIC, m.WIRE_VERSION, len(content), zlib.crc32(content, m.WIRE_VERSION)
        )
        data = b"".join((frame, content, *messages, content, frame))
        write_atomically(self._path(number), data, synced=self._is_synced)
        if self._is_synced:
            disk.sync_folder(self.folder)
        self._files[number] = _Counts(len(data), head.held)

    def _join_small_files(self) -> None:
        """Make one file of the newest, where they are many and small. It comes first: what follows
        it is known.
        """
        small: list[int] = []
        for number, counts in reversed(self._files.items()):
            if counts.size_bytes >= self._small_bytes:
                break
            small.insert(0, number)
        if len(small) < self._small_files:
            return
        files = []
        for number in small:
            file = read_file(self._path(number))
            if file is None:
                self._files[number] = _Counts(self._small_bytes)  # it is left alone
                return
            files.append(file)
        messages = [message for file in files for message in file.messages]
        head = files[-1].head
        head.held = sum(file.head.held for file in files)
        head.sizes = tuple(map(len, messages))
        head.begins = tuple(begin for file in files for begin in file.begins)
        self._put(small[0], head, messages)
        for number in small[1:]:
            self._remove(number)

    def _remove_old_files(self) -> None:
        """Keep the newest samples."""
        held = sum(counts.samples for counts in self._files.values())
        *before_newest, _ = self._files.items()
        for number, counts in before_newest:
            if held - counts.samples < self.keep_samples:
                return
            held -= counts.samples
            self._remove(number)

    def _remove(self, number: int) -> None:
        if self._files.pop(number, None) is not None:
            try:
                disk.remove(self._path(number))
            except OSError as error:
                log.warning(
                    "cannot remove %s, which is not needed any more: %s", self._path(number), error
                )

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:010d}{SUFFIX}"

    def clear(self) -> None:
        """Remove all that earlier processes left."""
        for number in list(self._files):
            self._remove(number)
        if self._is_synced:
            disk.sync_folder(self.folder)

    def close(self) -> None:
        """Leave the folder to the next process, when what is being written is. Twice is fine."""
        self.wait()
        self._lock.release()


def files_in(folder: Path) -> list[Path]:
    """The files of a store, oldest first."""
    return sorted(path for path in folder.glob(f"*{SUFFIX}") if path.stem.isdecimal())


def read_files(paths: Iterable[Path]) -> Iterator[StoredFile]:
    """Read files; see `read_file`."""
    return filter(None, map(read_file, paths))


def read_file(path: Path) -> StoredFile | None:
    """Read one; None, and a line of log, where that is not possible; WireVersionError: another
    version wrote it.
    """
    try:
        data = memoryview(path.read_bytes())
        head, at = _head_of(data)
    except m.WireVersionError:
        raise
    except (OSError, DecodingError) as error:
        log.error("cannot read %s, which is left as it is: %s", path, error)
        return None
    messages = []
    for size in head.sizes:
        messages.append(data[at : at + size])
        at += size
    return StoredFile(path, head, messages)


def _head_of(data: memoryview) -> tuple[StoreHead, int]:
    """The head of a file, and where its messages begin."""
    end = len(data) - _FRAME.size
    for frame_at in (0, end):
        if end < _FRAME.size:
            break
        magic, version, length, checksum = _FRAME.unpack_from(data, frame_at)
        start = end - length if frame_at else _FRAME.size
        content = data[max(0, start) : start + length]
        if magic == _MAGIC and zlib.crc32(content, version) == checksum:
            if version != m.WIRE_VERSION:
                raise m.WireVersionError(version)
            return m.decoded(
                _head_decoder, content, "the head of a store's file"
            ), _FRAME.size + length
    raise DecodingError("its head is damaged")
