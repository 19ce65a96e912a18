"""A game's process: start it, see whether it lives, end it."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Mapping, Sequence

import numpy as np

from tmrl_like.base.children import start_child
from tmrl_like.base.processes import end_processes, family_of
from tmrl_like.envs.vision import Frame
from tmrl_like.errors import ConfigError, EnvironmentFaultError

_TERM_WITHIN_S = 1.0
_KILL_WITHIN_S = 5.0
_LOOK_S = 0.25


class GameProcess:
    """A game that is started by a command. What it starts itself ends with it."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        """Prepare; `start` starts the program with its arguments and these variables beside ours,
        without a shell.
        """
        self._command, self._environment = list(command), environment
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def exit_code(self) -> int | None:
        """Of a process that ended; None: there is none."""
        return self._process.poll() if self._process is not None else None

    def wait(self, within_s: float) -> None:
        """Until it has ended, for so long at most."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._process is not None:
                self._process.wait(within_s)

    def start(self) -> None:
        """Start it; one that is still running is ended first. Raises ConfigError if the command
        cannot be run.
        """
        self.close()
        try:
            quiet = subprocess.DEVNULL
            self._process = start_child(self._command, self._environment, stdin=quiet, stdout=quiet)
        except OSError as error:
            raise ConfigError(
                f"the game cannot be started with {self._command}: {error.strerror}"
            ) from None

    def close(self) -> None:
        """End it and its descendants: ask first, a second later kill. Twice is fine; one that is
        stopped ends, too.
        """
        if self._process is None:
            return
        end_processes(family_of(self._process.pid), _TERM_WITHIN_S, _KILL_WITHIN_S)
        # its last threads may end a moment later
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_WITHIN_S)
        self._process = None


class FrozenWatch:
    """Tells when a picture has not changed for so long that whoever draws it must hang."""

    def __init__(self, after_s: float) -> None:
        """A picture that stays the same for that long is frozen; `inf`: none is."""
        self._after_s = after_s
        self.reset()

    def reset(self) -> None:
        """Whatever comes next is new."""
        self._frame: Frame | None = None
        self._changed_at = self._next_look_at = 0.0

    def look(self, frame: Frame) -> None:
        """Raise EnvironmentFaultError if the picture is frozen; it is compared at most four times a
        second.
        """
        now = time.monotonic()
        if now < self._next_look_at:
            return
        self._next_look_at = now + min(_LOOK_S, self._after_s / 4)
        if self._frame is None or not np.array_equal(frame, self._frame):
            self._frame, self._changed_at = frame, now
        elif now - self._changed_at >= self._after_s:
            raise EnvironmentFaultError(
                f"the game hangs: its picture has not changed for {self._after_s:g} s"
            )
