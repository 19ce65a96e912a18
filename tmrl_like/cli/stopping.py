"""How a part ends: Ctrl-C, SIGTERM, or the end of the process that started it.

The first request stops the part in its own way. If it has not ended when its time is over, or on a
second request, the process ends at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from tmrl_like.base.threads import no_thread, start_thread

_DOUBLE_S = 0.5  # one key press may arrive twice: from the terminal and from a parent
INTERRUPTED = 130
CHECKPOINT_WITHIN_S = 120.0  # a trainer's last one


class NoThreadsStop(KeyboardInterrupt):
    """A SIGINT while a part starts, and no thread can be started: OpenBLAS ends the process so for
    want of its own.
    """


class Stopper:
    """Turns every way of stopping into one: `on_stop`, else KeyboardInterrupt in the main
    thread.
    """

    def __init__(
        self, supervised: bool, within_s: float = 5.0, on_stop: Callable[[], None] | None = None
    ) -> None:
        """Start to listen. Main thread only.

        Args:
            supervised: the process was started by `run`, and ends when its standard input does: so
                nothing outlives a `run` that was killed.
            within_s: time to end in; after that the process is ended.
            on_stop: what a stop calls.
        """
        self.requested = False
        self.on_stop = on_stop
        self._within_s = within_s
        self._requested_at = 0.0
        for name in ("SIGINT", "SIGTERM", "SIGBREAK"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), self._on_signal)
        if supervised:
            start_thread(self._watch_parent, "tmrl-parent")

    @property
    def exit_code(self) -> int:
        """Of a command that has ended in its own way: 0 if it was done, 130 if it was stopped."""
        return INTERRUPTED if self.requested else 0

    def _on_signal(self, number: int, frame: Any) -> None:
        now = time.monotonic()
        if self.requested:
            if now - self._requested_at > _DOUBLE_S:
                end_now(INTERRUPTED, "stopped a second time: ended at once")
            return
        self.requested, self._requested_at = True, now
        timer = threading.Timer(self._within_s, self._end_late)
        timer.daemon = True
        try:
            timer.start()
        except RuntimeError as error:  # it takes as long as it takes
            if self.on_stop is None:
                raise NoThreadsStop(str(no_thread("of a library", error))) from None
        if self.on_stop is None:
            raise KeyboardInterrupt
        self.on_stop()

    def _end_late(self) -> None:
        end_now(1, f"did not end within {self._within_s:g} s: ended by force")

    def _watch_parent(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while os.read(sys.stdin.fileno(), 4096):
                pass
        if os.name == "posix":
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            import _thread

            _thread.interrupt_main()
        time.sleep(self._within_s)  # the main thread may be where no signal reaches it
        self._end_late()


def end_now(code: int, line: str) -> None:
    """End this process from any thread, whatever the others do."""
    with contextlib.suppress(OSError, ValueError):
        print(f"tmrl-like: error: {line}", file=sys.stderr, flush=True)
    os._exit(code)
