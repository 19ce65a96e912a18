"""The control loop's end of delivery: writes entries to memory-mapped files, which the link reads
(`Source`).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import threading
from collections import deque
from itertools import count
from typing import Any

import msgspec

from tmrl_like.base.files import reserve
from tmrl_like.delivery.folder import WorkerFolder
from tmrl_like.delivery.segments import (
    BREAK,
    END,
    FREE_ROW,
    HEAD_BYTES,
    LOST,
    MAX_RECORD_BYTES,
    NEXT,
    RECORD_BYTES,
    REPORT,
    ROW,
    STRUCTURE,
    Segment,
    bytes_of,
    new_incarnation,
    padded,
    path_of,
)
from tmrl_like.types import EpisodeStats
from tmrl_like.wire.rows import RowFormat, row_of

log = logging.getLogger("tmrl_like.delivery")

FILE_BYTES = 1 << 20  # size of a file, if the limit leaves room for several files
FILE_ROWS = 64  # a file has room for at least this many rows, up to 8 MiB
_MAX_SEGMENT_BYTES = 8 << 20
_LEFT_BYTES = 256 << 20  # free space left to other programs on a disk, at most
_SPARE = 3  # segments that are ready to be filled
_MAX_SPARE = 16
# from this number of used segments on, new ones are larger, as each takes a file descriptor
_MANY = 16
_encoder = msgspec.msgpack.Encoder()


class SampleLog:
    """Writes the entries of one control loop to a folder: samples, reports and breaks. Appended
    entries outlive the process.

    One thread, the control thread, appends. It never waits and makes no system calls, except for a
    new file if `refill` is called too late. Beyond the limit, or if the disk is full, new samples
    are dropped and counted, and the next sample that is kept is preceded by a break.

    Attributes:
        incarnation: identifies these entries.
        entries: number of entries so far, which is the number of the newest.
        lost_samples: number of samples that were dropped here.
        alarm: message for the worker's user; empty: all is well.
    """

    def __init__(
        self,
        folder: WorkerFolder,
        max_bytes: int,
        incarnation: int = 0,
        logs: int = 1,
    ) -> None:
        """Create the first files.

        Args:
            folder: folder for the files; its owner closes it.
            max_bytes: maximum size of the entries in the folder that are not stored, with those of
                dead processes; at least two files are kept.
            incarnation: identifies these entries; 0: a new one.
            logs: number of logs that share what the dead processes leave of `max_bytes`.
        """
        self.incarnation = incarnation or new_incarnation()
        self.entries = self.lost_samples = 0
        self.alarm = ""
        self._has_said_full = False  # the alarm was logged, and no file could be made since
        self._folder, self._dead = folder.path, folder.dead
        self._is_checked = not folder.is_private
        self._all_bytes, self._logs = max_bytes, logs
        self._max_bytes = max_bytes // logs
        self._make_room()
        self._segment_bytes = max(FILE_BYTES // 16, min(FILE_BYTES, self._max_bytes // 8)) & ~7
        self._files = count(1)
        self._numbers = count(1)
        self._spare: deque[Segment] = deque()
        # oldest first; the last one is being filled
        self._used: deque[Segment] = deque()
        self._making = threading.Lock()
        self._breaks = 0
        self._is_gap = False  # the next entry does not continue the previous ones
        self._is_closed = False
        self._segment: Segment | None = None  # the one that is being filled
        self._format: RowFormat | None = None  # of the newest sample
        self._newest: tuple[Any, ...] = ()
        self._structure = b""  # record of the format's structure
        self._described: RowFormat | None = None  # format of the segment's newest structure
        # offset of the next row, its size, and the first word of its record's head
        self._at = self._row_bytes = self._word = 0
        # a row that would end beyond this offset is stored by `_append`, the general case
        self._limit = -1
        self.refill()
        self._next_segment(0)
        self._go_on()

    # -- the control thread ------------------------------------------------------------------------

    def append(
        self,
        sample: tuple[Any, ...],
        observed_at_s: float,
        inference_s: float,
        period_error_s: float,
        policy_version: int,
        source: int,
        episode: int = 0,
    ) -> None:
        """Append a sample (act, obs, rew, terminated, truncated, info[, original]) with its timing
        (`StepTiming`), for the control thread.

        `episode`: the number of the episode modulo 100, plus 128 for a sample of a reset
        (`wire.rows`). Once this returns, the sample outlives the process.

        Raises:
            EncodingError: the sample holds a value that cannot be sent, which the message names.
                Nothing is stored.
        """
        self._newest = sample
        at = self._at
        end = at + self._row_bytes
        if end <= self._limit and self._pack(
            self._map,
            at + RECORD_BYTES,
            sample,
            observed_at_s,
            inference_s,
            period_error_s,
            policy_version,
            source,
            episode,
        ):
            words = self._words
            words[at >> 3] = self._word
            if self._is_checked:
                self._check(at, end - at)
            self._release()
            self._acquire()
            words[END] = self._at = end
            self.entries += 1
        else:
            self._append(
                sample, observed_at_s, inference_s, period_error_s, policy_version, source, episode
            )

    def rehearse(self) -> None:
        """Pack the newest sample again, at the place of the next one, which is not read until then.

        This loads what `append` needs into the processor's caches (control thread).
        """
        if self._at + self._row_bytes <= self._limit:
            self._pack(self._map, self._at + RECORD_BYTES, self._newest, 0.0, 0.0, 0.0, 0, 0, 0)

    def _append(self, sample: tuple[Any, ...], *timing: Any) -> None:
        form, row = row_of(sample, self._format, *timing)
        if form is not self._format:
            self._format, self._structure = form, bytes(form.encoded_schema)
        if not self._write(ROW if form.size_bytes else FREE_ROW, row, form):
            self.lost_samples += 1
            if self._segment is not None:
                self._segment.words[LOST] = self.lost_samples

    def end_episode(self, stats: EpisodeStats) -> None:
        """Report a finished episode (control thread)."""
        self._write(REPORT, _encoder.encode(stats))

    def add_break(self) -> None:
        """Note that what follows does not continue what came before, for example because the
        environment was rebuilt (control thread).
        """
        self._is_gap = True
        self._go_on()

    def _write(self, kind: int, content: bytes | bytearray, form: RowFormat | None = None) -> bool:
        """Append an entry, preceded by what it needs; return False if there is no room."""
        segment = self._prepare(RECORD_BYTES + len(content), form)
        if segment is not None:
            segment.write(kind, content)
            self.entries += 1
        self._is_gap = segment is None
        self._go_on()
        return segment is not None

    def _prepare(self, size: int, form: RowFormat | None) -> Segment | None:
        """Make room for a record of this size, and write the break and the structure that it needs
        before it.
        """
        needed = 2 * RECORD_BYTES + padded(len(self._structure)) + padded(size)
        segment = self._segment
        if segment is None or segment.words[END] + needed > segment.size_bytes:
            segment = self._next_segment(needed) if needed <= MAX_RECORD_BYTES else None
        if segment is None:
            return None
        if self._is_gap:
            segment.write(BREAK, b"")
            self.entries += 1
            self._breaks += 1
            self._is_gap = False
        if form is not None and form is not self._described:
            segment.write(STRUCTURE, self._structure)
            self._described = form
        return segment

    def _next_segment(self, needed: int) -> Segment | None:
        """Continue in a free segment with enough room, and return it; None: there is none."""
        while len(self._used) > 1 and self._used[0].is_free:
            self._spare.append(self._used.popleft())
        segment = self._take(HEAD_BYTES + needed)
        if segment is None:
            return None
        counts = self.entries + 1, self._breaks, self.lost_samples
        segment.begin(self.incarnation, next(self._numbers), *counts, self._is_checked)
        if self._segment is not None:
            self._segment.order()
            self._segment.words[NEXT] = segment.file
        self._used.append(segment)
        self._segment, self._described = segment, None
        return segment

    def _take(self, size_bytes: int) -> Segment | None:
        for _ in range(len(self._spare)):
            with contextlib.suppress(IndexError):  # `refill` may just have removed the last one
                segment = self._spare.popleft()
                if segment.size_bytes >= size_bytes:
                    return segment
                self._spare.append(segment)
        rows = padded(min(FILE_ROWS * size_bytes, _MAX_SEGMENT_BYTES))
        if rows > FILE_BYTES:
            self._segment_bytes = max(self._segment_bytes, rows)
        size_bytes = max(self._segment_bytes, padded(size_bytes))
        used_bytes = sum(segment.size_bytes for segment in self._used)
        if (
            self._is_closed
            or self.alarm
            or (len(self._used) > 1 and used_bytes + size_bytes > self._max_bytes)
        ):
            return None
        try:
            return self._make(size_bytes)
        except OSError as error:
            self._alarm(error)
            return None

    def _go_on(self) -> None:
        """Prepare the fast path of `append` for samples like the newest."""
        segment, form = self._segment, self._described
        self._limit = -1
        if (
            segment is None
            or form is None
            or not form.size_bytes
            or self._is_gap
            or self._is_closed
        ):
            return
        self._map, self._words, self._check = segment.map, segment.words, segment.check
        self._release, self._acquire = segment.release, segment.acquire
        self._pack = form.pack
        self._row_bytes = RECORD_BYTES + form.size_bytes
        self._word = self._row_bytes << 3 | ROW
        self._at = segment.words[END]
        self._limit = segment.size_bytes

    # -- any thread --------------------------------------------------------------------------------

    def refill(self) -> None:
        """Keep files ready. Call this a few times a second, not from the control thread."""
        with self._making:
            if self._is_closed:
                return
            if self._is_full():
                self._make_room()
            if len(self._used) > _MANY:
                larger = min(2 * self._segment_bytes, _MAX_SEGMENT_BYTES, self._max_bytes // 8 & ~7)
                self._segment_bytes = max(self._segment_bytes, larger)
            while self._large_spares() < _SPARE and not self._is_full():
                try:
                    self._spare.append(self._make(self._segment_bytes))
                    self._has_said_full = False
                except OSError as error:
                    if not self.has_room_ahead():
                        self._alarm(error)
                        return
                    break
            # a full disk may have no room for larger files: the smaller ones stay until there are
            is_enough = self._large_spares() >= _SPARE
            for segment in list(self._spare):
                is_small = segment.size_bytes < self._segment_bytes
                if (is_small and is_enough) or len(self._spare) > _MAX_SPARE:
                    # the control thread may just have taken it
                    with contextlib.suppress(ValueError):
                        self._spare.remove(segment)
                        segment.remove()
            self.alarm = ""

    def _large_spares(self) -> int:
        return sum(one.size_bytes >= self._segment_bytes for one in list(self._spare))

    def has_room_ahead(self) -> bool:
        """Whether there is a segment to continue in after the current one."""
        return bool(self._spare) or any(segment.is_free for segment in list(self._used)[:-1])

    def _alarm(self, error: OSError) -> None:
        if not self.alarm:
            self.alarm = (
                f"cannot write to {self._folder}: {error.strerror or error}; samples may be lost"
            )
            if not self._has_said_full:
                self._has_said_full = True
                log.error("%s", self.alarm)

    def _make_room(self) -> None:
        """Note how many bytes this log may keep beside what dead processes have left: a quarter of
        the whole at least.
        """
        # without descriptors, or where an old link has just removed a file, it is noted later
        with contextlib.suppress(OSError):
            room_bytes = self._all_bytes - bytes_of(self._folder, self._dead)
            self._max_bytes = max(self._all_bytes // 4, room_bytes) // self._logs

    def _is_full(self) -> bool:
        segments = [*self._used, *self._spare]
        return (
            len(segments) > _SPARE
            and sum(segment.size_bytes for segment in segments) > self._max_bytes
        )

    def _make(self, size_bytes: int) -> Segment:
        path = path_of(self._folder, self.incarnation, next(self._files))
        disk = shutil.disk_usage(self._folder)
        # leave some space to other programs, such as a trainer that stores its samples there
        if disk.free - size_bytes < min(disk.total // 20, _LEFT_BYTES):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reserve(path, size_bytes)
        try:
            return Segment(path)
        except OSError:  # descriptors or memory are lacking
            path.unlink()
            raise

    def close(self) -> None:
        """Unmap the files, which stay for their reader. Calling it twice is fine."""
        with self._making:
            self._is_closed = True
            self._limit = -1
            self._segment = None
            for segment in self._used:
                segment.close()
            for segment in self._spare:
                segment.remove()
            self._used.clear()
            self._spare.clear()
