"""What a control loop has appended, read by number: any entries that are still there, as a packet,
as often as wanted.

Nothing is kept here but where the next entry lies. The entries stay in the files until the trainer
has stored them.
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
from tmrl_like.wire.packet import Compressor, PacketRows, encode_rows
from tmrl_like.wire.rows import RowColumns, RowFormat

_report_decoder = msgspec.msgpack.Decoder(EpisodeStats)


@dataclass(slots=True)
class Gathered:
    """Entries that make a packet, not encoded yet: views of the files.

    Attributes:
        first: number of the first one.
        next: where what follows lies.
        is_ended: nothing can be added: a limit is reached, or a break follows.
    """

    first: int
    next: Cursor
    # of one format that follow each other
    rows: list[tuple[RowFormat, list[Any]]] = field(default_factory=list)
    episodes: list[tuple[int, EpisodeStats]] = field(default_factory=list)
    samples: int = 0
    size_bytes: int = 0
    is_ended: bool = False

    @property
    def last(self) -> int:
        return self.next.entry - 1


class Source:
    """The entries of one control loop.

    Attributes:
        worker: its worker's name.
        incarnation: names the entries.
        is_dead: they are of a process that has ended.
    """

    def __init__(self, folder: Path, worker: str, incarnation: int, is_dead: bool = False) -> None:
        """Begin with the oldest entry that is there."""
        self.worker, self.incarnation = worker, incarnation
        self.is_dead = is_dead
        self._chain = SegmentChain(folder, incarnation, is_dead)
        self._compress = Compressor()
        self._next: Cursor | None = None  # behind what was encoded last
        self._end: Cursor | None = None  # behind the newest entry that was seen

    # -- how far it is -----------------------------------------------------------------------------

    @property
    def stored(self) -> int:
        """Entries up to this one are stored, as far as this process and those before it have noted,
        or given up.
        """
        return self._chain.stored

    @property
    def newest(self) -> int:
        """The newest entry that is there."""
        cursor = self._end
        if cursor is None:
            if not self._chain.find_oldest():
                return 0
            cursor = self._end = start_of(self._chain.segments[0])
        for run in self._chain.runs(cursor):
            cursor.go_behind(*run)
        return cursor.entry - 1

    def ends_at(self, entry: int) -> bool:
        """Whether nothing comes behind this entry, as long as nothing is appended."""
        self._chain.is_short = False
        return self.newest <= entry and not self._chain.is_short

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left of a process that is dead."""
        return not self._chain.find_oldest() and not self._chain.is_short

    @property
    def size_bytes(self) -> int:
        """Of the files with entries that are not stored."""
        return sum(segment.size_bytes for segment in self._chain.segments) if self.newest else 0

    @property
    def lost_samples(self) -> int:
        """Samples that no file had room for, or that were given up here."""
        return self._chain.lost_samples

    # -- packets -----------------------------------------------------------------------------------

    def packet_after(
        self, entry: int, min_samples: int, max_samples: int, max_bytes: int
    ) -> Gathered | None:
        """The entries behind this one, or behind those that are not there any more; None: there are
        none.

        A packet begins with a break, or has none. It ends at `max_bytes` where it has
        `min_samples`.
        """
        cursor = self._find(entry)
        if cursor is None:
            return None
        found = Gathered(cursor.entry, cursor)
        for kind, at, size, count in self._chain.runs(cursor):
            if kind == BREAK and cursor.entry > found.first:
                found.is_ended = True
                break
            if kind == STRUCTURE:
                found.size_bytes += size  # the packet has it in its head
            elif kind in (ROW, FREE_ROW):
                assert cursor.form is not None
                # a packet's memory has a limit, too
                weight = max(size, cursor.form.layout.memory(1) // 16)
                room = -(-(max_bytes - found.size_bytes) // weight)
                room = max(
                    1, min(max_samples - found.samples, max(room, min_samples - found.samples))
                )
                found.is_ended = room <= count
                count = min(count, room)
                found.size_bytes += count * weight
                self._add_rows(found, kind, at, size, count)
            elif kind == REPORT:
                found.episodes.append(
                    (cursor.entry, _report_decoder.decode(cursor.segment.content(at, size)))
                )
                found.is_ended = len(found.episodes) == m.MAX_EPISODES
            cursor.go_behind(kind, at, size, count)
            if found.is_ended:
                break
        return found if cursor.entry > found.first else None

    def _add_rows(self, found: Gathered, kind: int, at: int, size: int, count: int) -> None:
        cursor = found.next
        form = cursor.form
        assert form is not None
        if not found.rows or found.rows[-1][0] is not form:
            found.rows.append((form, []))
        if kind == ROW:
            piece: Any = np.ndarray(count, form.fields, cursor.segment.map, at + RECORD_BYTES, size)
        else:
            piece = cursor.segment.content(at, size)
        found.rows[-1][1].append(piece)
        found.samples += count

    def encode(self, found: Gathered, awaits: bool = False, epoch_s: float = 0.0) -> bytes:
        """The message of a packet; `awaits` and `epoch_s` as in `SamplePacket`."""
        self._next = replace(found.next)
        return encode_rows(
            PacketRows([RowColumns(form, pieces) for form, pieces in found.rows]),
            self._compress,
            worker=self.worker,
            incarnation=self.incarnation,
            first=found.first,
            last=found.last,
            # what is stored is not sent again, though it may still be there
            oldest=self.stored + 1,
            breaks=found.next.breaks,
            episodes=tuple(found.episodes),
            lost_samples=self.lost_samples,
            awaits=awaits,
            epoch_s=epoch_s,
        )

    def _find(self, entry: int) -> Cursor | None:
        """Where what follows this entry lies, or what is left of it; None: it is not there."""
        if not self._chain.find_oldest():
            return None
        entry = max(entry, self.stored)
        if self._next is not None and self._next.entry == entry + 1:
            return replace(self._next)
        segment = next(
            segment
            for segment in reversed(self._chain.segments)
            if segment.words[FIRST] <= entry + 1
        )
        cursor = start_of(segment)
        for kind, at, size, count in self._chain.runs(cursor):
            passed = count if kind == STRUCTURE else min(count, entry + 1 - cursor.entry)
            cursor.go_behind(kind, at, size, passed)
            if passed < count:
                return cursor
        return cursor if cursor.entry == entry + 1 else None

    # -- what is not needed any more ---------------------------------------------------------------

    def forget(self, entry: int) -> None:
        """Entries up to this one are stored."""
        chain = self._chain
        chain.note_stored(entry)
        self._forget_places()
        while chain.is_dead and chain.segments and self.ends_at(max(entry, self.stored)):
            chain.remove_all()  # others may lie behind what is damaged
            self._forget_places()

    def drop_oldest(self, max_bytes: int, received: int) -> int:
        """Give up the oldest files until no more than this is kept; how many samples behind
        `received` were lost.
        """
        lost = 0
        while self.size_bytes > max_bytes and len(self._chain.segments) > 1:
            given_up = self._samples_behind(received)
            self._chain.give_up_oldest(given_up)
            self._forget_places()
            lost += given_up
        return lost

    def _samples_behind(self, entry: int) -> int:
        """How many samples of the oldest file come behind an entry."""
        oldest, samples = self._chain.segments[0], 0
        next_entry = oldest.words[FIRST]
        for kind, _, _, count in oldest.runs(HEAD_BYTES, self._chain.is_dead):
            if kind != STRUCTURE:
                next_entry += count
            if kind in (ROW, FREE_ROW):
                samples += max(0, min(count, next_entry - 1 - entry))
        return samples

    def _forget_places(self) -> None:
        """Those in files that are given back."""
        if self._next is not None and self._next.segment not in self._chain.segments:
            self._next = None
        if self._end is not None and self._end.segment not in self._chain.segments:
            self._end = None

    def close(self, remove: bool = False) -> None:
        """Unmap the files; `remove`: none of them is needed any more. Twice is fine."""
        self._next = self._end = None
        self._chain.close(remove)
