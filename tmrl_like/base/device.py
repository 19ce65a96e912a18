"""A device on its own clock, a simulated robot or a game, in a process of its own.

It runs whether or not anybody looks. A command stays in effect until the next one, and what is
known of the device is its newest state. Both travel through shared memory, where the newest
replaces the one before: nobody waits.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from tmrl_like.base.children import start_script
from tmrl_like.base.processes import end_with_parent
from tmrl_like.errors import EnvironmentFaultError

_SLOTS = 4  # a message that is being read is written over this many messages later
_LOOK_S = 0.005
_ENDS_WITHIN_S = 0.2  # a process that was killed falls silent a moment before it has ended
_SHARED_MEMORY = Path("/dev/shm")  # where there is none, a file: its pages are shared as well


class Mail(NamedTuple):
    """The newest one of a mailbox."""

    number: int  # 1, 2, 3 …; 0: there is none yet
    put_at: float  # `time.perf_counter()`, which is the same in all processes
    data: bytes


class _Mailbox:
    """The newest message, of a fixed size, that one process puts and another one reads."""

    def __init__(self, box: Any) -> None:
        """`box` is an array [1] of `_box`."""
        self._count, self._put_at, self._data = box["count"], box["put_at"][0], box["data"][0]

    def put(self, data: bytes) -> None:
        number = self._count[0] + 1
        self._put_at[number % _SLOTS] = time.perf_counter()
        self._data[number % _SLOTS] = data
        self._count[0] = number

    def newest(self) -> Mail:
        while True:
            number = int(self._count[0])
            put_at, data = (
                float(self._put_at[number % _SLOTS]),
                self._data[number % _SLOTS].tobytes(),
            )
            if self._count[0] < number + _SLOTS - 1:
                return Mail(number, put_at, data)


def _box(size: int) -> np.dtype[Any]:
    return np.dtype(
        [("count", np.int64), ("put_at", np.float64, _SLOTS), ("data", f"V{size}", _SLOTS)]
    )


def _mailboxes(
    path: str, mode: Literal["w+", "r+"], command_size: int, state_size: int
) -> list[_Mailbox]:
    """Those of commands and of states, in a file; "w+" makes it."""
    layout = np.dtype([("commands", _box(command_size)), ("states", _box(state_size))])
    shared = np.memmap(path, layout, mode, shape=1)
    return [_Mailbox(shared["commands"]), _Mailbox(shared["states"])]


class DeviceProcess:
    """A running device. It ends with `close`, or with the process that started it.

    What asks it raises EnvironmentFaultError, with the device's last words, where its process has
    ended.
    """

    def __init__(
        self,
        name: str,
        script: Path,
        options: Any,
        command_size: int,
        state_size: int,
        within_s: float,
    ) -> None:
        """Start it, and wait for its first state.

        Args:
            name: of the device, "the arm", for what goes wrong with it.
            script: a Python file that makes a `DeviceProgram`.
            options: what that finds as its `options`, through JSON.
            command_size: of each command, in bytes.
            state_size: of each state, in bytes.
            within_s: the first state is there so long after the start.

        Raises:
            EnvironmentFaultError: it is not.
        """
        self._name, self._ended = name, False
        folder = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
        file, path = tempfile.mkstemp(prefix="tmrl_like.device.", dir=folder)
        os.close(file)
        self._path = Path(path)
        self._commands, self._states = _mailboxes(path, "w+", command_size, state_size)
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._process = start_script(
            script, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self._said
        )
        job = {
            "path": path,
            "command_size": command_size,
            "state_size": state_size,
            "options": options,
        }
        try:
            assert self._process.stdin is not None
            # it has ended: `_check` says so
            with contextlib.suppress(OSError), self._process.stdin as stdin:
                stdin.write(json.dumps(job).encode())
            self.wait_for(lambda state: state.number > 0, "start", within_s)
            self._forget_path()  # its process has the memory open
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def command(self, data: bytes) -> None:
        """Let the device do this from now on; does not wait for the effect."""
        self._check()
        self._commands.put(data)

    def look(self, stale_s: float, within_s: float = 0.0) -> bytes:
        """The newest state, waited for where it is older than `stale_s`; EnvironmentFaultError:
        none comes in time.
        """
        problem = f"has sent no state for {max(stale_s, within_s):g} s: its process hangs"
        return self._await(
            lambda state: time.perf_counter() - state.put_at <= stale_s, problem, within_s
        )

    def wait_for(self, is_it: Callable[[Mail], bool], request: str, within_s: float) -> None:
        """Wait for a state of which `is_it` is true; EnvironmentFaultError: there is none in
        time.
        """
        self._await(is_it, f"did not {request} within {within_s:g} s", within_s)

    def _await(self, is_it: Callable[[Mail], bool], problem: str, within_s: float) -> bytes:
        until = time.monotonic() + within_s
        while True:
            self._check()
            state = self._states.newest()
            if is_it(state):
                return state.data
            if time.monotonic() >= until:
                break
            time.sleep(_LOOK_S)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDS_WITHIN_S)
        self._check()
        raise EnvironmentFaultError(f"{self._name} {problem}")

    def _check(self) -> None:
        if self._ended:
            raise EnvironmentFaultError(f"{self._name} is not connected: it was closed")
        code = self._process.poll()
        if code is not None:
            self._said.seek(0)
            last_words = self._said.read().decode(errors="replace").strip().splitlines()[-1:]
            raise EnvironmentFaultError(
                ": ".join([f"{self._name}'s process ended with {code}", *last_words])
            )

    def _forget_path(self) -> None:
        with contextlib.suppress(OSError):  # Windows, where somebody has it open
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """End it. From any thread; twice is fine."""
        if self._ended:
            return
        self._ended = True
        self._process.kill()
        self._process.wait()
        self._said.close()
        self._forget_path()


class DeviceProgram:
    """The program's side of a `DeviceProcess`.

    Attributes:
        options: what the other side gave.
    """

    def __init__(self) -> None:
        """Find the other side, with whose process this one ends."""
        end_with_parent()
        job = json.load(sys.stdin)
        self.options = job["options"]
        sizes = job["command_size"], job["state_size"]
        self._commands, self._states = _mailboxes(job["path"], "r+", *sizes)

    def newest_command(self) -> Mail:
        """What it shall do."""
        return self._commands.newest()

    def publish(self, state: bytes) -> None:
        """Let this be the newest state."""
        self._states.put(state)


def cycles(period_s: float, max_behind_s: float) -> Iterator[float]:
    """When each cycle of a clock is due, in seconds of `time.perf_counter`; comes back then, or as
    soon as it can.

    When a cycle is due does not depend on when the one before came. A process that was held up for
    longer than `max_behind_s` has lost the time: it does not catch up.
    """
    due_s = time.perf_counter()
    while True:
        now_s = time.perf_counter()
        if now_s - due_s > max_behind_s:
            due_s = now_s
        time.sleep(max(0.0, due_s - now_s))
        yield due_s
        due_s += period_s
