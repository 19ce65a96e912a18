"""Packets out of a sample log: which samples go together, and what is in the files after a kill.

Where a packet ends is decided here, and written into the record that it ends with *before* the packet is sealed. So a
reader that is killed at any point leaves its successor with the same packets, under the same names.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.delivery.segments import (
    BREAK,
    BREAKS,
    DROPPED,
    END,
    FREE_ROW,
    FREED,
    HEAD_BYTES,
    INCARNATION,
    LOST,
    NEXT,
    NUMBER,
    RECORD_BYTES,
    REPORT,
    RESUME,
    ROW,
    SAMPLES,
    SEAL,
    SEALED,
    STRUCTURE,
    Segment,
    Structure,
    padded,
    path_of,
    segments_in,
)
from tmrl_like.types import EpisodeStats, Receipt
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import Compressor, PacketRows
from tmrl_like.wire.records import packet_pieces
from tmrl_like.wire.rows import RowColumns, RowFormat, format_for

log = logging.getLogger("tmrl_like.delivery")

_ENDS = 1_000  # of the newest packets are known
_LATE = 1 << 63  # in a mark: it was made when the process had ended

_structure_decoder = msgspec.msgpack.Decoder(Structure)
_report_decoder = msgspec.msgpack.Decoder(EpisodeStats)


class _DamagedError(Exception):
    """What comes next cannot be read, after a power cut."""


Keep = Callable[[int, int, tuple[bytes, ...]], None]
"""Takes a packet that was sealed: its sequence, how many samples, its record in pieces."""


class SampleReader:
    """Reads the samples of one worker process, and seals packets.

    Attributes:
        incarnation: of that process.
        sequence: of the newest packet.
        samples: of that process, up to where it has read.
        dropped_samples: what the readers before this one noted last.
    """

    def __init__(
        self,
        folder: Path,
        name: tuple[str, int],
        options: OutboxOptions,
        keep: Keep,
        kept_up_to: int = 0,
        is_dead: bool = False,
    ) -> None:
        """Go on where a reader before this one ended.

        Args:
            folder: where the files are.
            name: worker and incarnation.
            options: when a packet leaves.
            keep: takes what is sealed.
            kept_up_to: packets up to this one are kept already.
            is_dead: the process has ended; what a power cut has damaged ends the samples.
        """
        self.worker, self.incarnation = name
        self.sequence = self.samples = self.dropped_samples = 0
        self._ends: deque[tuple[int, int]] = deque(maxlen=_ENDS)  # of packets: sequence, and samples up to there
        self._folder = folder
        self._options = options
        self._full_at = max(options.max_samples, options.min_samples)
        self._keep = keep
        self._kept_up_to = kept_up_to
        self._is_dead = is_dead
        self._compress = Compressor()
        self._now = 0.0
        self._mapped: dict[int, Segment] = {}
        self._shortages = 0  # of descriptors or memory, when a file was to be mapped
        self._segment: Segment | None = None
        self._at = HEAD_BYTES
        self._answered = 0  # the newest request in the segment that the packet shall leave
        self._resume = 0  # of a dead process: what lies before that in the first segment is in sealed packets
        self._late = 0  # packets that ended when the process had
        self._marks = 0  # ahead: what comes until there are none lies as the reader before this one decided
        self._format: RowFormat | None = None
        self._breaks = 0
        self._begin_packet()

    def _begin_packet(self) -> None:
        self._runs: list[tuple[RowFormat, list[Any]]] = []  # rows of one format that follow each other, in pieces
        self._episodes: list[EpisodeStats] = []
        self._samples = self._size_bytes = 0
        self._started_at = self._now
        self._newest: tuple[Segment, int] | None = None  # where the newest sample or report lies
        self._passed: list[Segment] = []  # that were read whole, and hold something of this packet

    @property
    def lost_samples(self) -> int:
        """Those that the process had no room for."""
        return self._segment.words[LOST] if self._segment is not None else 0

    def note_dropped(self, samples: int) -> None:
        """Leave `dropped_samples` to the reader after this one."""
        if self._segment is not None:
            self._segment.words[DROPPED] = samples

    def samples_up_to(self, sequence: int) -> int:
        """How many samples of the process are in packets up to this one; 0: not known any more. It only grows."""
        samples = 0
        while self._ends and self._ends[0][0] <= sequence:
            samples = self._ends.popleft()[1]
        return samples

    @property
    def has_unread(self) -> bool:
        """Whether something waits that was written, or asked for, since it was last read."""
        segment = self._segment
        return segment is not None and (segment.words[END] != self._at or segment.words[SEAL] != self._answered)

    def read(self, now: float, seal: bool = False) -> None:
        """Take what was written, and seal what shall leave: all of it, if `seal`; `now` in seconds, from any moment."""
        self._now = now
        if self._segment is None and not self.begin():
            return
        try:
            if self._is_dead and not self._resume:
                raise _DamagedError
            while self._read_segment():
                pass
        except _DamagedError:
            self._begin_packet()
            line = "%s: a power cut has damaged what process %d wrote behind packet %d"
            log.error(line, self._folder, self.incarnation, self.sequence)
        is_old = self._samples >= self._options.min_samples and now - self._started_at >= self._options.max_age_s
        if not self._marks and (seal or is_old):
            self._finish()

    def begin(self) -> bool:
        """Find the oldest segment that is not free; False: there is none yet."""
        shortages = self._shortages
        mapped = [self._map(int(path.stem)) for path in segments_in(self._folder)]
        found = [segment for segment in mapped if segment is not None and not segment.is_free]
        if not found or self._shortages > shortages:  # without one of them the marks would not be all there are
            return False
        oldest = min(found, key=lambda segment: segment.words[NUMBER])
        self._enter(oldest)
        self.sequence, self.samples = oldest.words[SEALED], oldest.words[SAMPLES]
        self._breaks = oldest.words[BREAKS]
        following: Segment | None = oldest
        if self._is_dead:
            self._resume = oldest.words[RESUME]
        start = max(HEAD_BYTES, self._resume)
        while following is not None:
            following = self._count_marks(following, start)
            start = HEAD_BYTES
        return True

    def _map(self, file: int) -> Segment | None:
        """A file of this process."""
        if file not in self._mapped:
            for gone in [number for number, segment in self._mapped.items() if not segment.path.exists()]:
                self._mapped.pop(gone).close()
            try:
                segment = Segment(path_of(self._folder, file))
            except (FileNotFoundError, ValueError):  # gone, or just made
                return None
            except OSError as error:
                if not self._shortages:
                    log.error("cannot read the samples in %s: %s; trying again", self._folder, error.strerror or error)
                self._shortages += 1
                return None
            if not segment.is_begun or segment.words[INCARNATION] != self.incarnation:
                segment.close()
                return None
            self._mapped[file] = segment
        return self._mapped[file]

    def _following(self, segment: Segment, at: int, size: int) -> Segment | None:
        """The segment that is named there; another one may be in its place after a power cut."""
        following = self._map(int.from_bytes(segment.content(at, size), "little"))
        is_next = following is not None and following.words[NUMBER] == segment.words[NUMBER] + 1
        return following if is_next else None

    def _count_marks(self, segment: Segment, start: int) -> Segment | None:
        """Returns the segment that follows."""
        self.dropped_samples = max(self.dropped_samples, segment.words[DROPPED])
        for kind, at, size, count in segment.runs(start, segment.words[END], self._is_dead):
            if kind == NEXT:
                return self._following(segment, at, size)
            if kind in (ROW, FREE_ROW, REPORT):
                self._marks += int(np.count_nonzero(_marks(segment, at, size, count)))
        return None

    def _enter(self, segment: Segment) -> None:
        self._segment, self._resume = segment, 0
        self._at, self._answered = HEAD_BYTES, 0

    def _read_segment(self) -> bool:
        """Returns whether another segment follows."""
        segment = self._segment
        assert segment is not None
        asked, end = segment.words[SEAL], segment.words[END]
        segment.release()
        segment.acquire()
        following = None
        for kind, at, size, count in segment.runs(self._at, end, self._is_dead):
            if kind == NEXT:
                following = self._following(segment, at, size)
                if following is None:  # not now
                    break
            elif kind in (ROW, FREE_ROW):
                self._take_rows(segment, kind, at, size, count)
            elif kind == STRUCTURE:
                self._format = format_for(_structure_decoder.decode(segment.content(at, size)).schema)
            elif kind == REPORT:
                self._take_report(segment, at, size)
            elif kind == BREAK:
                self._finish()
                self._breaks += 1
            self._at = at + count * padded(size)
        if asked != self._answered and not self._marks:
            if not self._is_dead:  # else it may have left before that: all that can be is in this packet
                self._finish()
            self._answered = asked
        if following is not None:
            self._pass(segment, following)
        return following is not None

    def _take_rows(self, segment: Segment, kind: int, at: int, size: int, count: int) -> None:
        form = self._format
        assert form is not None
        passed = min(count, max(0, self._resume - at) // size)
        self.samples += passed
        at += passed * size
        count -= passed
        while count:
            rows = self._rows_until_full(segment, at, size, count)
            taken = min(rows, count)
            if not self._runs or self._runs[-1][0] is not form:
                self._runs.append((form, []))
            if kind == ROW:
                piece: Any = np.ndarray(taken, form.fields, segment.map, at + RECORD_BYTES, size)
            else:
                piece = segment.content(at, size)
            self._runs[-1][1].append(piece)
            self._note(segment, at + (taken - 1) * size)
            self._samples += taken
            self.samples += taken
            self._size_bytes += taken * (size - RECORD_BYTES)
            if taken == rows:
                self._finish()
            at += taken * size
            count -= taken

    def _rows_until_full(self, segment: Segment, at: int, size: int, count: int) -> int:
        """After how many more of these rows the packet ends."""
        if self._marks:
            marked = np.flatnonzero(_marks(segment, at, size, count))
            return int(marked[0]) + 1 if len(marked) else count + 1
        options = self._options
        rows = -(-(options.max_packet_bytes - self._size_bytes) // (size - RECORD_BYTES))
        return max(1, min(self._full_at - self._samples, max(rows, options.min_samples - self._samples)))

    def _take_report(self, segment: Segment, at: int, size: int) -> None:
        if at < self._resume:
            return
        self._episodes.append(_report_decoder.decode(segment.content(at, size)))
        self._note(segment, at)
        if self._marks:
            is_last = segment.words[at >> 3] > 0
        else:
            waits = 0 < self._samples < self._options.min_samples
            is_last = len(self._episodes) >= m.MAX_EPISODES or not waits
        if is_last:
            self._finish()

    def _note(self, segment: Segment, at: int) -> None:
        if self._newest is None:
            self._started_at = self._now
        self._newest = segment, at

    def _finish(self) -> None:
        """End the packet, if there is anything in it, with what was read last."""
        if self._newest is None:
            return
        segment, at = self._newest
        mark, expected = segment.words[at >> 3], self.sequence + 1
        is_late = mark >= _LATE
        mark &= ~_LATE
        if mark:
            self._marks -= 1
            if self._is_dead and mark != expected:
                raise _DamagedError
        else:
            is_late = self._is_dead
            segment.words[at >> 3] = expected | _LATE * is_late
        self._late += is_late
        self.sequence = mark or expected
        self._ends.append((self.sequence, self.samples))
        if self.sequence > self._kept_up_to and self.sequence == expected:  # else this is the end of an older one
            self._seal()
        self._free_passed()
        self._begin_packet()

    def _seal(self) -> None:
        segments = []
        for form, pieces in self._runs:
            joined = np.concatenate(pieces) if form.size_bytes and len(pieces) > 1 else pieces
            segments.append(RowColumns(form, joined[0] if form.size_bytes and len(pieces) == 1 else joined))
        rows = PacketRows(segments)
        name = Receipt(self.worker, self.incarnation, self.sequence)
        breaks = self._breaks + (self._late > 1)  # what was lost with a mark may lie between it and the one before
        record = packet_pieces(name, breaks, rows, tuple(self._episodes), self._compress)
        self._keep(self.sequence, rows.samples, record)

    def _pass(self, segment: Segment, following: Segment) -> None:
        if not self._is_dead:
            self._note_sealed(following, HEAD_BYTES if self._newest is None else 0)
            following.words[DROPPED] = max(segment.words[DROPPED], following.words[DROPPED])
        self._enter(following)
        self._passed.append(segment)
        if self._newest is None:
            self._free_passed()

    def _note_sealed(self, segment: Segment, resume: int) -> None:
        """Say in a segment where a reader may begin. Killed or cut off at any point, it says nothing that is wrong."""
        for word, value in ((RESUME, 0), (SEALED, self.sequence), (RESUME, resume)):
            segment.words[word] = value
            segment.release()
            segment.acquire()

    def _free_passed(self) -> None:
        """All that lies in the segments that were read whole is in sealed packets: they may be filled again.

        Whoever reads next begins with the one that is read now, in which the newest packet may end. What a dead process
        left is removed as a whole, or read again from the start.
        """
        if self._passed and not self._is_dead:
            assert self._segment is not None
            resume = HEAD_BYTES
            if self._newest is not None and self._newest[0] is self._segment:
                at = self._newest[1]
                resume = at + padded((self._segment.words[(at >> 3) + 1] & 0xFFFFFFFF) >> 3)
            self._note_sealed(self._segment, resume)
            for passed in reversed(self._passed):  # a packet begins in the first
                passed.words[FREED] = passed.words[NUMBER]
            self._passed = []

    def close(self, remove: bool = False) -> None:
        """Unmap the files; `remove`: all that are this process's are not needed any more."""
        self._begin_packet()
        self._segment = None
        if remove:
            for path in segments_in(self._folder):
                self._map(int(path.stem))
        for segment in self._mapped.values():
            with contextlib.suppress(BufferError):  # an error's traceback may hold rows
                segment.remove() if remove else segment.close()
        self._mapped.clear()


def _marks(segment: Segment, at: int, size: int, count: int) -> np.ndarray[Any, Any]:
    return np.ndarray(count, np.uint64, segment.map, at, padded(size))


def incarnations_in(folder: Path) -> set[int]:
    """Of the processes that left samples in a folder."""
    found = set()
    for path in segments_in(folder):
        try:
            segment = Segment(path)
        except (OSError, ValueError) as error:
            if path.stat().st_size:  # else it is just made
                log.error("cannot read %s, which is left as it is: %s", path, error)
            continue
        if segment.is_begun:
            found.add(segment.words[INCARNATION])
        segment.close()
    return found
