"""Key presses, as from the keyboard: they go to whatever window has the focus."""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Iterable
from typing import Any

from tmrl_like.envs.desktop.screen import require_display
from tmrl_like.errors import ConfigError, EnvironmentAwayError, MissingExtraError

TAP_S = 0.1  # a game that looks at its keys 20 times a second sees that


class Keyboard:
    """Holds keys down. What is still held is released by `close`, and when the interpreter ends without it.

    Keys have pynput's names, "left", "space", "enter", "f5", or are single characters, "w".
    """

    def __init__(self) -> None:
        """Open the keyboard.

        Raises:
            ConfigError: there is no screen whose keyboard this could be.
            MissingExtraError: pynput is not installed.
        """
        require_display()
        try:
            from pynput import keyboard
        except ImportError as error:
            if getattr(error, "name", None) == "pynput":
                raise MissingExtraError("keys are pressed with pynput: pip install 'tmrl_like[desktop]'") from None
            raise ConfigError(f"there is no keyboard: {str(error).splitlines()[0]}") from None
        self._pynput: Any = keyboard
        self._controller = keyboard.Controller()
        self._held: dict[str, Any] = {}
        weakref.finalize(self, _release, self._controller, self._held)

    def __enter__(self) -> Keyboard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def held(self) -> frozenset[str]:
        """Keys that are down."""
        return frozenset(self._held)

    def free(self, keys: Iterable[str]) -> None:
        """Release keys that somebody else left down, a process that was killed for instance.

        Raises:
            ConfigError: there is no such key; none is released.
        """
        _release(self._controller, {name: self._key(name) for name in keys})

    def hold(self, keys: Iterable[str]) -> None:
        """Let exactly these keys be down: press what is not, release the others.

        Raises:
            ConfigError: there is no such key; nothing is pressed.
            EnvironmentAwayError: the screen is gone.
        """
        wanted = {name: self._held.get(name) or self._key(name) for name in keys}
        _release(self._controller, self._held, self._held.keys() - wanted.keys())
        for name in wanted.keys() - self._held.keys():
            self._held[name] = wanted[name]
            try:
                self._controller.press(wanted[name])
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

    def _key(self, name: str) -> Any:
        if len(name) == 1:
            code = self._pynput.KeyCode
            # on X11 by keysym: what pynput sends for a character is marked as artificial, and games ignore it
            return code.from_vk(ord(name)) if sys.platform.startswith("linux") else code.from_char(name)
        try:
            return self._pynput.Key[name]
        except KeyError:
            raise ConfigError(
                f"there is no key {name!r}; expected one character, or a name such as left, space, enter"
            ) from None


def _release(controller: Any, held: dict[str, Any], names: Iterable[str] | None = None) -> None:
    for name in set(held if names is None else names):
        try:
            controller.release(held.pop(name))
        except Exception as error:  # the screen is gone, and its keys with it
            error.__traceback__ = None  # pynput keeps the error, and that this keyboard
