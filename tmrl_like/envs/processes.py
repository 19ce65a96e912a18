"""The processes that an environment starts, and how none of them outlives it."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Protocol

import psutil

log = logging.getLogger("tmrl_like.worker")

_LOOK_S = 1.0
_TERM_WITHIN_S = 1.0
_KILL_WITHIN_S = 1.0
_PYTHONS_OWN = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")  # one per process, not per user
_TASKS = Path("/proc/self/task")


class EnvProcesses:
    """Knows which processes one environment started. Make it in the environment's thread, right before it.

    On Linux these are the children of the environment's thread and of the threads that it started while it
    was made, whenever they were started. Elsewhere, or in a thread that others use too, they are the
    children that appeared while it was made; so it is everywhere with those of multiprocessing's fork server.
    With them count all their descendants.
    """

    def __init__(self, guard: ProcessGuard, in_own_thread: bool) -> None:
        """Remember what was there before the environment.

        Args:
            guard: ends the processes when this process is killed.
            in_own_thread: the calling thread works for the environment alone.
        """
        self._guard = guard
        self._own_thread = threading.get_native_id()
        self._by_thread = in_own_thread and (_TASKS / str(self._own_thread) / "children").exists()
        self._threads_before = _threads() if self._by_thread else set()
        self._children_before = set() if self._by_thread else _children()
        self._forked_elsewhere_before = _forked_elsewhere()
        self._threads: set[int] | None = None  # None: the environment is being made
        self._is_made = False
        self._seen: dict[int, psutil.Process] = {}
        self._next_look_at = 0.0

    def made(self) -> None:
        """The environment is complete."""
        self._look()
        self._threads = self._threads_now()
        self._is_made = True

    def look(self) -> None:
        """Find new ones; at most once a second, for it costs a tenth of a millisecond and more."""
        if time.monotonic() >= self._next_look_at:
            self._look()
            self._next_look_at = time.monotonic() + _LOOK_S

    def _look(self) -> None:
        self._seen = {pid: process for pid, process in self._seen.items() if process.is_running()}
        found = [*self._direct(), *self._seen]
        while found:
            pid = found.pop()
            found.extend(_children(pid) - self._seen.keys())
            if pid not in self._seen and pid != self._guard.pid:
                self._add(pid)

    def _add(self, pid: int) -> None:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if process.ppid() != os.getpid() or not any(name in " ".join(process.cmdline()) for name in _PYTHONS_OWN):
                self._seen[pid] = process
                self._guard.add(pid)

    def _direct(self) -> set[int]:
        forked_elsewhere = set() if self._is_made else _forked_elsewhere() - self._forked_elsewhere_before
        if self._by_thread:
            threads = self._threads or self._threads_now()
            return forked_elsewhere.union(*map(_children_of_thread, threads))
        return set() if self._is_made else forked_elsewhere | _children() - self._children_before

    def _threads_now(self) -> set[int]:
        return {self._own_thread, *(_threads() - self._threads_before)} if self._by_thread else set()

    def end(self) -> None:
        """End them: ask first, then kill."""
        self._look()
        alive = end_processes(list(self._seen.values()), _TERM_WITHIN_S, _KILL_WITHIN_S)
        if alive:
            log.error("processes of the environment cannot be ended: %s", ", ".join(str(p.pid) for p in alive))


class _Guardian(Protocol):
    pid: int

    def add(self, pid: int) -> None: ...
    def close(self) -> None: ...


class ProcessGuard:
    """Ends processes when this one ends without having done so itself, killed for instance.

    Costs nothing before the first `add`.
    """

    def __init__(self) -> None:
        self._guardian: _Guardian | None = None
        self._failed = False

    @property
    def pid(self) -> int:
        """Process that waits for this one's end; 0: none."""
        return self._guardian.pid if self._guardian is not None else 0

    def add(self, pid: int) -> None:
        """End this process and its descendants, too."""
        if self._failed:
            return
        try:
            if self._guardian is None:
                self._guardian = _Job() if sys.platform == "win32" else _Reaper()
            self._guardian.add(pid)
        except OSError as error:
            self._failed = True
            log.warning("if this worker is killed, processes of its environment may be left behind: %s", error)

    def close(self) -> None:
        """End nothing any more. Twice is fine."""
        if self._guardian is not None:
            self._guardian.close()
            self._guardian = None


