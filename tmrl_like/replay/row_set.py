"""A set of rows of a ring, of which any can be drawn at random."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Rows: TypeAlias = NDArray[np.intp]
Flags: TypeAlias = NDArray[np.bool_]


class RowSet:
    """A set of rows in any order; drawing, adding and removing need no search. Memory is taken up
    as rows are added.
    """

    def __init__(self, capacity: int) -> None:
        """Make an empty set, for a ring of `capacity` rows."""
        self._rows = np.zeros(capacity, np.int32)
        # where a row stands in `_rows`, plus one; 0: nowhere
        self._place = np.zeros(capacity, np.int32)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> Array:
        """All rows in the set: int32 [len(self)], a view."""
        return self._rows[: self._count]

    def add(self, rows: Rows) -> None:
        count = self._count + len(rows)
        self._rows[self._count : count] = rows
        self._place[rows] = np.arange(self._count + 1, count + 1)
        self._count = count

    def take_out(self, rows: Rows) -> None:
        """Remove those of these rows that are in the set; rows from the end fill the gaps."""
        if not self._count:
            return
        rows = rows[self._place[rows] > 0]
        count = self._count - len(rows)
        holes = self._place[rows] - 1
        self._place[rows] = 0
        tail = self._rows[count : self._count]
        movers = tail[self._place[tail] > 0]
        holes = holes[holes < count]
        self._rows[holes] = movers
        self._place[movers] = holes + 1
        self._count = count
