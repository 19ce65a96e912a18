"""Run as a script, by its path: ends processes when the process that started this one is gone.

Standard input names them, one process id a line; "end" ends this process and nothing else. That the parent
is gone is seen by having another one: its end of the pipe may be open in children that it forked.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys

import psutil

_LOOK_S = 0.25


def main() -> None:
    """Collect process ids until the parent is gone, then end those processes and what they started."""
    parent = int(sys.argv[1])
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    processes: list[psutil.Process] = []
    text = b""
    is_open = True
    while os.getppid() == parent:
        readable, _, _ = select.select([sys.stdin.fileno()] if is_open else [], [], [], _LOOK_S)
        if readable:
            said = os.read(sys.stdin.fileno(), 4096)
            is_open = bool(said)
            *lines, text = (text + said).split(b"\n")
            if b"end" in lines:
                return
            for line in lines:
                with contextlib.suppress(psutil.Error):
                    processes.append(psutil.Process(int(line)))
    for process in processes:
        kill_family(process)


def kill_family(process: psutil.Process) -> None:
    """Kill a process and its descendants; one that is gone, or whose number is another's now, is left alone."""
    with contextlib.suppress(psutil.Error):
        family = [process, *process.children(recursive=True)] if process.is_running() else []
        for member in family:
            with contextlib.suppress(psutil.Error):
                member.kill()


if __name__ == "__main__":
    main()
