"""Which stored sample follows which, and which transitions are whole: the index of `ReplayMemory`.

Samples of all workers lie in one ring of rows, in the order of arrival. A *lane* is what one worker (stream)
contributed. Per row one number is kept, `parent`: following it walks back through the actions of the
environment's action buffer.

The parent of a row is the row before it in its lane. An episode begins with one row for each action of its first
action buffer, so that a walk of that length from any later row of the episode stays within it.

No transition ends in a reset, so the parent of any row that a transition ends in is the row that it starts
from.

Stacks of frames are walked in the same way, except that a walk stays at every reset: the first frame of an
episode is repeated.

Where transitions sum up the rewards of several steps, `following` leads the other way, and `steps` says of how many:
they are counted when samples arrive, for the new rows and for those before them that still grow.

A `History` is what a walk needs to find. `known` counts how many steps of such a walk lead to what the memory
has seen; a transition is whole when all histories of its older observation are known.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from tmrl_like.replay.columns import Rows
from tmrl_like.replay.row_set import RowSet

_ALL = 1 << 30  # a reset that fills the buffer: the whole history is known


@dataclass(frozen=True)
class History:
    """How far back a walk must find rows, and what a reset does to it.

    Attributes:
        needed: rows, the one that the walk starts from among them.
        reset_fills: a reset makes all of it known.
    """

    needed: int
    reset_fills: bool

    def after(self, known: int, is_reset: np.ndarray[Any, np.dtype[np.bool_]]) -> np.ndarray[Any, Any]:
        """How many rows are known at each of the next rows, int [n], after a row at which `known` are."""
        after = known + np.arange(1, len(is_reset) + 1)
        if self.reset_fills and is_reset.any():
            after[is_reset.argmax() :] = _ALL
        return after


@dataclass(eq=False)
class Run:
    """Consecutive rows of one lane, as sequence numbers: row = number modulo capacity."""

    start: int
    end: int
    lane: Lane


@dataclass(eq=False)
class Lane:
    """One stream: its rows that are still there, and how much of each history its newest row has."""

    stream: str
    known: list[int]
    runs: deque[Run] = field(default_factory=deque)
    growing: Rows = field(default_factory=lambda: np.zeros(0, np.intp))
    """The sequence numbers of the newest rows to whose transitions the next step may belong, int [fewer than n]."""


class Lanes:
    """The index of a ring of `capacity` rows.

    Attributes:
        written: samples ever stored; the next one goes to row `written % capacity`.
        parent: int32 [capacity], see above.
        is_reset: bool [capacity].
        training: the rows that whole transitions end in.
        held_out: those of them that are never trained on; None: there are none.
        older_frame: as `parent`, but the row itself at each reset; None where no history is filled by one.
        following: int32 [capacity], the next row of the lane; None where transitions have one step.
        steps: int [capacity], how many steps, 1 to n, the transition that begins with the step to a row has so far;
            None where all have one.
    """

    def __init__(
        self,
        capacity: int,
        *histories: History,
        n_steps: int = 1,
        holds_out: bool = False,
    ) -> None:
        """An empty index for transitions that need these histories; memory is taken up as rows are written.

        `n_steps`: the most that a transition has.
        """
        self.capacity = capacity
        self.written = 0
        self.oldest = 0
        self.parent = np.zeros(capacity, np.int32)
        self.is_reset = np.zeros(capacity, np.bool_)
        self.following = np.zeros(capacity, np.int32) if n_steps > 1 else None
        self.steps = np.zeros(capacity, np.min_scalar_type(n_steps)) if n_steps > 1 else None
        self._n_steps = n_steps
        has_stacks = any(history.reset_fills for history in histories)
        self.older_frame = np.zeros(capacity, np.int32) if has_stacks else None
        self._histories = histories
        self._longest = max(history.needed for history in histories)
        self.training = RowSet(capacity)
        self.held_out = RowSet(capacity) if holds_out else None
        self._runs: deque[Run] = deque()
        self._lanes: dict[str, Lane] = {}

    @property
    def room(self) -> int:
        """How many samples the next `extend` takes: as far as the end of the ring."""
        return self.capacity - self.written % self.capacity

    def extend(
        self,
        stream: str,
        is_reset: np.ndarray[Any, np.dtype[np.bool_]],
        is_held_out: np.ndarray[Any, np.dtype[np.bool_]] | None = None,
    ) -> int:
        """Make room for the next n <= `room` samples of a stream; returns the first row that they go to.

        Transitions that end in a sample that `is_held_out` go to `held_out`, the others to `training`.
        """
        n, first = len(is_reset), self.written % self.capacity
        rows = np.arange(first, first + n)
        self._evict(self.written + n - self.capacity)
        lane = self._lanes.get(stream)
        previous = (lane.runs[-1].end - 1) % self.capacity if lane else None
        before = rows - 1
        before[0] = first if previous is None else previous
        self.parent[first : first + n] = before
        if self.older_frame is not None:
            self.older_frame[first : first + n] = np.where(is_reset, rows, before)
        self.is_reset[first : first + n] = is_reset
        if self.following is not None:
            self.following[before] = rows
        if lane is None:
            lane = self._lanes[stream] = Lane(stream, [0] * len(self._histories))
        is_whole = self._whole_ends(lane.known, previous is not None, is_reset)
        if self.held_out is not None and is_held_out is not None:
            self.held_out.add(rows[is_whole & is_held_out])
            is_whole &= ~is_held_out
        self.training.add(rows[is_whole])
        self._note_run(lane, n)
        return first

    def count_steps(self, stream: str, begins: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
        """Count the newest n steps of a stream in `steps`; `begins`, bool [n]: it belongs to no earlier transition."""
        assert self.steps is not None
        lane, n = self._lanes[stream], len(begins)
        growing = lane.growing[lane.growing >= self.oldest]
        numbers = np.concatenate((growing, np.arange(self.written - n, self.written)))
        begins = np.concatenate((np.zeros(len(growing), np.bool_), begins))
        place = np.arange(len(numbers))
        next_begins = np.minimum.accumulate(np.where(begins, place, len(numbers))[::-1])[::-1]
        until = np.append(next_begins[1:], len(numbers))
        self.steps[numbers % self.capacity] = np.minimum(until - place, self._n_steps)
        newest = np.flatnonzero(begins)[-1:].sum()
        lane.growing = numbers[max(newest, len(numbers) - self._n_steps + 1) :]

    def _whole_ends(self, known: list[int], has_previous: bool, is_reset: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Which of the next n rows of a lane end a whole transition, bool [n]; moves `known`, of the row before, on."""
        whole: np.ndarray[Any, Any] = ~is_reset
        whole[0] &= has_previous
        for i, history in enumerate(self._histories):
            after = history.after(known[i], is_reset)
            whole[0] &= known[i] >= history.needed
            whole[1:] &= after[:-1] >= history.needed
            known[i] = min(int(after[-1]), _ALL)
        return whole

    def _note_run(self, lane: Lane, n: int) -> None:
        start, self.written = self.written, self.written + n
        if self._runs and self._runs[-1].lane is lane:
            self._runs[-1].end = self.written
            return
        run = Run(start, self.written, lane)
        self._runs.append(run)
        lane.runs.append(run)

    def _evict(self, oldest: int) -> None:
        """Forget all rows before sequence number `oldest`, and the transitions that need them."""
        if oldest <= self.oldest:
            return
        self._discard(self.oldest % self.capacity + np.arange(oldest - self.oldest))
        self.oldest = oldest
        cut: dict[str, Lane] = {}
        while self._runs and self._runs[0].start < oldest:
            run = self._runs[0]
            cut[run.lane.stream] = run.lane
            run.start = min(run.end, oldest)
            if run.start == run.end:
                self._runs.popleft()
                run.lane.runs.popleft()
        for stream, lane in cut.items():
            if lane.runs:
                self._discard_without_history(lane)
            else:
                del self._lanes[stream]

    def _discard_without_history(self, lane: Lane) -> None:
        """Look again at the oldest rows of a lane, whose history may be gone."""
        numbers = (number for run in lane.runs for number in range(run.start, run.end))
        rows = np.fromiter(islice(numbers, self._longest + 1), np.intp) % self.capacity
        known = [0] * len(self._histories)
        is_whole = self._whole_ends(known, False, self.is_reset[rows])
        self._discard(rows[~is_whole])
        if len(rows) <= self._longest:
            lane.known = known

    def _discard(self, rows: Rows) -> None:
        self.training.take_out(rows)
        if self.held_out is not None:
            self.held_out.take_out(rows)


def follow(links: np.ndarray[Any, Any], rows: Rows, steps: int) -> Rows:
    """Follow `Lanes.parent`, `older_frame` or `following`: int [steps + 1, *rows.shape], `rows` themselves first."""
    walked = np.empty((steps + 1, *rows.shape), np.intp)
    walked[0] = rows
    for k in range(steps):
        walked[k + 1] = links.take(walked[k])
    return walked
