"""Which stored sample follows which, and which transitions are whole: the index of `ReplayMemory`.

Samples of all workers lie in one ring of rows, in the order of arrival. A *lane* is what one worker (stream)
contributed. Per row one number is kept, `parent`: following it walks back through the actions of the
environment's action buffer.

- For a row inside an episode, the parent is the row before it in its lane.
- For a reset with `reset_act_buf=True`, it is the row itself: the buffer is full of the default action, which
  is the action of the reset sample, however far one walks.
- For a reset with `reset_act_buf=False`, it is the parent of the row before: the environment puts the default
  action in the place of the newest one, which was never applied.

No transition ends in a reset, so the parent of any row that a transition ends in is the row that it starts
from.

Stacks of frames are walked in the same way, except that a walk stays at every reset: the first frame of an
episode is repeated.

A `History` is what a walk needs to find. `known` counts how many steps of such a walk lead to what the memory
has seen; a transition is whole when all histories of its older observation are known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np

Rows: TypeAlias = np.ndarray[Any, np.dtype[np.intp]]
_ALL = 1 << 30  # a reset that fills the buffer: the whole history is known


@dataclass(frozen=True)
class History:
    """How far back a walk must find rows, and what a reset does to it.

    Attributes:
        needed: rows, the one that the walk starts from among them.
        reset_fills: a reset makes all of it known.
        known_after_reset: how many rows at least are known at a reset that does not.
    """

    needed: int
    reset_fills: bool
    known_after_reset: int = 0

    def at_reset(self, known: int) -> int:
        """How many rows are known at a reset that comes after a row with `known`."""
        return _ALL if self.reset_fills else max(known, self.known_after_reset)

    def after(self, known: int, is_reset: np.ndarray[Any, np.dtype[np.bool_]]) -> np.ndarray[Any, Any]:
        """How many rows are known at each of the next rows, int [n]."""
        first = self.at_reset(known) if is_reset[0] else known  # a later reset that does not fill changes nothing
        after = first + np.cumsum(~is_reset)
        if self.reset_fills and is_reset.any():
            after[is_reset.argmax() :] = _ALL
        return after


def action_history(act_buf_len: int, reset_act_buf: bool, last_act_on_reset: bool) -> History:
    """What an action buffer needs. With `last_act_on_reset` the reset's own action is not in it."""
    return History(act_buf_len, reset_act_buf, int(not last_act_on_reset))


def frame_history(frames: int) -> History:
    """What a stack of that many frames needs."""
    return History(frames, reset_fills=True)


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


class Watcher(Protocol):
    """Told which rows end whole transitions."""

    def admit(self, rows: Rows) -> None:
        """These do from now on."""

    def discard(self, rows: Rows) -> None:
        """These do not any more."""


