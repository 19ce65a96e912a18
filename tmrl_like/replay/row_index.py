"""The index of `ReplayMemory`: which stored sample follows which, and which transitions are whole.

Samples of all workers lie in one ring of rows, in order of arrival. For each row, the index keeps
its `parent`: the row before it in its stream. An episode begins with one row for each action of its
first action buffer, so that a walk of that length from any later row of the episode stays within
it. No transition ends in a reset, so the parent of any row that a transition ends in is the row
that it starts from.

Stacks of frames are walked in the same way, except that a walk stays at every reset: the first
frame of an episode is repeated.

A walk can continue as long as it meets older rows: at the beginning of a stream a row is its own
parent, and a parent that the ring has overwritten is newer. A transition is whole if all rows that
its older observation is made of are present.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import numpy as np

from tmrl_like.replay.replay_options import ReplayOptions
from tmrl_like.replay.row_set import Array, Flags, Rows, RowSet

_RowOrRows = TypeVar("_RowOrRows", int, Rows)


class RowIndex:
    """The index of a ring of `capacity` rows.

    Attributes:
        written: number of samples ever stored; the next one goes to row `written % capacity`.
        parent: int32 [capacity], the row before in the stream; the row itself where a stream
            begins.
        following: int32 [capacity], the next row of the stream, if there is one; else any row.
        is_reset: bool [capacity].
        older_frame: as `parent`, but the row itself at each reset.
        steps: int [capacity], how many steps, 1 to n, the transition that begins with the step to a
            row has so far.
        training: the rows that whole transitions end in, without those in `held_out`.
        held_out: the rows that whole transitions of held-out episodes end in; never trained on.
    """

    def __init__(self, capacity: int, options: ReplayOptions) -> None:
        """Make an empty index; memory is taken up as rows are written."""
        self._actions = max(1, options.act_buf_len)
        self._frames = max(1, options.frames)
        self._longest = max(self._actions, self._frames)
        self._n_steps = options.n_steps
        self.capacity = capacity
        self.written = 0
        self.parent = np.zeros(capacity, np.int32)
        self.following = np.zeros(capacity, np.int32)
        self.older_frame = np.zeros(capacity, np.int32)
        self.is_reset = np.zeros(capacity, np.bool_)
        self.steps = np.zeros(capacity, np.min_scalar_type(self._n_steps))
        self._begins = np.zeros(capacity, np.bool_)
        self.training = RowSet(capacity)
        self.held_out = RowSet(capacity if options.held_out else 0)
        self._newest: dict[str, int] = {}  # the sequence number of each stream's newest row

    @property
    def room(self) -> int:
        """How many samples the next `extend` can take: up to the end of the ring."""
        return self.capacity - self.written % self.capacity

    def extend(self, stream: str, is_reset: Flags, is_held_out: Flags, is_context: Flags) -> int:
        """Make room for the next n <= `room` samples of a stream; return the first of their rows.

        Transitions that end in a sample that `is_held_out` go to `held_out`, the others to
        `training`; those that end in a sample that `is_context` are never drawn.
        """
        n = len(is_reset)
        first = self.written % self.capacity
        rows = np.arange(first, first + n)
        new = slice(first, first + n)
        shortened = self._overwrite(rows)
        before = rows - 1
        before[0] = self._newest.get(stream, first) % self.capacity
        self.parent[new] = before
        self.following[before] = rows
        self.older_frame[new] = np.where(is_reset, rows, before)
        self.is_reset[new] = is_reset
        self.written += n
        self._newest[stream] = self.written - 1
        if len(shortened):
            self._take_out(shortened[~self._are_whole(shortened)])
        whole = self._are_whole(rows) & ~is_context
        self.held_out.add(rows[whole & is_held_out])
        self.training.add(rows[whole & ~is_held_out])
        return first

    def count_steps(self, row: int, begins: Flags) -> None:
        """Update `steps` for the n newest rows, from `row` on, and for those before them that they
        continue.

        `begins`, bool [n], marks steps that are part of no earlier transition.
        """
        new = slice(row, row + len(begins))
        self._begins[new] = begins
        self.steps[new] = 1
        rows: Rows = np.arange(row, row + len(begins))
        for count in range(2, self._n_steps + 1):
            rows = rows[~self._begins[rows]]
            before = self.parent[rows].astype(np.intp)
            rows = before[self._age(before) > self._age(rows)]
            self.steps[rows] = count

    def back_to_reset(self, row: int) -> Iterator[int]:
        """Yield a row, and those before it in its episode."""
        while not self.is_reset[row]:
            yield row
            before = int(self.parent[row])
            if self._age(before) <= self._age(row):
                return
            row = before

    def _overwrite(self, rows: Rows) -> Rows:
        """Forget the n rows that are about to be overwritten; return the rows whose history may
        reach back to them, and possibly others.
        """
        if self.written < self.capacity:
            return rows[:0]
        self._take_out(rows)
        oldest = self.written + len(rows) - self.capacity
        self._newest = {name: at for name, at in self._newest.items() if at >= oldest}
        later = follow(self.following, rows, self._longest)
        return np.unique(later[(later < rows[0]) | (later > rows[-1])])

    def _are_whole(self, rows: Rows) -> Flags:
        """Return which of n rows end a transition whose history is present: bool [n]."""
        walk = follow(self.parent, rows, self._longest)
        age = self._age(walk)
        is_there = age[1:] > age[:-1]
        has_actions = is_there[: self._actions].all(axis=0)
        is_there[1:] |= np.logical_or.accumulate(self.is_reset[walk[1:-1]], axis=0)
        has_frames = is_there[: self._frames].all(axis=0)
        whole: Flags = ~self.is_reset[rows] & has_actions & has_frames
        return whole

    def _age(self, rows: _RowOrRows) -> _RowOrRows:
        """Return how many samples have been written since that of a row, or of each of several."""
        return (self.written - 1 - rows) % self.capacity

    def _take_out(self, rows: Rows) -> None:
        self.training.take_out(rows)
        self.held_out.take_out(rows)


def follow(links: Array, rows: Rows, steps: int) -> Rows:
    """Follow `parent`, `older_frame` or `following`: return int [steps + 1, *rows.shape], `rows`
    themselves first.
    """
    walked = np.empty((steps + 1, *rows.shape), np.intp)
    walked[0] = rows
    for k in range(steps):
        walked[k + 1] = links.take(walked[k])
    return walked
