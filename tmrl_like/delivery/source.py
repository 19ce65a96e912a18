"""Reads a control loop's entries by number: any that still exist, as a packet, as often as needed.

Only the place of the next entry is kept here. The entries stay in the files until the trainer has
stored them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tmrl_like.delivery.chain import Cursor, SegmentChain, start_of
from tmrl_like.delivery.segments import (
    BREAK,
    DROPPED,
    FIRST,
    FREE_ROW,
    HEAD_BYTES,
    RECORD_BYTES,
    REPORT,
    ROW,
    STRUCTURE,
)
from tmrl_like.types import EpisodeStats
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import Compressor, PacketWriter

_LARGEST_BYTES = 8 << 20  # a minimum of samples makes no packet larger than this
_report_decoder = msgspec.msgpack.Decoder(EpisodeStats)


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


class Source(SegmentChain):
    """The entries of one control loop.

    Attributes:
        worker: the worker's name.
    """

    def __init__(self, folder: Path, worker: str, incarnation: int, is_dead: bool = False) -> None:
        """Begin with the oldest entry that still exists."""
        super().__init__(folder, incarnation, is_dead)
        self.worker = worker
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

    @property
    def size_bytes(self) -> int:
        """Total size of the files with entries that are not stored."""
        return sum(segment.size_bytes for segment in self.segments) if self.newest else 0

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
        found = Gathered(cursor.entry, cursor)
        rows = found.rows
        for kind, at, size, count in self.runs(cursor):
            if kind == BREAK and cursor.entry > found.first:
                found.is_ended = True
                break
            if kind == STRUCTURE:
                rows.size_bytes += size  # it will be in the packet's head
            elif kind in (ROW, FREE_ROW):
                form = cursor.form
                assert form is not None
                # the packet's size in memory is limited, too
                weight = max(size, form.layout.memory(1) // 16)
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

    def encode(self, found: Gathered, awaits: bool = False, epoch_s: float = 0.0) -> bytes:
        """Encode a packet as a message; `awaits` and `epoch_s`: see `SamplePacket`."""
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
            awaits=awaits,
            epoch_s=epoch_s,
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

    # -- freeing -----------------------------------------------------------------------------------

    def forget(self, entry: int) -> None:
        """Forget the entries up to this one, which are stored."""
        self.note_stored(entry)
        self._forget_places()
        while self.is_dead and self.segments and self.ends_at(max(entry, self.stored)):
            self.remove_all()  # further segments may follow a damaged one
            self._forget_places()

    def drop_oldest(self, max_bytes: int, received: int) -> int:
        """Give up the oldest files until at most `max_bytes` are kept; return how many samples
        after `received` were lost.
        """
        lost = 0
        while self.size_bytes > max_bytes and len(self.segments) > 1:
            given_up = self._samples_behind(received)
            self.segments[1].words[DROPPED] = self.segments[0].words[DROPPED] + given_up
            self.free_oldest()
            self._forget_places()
            lost += given_up
        return lost

    def _samples_behind(self, entry: int) -> int:
        """Return how many samples of the oldest file come after an entry."""
        oldest, samples = self.segments[0], 0
        next_entry = oldest.words[FIRST]
        for kind, _, _, count in oldest.runs(HEAD_BYTES, self.is_dead):
            if kind != STRUCTURE:
                next_entry += count
            if kind in (ROW, FREE_ROW):
                samples += max(0, min(count, next_entry - 1 - entry))
        return samples

    def _forget_places(self) -> None:
        """Forget places in files that were freed."""
        if self._next is not None and self._next.segment not in self.segments:
            self._next = None
        if self._end is not None and self._end.segment not in self.segments:
            self._end = None

    def close(self, remove: bool = False) -> None:
        """Unmap the files; `remove`: delete them as well. Calling it twice is fine."""
        self._next = self._end = None
        super().close(remove)
