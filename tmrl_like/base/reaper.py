"""Program of `processes.ProcessGuard`: makes a call and ends processes once its parent is gone.

Each line of standard input is a JSON object: a process to `end`, the `call` to make, or an empty
object, which ends only this process. The end of standard input is not used as a signal: children
that the parent forked may hold it open, or outlive it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable

import psutil

from tmrl_like.base.importing import import_object
from tmrl_like.base.processes import end_processes, end_with_parent, family_of
from tmrl_like.base.text import one_line

log = logging.getLogger("tmrl_like")

_CALL_READ_WITHIN_S = 0.01  # to read what the parent wrote last
_ALL_READ_WITHIN_S = 1.0
_TERM_WITHIN_S = 0.2
_KILL_WITHIN_S = 1.0


def main() -> None:
    """Collect instructions until the parent is gone, then carry them out."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    guarded: list[psutil.Process] = []
    call: Callable[[], object] = int
    all_read, reading = threading.Event(), threading.Lock()

    def make_call() -> None:
        nonlocal call
        made, call = call, int
        try:
            made()
        except BaseException as error:
            log.error("stop_from_outside failed: %s; what it stops may still move", one_line(error))

    def end_guarded() -> None:
        all_read.wait(_CALL_READ_WITHIN_S)
        make_call()
        all_read.wait(_ALL_READ_WITHIN_S)
        with reading:  # importing the function may take longer
            make_call()
        # another process may have the same id by now
        alive = [process for process in guarded if process.is_running()]
        families = [member for process in alive for member in family_of(process.pid)]
        end_processes(families, _TERM_WITHIN_S, _KILL_WITHIN_S)
        os._exit(0)

    end_with_parent(end_guarded)
    for line in sys.stdin.buffer:
        match json.loads(line):
            case {"end": pid}:
                with contextlib.suppress(psutil.Error):
                    guarded.append(psutil.Process(pid))
            case {"call": [path, *arguments]}:
                with reading:
                    call = functools.partial(import_object(path), *arguments)
            case {"call": None}:
                call = int
            case _:
                return
    all_read.set()
    threading.Event().wait()


if __name__ == "__main__":
    main()
