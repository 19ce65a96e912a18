"""Tracks the processes that an environment starts, so that none outlives it."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import threading
import time
from pathlib import Path

import psutil

from tmrl_like.base.processes import ProcessGuard, end_processes

log = logging.getLogger("tmrl_like.envs")

_LOOK_S = 1.0
TERM_WITHIN_S = 1.0
_KILL_WITHIN_S = 1.0
# Python starts these once per process, whoever uses them
_PYTHONS_OWN = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
_TASKS = Path("/proc/self/task")


class EnvProcesses:
    """Tracks the processes that one environment started. Make it in the environment's thread, right
    before the environment.

    On Linux these are all children of the environment's thread and of the threads that it started
    while it was made. Elsewhere they are the children that appeared while the environment was made;
    on every system this also holds for children of multiprocessing's fork server. All their
    descendants are included.
    """

    def __init__(self, guard: ProcessGuard) -> None:
        """Remember the processes that exist before the environment; `guard` ends the environment's
        processes when this process is killed.
        """
        self._guard = guard
        own = threading.get_native_id()
        self._by_thread = (_TASKS / str(own) / "children").exists()
        self._threads_before = _threads() - {own} if self._by_thread else set()
        self._children_before = set() if self._by_thread else _children(os.getpid())
        self._forked_elsewhere_before = _forked_elsewhere()
        self._threads: set[int] = set()
        self._is_made = False
        self._seen: dict[int, psutil.Process] = {}
        self._next_look_at = 0.0

    def made(self) -> None:
        """Record that the environment is complete."""
        self._look()
        self._is_made = True

    def look(self) -> None:
        """Find new processes, at most once a second, since it takes 0.1 ms or more."""
        if time.monotonic() >= self._next_look_at:
            self._look()
            self._next_look_at = time.monotonic() + _LOOK_S

    def end(self) -> None:
        """End the processes: ask first, then kill."""
        self._look()
        alive = end_processes(list(self._seen.values()), TERM_WITHIN_S, _KILL_WITHIN_S)
        if alive:
            log.error(
                "processes of the environment cannot be ended: %s",
                ", ".join(str(p.pid) for p in alive),
            )

    def _look(self) -> None:
        self._seen = {pid: process for pid, process in self._seen.items() if process.is_running()}
        found = [*self._direct(), *self._seen]
        while found:
            pid = found.pop()
            if pid != self._guard.pid:
                found.extend(_children(pid) - self._seen.keys())
                if pid not in self._seen:
                    self._add(pid)

    def _direct(self) -> set[int]:
        found: set[int] = set()
        if not self._is_made:
            found = _forked_elsewhere() - self._forked_elsewhere_before
            if self._by_thread:
                self._threads = _threads() - self._threads_before
            else:
                found |= _children(os.getpid()) - self._children_before
        return found.union(*map(_children_of_thread, self._threads))

    def _add(self, pid: int) -> None:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if process.ppid() != os.getpid() or not any(
                name in " ".join(process.cmdline()) for name in _PYTHONS_OWN
            ):
                self._seen[pid] = process
                self._guard.add(pid)


def _threads() -> set[int]:
    return {int(name) for name in os.listdir(_TASKS)}


def _forked_elsewhere() -> set[int]:
    """Return the processes that multiprocessing started for this one as children of its fork
    server.
    """
    started = {
        process.pid for process in multiprocessing.active_children() if process.pid is not None
    }
    return started - _children(os.getpid()) if started else set()


def _children(pid: int) -> set[int]:
    tasks = Path("/proc", str(pid), "task")
    if (tasks / str(pid) / "children").exists():
        with contextlib.suppress(OSError):
            return {
                child
                for name in os.listdir(tasks)
                for child in _children_of_thread(int(name), tasks)
            }
    with contextlib.suppress(psutil.Error):
        return {child.pid for child in psutil.Process(pid).children()}
    return set()


def _children_of_thread(thread: int, tasks: Path = _TASKS) -> set[int]:
    with contextlib.suppress(OSError):
        return {int(pid) for pid in (tasks / str(thread) / "children").read_text().split()}
    return set()
