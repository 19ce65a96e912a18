"""A thread that runs one call after another, and can be left behind when one does not come back."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

_LOOK_S = 0.25  # a wait without a limit cannot be interrupted by Ctrl-C on Windows


class Job:
    """A call in another thread."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._result: Any = None
        self._error: BaseException | None = None
        self._done = threading.Event()

    def run(self) -> None:
        """Call, and keep what it returned or raised."""
        try:
            self._result = self._call()
        except BaseException as error:
            self._error = error
        self._done.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; whether it was reached."""
        until = time.monotonic() + timeout_s
        while not self._done.wait(min(_LOOK_S, max(0.0, until - time.monotonic()))):
            if time.monotonic() >= until:
                return False
        return True

    def result(self) -> Any:
        """What the call returned; raises what it raised. Only after its end."""
        if self._error is None:
            return self._result
        try:
            raise self._error
        finally:
            self._error = None  # the exception's frames hold this job


class ControlThread:
    """A daemon thread with a queue of jobs. It ends after `leave`, and not before its job does.

    Attributes:
        ident: as `threading.get_ident` in it.
        native_id: as `threading.get_native_id` in it.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._newest: Job | None = None
        thread = threading.Thread(target=_serve, args=(self._jobs,), name="tmrl-control", daemon=True)
        thread.start()
        self.ident, self.native_id = thread.ident or 0, thread.native_id or 0

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in it."""
        return threading.get_ident() == self.ident

    @property
    def is_busy(self) -> bool:
        """Whether a job has not ended yet."""
        return self._newest is not None and not self._newest.wait(0.0)

    def start(self, call: Callable[[], Any]) -> Job:
        """Let the thread make a call, after those before it."""
        job = self._newest = Job(call)
        self._jobs.put(job)
        return job

    def leave(self) -> None:
        """No job comes any more. Does not wait."""
        self._jobs.put(None)


def _serve(jobs: queue.SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job.run()
        del job
