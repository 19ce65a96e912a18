"""Log lines of a thread that must not wait for a handler."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any

_MAX_LINES = 1000


class DeferredLog:
    """Keeps the newest 1,000 log lines, with the times at which they were added, until another
    thread writes them.
    """

    def __init__(self, log: logging.Logger) -> None:
        """Set up for the logger to which `write` writes."""
        self._log = log
        self._lines: deque[tuple[float, int, str, tuple[Any, ...]]] = deque(maxlen=_MAX_LINES)

    def add(self, level: int, line: str, *values: Any) -> None:
        """Add a line, with arguments as for `Logger.log`; does not wait."""
        self._lines.append((time.time(), level, line, values))

    def write(self) -> None:
        """Log the lines that were added, in order. Any thread."""
        while self._lines:
            try:
                at_s, level, line, values = self._lines.popleft()
            except IndexError:  # another thread is writing, too
                return
            if self._log.isEnabledFor(level):
                record = self._log.makeRecord(self._log.name, level, "", 0, line, values, None)
                record.created, record.msecs = at_s, at_s % 1 * 1000
                self._log.handle(record)
