"""The link as a separate process; started by `link_client`, with pipes as standard input and
output.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TextIO

from tmrl_like.base.processes import end_with_parent, keep_freed_memory
from tmrl_like.errors import ShortageError
from tmrl_like.worker.link import failure, run_link
from tmrl_like.worker.link_messages import (
    TO_LINK,
    FromLink,
    LogLine,
    ToLink,
    message_writer,
    messages_in,
)

_KEEP_BYTES = 64 << 20  # of freed memory: the next packet uses it again


class _ToParent(logging.StreamHandler[TextIO]):
    """Passes log lines on to the process that drives the environment; if that has ended, prints
    warnings to stderr.
    """

    def __init__(self, tell: Callable[[FromLink], bool]) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        is_told = self._tell(LogLine(record.name, record.levelno, self.format(record)))
        if not is_told and record.levelno >= logging.WARNING:
            super().emit(record)


def main() -> None:
    """Serve until the other process asks the link to leave, or has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # do not inherit a real-time priority from the thread that starts this process
    if hasattr(os, "sched_setscheduler"):
        # on Linux, also wake up without taking the processor from another process
        policy = getattr(os, "SCHED_BATCH", os.SCHED_OTHER)
        with contextlib.suppress(OSError):  # an ordinary user may not leave SCHED_IDLE
            os.sched_setscheduler(0, policy, os.sched_param(0))
    keep_freed_memory(_KEEP_BYTES)
    tell = message_writer(os.fdopen(os.dup(1), "wb", 0))
    os.dup2(2, 1)  # printed text must not end up among the messages
    logger, leaving = logging.getLogger("tmrl_like"), threading.Event()
    logger.setLevel(logging.DEBUG)  # the other process knows which lines to show
    logger.addHandler(_ToParent(tell))
    try:
        end_with_parent(leaving.set)
    except ShortageError as error:
        tell(failure(error))
        return
    run_link(_messages_until(leaving), tell, leaving)


def _messages_until(over: threading.Event) -> Iterator[ToLink]:
    """Yield the other process's messages, and return once it has ended: the system may close its
    pipe earlier than what shows that it has ended.
    """
    yield from messages_in(os.fdopen(os.dup(0), "rb", 0), TO_LINK)
    over.wait()


if __name__ == "__main__":
    main()
