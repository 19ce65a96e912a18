"""Run by `processes.ProcessGuard`: ends processes when the one that started this one is gone.

Standard input names them, one process id a line; "end" ends this process and nothing else. The end of standard input
says nothing: children that the parent forked may hold it open, or outlive it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading

import psutil

from tmrl_like.base.processes import end_with_parent, family_of

_READ_WITHIN_S = 1.0  # what the parent wrote last


def main() -> None:
    """Collect process ids until the parent is gone, then end those processes and what they started."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    guarded: list[psutil.Process] = []
    all_read = threading.Event()

    def end_guarded() -> None:
        all_read.wait(_READ_WITHIN_S)
        for process in guarded:
            for member in family_of(process.pid) if process.is_running() else ():  # the number may be another's by now
                with contextlib.suppress(psutil.Error):
                    member.kill()
        os._exit(0)

    end_with_parent(end_guarded)
    for line in sys.stdin.buffer:
        if line == b"end\n":
            return
        with contextlib.suppress(psutil.Error):
            guarded.append(psutil.Process(int(line)))
    all_read.set()
    threading.Event().wait()


if __name__ == "__main__":
    main()
