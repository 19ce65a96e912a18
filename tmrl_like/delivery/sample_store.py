"""The trainer's samples on disk: packets as they came, in files that are written once and
atomically.

::

    FOLDER/
      lock              held by the process that writes
      0000000001.log    a group of packets
      0000000065.log    many small files are joined into one, with the name of the first

A file::

    frame, head   `StoreHead` (msgpack)
    messages      of packets, one after the other, each with its own checksum (`wire.packet`)
    head, frame   the same head again

A damaged byte costs the packet that contains it. A kill leaves complete files. If the process is
killed while files are joined, or after an error, some packets may be in two files; readers
therefore take each entry once, by its number.
"""

from __future__ import annotations

import logging
import math
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tmrl_like.base.budgets import Bucket
from tmrl_like.base.files import disk, remove_drafts, write_atomically
from tmrl_like.base.threads import call_beside
from tmrl_like.errors import DecodingError
from tmrl_like.types import Count, Receipt
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import columns_in

if TYPE_CHECKING:
    import filelock

log = logging.getLogger("tmrl_like.delivery")

SUFFIX = ".log"
# at least SMALL_FILES neighbouring files below SMALL_BYTES are joined
SMALL_BYTES, SMALL_FILES = 1 << 20, 64
_UNSYNCED_EVERY_S = 0.05
_RETRY_S = 2.0
_SLOW_S = 1.0  # a group that takes longer is logged
_SLOW_AGAIN_S = 600.0
_MAGIC = b"tPS\x01"
# magic, wire version, length of the head, CRC-32 of the head, with the version as its start value
_FRAME = struct.Struct("<4sBII")


class StoreHead(msgspec.Struct, array_like=True):
    """The head of a file, which describes its content.

    Attributes:
        run: the training that the samples belong to; empty in a data set.
        samples: number of samples ever stored: in this file, in earlier ones, and in those that
            were removed.
        held: number of samples in this file.
        progress: up to which entry those of each worker process are stored, in this file and
            earlier ones.
        parts: for each message, its size in bytes, and the first entry that was taken from it.
            Earlier entries are stored elsewhere, for example by a rank that no longer exists.
    """

    run: str = ""
    samples: Count = 0
    held: Count = 0
    progress: tuple[Receipt, ...] = ()
    parts: tuple[tuple[Count, Count], ...] = ()


_head_decoder = msgspec.msgpack.Decoder(StoreHead)
Messages = Sequence[bytes | memoryview]


@dataclass(frozen=True)
class StoredFile:
    """The content of a file."""

    path: Path
    head: StoreHead
    messages: list[memoryview]

    def packets(self) -> Iterator[tuple[m.SamplePacket, memoryview, int]]:
        """Yield the undamaged packets, each with its columns and the first entry that was taken
        from it; log and skip damaged ones.
        """
        damaged = 0
        for message, (_, begin) in zip(self.messages, self.head.parts, strict=True):
            try:
                packet, body = m.decode(message)
                columns = columns_in(message, body)
            except DecodingError:
                damaged += 1
                continue
            if isinstance(packet, m.SamplePacket):
                yield packet, columns, begin
        if damaged:
            log.error("%s is damaged in %d places: packets in it are lost", self.path, damaged)


class _Counts(NamedTuple):
    """The counts that decide when a file is joined with others, and when it is removed."""

    size_bytes: int
    samples: int = 0  # 0 if the file was not read yet


