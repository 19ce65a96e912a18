"""A thread that runs one call after another, and can be left behind when a call does not return."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from tmrl_like.base.threads import no_thread


class ControlThread(threading.Thread):
    """A daemon thread with a queue of calls. It ends after `leave`, once its calls have returned.

    Attributes:
        is_left: whether `leave` was called.
    """

    def __init__(self, name: str = "tmrl-control") -> None:
        """Start the thread; raise ShortageError if the system gives no more threads."""
        super().__init__(name=name, daemon=True)
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = (
            queue.SimpleQueue()
        )
        # weak, for the interpreter holds this thread: an exception would keep the environment
        self._newest: Callable[[], Future[Any] | None] = lambda: None
        self.is_left = False
        try:
            self.start()
        except RuntimeError as error:
            raise no_thread(name, error) from None

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return threading.current_thread() is self

    @property
    def is_busy(self) -> bool:
        newest = self._newest()
        return newest is not None and not newest.done()

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Queue a call for the thread; return the future of its result."""
        done: Future[Any] = Future()
        self._newest = weakref.ref(done)
        self._calls.put((call, done))
        return done

    def leave(self) -> None:
        """Let the thread end after the calls in its queue, without waiting for it."""
        self.is_left = True
        self._calls.put(None)

    def run(self) -> None:
        """Make the calls; the thread does this by itself."""
        while (item := self._calls.get()) is not None:
            _make_call(*item)
            del item


def _make_call(call: Callable[[], Any], done: Future[Any]) -> None:
    try:
        result = call()
    except BaseException as error:
        done.set_exception(error)
    else:
        done.set_result(result)
    del call, done  # the exception keeps this frame, which would keep them
