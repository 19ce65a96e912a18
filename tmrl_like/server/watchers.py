"""The reports that watchers see.

Watchers are answered when they ask, at most a few times a second, with what the server has anyway:
the newest heartbeats of the workers and the newest reports of the trainer.
"""

from __future__ import annotations

import itertools
from collections import deque

from tmrl_like.server.waiting import KEPT_BYTES
from tmrl_like.wire import messages as m


class Reports:
    """The newest reports of the trainer, numbered 1, 2, 3, …

    Attributes:
        newest: number of the newest report; 0: there is none yet.
    """

    def __init__(self) -> None:
        """Start without reports."""
        self.newest = 0
        self._kept: deque[bytes] = deque()
        self._kept_bytes = 0

    def add(self, record: memoryview) -> None:
        """Add a report, unless it is too large, and drop the oldest ones beyond the limit."""
        if len(record) > m.MAX_REPORT_BYTES:
            return
        self.newest += 1
        self._kept.append(bytes(record))
        self._kept_bytes += len(record) + KEPT_BYTES
        while self._kept_bytes > m.MAX_REPORTS_BYTES:
            self._kept_bytes -= len(self._kept.popleft()) + KEPT_BYTES

    def after(self, number: int) -> list[bytes]:
        """Return the reports that are newer than the one with this number."""
        forgotten = self.newest - len(self._kept)
        return list(itertools.islice(self._kept, max(0, number - forgotten), None))
