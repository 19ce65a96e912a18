"""How a part ends: by Ctrl-C, SIGTERM, or the end of its parent process or, but for Windows, of its
terminal.

The first request stops the part in its own way. If the part has not ended after its time limit, or
on a second request, the process ends at once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from tmrl_like.base.threads import no_thread

log = logging.getLogger("tmrl_like")

DOUBLE_S = 0.5  # one key press may arrive twice: from the terminal and from the parent
_HANG_UP = getattr(signal, "SIGHUP", None)  # the terminal, or a connection by SSH, was closed
INTERRUPTED = 130
CHECKPOINT_WITHIN_S = 120.0  # time limit of a trainer, for its last checkpoint
_THREADS_WITHIN_S = 3.0


class NoThreadsStop(KeyboardInterrupt):
    """A SIGINT during the start of a part, when no thread can be started: OpenBLAS ends the process
    in this way if it cannot start its own threads.
    """


class Stopper:
    """Turns every way of stopping into one: a call of `on_stop`, or KeyboardInterrupt in the main
    thread if that is None.
    """

    def __init__(
        self, supervised: int, within_s: float = 5.0, on_stop: Callable[[], None] | None = None
    ) -> None:
        """Start to handle signals. Main thread only.

        Args:
            supervised: id of the `run` that started this process, which ends when that has ended,
                so that nothing outlives a `run` that was killed; 0: there is none.
            within_s: time limit for ending, in seconds; after that the process is ended by force.
            on_stop: called by a stop.
        """
        self.requested = False
        self.on_stop = on_stop
        self._within_s = within_s
        self._requested_at = 0.0
        for name in ("SIGINT", "SIGTERM", "SIGBREAK"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), self._on_signal)
        # nohup lets it be ignored
        if _HANG_UP is not None and signal.getsignal(_HANG_UP) is not signal.SIG_IGN:
            signal.signal(_HANG_UP, self._on_signal)
        if supervised:
            from tmrl_like.base.processes import end_with_parent

            end_with_parent(self._end_as_orphan, supervised)

    @property
    def exit_code(self) -> int:
        """The exit code of a command that ended in its own way: 0 if it was done, 130 if it was
        stopped.
        """
        return INTERRUPTED if self.requested else 0

    def _on_signal(self, number: int, frame: object) -> None:
        now = time.monotonic()
        if self.requested:
            if now - self._requested_at > DOUBLE_S and number != _HANG_UP:
                end_now(INTERRUPTED, "stopped a second time: ended at once")
            return
        self.requested, self._requested_at = True, now
        timer = threading.Timer(self._within_s, self._end_late)
        timer.daemon = True
        try:
            timer.start()
        except RuntimeError as error:  # without a timer, there is no time limit
            if self.on_stop is None:
                raise NoThreadsStop(str(no_thread("of a library", error))) from None
        if self.on_stop is None:
            raise KeyboardInterrupt
        self.on_stop()

    def _end_late(self) -> None:
        end_now(1, f"did not end within {self._within_s:g} s: ended by force")

    def _end_as_orphan(self) -> None:
        if os.name == "posix":
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            import _thread

            _thread.interrupt_main()
        time.sleep(self._within_s)  # the main thread may be in a call that no signal interrupts
        self._end_late()


def end_despite_threads(code: int) -> None:
    """End this process with this exit code soon after its main thread has ended, even if threads of
    the user's go on. Python waits for those that are not daemons.
    """

    def end() -> None:
        threads = threading.enumerate()
        names = [t.name for t in threads if not t.daemon and t is not threading.main_thread()]
        if names:
            log.warning(
                "ended by force, since the thread %s goes on: end it in the environment's close(), "
                "or start it with daemon=True",
                ", ".join(names),
            )
            os._exit(code)

    timer = threading.Timer(_THREADS_WITHIN_S, end)
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # no thread can be started
        timer.start()


def end_now(code: int, line: str) -> None:
    """End this process from any thread, whatever its other threads are doing."""
    with contextlib.suppress(OSError, ValueError):
        print(f"tmrl-like: error: {line}", file=sys.stderr)
    os._exit(code)
