"""Real-time settings of the operating system and of Python, for as long as a worker's control loop
runs.

If a request is not granted, one line is logged, and the loop runs without it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from tmrl_like.errors import expect

log = logging.getLogger("tmrl_like.worker")

_TIME_CRITICAL = 15  # THREAD_PRIORITY_TIME_CRITICAL
_SET_THREAD = 0x0060  # THREAD_SET_INFORMATION | THREAD_QUERY_INFORMATION
# how long another thread that computes in Python may keep the control thread waiting
_SWITCH_S = 0.0002
# young objects that make a collection worthwhile, as by Python's own rule, which collects each
# older generation after ten collections of the one below
_YOUNG = 700
# young objects at which Python may interrupt the control loop after all: other threads make some
_MANY = 100_000


def refuse_missing_cores(cpu_affinity: Sequence[int] | None) -> None:
    """Raise ConfigError unless this machine has all these processors."""
    cores = range(os.cpu_count() or 1)
    are_there = cpu_affinity is None or set() < set(cpu_affinity) <= set(cores)
    expect(are_there, "cpu_affinity", cpu_affinity, f"numbers from 0 to {cores[-1]}, at least one")


@contextlib.contextmanager
def real_time(
    control: int,
    helpers: Sequence[int] = (),
    *,
    priority: int | None = None,
    cpu_affinity: Sequence[int] | None = None,
) -> Iterator[None]:
    """Apply the requested priority and affinity while the context is open, and keep Python from
    interrupting the control loop.

    Threads and programs that the control thread starts meanwhile inherit both. `_Interpreter`
    describes what changes in Python.

    Args:
        control: native id of the thread that steps the environment.
        helpers: native ids of threads that may hold the interpreter while the control thread waits
            for it. They get a priority as well; otherwise a busy processor would stop them and,
            with them, the control thread.
        priority: real-time priority (SCHED_FIFO on Linux, 1 to 99; "time critical" on Windows,
            whatever the number); None: ordinary scheduling.
        cpu_affinity: the processors that the control thread may use; None: all.
    """
    undo: list[Callable[[], object]] = []
    if priority is not None:
        undo += _tried(f"real-time priority {priority}", partial(set_priority, control, priority))
        for helper in helpers if undo else ():
            undo += _tried("real-time priority 1", partial(_lend_priority, helper))
    if cpu_affinity is not None:
        cores = sorted(set(cpu_affinity))
        undo += _tried(f"cpu_affinity {cores}", partial(_set_affinity, control, cores))
    try:
        with _interpreter:
            yield
    finally:
        for call in undo:
            with contextlib.suppress(OSError):  # the thread has ended
                call()


class _Interpreter:
    """This process's Python settings while control loops run: the first loop changes them, the last
    one restores them.

    Garbage is collected when nothing waits for it (`collect_garbage`), and objects that existed
    before are not examined: with torch imported, these are some 100,000 objects, and take tens of
    milliseconds in the middle of a step. Threads that compute in Python release the interpreter
    sooner than by default.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loops = 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._loops:
                self._thresholds, self._switch_s = gc.get_threshold(), sys.getswitchinterval()
                gc.set_threshold(_MANY, *self._thresholds[1:])
                sys.setswitchinterval(min(_SWITCH_S, self._switch_s))
                # not in later loops, which would keep what breaks until the last one ends
                gc.collect()
                gc.freeze()
            self._loops += 1

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._loops -= 1
            if not self._loops:
                gc.unfreeze()
                sys.setswitchinterval(self._switch_s)
                gc.set_threshold(*self._thresholds)


_interpreter = _Interpreter()


def collect_garbage(is_between_episodes: bool) -> None:
    """Collect the garbage of a control loop that runs under `real_time`; do nothing if Python
    collects by itself.

    Within an episode, call it right after a step: it collects young objects once there are as many
    as Python would wait for, and everything only in very long episodes. Between episodes it
    collects young objects, and everything as often as Python would.
    """
    if not gc.isenabled() or gc.get_threshold()[0] != _MANY:
        return
    young, middle, old = gc.get_count()
    if is_between_episodes:
        gc.collect(2 if old > 10 else 1)
    elif young > _YOUNG:
        gc.collect(2 if old > 100 else 1 if middle > 10 else 0)


def _tried(what: str, ask: Callable[[], Callable[[], object]]) -> list[Callable[[], object]]:
    try:
        return [ask()]
    except (OSError, AttributeError) as error:
        reason = (
            "this system has no such thing"
            if isinstance(error, AttributeError)
            else error.strerror or error
        )
        log.warning(
            "%s is not granted (%s); the control loop runs without: see docs/guide/realtime.md",
            what,
            reason,
        )
        return []


def set_priority(thread: int, priority: int) -> Callable[[], None]:
    """Give a thread a real-time priority; return a function that restores the previous one.

    Raises:
        OSError: the system does not grant it.
        AttributeError: this system has no real-time priorities.
    """
    if sys.platform == "win32":
        return _windows_thread(thread, "SetThreadPriority", _TIME_CRITICAL, 0)
    policy, before = os.sched_getscheduler(thread), os.sched_getparam(thread)
    os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(priority))
    return lambda: os.sched_setscheduler(thread, policy, before)


def _lend_priority(thread: int) -> Callable[[], object]:
    """Do as `set_priority` with the lowest one, unless the thread has one already: it is the
    control thread itself, or helps another control loop.
    """
    if sys.platform != "win32" and os.sched_getscheduler(thread) == os.SCHED_FIFO:
        return int
    return set_priority(thread, 1)


def _set_affinity(thread: int, cores: Sequence[int]) -> Callable[[], None]:
    if sys.platform == "win32":
        everywhere = (1 << (os.cpu_count() or 1)) - 1
        return _windows_thread(
            thread, "SetThreadAffinityMask", sum(1 << core for core in cores), everywhere
        )
    before = os.sched_getaffinity(thread)
    os.sched_setaffinity(thread, cores)
    return lambda: os.sched_setaffinity(thread, before)


def _windows_thread(thread: int, call: str, value: int, before: int) -> Callable[[], None]:
    kernel: Any = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined,unused-ignore]

    def change(to: int) -> None:
        handle = kernel.OpenThread(_SET_THREAD, False, thread)
        done = handle and getattr(kernel, call)(ctypes.c_void_p(handle), ctypes.c_size_t(to))
        if handle:
            kernel.CloseHandle(ctypes.c_void_p(handle))
        if not done:
            raise OSError(0, f"{call} failed with error {ctypes.get_last_error()}")  # type: ignore[attr-defined,unused-ignore]

    change(value)
    return lambda: change(before)