class SampleStore:
    """The store in one folder, for the process that holds its lock. Packets are written group by
    group.

    Only the constructor raises OSError: later failures are logged once, and retried after a while.

    Attributes:
        alarm: why nothing can be written; empty: all is well.
        keep_samples: older files are removed once the newest ones hold at least this many samples.
    """

    def __init__(
        self,
        folder: Path,
        lock: filelock.BaseFileLock,
        sync_every_s: float = 0.0,
        beside: Executor | None = None,
    ) -> None:
        """Take over the files in the folder.

        Args:
            folder: folder of the store.
            lock: its lock (`base.files.lock_folder`), which `close` releases.
            sync_every_s: interval between groups, in seconds. 0: groups are not synced, so that
                they survive a kill, but perhaps no power cut.
            beside: executor that writes the groups; None: they are written in the calling thread.

        Raises:
            OSError: the folder cannot be read, or what a killed process has left cannot be synced.
        """
        self.folder = folder
        self.alarm = ""
        self.keep_samples = math.inf
        self._lock = lock
        self._is_synced = sync_every_s > 0
        self._every_s = sync_every_s or _UNSYNCED_EVERY_S
        self._beside = beside
        self._files = {int(path.stem): _Counts(path.stat().st_size) for path in files_in(folder)}
        self._number = max(self._files, default=0)
        # writes the group that is being written, or could not be written yet
        self._write_group: Callable[[], None] | None = None
        self._writing: Future[None] | None = None
        self._began_at = self._due_at = -math.inf
        self._slow = Bucket(1, 1 / _SLOW_AGAIN_S)  # limits log lines about a slow disk
        remove_drafts(folder)
        if self._is_synced:
            # a killed process may have moved a file into place without syncing the folder
            disk.sync_folder(folder)

    # -- reading -----------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        """Whether the store has any files."""
        return bool(self._files)

    def files(self) -> Iterator[StoredFile]:
        """Read all files that earlier processes left, oldest first; raise WireVersionError if one
        has another wire version.
        """
        for number, counts in list(self._files.items()):
            file = read_file(self._path(number))
            if file is not None:
                self._files[number] = _Counts(counts.size_bytes, file.head.held)
                yield file

    @property
    def run(self) -> str:
        """The training that the samples belong to; empty: there are no readable files."""
        files = (read_file(self._path(number)) for number in reversed(self._files))
        return next((file.head.run for file in files if file is not None), "")

    # -- writing -----------------------------------------------------------------------------------

    def is_due(self, now: float) -> bool:
        """Whether it is time to write; more frequent groups would only make more files."""
        return now >= self._due_at

    def write(self, head: StoreHead, messages: Messages, now: float) -> Future[None]:
        """Begin to write a group, and return its first attempt; `is_settled` must be true before,
        and is true again once it is stored.
        """
        self._due_at = now + self._every_s
        self._number += 1
        self._write_group = partial(self._store, self._number, head, messages)
        return self._begin(self._write_group, now)

    def _begin(self, write_group: Callable[[], None], now: float) -> Future[None]:
        self._began_at = now
        self._writing = call_beside(self._beside, write_group)
        return self._writing

    def is_settled(self, now: float) -> bool:
        """Whether the last group is stored; if it failed, retry it when it is time.

        A stored group survives a kill and, if groups are synced, a power cut.
        """
        if self._write_group is None:
            return True
        writing = self._writing
        if writing is None:
            if not self.is_due(now):
                return False
            writing = self._begin(self._write_group, now)
        if not writing.done():
            if now - self._began_at > _SLOW_S and self._slow.take(1, now):
                line = (
                    "the disk of %s is slow: it takes more than %g s to store samples, which "
                    "workers keep meanwhile; nothing else waits; use a faster disk"
                )
                log.warning(line, self.folder, _SLOW_S)
            return False
        self._writing = None
        try:
            writing.result()
        except (OSError, MemoryError) as error:
            self._due_at = now + _RETRY_S
            self._raise_alarm(error)
            return False
        if self.alarm:
            log.info("%s can be written to again", self.folder)
        self.alarm, self._write_group = "", None
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
        """Wait for the group that is being written, and return whether there was one."""
        if self._writing is None:
            return False
        wait([self._writing])
        return True

    def _store(self, number: int, head: StoreHead, messages: Messages) -> None:
        """Write a group (in the executor's thread, the only one that changes the folder)."""
        self._join_small_files()
        self._put(number, head, messages, self._is_synced)
        self._remove_old_files()

    def _put(self, number: int, head: StoreHead, messages: Messages, is_synced: bool) -> None:
        content = msgspec.msgpack.encode(head)
        frame = _FRAME.pack(
            _MAGIC, m.WIRE_VERSION, len(content), zlib.crc32(content, m.WIRE_VERSION)
        )
        data = b"".join((frame, content, *messages, content, frame))
        write_atomically(self._path(number), data, synced=is_synced)
        if is_synced:
            disk.sync_folder(self.folder)
        self._files[number] = _Counts(len(data), head.held)

    def _join_small_files(self) -> None:
        """Join the newest files if they are many and small.

        The joined file takes the name of the first, so that it is read before any of the others
        that a kill has left; readers then skip these.
        """
        small: list[int] = []
        for number, counts in reversed(self._files.items()):
            if counts.size_bytes >= SMALL_BYTES:
                break
            small.insert(0, number)
        if len(small) < SMALL_FILES:
            return
        files = []
        for number in small:
            file = read_file(self._path(number))
            if file is None:
                self._files[number] = _Counts(SMALL_BYTES)  # leave it alone from now on
                return
            files.append(file)
        messages = [message for file in files for message in file.messages]
        begins = [begin for file in files for _, begin in file.head.parts]
        head = files[-1].head
        head.held = sum(file.head.held for file in files)
        # the sizes are those of the messages: of a file that was cut off, less is there
        head.parts = tuple(zip(map(len, messages), begins, strict=True))
        # synced in any case: it replaces files that may be on the disk already
        self._put(small[0], head, messages, is_synced=True)
        for number in small[1:]:
            self._remove(number)

    def _remove_old_files(self) -> None:
        """Remove the oldest files beyond `keep_samples`."""
        held = sum(counts.samples for counts in self._files.values())
        *before_newest, _ = self._files.items()
        for number, counts in before_newest:
            if held - counts.samples < self.keep_samples:
                return
            held -= counts.samples
            self._remove(number)

    def _remove(self, number: int) -> None:
        del self._files[number]
        try:
            disk.remove(self._path(number))
        except OSError as error:
            log.warning(
                "cannot remove %s, which is not needed any more: %s", self._path(number), error
            )

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:010d}{SUFFIX}"

    def clear(self) -> None:
        """Remove all files that earlier processes left."""
        for number in list(self._files):
            self._remove(number)
        if self._is_synced:
            disk.sync_folder(self.folder)

    def close(self) -> None:
        """Wait for the current group, then release the folder. Calling it twice is fine."""
        self.wait()
        self._lock.release()


def files_in(folder: Path) -> list[Path]:
    """Return the files of a store, oldest first."""
    return sorted(path for path in folder.glob(f"*{SUFFIX}") if path.stem.isdecimal())


def read_file(path: Path) -> StoredFile | None:
    """Read a file; if it is unreadable, log this and return None.

    Raises:
        WireVersionError: the file has another wire version.
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
    for size, _ in head.parts:
        messages.append(data[at : at + size])
        at += size
    return StoredFile(path, head, messages)


def _head_of(data: memoryview) -> tuple[StoreHead, int]:
    """Return the head of a file, and the offset of its first message."""
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
