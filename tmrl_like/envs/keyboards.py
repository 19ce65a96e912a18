"""The keyboard, with keys by name: python-xlib on Linux, pynput elsewhere.

A key is given by a name, such as "left", "space", "enter" or "f5", or by a single character, "w".
"""

from __future__ import annotations

import contextlib
import sys
import time
import weakref
from collections.abc import Iterable
from typing import Any

from tmrl_like.envs.display import open_x11
from tmrl_like.errors import ConfigError, EnvironmentAwayError, MissingExtraError

TAP_S = 0.1  # long enough for a game that reads its keys 20 times a second

_X11_NAMES = {
    "alt": "Alt_L",
    "alt_gr": "ISO_Level3_Shift",
    "backspace": "BackSpace",
    "cmd": "Super_L",
    "cmd_l": "Super_L",
    "cmd_r": "Super_R",
    "ctrl": "Control_L",
    "ctrl_l": "Control_L",
    "ctrl_r": "Control_R",
    "enter": "Return",
    "esc": "Escape",
    "print_screen": "Print",
    "shift": "Shift_L",
    "space": "space",
}


class Keyboard:
    """Holds keys down; they go to whichever window has the focus.

    Keys that are still held are released by `close`, or at the latest when the interpreter exits.
    """

    def __init__(self) -> None:
        """Open the keyboard.

        Raises:
            ConfigError: there is no screen, and so no keyboard.
            MissingExtraError: the library that presses keys is not installed.
        """
        self._port = open_keyboard()
        self._held: dict[str, Any] = {}
        weakref.finalize(self, _let_go, self._port, self._held)

    def free(self, keys: Iterable[str]) -> None:
        """Release keys that another process left down, for instance because it was killed.

        Raises:
            ConfigError: there is no such key; none is released.
        """
        for key in [self._port.key(name) for name in keys]:
            _release(self._port, key)

    def hold(self, keys: Iterable[str]) -> None:
        """Hold exactly these keys down: press those that are not, and release all others.

        Raises:
            ConfigError: there is no such key; nothing is pressed.
            EnvironmentAwayError: the screen is gone.
        """
        wanted = {name: self._held.get(name) or self._port.key(name) for name in keys}
        for name in self._held.keys() - wanted.keys():
            _release(self._port, self._held.pop(name))
        for name in wanted.keys() - self._held.keys():
            self._held[name] = wanted[name]
            try:
                self._port.press(wanted[name])
            except Exception as error:  # each platform raises its own
                raise EnvironmentAwayError(
                    f"keys cannot be pressed: {error.with_traceback(None)}"
                ) from None

    def tap(self, key: str, seconds: float = TAP_S) -> None:
        """Press a key, and release it after `seconds`."""
        before = set(self._held)
        self.hold({*before, key})
        try:
            time.sleep(seconds)
        finally:
            self.hold(before - {key})

    def close(self) -> None:
        """Release all keys. Calling it twice is fine."""
        self.hold(())


def _let_go(port: KeyPort, held: dict[str, Any]) -> None:
    for key in list(held.values()):
        _release(port, key)
    port.close()


def _release(port: KeyPort, key: Any) -> None:
    try:
        port.release(key)
    except Exception as error:  # the screen is gone, and its keys with it
        error.__traceback__ = None  # libraries keep the error, which would keep this keyboard


def open_keyboard() -> KeyPort:
    """Return the keyboard of this machine; raises as `Keyboard`."""
    return X11Keyboard() if sys.platform.startswith("linux") else PynputKeyboard()


class X11Keyboard:
    """The keyboard of the X server that DISPLAY names; XTEST presses keys as if by hand."""

    def __init__(self) -> None:
        self._display = open_x11()
        from Xlib import XK, X, error
        from Xlib.ext import xtest

        self._x, self._xk, self._xtest = X, XK, xtest
        self._gone = error.ConnectionClosedError

    def key(self, name: str) -> int:
        """Return the key of a name, for the other methods; raise ConfigError if it is unknown."""
        keysym = (
            ord(name)
            if len(name) == 1
            else self._xk.string_to_keysym(_X11_NAMES.get(name, name.title()))
        )
        code: int = self._display.keysym_to_keycode(keysym) if keysym else 0
        if not code:
            raise _no_key(name)
        return code

    def press(self, key: int) -> None:
        self._send(self._x.KeyPress, key)

    def release(self, key: int) -> None:
        self._send(self._x.KeyRelease, key)

    def _send(self, event: int, key: int) -> None:
        self._xtest.fake_input(self._display, event, key)
        self._display.sync()

    def is_down(self, key: int) -> bool:
        """Whether the key is held down."""
        return bool(self._display.query_keymap()[key // 8] >> key % 8 & 1)

    def close(self) -> None:
        """Close the keyboard; keys that are held stay held. Calling it twice is fine."""
        with contextlib.suppress(self._gone):
            self._display.close()


class PynputKeyboard:
    """The keyboard on Windows and macOS, with the methods of `X11Keyboard`."""

    def __init__(self) -> None:
        try:
            from pynput import keyboard
        except ImportError as error:
            if getattr(error, "name", None) == "pynput":
                raise MissingExtraError(
                    "keys need pynput: pip install 'tmrl_like[desktop]'"
                ) from None
            raise ConfigError(f"there is no keyboard: {str(error).splitlines()[0]}") from None
        self._pynput: Any = keyboard
        self._controller = keyboard.Controller()
        self._down: set[Any] = set()
        self._listener: Any = None

    def key(self, name: str) -> Any:
        if len(name) == 1:
            return self._pynput.KeyCode.from_char(name.lower())  # "W" would be Shift and "w"
        try:
            return self._pynput.Key[name]
        except KeyError:
            raise _no_key(name) from None

    def press(self, key: Any) -> None:
        self._controller.press(key)

    def release(self, key: Any) -> None:
        self._controller.release(key)

    def is_down(self, key: Any) -> bool:
        if self._listener is None:
            self._listener = self._pynput.Listener(
                on_press=lambda key: self._down.update(self._names(key)),
                on_release=lambda key: self._down.difference_update(self._names(key)),
            )
            self._listener.start()
        return key in self._down

    def _names(self, key: Any) -> tuple[Any, Any]:
        """Return a key as it is reported, and as it is called whatever modifiers are held and on
        whichever side a modifier is.
        """
        return key, self._listener.canonical(key)

    def close(self) -> None:
        if self._listener is not None:
            self._listener.stop()


def _no_key(name: str) -> ConfigError:
    return ConfigError(
        f"there is no key {name!r}; expected one character, or a name such as left, space, enter"
    )


KeyPort = X11Keyboard | PynputKeyboard
