"""Key presses, as from the keyboard: they go to whatever window has the focus."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable
from typing import Any

from tmrl_like.envs.keyboards import PynputKeyboard, X11Keyboard, open_keyboard
from tmrl_like.errors import EnvironmentAwayError

TAP_S = 0.1  # a game that looks at its keys 20 times a second sees that


class Keyboard:
    """Holds keys down. What is still held is released by `close`, and when the interpreter ends without it.

    Keys have names, "left", "space", "enter", "f5", or are single characters, "w".
    """

    def __init__(self) -> None:
        """Open the keyboard.

        Raises:
            ConfigError: there is no screen whose keyboard this could be.
            MissingExtraError: what presses keys is not installed.
        """
        self._port = open_keyboard()
        self._held: dict[str, Any] = {}
        weakref.finalize(self, _let_go, self._port, self._held)

    @property
    def held(self) -> frozenset[str]:
        """Keys that are down."""
        return frozenset(self._held)

    def free(self, keys: Iterable[str]) -> None:
        """Release keys that somebody else left down, a process that was killed for instance.

        Raises:
            ConfigError: there is no such key; none is released.
        """
        _release(self._port, {name: self._port.key(name) for name in keys})

    def hold(self, keys: Iterable[str]) -> None:
        """Let exactly these keys be down: press what is not, release the others.

        Raises:
            ConfigError: there is no such key; nothing is pressed.
            EnvironmentAwayError: the screen is gone.
        """
        wanted = {name: self._held.get(name) or self._port.key(name) for name in keys}
        _release(self._port, self._held, self._held.keys() - wanted.keys())
        for name in wanted.keys() - self._held.keys():
            self._held[name] = wanted[name]
            try:
                self._port.press(wanted[name])
            except Exception as error:  # each platform has its own
                raise EnvironmentAwayError(f"keys cannot be pressed: {error.with_traceback(None)}") from None

    def tap(self, key: str, seconds: float = TAP_S) -> None:
        """Press a key and release it after that time."""
        before = set(self._held)
        self.hold({*before, key})
        try:
            time.sleep(seconds)
        finally:
            self.hold(before - {key})

    def close(self) -> None:
        """Release all keys. Twice is fine."""
        self.hold(())


def _let_go(port: X11Keyboard | PynputKeyboard, held: dict[str, Any]) -> None:
    _release(port, held)
    port.close()


def _release(port: X11Keyboard | PynputKeyboard, held: dict[str, Any], names: Iterable[str] | None = None) -> None:
    for name in set(held if names is None else names):
        try:
            port.release(held.pop(name))
        except Exception as error:  # the screen is gone, and its keys with it
            error.__traceback__ = None  # libraries keep the error, and that this keyboard
