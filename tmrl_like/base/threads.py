"""Threads and processes, of which a system gives a user, or a container, so many and no more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor

from tmrl_like.errors import ShortageError

_CURE = (
    "end other programs, or raise the limit of processes and threads (ulimit -u, or the "
    "container's)"
)


def start_thread(run: Callable[[], object], name: str) -> threading.Thread:
    """A daemon thread that has begun; ShortageError: the system gives no more."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise no_thread(name, error) from None
    return thread


def thread_beside(name: str) -> ThreadPoolExecutor:
    """An executor whose one thread is there from the start: none has to be started later; raises as
    `start_thread`.
    """
    executor = ThreadPoolExecutor(1, name)
    try:
        executor.submit(int)
    except RuntimeError as error:
        raise no_thread(name, error) from None
    return executor


def call_beside(executor: Executor, call: Callable[[], None]) -> Future[None]:
    """Have an executor make a call; where the interpreter exits, and executors take none any more,
    it is made here.
    """
    try:
        return executor.submit(call)
    except RuntimeError:
        call()
        made: Future[None] = Future()
        made.set_result(None)
        return made


def expect_threads(number: int, name: str) -> None:
    """Make sure that so many can be started, by a library that ends the process otherwise; raises
    as `start_thread`.
    """
    done = threading.Event()
    try:
        threads = [start_thread(done.wait, name) for _ in range(number)]
    finally:
        done.set()
    for thread in threads:
        thread.join()


def is_shortage(error: BaseException) -> bool:
    """Whether the system gave no thread, to us or, in Python's own words, to anybody."""
    return isinstance(error, ShortageError) or (
        isinstance(error, RuntimeError) and "can't start new" in str(error)
    )


def no_thread(name: str, error: RuntimeError) -> ShortageError:
    """The error of a thread that cannot be started."""
    return ShortageError(f"the thread {name} cannot be started: {error}; {_CURE}")


def no_process(name: str, error: OSError) -> ShortageError:
    """The error of a process that cannot be started."""
    return ShortageError(
        f"the process {name} cannot be started: {error.strerror or error}; {_CURE}"
    )
