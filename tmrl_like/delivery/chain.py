"""The files of one control loop that hold entries which are not stored, in the order in which they
were filled.
"""

from __future__ import annotations

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
    """Where an entry lies, or will lie."""

    segment: Segment
    at: int
    entry: int
    breaks: int  # before it
    form: RowFormat | None = None  # of the rows there

    def enter(self, segment: Segment) -> None:
        """Go to the start of the segment that follows."""
        self.segment, self.at, self.form = segment, HEAD_BYTES, None

    def go_behind(self, kind: int, at: int, size: int, count: int) -> None:
        """Go behind the first `count` of the records that lie here, as `SegmentChain.runs` yields
        them.
        """
        self.at = at + count * padded(size)
        if kind == STRUCTURE:
            self.form = format_for(_structure_decoder.decode(self.segment.content(at, size)))
        else:
            self.entry += count
        if kind == BREAK:
            self.breaks += count


def start_of(segment: Segment) -> Cursor:
    """A cursor at its first entry."""
    return Cursor(segment, HEAD_BYTES, segment.words[FIRST], segment.words[BREAKS])


class SegmentChain:
    """Maps the files of one control loop, and gives them back when nobody needs them.

    Attributes:
        is_dead: their process has ended, and a power cut may have damaged what it wrote last: that
            is left out.
        is_short: a file could not be read for want of descriptors or memory, when it was looked for
            last.
        segments: those that are known, oldest first.
    """

    def __init__(self, folder: Path, incarnation: int, is_dead: bool) -> None:
        """Nothing is mapped yet."""
        self.is_dead = is_dead
        self.is_short = False
        self.segments: deque[Segment] = deque()
        self._folder, self._incarnation = folder, incarnation
        self._mapped: dict[int, Segment] = {}  # by file
        self._lost_before = 0  # as the segments said that are removed
        self._said: set[str] = set()

    # -- the way forward ---------------------------------------------------------------------------

    def find_oldest(self) -> bool:
        """Whether there is a segment to begin with."""
        if not self.segments:
            self.is_short = False
            found = [
                self._map(file_of(path)) for path in segments_of(self._folder, self._incarnation)
            ]
            kept = [segment for segment in found if segment is not None and not segment.is_free]
            if not self.is_short:  # else the oldest is not known
                self.segments.extend(sorted(kept, key=lambda segment: segment.words[NUMBER])[:1])
        return bool(self.segments)

    def runs(self, cursor: Cursor) -> Iterator[tuple[int, int, int, int]]:
        """Yield what `Segment.runs` does, from a cursor on that the caller moves; through the
        segments that follow.
        """
        while True:
            file = cursor.segment.words[NEXT]
            cursor.segment.order()  # END is looked at after that
            yield from cursor.segment.runs(cursor.at, self.is_dead)
            following = self._following(cursor, file) if file else None
            if following is None:
                return
            cursor.enter(following)

    def _following(self, cursor: Cursor, file: int) -> Segment | None:
        """The segment that is filled after the one at `cursor`, in this file; None: not now, or
        never.
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
                    f"{self._folder}: a power cut has damaged what process {self._incarnation:x} "
                    "wrote behind entry "
                )
                self._say(f"{line}{cursor.entry - 1}")
            return None
        self.segments.append(segment)
        return segment

    def _map(self, file: int) -> Segment | None:
        """A file of this process; None: it is gone, just made, after a power cut another one's, or
        there is no room.
        """
        if file not in self._mapped:
            for gone in [
                number for number, segment in self._mapped.items() if not segment.path.exists()
            ]:
                self._mapped.pop(gone).close()
            try:
                segment = Segment(path_of(self._folder, self._incarnation, file))
            except (FileNotFoundError, ValueError):
                return None
            except OSError as error:
                self.is_short = True
                self._say(
                    f"cannot read the samples in {self._folder}: {error.strerror or error}; trying "
                    "again"
                )
                return None
            if not segment.is_begun or segment.words[INCARNATION] != self._incarnation:
                segment.close()
                return None
            self._mapped[file] = segment
        return self._mapped[file]

    def _say(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            log.error("%s", line)

    # -- what is noted in it -----------------------------------------------------------------------

    @property
    def stored(self) -> int:
        """Entries up to this one are stored, as far as this process and those before it have noted,
        or given up.
        """
        if not self.find_oldest():
            return 0
        words = self.segments[0].words
        return max(words[FIRST] - 1, words[STORED])

    def note_stored(self, entry: int) -> None:
        """Entries up to this one are stored: segments that hold no others may be filled again."""
        while len(self.segments) > 1 and self.segments[1].words[FIRST] <= entry + 1:
            self.free_oldest()
        if self.segments:
            self.segments[0].words[STORED] = entry

    @property
    def lost_samples(self) -> int:
        """Samples that no segment had room for, or that were given up."""
        there = (
            self.segments[-1].words[LOST] + self.segments[0].words[DROPPED] if self.segments else 0
        )
        return max(self._lost_before, there)

    # -- what is not needed any more ---------------------------------------------------------------

    def give_up_oldest(self, samples: int) -> None:
        """Let the oldest be filled again, though so many samples in it were not received."""
        self.segments[1].words[DROPPED] = self.segments[0].words[DROPPED] + samples
        self.free_oldest()

    def free_oldest(self) -> None:
        """Let the oldest be filled again; what a dead process has left is removed."""
        segment, second = self.segments.popleft(), self.segments[0]
        second.words[DROPPED] = max(second.words[DROPPED], segment.words[DROPPED])
        if self.is_dead:
            self._remove(segment)
        else:
            segment.order()
            segment.words[FREED] = segment.words[NUMBER]

    def remove_all(self) -> None:
        """Remove the segments that follow each other, and begin with what is left."""
        self._lost_before = self.lost_samples
        while self.segments:
            self._remove(self.segments.popleft())
        self.find_oldest()

    def _remove(self, segment: Segment) -> None:
        del self._mapped[segment.file]
        segment.remove()

    def close(self, remove: bool = False) -> None:
        """Unmap the files; `remove`: none of them is needed any more. Twice is fine."""
        self.segments.clear()
        for segment in self._mapped.values():
            segment.close()
        self._mapped.clear()
        if remove:
            for path in segments_of(self._folder, self._incarnation):
                path.unlink(missing_ok=True)
