"""The files of one control loop that hold entries not stored yet, in the order in which they were
filled.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tmrl_like.delivery.segments import (
    BREAK,
    BREAKS,
    DROPPED,
    FIRST,
    FREED,
    HEAD_BYTES,
    INCARNATION,
    LOST,
    NEXT,
    NUMBER,
    STORED,
    STRUCTURE,
    Segment,
    file_of,
    padded,
    path_of,
    segments_of,
)
from tmrl_like.wire.rows import RowFormat, format_for
from tmrl_like.wire.schema import Node

log = logging.getLogger("tmrl_like.delivery")

_structure_decoder: msgspec.msgpack.Decoder[Node] = msgspec.msgpack.Decoder(Node)


@dataclass(slots=True)
class Cursor:
    """The place of an entry that exists, or of the next one to come."""

    segment: Segment
    at: int
    entry: int
    breaks: int  # number of breaks before it
    form: RowFormat | None = None  # of the rows at this place

    def enter(self, segment: Segment) -> None:
        """Go to the start of the following segment."""
        self.segment, self.at, self.form = segment, HEAD_BYTES, None

    def go_behind(self, kind: int, at: int, size: int, count: int) -> None:
        """Advance past the first `count` of the records at this place, as `SegmentChain.runs`
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


class SegmentChain:
    """Maps the files of one control loop, and frees them when they are no longer needed.

    Attributes:
        incarnation: the incarnation of their entries.
        is_dead: whether their process has ended. A power cut may have damaged what it wrote last,
            which is then left out.
        is_short: whether a file could not be read at the last attempt, because descriptors or
            memory were lacking.
        segments: the segments known so far, oldest first.
    """

    def __init__(self, folder: Path, incarnation: int, is_dead: bool) -> None:
        """Prepare the chain, without mapping a file yet."""
        self.incarnation, self.is_dead = incarnation, is_dead
        self.is_short = False
        self.segments: deque[Segment] = deque()
        self._folder = folder
        self._mapped: dict[int, Segment] = {}  # by file
        self._lost_before = 0  # lost samples according to segments that were removed
        self._said: set[str] = set()

    # -- reading -----------------------------------------------------------------------------------

    def find_oldest(self) -> bool:
        """Find the oldest segment if none is known; return whether there is one."""
        if not self.segments:
            self.is_short = False
            found = [
                self._map(file_of(path)) for path in segments_of(self._folder, self.incarnation)
            ]
            kept = [segment for segment in found if segment is not None and not segment.is_free]
            if not self.is_short:  # else the oldest is not known
                self.segments.extend(sorted(kept, key=lambda segment: segment.words[NUMBER])[:1])
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
            cursor.enter(following)

    def _following(self, cursor: Cursor, file: int) -> Segment | None:
        """Return the segment in this file, which follows the one at `cursor`; None if it cannot be
        read now, or not at all.
        """
        number = cursor.segment.words[NUMBER] + 1
        known = next(
            (segment for segment in self.segments if segment.words[NUMBER] == number), None
        )
        if known is not None and known.words[FIRST] == cursor.entry:
            return known
        segment = self._map(file)
        if (
            segment is None
            or segment.words[NUMBER] != number
            or segment.words[FIRST] != cursor.entry
        ):
            if self.is_dead and not self.is_short:
                line = (
                    f"{self._folder}: a power cut has damaged what process {self.incarnation:x} "
                    "wrote behind entry "
                )
                self._say(f"{line}{cursor.entry - 1}")
            return None
        self.segments.append(segment)
        return segment

    def _map(self, file: int) -> Segment | None:
        """Map a file of this process.

        Returns None if the file is gone, was just created, belongs to another process after a power
        cut, or if descriptors or memory are lacking.
        """
        if file not in self._mapped:
            for gone in [
                number for number, segment in self._mapped.items() if not segment.path.exists()
            ]:
                self._mapped.pop(gone).close()
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
            if segment.words[INCARNATION] != self.incarnation:
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
        """The entry up to which this process and earlier ones have noted entries as stored, or have
        given them up.
        """
        if not self.find_oldest():
            return 0
        words = self.segments[0].words
        return max(words[FIRST] - 1, words[STORED])

    def note_stored(self, entry: int) -> None:
        """Note that entries up to this one are stored; free the segments that hold no others."""
        while len(self.segments) > 1 and self.segments[1].words[FIRST] <= entry + 1:
            self.free_oldest()
        if self.segments:
            words = self.segments[0].words
            words[STORED] = max(words[STORED], entry)  # it may not have been readable at first

    @property
    def lost_samples(self) -> int:
        """Number of samples that no segment had room for, or that were given up."""
        there = (
            self.segments[-1].words[LOST] + self.segments[0].words[DROPPED] if self.segments else 0
        )
        return max(self._lost_before, there)

    # -- freeing -----------------------------------------------------------------------------------

    def free_oldest(self) -> None:
        """Free the oldest segment to be filled again; remove it if its process is dead."""
        segment, second = self.segments.popleft(), self.segments[0]
        second.words[DROPPED] = max(second.words[DROPPED], segment.words[DROPPED])
        if self.is_dead:
            self._remove(segment)
        else:
            segment.order()
            segment.words[FREED] = segment.words[NUMBER]

    def remove_all(self) -> None:
        """Remove the known segments, which follow each other, and continue with any others."""
        self._lost_before = self.lost_samples
        while self.segments:
            self._remove(self.segments.popleft())
        self.find_oldest()

    def _remove(self, segment: Segment) -> None:
        del self._mapped[segment.file]
        segment.words[FREED] = segment.words[NUMBER]  # in case the file cannot be removed now
        segment.remove()

    def close(self, remove: bool = False) -> None:
        """Unmap the files; `remove`: delete them as well. Calling it twice is fine."""
        self.segments.clear()
        for segment in self._mapped.values():
            segment.close()
        self._mapped.clear()
        if remove:
            for path in segments_of(self._folder, self.incarnation):
                with contextlib.suppress(OSError):  # the next process tries again
                    path.unlink()
