"""Reads a control loop's entries by number, from the files that hold those not stored yet: any that
still exist, as a packet, as often as needed.

The entries stay in the files until the trainer has stored them.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tmrl_like.delivery.segments import (
    BREAK,
    BREAKS,
    FIRST,
    FREE_ROW,
    FREED,
    HEAD_BYTES,
    INCARNATION,
    LOST,
    NEXT,
    NUMBER,
    RECORD_BYTES,
    REPORT,
    ROW,
    STORED,
    STRUCTURE,
    Segment,
    file_of,
    padded,
    path_of,
    segments_of,
)
from tmrl_like.types import EpisodeStats
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import MAX_MEMORY_BYTES, Compressor, PacketWriter
from tmrl_like.wire.rows import RowFormat, format_for
from tmrl_like.wire.schema import MAX_SCHEMA_BYTES, Node

log = logging.getLogger("tmrl_like.delivery")

_LARGEST_BYTES = 8 << 20  # a minimum of samples makes no packet larger than this
_structure_decoder = msgspec.msgpack.Decoder(Node)
_report_decoder = msgspec.msgpack.Decoder(EpisodeStats)


@dataclass(slots=True)
class Cursor:
    """The place of an entry that exists, or of the next one to come."""

    segment: Segment
    at: int
    entry: int
    breaks: int  # number of breaks before it
    form: RowFormat | None = None  # of the rows at this place

    def go_behind(self, kind: int, at: int, size: int, count: int) -> None:
        """Advance past the first `count` of the records at this place, as `Source.runs`
        yields them.
        """
        self.at = at + count * padded(size)
        if kind == STRUCTURE:
            self.form = format_for(_structure_decoder.decode(self.segment.content(at, size)))
        else:
            self.entry += count
        if kind == BREAK:
            self.breaks += count


def start_of(segment: Segment) -> Cursor:
    """Return a cursor at the first entry of a segment."""
    return Cursor(segment, HEAD_BYTES, segment.words[FIRST], segment.words[BREAKS])


@dataclass(slots=True)
class Gathered:
    """Entries for a packet, not encoded yet, as views of the files.

    Attributes:
        first: number of the first entry.
        next: place of the entry after the last one.
        rows: the samples, with the approximate size of the packet before compression.
        episodes: reports of episodes, with their entries.
        is_ended: whether nothing can be added, because a limit is reached or a break follows.
    """

    first: int
    next: Cursor
    rows: PacketWriter = field(default_factory=PacketWriter)
    episodes: list[tuple[int, EpisodeStats]] = field(default_factory=list)
    is_ended: bool = False

    @property
    def last(self) -> int:
        return self.next.entry - 1


class Source:
    """The entries of one control loop, in the files that it has filled.

    Attributes:
        worker: the worker's name.
        incarnation: the incarnation of the entries.
        is_dead: whether their process has ended. A power cut may have damaged what it wrote last,
            which is then left out.
        is_short: whether a file could not be read at the last attempt, because descriptors or
            memory were lacking.
        segments: the segments known so far, oldest first.
    """

    def __init__(
        self,
        folder: Path,
        worker: str,
        incarnation: int,
        is_dead: bool = False,
        epoch_s: float = 0.0,
    ) -> None:
        """Prepare to begin with the oldest entry that still exists, without mapping a file yet;
        `epoch_s`: see `SamplePacket`.
        """
        self.worker, self.incarnation, self.is_dead = worker, incarnation, is_dead
        self._epoch_s = epoch_s
        self.is_short = False
        self.segments: deque[Segment] = deque()
        self._folder = folder
        self._mapped: dict[int, Segment] = {}  # by file
        # the entry up to which all are stored, by acknowledgements and removed segments
        self._stored = 0
        self._lost_before = 0  # lost samples according to segments that were removed
        self._said: set[str] = set()
        self._compress = Compressor()
        self._next: Cursor | None = None  # after the last encoded entry
        self._end: Cursor | None = None  # after the newest entry seen so far

    # -- state -------------------------------------------------------------------------------------

    @property
    def newest(self) -> int:
        """Number of the newest entry; 0: there is none."""
        cursor = self._end
        if cursor is None:
            if not self.find_oldest():
                return 0
            cursor = self._end = start_of(self.segments[0])
        for run in self.runs(cursor):
            cursor.go_behind(*run)
        return cursor.entry - 1

    def ends_at(self, entry: int) -> bool:
        """Whether there is no entry after this one now; False if a file cannot be read."""
        self.is_short = False
        return self.newest <= entry and not self.is_short

    @property
    def is_empty(self) -> bool:
        """Whether no entries are left; for dead processes."""
        return not self.find_oldest() and not self.is_short

    # -- packets -----------------------------------------------------------------------------------

    def packet_after(
        self, entry: int, min_samples: int, max_samples: int, max_bytes: int
    ) -> Gathered | None:
        """Gather the entries after this one, or after those that no longer exist; None if there are
        none.

        A packet contains no break except as its first entry. It ends at `max_bytes` if it has
        `min_samples`, and at 8 MiB in any case, unless `max_bytes` is larger.
        """
        cursor = self._find(entry)
        if cursor is None:
            return None
        largest_bytes = max(max_bytes, _LARGEST_BYTES)
        found = Gathered(cursor.entry, cursor)
        rows = found.rows
        for kind, at, size, count in self.runs(cursor):
            is_full = kind == STRUCTURE and rows.schema_bytes + size > MAX_SCHEMA_BYTES
            if (is_full or kind == BREAK) and cursor.entry > found.first:
                found.is_ended = True
                break
            if kind == STRUCTURE:
                rows.size_bytes += size  # it will be in the packet's head
            elif kind in (ROW, FREE_ROW):
                form = cursor.form
                assert form is not None
                # the packet's size in memory is limited, too
                weight = max(size, form.layout.memory(1) * largest_bytes * 2 // MAX_MEMORY_BYTES)
                room = -(-(max_bytes - rows.size_bytes) // weight)
                most = -(-(_LARGEST_BYTES - rows.size_bytes) // weight)
                room = max(room, min(min_samples - rows.samples, most))
                room = max(1, min(max_samples - rows.samples, room))
                found.is_ended = room <= count
                count = min(count, room)
                if kind == ROW:
                    data = cursor.segment.map
                    piece: Any = np.ndarray(count, form.fields, data, at + RECORD_BYTES, size)
                else:
                    piece = cursor.segment.content(at, size)
                rows.add(form, piece, count * weight, count)
            elif kind == REPORT:
                found.episodes.append(
                    (cursor.entry, _report_decoder.decode(cursor.segment.content(at, size)))
                )
                found.is_ended = len(found.episodes) == m.MAX_EPISODES
            cursor.go_behind(kind, at, size, count)
            if found.is_ended:
                break
        return found if cursor.entry > found.first else None

    def encode(self, found: Gathered, awaits: bool) -> bytes:
        """Encode a packet as a message; `awaits`: see `SamplePacket`, for a living process."""
        self._next = replace(found.next)
        return found.rows.message(
            self._compress,
            worker=self.worker,
            incarnation=self.incarnation,
            first=found.first,
            last=found.last,
            # stored entries are not sent again, although they may still exist
            oldest=self.stored + 1,
            breaks=found.next.breaks,
            episodes=tuple(found.episodes),
            awaits=awaits and not self.is_dead,
            epoch_s=0.0 if self.is_dead else self._epoch_s,
        )

    def _find(self, entry: int) -> Cursor | None:
        """Return the place of the first existing entry after this one; None if there is none."""
        if not self.find_oldest():
            return None
        entry = max(entry, self.stored)
        if self._next is not None and self._next.entry == entry + 1:
            return replace(self._next)
        segment = next(
            segment for segment in reversed(self.segments) if segment.words[FIRST] <= entry + 1
        )
        cursor = start_of(segment)
        for kind, at, size, count in self.runs(cursor):
            passed = count if kind == STRUCTURE else min(count, entry + 1 - cursor.entry)
            cursor.go_behind(kind, at, size, passed)
            if passed < count:
                return cursor
        return cursor if cursor.entry == entry + 1 else None

    # -- files -------------------------------------------------------------------------------------

    def find_oldest(self) -> bool:
        """Find the oldest segment if none is known; return whether there is one."""
        if not self.segments:
            self.is_short = False
            kept = []
            for path in segments_of(self._folder, self.incarnation):
                segment = self._map(file_of(path))
                if segment is not None and not segment.is_free:
                    kept.append(segment)
                elif segment is not None and self.is_dead:
                    self._remove(segment)
            if kept and not self.is_short:  # else the oldest is not known
                self.segments.append(min(kept, key=lambda segment: segment.words[NUMBER]))
        return bool(self.segments)

    def runs(self, cursor: Cursor) -> Iterator[tuple[int, int, int, int]]:
        """Yield runs as `Segment.runs` does, through all following segments; the caller moves the
        cursor.
        """
        while True:
            file = cursor.segment.words[NEXT]
            cursor.segment.order()  # END must be read after that
            yield from cursor.segment.runs(cursor.at, self.is_dead)
            following = self._following(cursor, file) if file else None
            if following is None:
                return
            cursor.segment, cursor.at, cursor.form = following, HEAD_BYTES, None

    def _following(self, cursor: Cursor, file: int) -> Segment | None:
        """Return the segment in this file, which follows the one at `cursor`; None if it cannot be
        read now, or not at all.
        """
        segment = self._map(file)
        if (
            segment is None
            or segment.words[NUMBER] != cursor.segment.words[NUMBER] + 1
            or segment.words[FIRST] != cursor.entry
        ):
            if self.is_dead and not self.is_short:
                self._say(
                    f"{self._folder}: a power cut has damaged what process {self.incarnation:x} "
                    f"wrote behind entry {cursor.entry - 1}"
                )
            return None
        if segment not in self.segments:
            self.segments.append(segment)
        return segment

    def _map(self, file: int) -> Segment | None:
        """Map a file of this process.

        Returns None if the file is gone, is cut off, was just created, belongs to another process
        after a power cut, or if descriptors or memory are lacking.
        """
        if file not in self._mapped:
            for gone in [number for number, one in self._mapped.items() if one.is_removed]:
                self._mapped.pop(gone).remove()
            try:
                segment = Segment(path_of(self._folder, self.incarnation, file))
            except (FileNotFoundError, ValueError):
                return None
            except OSError as error:
                self.is_short = True
                self._say(
                    f"cannot read the samples in {self._folder}: {error.strerror or error}; trying "
                    "again"
                )
                return None
            never_filled = self.is_dead and not segment.words[NUMBER]
            if segment.words[INCARNATION] != self.incarnation and not never_filled:
                segment.close()
                return None
            self._mapped[file] = segment
        return self._mapped[file]

    def _say(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            log.error("%s", line)

    # -- notes in the segments ---------------------------------------------------------------------

    @property
    def stored(self) -> int:
        """The entry up to which this process and earlier ones have noted entries as stored."""
        if self.find_oldest():
            words = self.segments[0].words
            self._stored = max(self._stored, words[FIRST] - 1, words[STORED])
        return self._stored

    @property
    def lost_samples(self) -> int:
        """Number of samples that no segment had room for."""
        there = self.segments[-1].words[LOST] if self.segments else 0
        return max(self._lost_before, there)

    # -- freeing -----------------------------------------------------------------------------------

    def forget(self, entry: int) -> None:
        """Note that entries up to this one are stored; free the segments that hold no others."""
        self._stored = max(self.stored, entry)
        while len(self.segments) > 1 and self.segments[1].words[FIRST] <= self._stored + 1:
            self._free_oldest()
        if self.segments:
            self.segments[0].words[STORED] = self._stored
        while self.is_dead and self.segments and self.ends_at(self.stored):
            self.remove_all()  # further segments may follow a damaged one

    def remove_all(self) -> None:
        """Remove the known segments of a dead process, which follow each other, and continue with
        any others.
        """
        self._lost_before = self.lost_samples
        while self.segments:
            self._free_oldest()
        self.find_oldest()

    def _free_oldest(self) -> None:
        """Free the oldest segment to be filled again; remove it if its process is dead."""
        segment = self.segments.popleft()
        if self._next is not None and self._next.segment is segment:
            self._next = None
        if self._end is not None and self._end.segment is segment:
            self._end = None
        if self.is_dead:
            self._remove(segment)
        else:
            segment.order()
            segment.words[FREED] = segment.words[NUMBER]

    def _remove(self, segment: Segment) -> None:
        del self._mapped[segment.file]
        segment.words[FREED] = segment.words[NUMBER]  # in case the file cannot be removed now
        segment.remove()

    def close(self, remove: bool = False) -> None:
        """Unmap the files; `remove`: delete them as well. Calling it twice is fine."""
        self._next = self._end = None
        self.segments.clear()
        for segment in self._mapped.values():
            segment.close()
        self._mapped.clear()
        if remove:
            for path in segments_of(self._folder, self.incarnation):
                with contextlib.suppress(OSError):  # the next process tries again
                    path.unlink()
