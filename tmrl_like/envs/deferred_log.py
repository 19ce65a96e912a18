"""Log lines of a thread that must not wait for a handler."""

from __future__ import annotations

import contextlib
import logging
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
        self._records: deque[logging.LogRecord] = deque(maxlen=_MAX_LINES)

    def add(self, level: int, line: str, *values: Any) -> None:
        """Add a line, with arguments as for `Logger.log`; does not wait."""
        if self._log.isEnabledFor(level):
            name = self._log.name
            self._records.append(self._log.makeRecord(name, level, "", 0, line, values, None))

    def write(self) -> None:
        """Log the lines that were added, in order. Any thread."""
        with contextlib.suppress(IndexError):  # there is none left
            while True:
                self._log.handle(self._records.popleft())
