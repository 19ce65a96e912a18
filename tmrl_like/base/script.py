"""What the parts of one script know of each other: which are still open at its end, and whether the
worker has failed.

Servers, workers and trainers that a script leaves open are closed before the interpreter ends.
Finalisation stops daemon threads wherever they are, and one that is inside torch takes the process
with it (SIGABRT). Exit handlers run before that, when all threads still work; new ones cannot be
started any more (Python 3.12 and later).
"""

from __future__ import annotations

import atexit
import logging
import weakref
from typing import Protocol

log = logging.getLogger("tmrl_like")


class Part(Protocol):
    """What has threads of its own."""

    def close(self) -> None:
        """End them. Twice is fine."""


failures: dict[str, str] = {}
"""What the newest run that sends to a server (its address) has raised; empty: nothing, or it has
just begun.
"""

_open: weakref.WeakKeyDictionary[Part, int] = weakref.WeakKeyDictionary()


def close_at_exit(part: Part, turn: int) -> None:
    """Close a part at the interpreter's exit, if it still exists then; lower turns are closed
    first.
    """
    _open[part] = turn
    atexit.unregister(_close_all)
    atexit.register(_close_all)  # handlers run in reverse order: before those of what it uses


def _close_all() -> None:
    # the script's own last line stays the last one
    log.setLevel(max(log.getEffectiveLevel(), logging.ERROR))
    for part, _ in sorted(_open.items(), key=lambda item: item[1]):
        try:
            part.close()
        except Exception as error:
            log.error("closing a %s at exit failed: %s", type(part).__name__, error)
