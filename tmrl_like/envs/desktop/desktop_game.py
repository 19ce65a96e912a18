"""A game's process, and a check whether its picture is frozen."""

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
    """A game that is started by a command; processes that it starts itself end with it.

    Attributes:
        command: the command; empty for a game that is started by other means.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        """Set up; `start` runs the command without a shell, with `environment` in addition to the
        variables of this process.
        """
        self.command, self._environment = list(command), environment
        self._process: subprocess.Popen[bytes] | None = None

    def exit_code(self, within_s: float = 0.0) -> int | None:
        """Wait until the game has ended, for at most `within_s` seconds; return its exit code, or
        None if it still runs or was not started.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._process is not None:
                return self._process.wait(within_s)
        return None

    def start(self) -> None:
        """Start the game; raise ConfigError if the command cannot be run."""
        try:
            quiet = subprocess.DEVNULL
            self._process = start_child(self.command, self._environment, stdin=quiet, stdout=quiet)
        except OSError as error:
            raise ConfigError(
                f"the game cannot be started with {self.command}: {error.strerror}"
            ) from None

    def close(self) -> None:
        """End the game and its descendants: ask first, and kill a second later. This also ends a
        process that is suspended. Calling it twice is fine.
        """
        if self._process is None:
            return
        end_processes(family_of(self._process.pid), _TERM_WITHIN_S, _KILL_WITHIN_S)
        self.exit_code(_KILL_WITHIN_S)  # its last threads may end a moment later
        self._process = None


class FrozenWatch:
    """Detects a picture that has not changed for so long that the game must hang."""

    def __init__(self, after_s: float) -> None:
        """Set the seconds after which an unchanged picture is frozen; `inf` for never."""
        self._after_s = after_s
        self.reset()

    def reset(self) -> None:
        """Treat the next picture as new."""
        self._frame: Frame | None = None
        self._changed_at = self._next_look_at = 0.0

    def look(self, frame: Frame) -> None:
        """Raise EnvironmentFaultError if the picture is frozen. It is compared four times a second,
        or four times in `after_s` if that is shorter.
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
