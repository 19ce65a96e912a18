"""A simulated device, such as a robot or a game, that runs on its own clock in its own process.

The device keeps running whether or not its states are read. A command stays in effect until the
next one, and only the newest state of the device is available. Both are exchanged through shared
memory, where each new one replaces the previous one, so that neither side ever waits.
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

_SLOTS = 4  # a message is overwritten this many messages later
_LOOK_S = 0.005
_ENDS_WITHIN_S = 0.2  # a killed process falls silent a moment before it has ended
_SHARED_MEMORY = Path("/dev/shm")  # if missing, an ordinary file, whose pages are shared as well


class Mail(NamedTuple):
    """The newest message of a mailbox."""

    number: int  # 1, 2, 3, …; 0: there is no message yet
    put_at: float  # `time.perf_counter()`, which is the same in all processes
    data: bytes


class _Mailbox:
    """Shared memory for the newest message of a fixed size; one process writes, another reads."""

    def __init__(self, box: Any) -> None:
        """Use `box`, an array [1] with the dtype `_box`."""
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
    """Map the mailboxes for commands and for states, in a file; the mode "w+" creates it."""
    layout = np.dtype([("commands", _box(command_size)), ("states", _box(state_size))])
    shared = np.memmap(path, layout, mode, shape=1)
    return [_Mailbox(shared["commands"]), _Mailbox(shared["states"])]


class DeviceProcess:
    """A running device. It ends with `close`, or with the process that started it.

    If its process has ended, methods that use it raise EnvironmentFaultError with the last line
    that the device wrote to standard error.
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
        """Start the device, and wait for its first state.

        Args:
            name: name of the device for error messages, for example "the arm".
            script: a Python file that creates a `DeviceProgram`.
            options: JSON-compatible value, passed to the program as its `options`.
            command_size: size of a command, in bytes.
            state_size: size of a state, in bytes.
            within_s: maximum time until the first state, in seconds.

        Raises:
            EnvironmentFaultError: there is no state within that time.
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
            # the process has ended: `_check` raises that
            with contextlib.suppress(OSError), self._process.stdin as stdin:
                stdin.write(json.dumps(job).encode())
            self.wait_for(lambda state: state.number > 0, "start", within_s)
            self._forget_path()  # the device's process has the memory open by now
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The id of the device's process."""
        return self._process.pid

    def command(self, data: bytes) -> None:
        """Set the command that is in effect from now on, without waiting for its effect."""
        self._check()
        self._commands.put(data)

    def look(self, stale_s: float, within_s: float = 0.0) -> bytes:
        """Return the newest state; if it is older than `stale_s`, wait up to `within_s` for one.

        Raises:
            EnvironmentFaultError: no such state comes in time.
        """
        problem = f"has sent no state for {max(stale_s, within_s):g} s: its process hangs"
        return self._await(
            lambda state: time.perf_counter() - state.put_at <= stale_s, problem, within_s
        )

    def wait_for(self, is_it: Callable[[Mail], bool], request: str, within_s: float) -> None:
        """Wait for a state for which `is_it` is true; raise EnvironmentFaultError if none comes in
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
        with contextlib.suppress(OSError):  # Windows, where the file is open
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """End the device. Any thread; calling it twice is fine."""
        if self._ended:
            return
        self._ended = True
        self._process.kill()
        self._process.wait()
        self._said.close()
        self._forget_path()


class DeviceProgram:
    """The device's side of a `DeviceProcess`.

    Attributes:
        options: the options that the `DeviceProcess` was given.
    """

    def __init__(self) -> None:
        """Connect to the `DeviceProcess`; from now on this process ends with its process."""
        end_with_parent()
        job = json.load(sys.stdin)
        self.options = job["options"]
        sizes = job["command_size"], job["state_size"]
        self._commands, self._states = _mailboxes(job["path"], "r+", *sizes)

    def newest_command(self) -> Mail:
        """Return the newest command."""
        return self._commands.newest()

    def publish(self, state: bytes) -> None:
        """Make this the newest state."""
        self._states.put(state)


def cycles(period_s: float, max_behind_s: float) -> Iterator[float]:
    """Wait for each cycle of a clock, and yield when it was due, in seconds of `time.perf_counter`.

    Due times do not drift: they do not depend on when earlier cycles actually came. After a delay
    of more than `max_behind_s`, the clock starts anew instead of catching up.
    """
    due_s = time.perf_counter()
    while True:
        now_s = time.perf_counter()
        if now_s - due_s > max_behind_s:
            due_s = now_s
        time.sleep(max(0.0, due_s - now_s))
        yield due_s
        due_s += period_s
