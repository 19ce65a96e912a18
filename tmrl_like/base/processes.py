"""Child processes that end when their parent has ended, in whatever way, and ways to end them in
limited time.

This works the same on Linux, macOS and Windows: a process checks whether its parent is alive. The
module also sets how many cores a training process uses, and what happens to memory that a process
has freed.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from tmrl_like.base.children import start_script
from tmrl_like.base.importing import import_object
from tmrl_like.base.threads import start_thread
from tmrl_like.errors import expect

log = logging.getLogger("tmrl_like")

_LOOK_S = 0.03
_WAIT_S = 0.02
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
_OLD_MAX_BYTES = 32 << 20  # the largest threshold that an older glibc accepts


def end_with_parent(
    then: Callable[[], object] = lambda: os._exit(1), parent_id: int | None = None
) -> None:
    """Call `then`, in a thread of its own, as soon as the process that started this one has ended:
    the one with the id `parent_id` or, if this process was started by `start_script`, its parent.
    """
    parent_id = parent_id or int(sys.argv[1])

    def watch() -> None:
        with contextlib.suppress(psutil.Error):
            parent = psutil.Process(parent_id)
            if hasattr(os, "pidfd_open"):
                with contextlib.suppress(OSError):  # older kernels, and some containers
                    select.select([os.pidfd_open(parent.pid)], [], [])
            while is_alive(parent):
                time.sleep(_LOOK_S)
        then()

    start_thread(watch, "tmrl-parent")


def keep_freed_memory(max_bytes: int) -> None:
    """Let this process reuse memory that it has freed, up to `max_bytes`.

    By default glibc returns large blocks to the system, and getting their pages again takes longer
    than copying data into them. Without glibc this has no effect.
    """
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, max_bytes)
        if not mallopt(_M_MMAP_THRESHOLD, max_bytes):
            mallopt(_M_MMAP_THRESHOLD, _OLD_MAX_BYTES)


def cores_to_train_with() -> int:
    """Return the number of cores for training: all that this process may use but one, which is left
    to other threads and processes.

    If several trainers run on this machine, this is the number for one of them.
    """
    if hasattr(os, "sched_getaffinity"):  # a batch system may have limited it to some cores
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE") or 1) - 1)


def is_alive(process: psutil.Process) -> bool:
    """Whether a process is still running; a zombie is not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except OSError:  # the system has no descriptor left to look with
        return True
    except psutil.Error:
        return False


def family_of(pid: int) -> list[psutil.Process]:
    """Return a process and its descendants, without those that are gone."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def end_processes(
    alive: Sequence[psutil.Process], term_within_s: float, kill_within_s: float
) -> list[psutil.Process]:
    """Terminate processes, and kill those that do not end; return those that could not be ended.

    `term_within_s` and `kill_within_s` are the seconds to wait after each step.
    """
    for ask, within_s in (
        (psutil.Process.terminate, term_within_s),
        (psutil.Process.kill, kill_within_s),
    ):
        for process in alive:
            with contextlib.suppress(psutil.Error):
                ask(process)
        until = time.monotonic() + within_s
        while alive and time.monotonic() < until:
            alive = [
                process
                for process in psutil.wait_procs(alive, timeout=_WAIT_S)[1]
                if is_alive(process)
            ]
    return list(alive)


def _is_call(call: Any) -> bool:
    """Whether another process can make a call. Raises ConfigError if there is no such function."""
    with contextlib.suppress(TypeError, ValueError):
        is_json = isinstance(call, list | tuple) and bool(json.dumps(call))
        if not is_json or call[0].startswith("__main__."):
            return False
        function = import_object(call[0])
        with contextlib.suppress(ValueError):  # built-ins without a signature
            inspect.signature(function).bind(*call[1:])
        return callable(function)
    return False


class ProcessGuard:
    """Ends processes and makes a call if this process ends without doing so itself, for example
    because it is killed.

    A small process, started when first needed, waits for the end of this one. Any thread may use
    the guard.
    """

    def __init__(self) -> None:
        self._reaper: subprocess.Popen[bytes] | None = None
        self._failed = self._has_call = False
        self._lock = threading.RLock()  # a signal handler may use the guard within a call

    @property
    def pid(self) -> int:
        """The id of the process that waits for this one's end; 0: there is none."""
        with self._lock:
            return self._reaper.pid if self._reaper is not None else 0

    def add(self, pid: int) -> None:
        """Guard a process: it and its descendants will be terminated, and killed if they do not
        end.
        """
        with self._lock:
            self._tell({"end": pid})

    def call_at_end(self, call: Sequence[str | float] | None) -> None:
        """Set the call to make then, in the guard's process: a function's import path and its
        arguments.

        It replaces the previous call; None: no call.

        Raises:
            ConfigError: the guard's process could not make this call.
        """
        if call:
            expected = "an import path like module.function, then its arguments: text, numbers"
            expect(_is_call(call), "stop_from_outside", call, expected)
        with self._lock:
            if call or self._has_call:
                self._has_call = bool(call)
                self._tell({"call": call})

    def _tell(self, what: Mapping[str, object]) -> None:
        if self._failed:
            return
        try:
            if self._reaper is None:
                reaper = Path(__file__).with_name("reaper.py")
                self._reaper = start_script(
                    reaper, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
                )
            assert self._reaper.stdin is not None
            self._reaper.stdin.write(json.dumps(what).encode() + b"\n")
        except OSError as error:
            self._failed = True
            log.warning(
                "if this process is killed, processes that it started may be left behind: %s", error
            )

    def close(self) -> None:
        """Stop guarding: nothing is ended or called any more. Calling it twice is fine."""
        with self._lock:
            if self._reaper is not None:
                self._reaper.communicate(b"{}\n")
                self._reaper = None
