"""A person who watches an environment, signals how it goes, and resets it: by key, gamepad, command
or script.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tmrl_like.base.text import one_line
from tmrl_like.base.threads import start_thread
from tmrl_like.envs.drivers import Gamepad
from tmrl_like.envs.keyboards import KeyPort, open_keyboard
from tmrl_like.worker.options import BUTTON, PersonOptions, Said, to_said

log = logging.getLogger("tmrl_like.worker")

_EVERY_S = 0.01
_ENDS_WITHIN_S = 0.5


class Person:
    """Collects a person's signals in its own thread, and keeps them until the control loop, which
    never waits, takes them.

    Attributes:
        options: what the keys signal, and what the signals are worth.
        said: signals about episodes, oldest first: a reward, whether the episode ends, and when the
            person saw the event, in seconds of `time.perf_counter`.
        has_reset: set when the person has signalled that a reset is done.
    """

    def __init__(self, options: PersonOptions, file: Path) -> None:
        """Start listening, also to the lines that `tmrl-like signal` appends to `file`.

        Raises:
            ConfigError: there is no such key, or no screen.
            MissingExtraError: the package that reads keys or a gamepad is not installed.
        """
        self.options = options
        self.said: deque[tuple[float, bool, float]] = deque()
        self.has_reset = threading.Event()
        self._keyboard: KeyPort | None = None
        self._pad: Gamepad | None = None
        self._says = options.keys or {}
        self._is_down = {name: self._look_at(name) for name in self._says}
        self._was_down = dict.fromkeys(self._says, False)
        file.parent.mkdir(parents=True, exist_ok=True)
        self._lines = file.open("a+", encoding="utf-8")
        self._closing = threading.Event()
        self._thread = start_thread(self._run, "tmrl-person")

    def _look_at(self, name: str) -> Callable[[], bool]:
        """Return a function that tells whether a key or button is down."""
        if name.startswith(BUTTON):
            self._pad = self._pad or Gamepad()
            return partial(self._pad.is_down, int(name.removeprefix(BUTTON)))
        self._keyboard = self._keyboard or open_keyboard()
        return partial(self._keyboard.is_down, self._keyboard.key(name))

    def say(self, said: Said) -> None:
        """Signal success, failure, reset-done or a reward. Any thread. Raises ConfigError for
        anything else.
        """
        seen_at = time.perf_counter() - self.options.reaction_s
        match to_said(said):
            case "reset-done":
                self.has_reset.set()
            case "success":
                self.said.append((self.options.success_reward, True, seen_at))
            case "failure":
                self.said.append((self.options.failure_reward, True, seen_at))
            case reward:
                self.said.append((float(reward), False, seen_at))

    def _run(self) -> None:
        failure = ""
        while not self._closing.wait(_EVERY_S):
            try:
                self._listen()
                failure = ""
            except Exception as error:  # the screen is gone, or there is no gamepad
                if failure != (failure := one_line(error)):
                    log.error("a person cannot be heard: %s", failure)

    def _listen(self) -> None:
        while line := self._lines.readline():
            self.say(line.strip())
        failure: Exception | None = None
        for name, is_down in self._is_down.items():
            try:
                is_held = is_down()
            except Exception as error:  # keys of other devices still count
                failure = error
                continue
            if is_held and not self._was_down[name]:
                self.say(self._says[name])
            self._was_down[name] = is_held
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Stop listening. Calling it twice is fine."""
        self._closing.set()
        self._thread.join(_ENDS_WITHIN_S)
        self._lines.close()
        if self._keyboard is not None:
            self._keyboard.close()
