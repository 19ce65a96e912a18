"""State that the parts of one script share: which parts are still open at its end, and whether a
worker has failed.

Servers, workers and trainers that a script leaves open are closed before the interpreter exits.
Finalisation stops daemon threads wherever they are, and a thread that is inside torch then aborts
the process (SIGABRT). Exit handlers run before that, when all threads still work, although new ones
can no longer be started (Python 3.12 and later). A process that multiprocessing has forked runs no
exit handlers before Python 3.13; its parts are closed by multiprocessing's own finalizers.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import weakref
from typing import Protocol

log = logging.getLogger("tmrl_like")


class Part(Protocol):
    """An object with threads of its own."""

    def close(self) -> None:
        """End its threads. Calling it twice is fine."""


failures: dict[str, str] = {}
"""Maps a server's address to what the newest run of a worker there has raised; empty: nothing, or
the run has just begun.
"""

_open: weakref.WeakKeyDictionary[Part, int] = weakref.WeakKeyDictionary()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_open.clear)  # the parent closes its own parts


def close_at_exit(part: Part, turn: int) -> None:
    """Close a part when the interpreter exits, if it still exists then; lower turns are closed
    first.
    """
    _open[part] = turn
    atexit.unregister(_close_all)
    # handlers run in reverse order: this one before those of the packages that a part uses
    atexit.register(_close_all)
    # a child of multiprocessing has imported it; elsewhere an import would only cost time
    if "multiprocessing" in sys.modules:
        from multiprocessing import parent_process

        if parent_process() is not None:
            from multiprocessing.util import Finalize

            Finalize(None, _close_all, exitpriority=10)


def _close_all() -> None:
    # only errors: the script's own last line should stay the last one
    log.setLevel(max(log.getEffectiveLevel(), logging.ERROR))
    parts = sorted(_open.items(), key=lambda item: item[1])
    _open.clear()  # from Python 3.13 on, a forked child runs exit handlers as well
    for part, _ in parts:
        try:
            part.close()
        except KeyboardInterrupt:  # the others are closed all the same
            log.error("closing a %s at exit was interrupted", type(part).__name__)
        except Exception as error:
            log.error("closing a %s at exit failed: %s", type(part).__name__, error)
