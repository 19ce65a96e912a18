"""Threads and processes, whose number the system limits for each user or container."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor

from tmrl_like.errors import ShortageError

_CURE = (
    "end other programs, or raise the limit of processes and threads (ulimit -u, or the "
    "container's)"
)


def start_thread(run: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread and return it; raise ShortageError if the system has none left."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise no_thread(name, error) from None
    return thread


def thread_beside(name: str) -> ThreadPoolExecutor:
    """Return an executor whose only thread has already been started; raises like `start_thread`."""
    executor = ThreadPoolExecutor(1, name)
    try:
        executor.submit(int)
    except RuntimeError as error:
        raise no_thread(name, error) from None
    return executor


def call_beside(executor: Executor | None, call: Callable[[], None]) -> Future[None]:
    """Submit a call to an executor; make it here if there is none, or if the interpreter is
    exiting, when executors accept none.
    """
    if executor is not None:
        with contextlib.suppress(RuntimeError):
            return executor.submit(call)
    made: Future[None] = Future()
    try:
        call()
        made.set_result(None)
    except Exception as error:
        made.set_exception(error)
    return made


def wait_checking(event: threading.Event, timeout_s: float, check: Callable[[], None]) -> bool:
    """Wait until an event is set, and return whether it is; raise what `check` does meanwhile."""
    until = time.monotonic() + timeout_s
    while not event.wait(0.05) and time.monotonic() < until:
        check()
    check()
    return event.is_set()


def expect_threads(number: int, name: str) -> None:
    """Check that a number of threads can be started, for a library that would otherwise end the
    process; raises like `start_thread`.
    """
    done = threading.Event()
    try:
        threads = [start_thread(done.wait, name) for _ in range(number)]
    finally:
        done.set()
    for thread in threads:
        thread.join()


def is_shortage(error: BaseException) -> bool:
    """Whether an error says that no thread could be started, by tmrl_like or by other code."""
    return isinstance(error, ShortageError) or (
        isinstance(error, RuntimeError) and "can't start new" in str(error)
    )


def no_thread(name: str, error: RuntimeError) -> ShortageError:
    """Return the error for a thread that cannot be started."""
    return ShortageError(f"the thread {name} cannot be started: {error}; {_CURE}")


def no_process(name: str, error: OSError) -> ShortageError:
    """Return the error for a process that cannot be started."""
    return ShortageError(
        f"the process {name} cannot be started: {error.strerror or error}; {_CURE}"
    )