class _Reaper:
    """A small process that waits for the end of this one."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("reaper.py")
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(script), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what ends this process's group must not end it
        )
        self.pid = self._process.pid

    def add(self, pid: int) -> None:
        self._say(f"{pid}\n")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._say("end\n")
        self._process.wait()
        self._process.stdin.close()  # type: ignore[union-attr]

    def _say(self, line: str) -> None:
        self._process.stdin.write(line.encode())  # type: ignore[union-attr]
        self._process.stdin.flush()  # type: ignore[union-attr]


class _Job:
    """A Windows job: when its last handle closes, and that is when this process ends, so do its members."""

    pid = 0

    def __init__(self) -> None:
        import ctypes
        from ctypes import wintypes

        self._kernel: Any = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]
        for function in (self._kernel.CreateJobObjectW, self._kernel.OpenProcess):
            function.restype = wintypes.HANDLE
        self._job = wintypes.HANDLE(self._kernel.CreateJobObjectW(None, None))
        limits = (ctypes.c_uint32 * 36)()  # JOBOBJECT_EXTENDED_LIMIT_INFORMATION of 64-bit Windows: 144 bytes
        limits[4] = 0x2000  # LimitFlags, at byte 16: JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
        extended_limit_information = 9
        set_information = self._kernel.SetInformationJobObject
        self._check(set_information(self._job, extended_limit_information, limits, ctypes.sizeof(limits)))

    def add(self, pid: int) -> None:
        from ctypes import wintypes

        set_quota_and_terminate = 0x0100 | 0x0001
        process = wintypes.HANDLE(self._kernel.OpenProcess(set_quota_and_terminate, False, pid))
        try:
            self._check(self._kernel.AssignProcessToJobObject(self._job, process))
        finally:
            self._kernel.CloseHandle(process)

    def close(self) -> None:
        self._kernel.CloseHandle(self._job)

    @staticmethod
    def _check(done: int) -> None:
        import ctypes

        if not done:
            raise ctypes.WinError(ctypes.get_last_error())  # type: ignore[attr-defined]


def end_processes(alive: list[psutil.Process], term_within_s: float, kill_within_s: float) -> list[psutil.Process]:
    """End processes: ask first, then kill. Returns those that cannot be ended."""
    for ask, within_s in ((psutil.Process.terminate, term_within_s), (psutil.Process.kill, kill_within_s)):
        for process in alive:
            with contextlib.suppress(psutil.Error):
                ask(process)
        alive = psutil.wait_procs(alive, timeout=within_s)[1]
    return alive


def _threads() -> set[int]:
    return {int(name) for name in os.listdir(_TASKS)}


def _forked_elsewhere() -> set[int]:
    """Processes that multiprocessing started for this one, and that are children of its fork server."""
    started = {process.pid for process in multiprocessing.active_children() if process.pid is not None}
    return started - _children() if started else set()


def _children(pid: int | None = None) -> set[int]:
    """Children of a process; None: of this one."""
    pid = pid or os.getpid()
    tasks = Path("/proc", str(pid), "task")
    if (tasks / str(pid) / "children").exists():
        with contextlib.suppress(OSError):
            return {child for name in os.listdir(tasks) for child in _children_of_thread(int(name), tasks)}
    with contextlib.suppress(psutil.Error):
        return {child.pid for child in psutil.Process(pid).children()}
    return set()


def _children_of_thread(thread: int, tasks: Path = _TASKS) -> set[int]:
    with contextlib.suppress(OSError):
        return {int(pid) for pid in (tasks / str(thread) / "children").read_text().split()}
    return set()