class Lanes:
    """The index of a ring of `capacity` rows.

    Attributes:
        written: samples ever stored; the next one goes to row `written % capacity`.
        parent: int32 [capacity], see above.
        is_reset: bool [capacity].
        following: int32 [capacity], the next row of the same episode, or the row itself where there is none (yet);
            None unless asked for.
    """

    def __init__(
        self, capacity: int, *histories: History, looks_ahead: bool = False, watcher: Watcher | None = None
    ) -> None:
        """An empty index for transitions that need these histories; memory is taken up as rows are written."""
        self.capacity = capacity
        self.written = 0
        self.oldest = 0
        self.parent = np.zeros(capacity, np.int32)
        self.is_reset = np.zeros(capacity, np.bool_)
        self.following = np.zeros(capacity, np.int32) if looks_ahead else None
        self._watcher = watcher
        self._histories = histories
        self._parent_is_itself = histories[0].reset_fills
        self._whole = np.zeros(capacity, np.int32)  # rows that a whole transition ends in, in any order
        self._place = np.zeros(capacity, np.int32)  # where a row stands in `_whole`, plus one; 0: nowhere
        self._count = 0
        self._runs: deque[Run] = deque()
        self._lanes: dict[str, Lane] = {}

    def __len__(self) -> int:
        """Number of whole transitions."""
        return self._count

    @property
    def whole(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """The rows that whole transitions end in: int32 [len(self)], a view."""
        return self._whole[: self._count]

    def items_of(self, rows: Rows) -> Rows:
        """Where rows that end whole transitions stand in `whole`."""
        return self._place.take(rows).astype(np.intp) - 1

    def numbers_of(self, rows: Rows) -> Rows:
        """The sequence numbers of the samples that are in these rows now."""
        newest = self.written - 1
        return newest - (newest - rows) % self.capacity

    @property
    def runs(self) -> Iterator[Run]:
        """All runs, oldest first."""
        return iter(self._runs)

    def walk(self, rows: Rows, steps: int) -> Rows:
        """Follow the parents: int [steps + 1, *rows.shape], `rows` themselves first."""
        walked = np.empty((steps + 1, *rows.shape), np.intp)
        walked[0] = rows
        for k in range(steps):
            walked[k + 1] = self.parent.take(walked[k])
        return walked

    def walk_frames(self, rows: Rows, steps: int) -> Rows:
        """As `walk`, staying at the first row of each episode."""
        walked = np.empty((steps + 1, *rows.shape), np.intp)
        walked[0] = rows
        for k in range(steps):
            row = walked[k]
            walked[k + 1] = np.where(self.is_reset.take(row), row, self.parent.take(row))
        return walked

    def walk_ahead(self, rows: Rows, steps: int) -> Rows:
        """Follow each row to the next of its episode, `steps` times: int [steps + 1, *rows.shape]."""
        assert self.following is not None
        walked = np.empty((steps + 1, *rows.shape), np.intp)
        walked[0] = rows
        for k in range(steps):
            walked[k + 1] = self.following.take(walked[k])
        return walked

    def extend(self, stream: str, is_reset: np.ndarray[Any, np.dtype[np.bool_]]) -> tuple[Rows, int | None]:
        """Make room for the next n <= capacity samples of a stream.

        Args:
            stream: whose samples.
            is_reset: bool [n].

        Returns:
            The rows they go to, int [n]; and the row of the sample before them, None if it is not there.
        """
        n = len(is_reset)
        self._evict(self.written + n - self.capacity)
        lane = self._lanes.get(stream)
        before = lane.runs[-1].end - 1 if lane else None
        rows = np.arange(self.written, self.written + n) % self.capacity
        previous = None if before is None else before % self.capacity
        self.parent[rows] = self._parents(rows, previous, is_reset)
        self.is_reset[rows] = is_reset
        if self.following is not None:
            self._link(self.following, rows, previous, is_reset)
        if lane is None:
            lane = self._lanes[stream] = Lane(stream, [0] * len(self._histories))
        self._admit(rows[self._whole_ends(lane, previous is not None, is_reset)])
        self._note_run(lane, n)
        return rows, previous

    def start_at(self, number: int) -> None:
        """Let an empty index go on at a sequence number, so that rows keep their places."""
        self.written = self.oldest = number

    def replace_whole(self, rows: np.ndarray[Any, np.dtype[np.int32]]) -> bool:
        """Give the whole transitions another order, so that equal draws meet equal transitions again.

        Returns:
            False, nothing done: `rows` are not the same rows.
        """
        if not np.array_equal(np.sort(rows), np.sort(self.whole)):
            return False
        self._whole[: self._count] = rows
        self._place[rows] = np.arange(1, self._count + 1)
        return True

    def _parents(self, rows: Rows, previous: int | None, is_reset: np.ndarray[Any, Any]) -> Rows:
        parents = np.empty_like(rows)
        parents[0] = rows[0] if previous is None else previous
        parents[1:] = rows[:-1]
        for k in np.flatnonzero(is_reset).tolist():
            if self._parent_is_itself:
                parents[k] = rows[k]
            elif k:
                parents[k] = parents[k - 1]
            else:
                parents[0] = rows[0] if previous is None else self.parent[previous]
        return parents

    def _link(self, following: np.ndarray[Any, Any], rows: Rows, previous: int | None, is_reset: Any) -> None:
        following[rows] = rows
        before = np.concatenate(([rows[0] if previous is None else previous], rows[:-1]))
        continues = ~is_reset
        continues[0] &= previous is not None
        following[before[continues]] = rows[continues]

    def _whole_ends(self, lane: Lane, has_previous: bool, is_reset: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Which of the new rows end a whole transition (bool [n]); also moves `lane.known` on."""
        whole: np.ndarray[Any, Any] = ~is_reset
        whole[0] &= has_previous
        for i, history in enumerate(self._histories):
            after = history.after(lane.known[i], is_reset)
            whole[0] &= lane.known[i] >= history.needed
            whole[1:] &= after[:-1] >= history.needed
            lane.known[i] = min(int(after[-1]), _ALL)
        return whole

    def _note_run(self, lane: Lane, n: int) -> None:
        start, self.written = self.written, self.written + n
        if self._runs and self._runs[-1].lane is lane:
            self._runs[-1].end = self.written
            return
        run = Run(start, self.written, lane)
        self._runs.append(run)
        lane.runs.append(run)

    # ---- forgetting

    def _evict(self, oldest: int) -> None:
        """Forget all rows before sequence number `oldest`, and the transitions that need them."""
        if oldest <= self.oldest:
            return
        gone = np.arange(self.oldest, oldest) % self.capacity
        self._discard(gone[self._place[gone] > 0])
        self.oldest = oldest
        for lane in self._cut_runs(oldest):
            if lane.runs:
                self._discard_without_history(lane)
            else:
                del self._lanes[lane.stream]

    def _cut_runs(self, oldest: int) -> list[Lane]:
        """Shorten or drop the runs before `oldest`; return the lanes that lost rows."""
        lanes: dict[int, Lane] = {}
        while self._runs and self._runs[0].start < oldest:
            run = self._runs[0]
            lanes[id(run.lane)] = run.lane
            run.start = min(run.end, oldest)
            if run.start == run.end:
                self._runs.popleft()
                run.lane.runs.popleft()
        return list(lanes.values())

    def _discard_without_history(self, lane: Lane) -> None:
        """Walk a lane from its oldest row on until the histories that are left suffice."""
        known = [0] * len(self._histories)
        lost: list[int] = []
        numbers = (number for run in lane.runs for number in range(run.start, run.end))
        for place, number in enumerate(numbers):
            if place and all(k >= history.needed for k, history in zip(known, self._histories, strict=True)):
                break
            row = number % self.capacity
            if self.is_reset[row]:
                known = [history.at_reset(k) for k, history in zip(known, self._histories, strict=True)]
            else:
                known = [k + 1 for k in known]
                lost.append(row)
        else:
            lane.known = known
        rows = np.array(lost, np.intp)
        self._discard(rows[self._place[rows] > 0])

    # ---- the list of whole transitions

    def _admit(self, rows: Rows) -> None:
        count = self._count + len(rows)
        self._whole[self._count : count] = rows
        self._place[rows] = np.arange(self._count + 1, count + 1)
        self._count = count
        if self._watcher is not None:
            self._watcher.admit(rows)

    def _discard(self, rows: Rows) -> None:
        """Take rows out of the list; rows from its end fill the holes."""
        count = self._count - len(rows)
        holes = self._place[rows] - 1
        self._place[rows] = 0
        tail = self._whole[count : self._count]
        movers = tail[self._place[tail] > 0]
        holes = holes[holes < count]
        self._whole[holes] = movers
        self._place[movers] = holes + 1
        self._count = count
        if self._watcher is not None:
            self._watcher.discard(rows)
