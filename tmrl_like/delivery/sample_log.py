"""The control loop's end of delivery: entries into mapped files, which the link reads
(`Source`).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
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
    padded,
    path_of,
)
from tmrl_like.types import EpisodeStats
from tmrl_like.wire.rows import RowFormat, row_of

log = logging.getLogger("tmrl_like.delivery")

_SEGMENT_BYTES = 1 << 20
_MAX_SEGMENT_BYTES = 8 << 20
_ROWS = 64  # a segment has room for, within these limits
_LEFT_BYTES = 256 << 20  # at most so much is left on a disk to others
_SPARE = 3  # segments that wait to be filled
_MAX_SPARE = 16
# segments that nobody has read: from here on new ones are larger, since each takes a file
# descriptor
_MANY = 16
_encoder = msgspec.msgpack.Encoder()


class SampleLog:
    """The entries of one control loop, in a folder: samples, reports and breaks. What was appended
    outlives it.

    One thread, the control thread, appends. It never waits and makes no system call, but for a new
    file where `refill` comes too late. Beyond the limit, or on a disk that is full, new samples are
    dropped and counted, and what comes after them begins with a break.

    Attributes:
        incarnation: names these entries.
        entries: how many there are; the number of the newest.
        lost_samples: samples that were dropped here.
        alarm: what the worker's user should know; empty: all is well.
    """

    def __init__(
        self,
        folder: WorkerFolder,
        max_bytes: int = 512 << 20,
        incarnation: int = 0,
    ) -> None:
        """Make the first files; the folder stays its owner's to close.

        Args:
            folder: where they are.
            max_bytes: of entries that are not stored; at least two files' worth is kept.
            incarnation: names these entries; 0: a random number.
        """
        self.incarnation = incarnation or secrets.randbits(62) + 1
        self.entries = self.lost_samples = 0
        self.alarm = ""
        self._folder = folder.path
        self._is_checked = not folder.is_private
        self._max_bytes = max_bytes
        self._segment_bytes = max(_SEGMENT_BYTES // 16, min(_SEGMENT_BYTES, max_bytes // 8)) & ~7
        self._files = count(1)
        self._numbers = count(1)
        self._spare: deque[Segment] = deque()
        # oldest first; the one that is being filled comes last
        self._used: deque[Segment] = deque()
        self._making = threading.Lock()
        self._breaks = 0
        self._is_gap = False  # what comes next does not continue what is there
        self._is_closed = False
        self._segment: Segment | None = None  # that is being filled
        self._format: RowFormat | None = None  # of the newest sample
        self._newest: tuple[Any, ...] = ()
        self._structure = b""  # its record
        self._described: RowFormat | None = None  # whose structure is the newest in the segment
        # where the next row goes, its size, and size and kind
        self._at = self._row_bytes = self._word = 0
        # a row that would end behind it is stored in `_append`, which works in every case
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
        """Store a sample: (act, obs, rew, terminated, truncated, info[, original]), with its timing
        (`StepTiming`).

        `episode`: its number modulo 100, and 128 more for a sample of a reset (`wire.rows`).

        It outlives this process from here on.

        Raises:
            EncodingError: it holds something that cannot travel; the message names it. Nothing is
                stored.
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
        """Pack the newest sample once more, where the next one goes, and where nobody reads before
        that is there.

        After it the processor's caches hold what `append` needs (control thread).
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
        """What follows does not continue what came before: the environment was built again, say
        (control thread).
        """
        self._is_gap = True
        self._go_on()

    def _write(self, kind: int, content: bytes | bytearray, form: RowFormat | None = None) -> bool:
        """Append an entry, and before it what it needs; False where there is no room."""
        segment = self._prepare(RECORD_BYTES + len(content), form)
        if segment is not None:
            segment.write(kind, content)
            self.entries += 1
        self._is_gap = segment is None
        self._go_on()
        return segment is not None

    def _prepare(self, size: int, form: RowFormat | None) -> Segment | None:
        """Make room for a record of this size, and write the break and the structure that come
        before it.
        """
        has_room = self._has_room(2 * RECORD_BYTES + padded(len(self._structure)) + padded(size))
        segment = self._segment
        if segment is None or not has_room:
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

    def _has_room(self, needed: int) -> bool:
        segment = self._segment
        if segment is not None and segment.words[END] + needed <= segment.size_bytes:
            return True
        return needed <= MAX_RECORD_BYTES and self._next_segment(needed)

    def _next_segment(self, needed: int) -> bool:
        """Go on in a segment that is free and has room; False: there is none."""
        while len(self._used) > 1 and self._used[0].is_free:
            self._spare.append(self._used.popleft())
        segment = self._take(HEAD_BYTES + needed)
        if segment is None:
            return False
        counts = self.entries + 1, self._breaks, self.lost_samples
        segment.begin(self.incarnation, next(self._numbers), *counts, self._is_checked)
        if self._segment is not None:
            self._segment.order()
            self._segment.words[NEXT] = segment.file
        self._used.append(segment)
        self._segment, self._described = segment, None
        return True

    def _take(self, size_bytes: int) -> Segment | None:
        for _ in range(len(self._spare)):
            segment = self._spare.popleft()
            if segment.size_bytes >= size_bytes:
                return segment
            self._spare.append(segment)
        rows = padded(min(_ROWS * size_bytes, _MAX_SEGMENT_BYTES))
        if rows > _SEGMENT_BYTES:
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
        """Let `append` know what it needs to store a sample like the newest."""
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
        """Have files ready. To be called a few times a second, from another thread than the control
        thread.
        """
        with self._making:
            if self._is_closed:
                return
            if len(self._used) > _MANY:
                larger = min(2 * self._segment_bytes, _MAX_SEGMENT_BYTES, self._max_bytes // 8 & ~7)
                self._segment_bytes = max(self._segment_bytes, larger)
            for _ in range(len(self._spare)):
                # the control thread has just taken the last one
                with contextlib.suppress(IndexError):
                    segment = self._spare.popleft()
                    if segment.size_bytes < self._segment_bytes or len(self._spare) >= _MAX_SPARE:
                        segment.remove()
                    else:
                        self._spare.append(segment)
            while len(self._spare) < _SPARE and not self._is_full():
                try:
                    self._spare.append(self._make(self._segment_bytes))
                except OSError as error:
                    if not self._has_room_ahead():
                        self._alarm(error)
                        return
                    break
            self.alarm = ""

    def _has_room_ahead(self) -> bool:
        """Whether there is a segment to be filled after the one that is being filled now."""
        return bool(self._spare) or any(segment.is_free for segment in list(self._used)[:-1])

    def _alarm(self, error: OSError) -> None:
        if not self.alarm:
            self.alarm = (
                f"cannot write to {self._folder}: {error.strerror or error}; samples may be lost"
            )
            log.error("%s", self.alarm)

    def _is_full(self) -> bool:
        segments = [*self._used, *self._spare]
        return (
            len(segments) > _SPARE
            and sum(segment.size_bytes for segment in segments) > self._max_bytes
        )

    def _make(self, size_bytes: int) -> Segment:
        path = path_of(self._folder, self.incarnation, next(self._files))
        disk = shutil.disk_usage(self._folder)
        # to a trainer's store, perhaps
        if disk.free - size_bytes < min(disk.total // 20, _LEFT_BYTES):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        try:
            reserve(path, size_bytes)
            return Segment(path)
        except OSError as error:
            if not isinstance(error, FileExistsError):
                # it may be there, and cannot be opened or mapped
                with contextlib.suppress(OSError):
                    path.unlink()
            raise

    def close(self) -> None:
        """Unmap the files, which stay for the one that reads them. Twice is fine."""
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
