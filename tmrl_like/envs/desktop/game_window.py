"""Finds a game's window and gives it the focus."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Set

from tmrl_like.envs.desktop.desktop_screen import Region
from tmrl_like.envs.desktop.window_win32 import Win32Window
from tmrl_like.envs.desktop.window_x11 import X11Window
from tmrl_like.envs.float32 import closed_by_errors
from tmrl_like.errors import ConfigError, EnvironmentAwayError

_LOOK_S = 0.05
_FOCUS_WITHIN_S = 2.0


Window = X11Window | Win32Window


def windows_now() -> set[int]:
    """Return the numbers of the windows that exist now; raises as `find_window`."""
    with contextlib.closing(_open_windows()) as windows:
        return set(windows.titles())


def find_window(
    title: str,
    within_s: float = 0.0,
    others: Set[int] = frozenset(),
    check: Callable[[], None] = lambda: None,
) -> Window:
    """Find the window whose title contains `title`, in upper or lower case; of several, the one
    with the shortest title.

    Args:
        title: a part of the title.
        within_s: seconds to wait for the window to appear.
        others: numbers of windows to ignore until they are gone, because numbers may be reused.
        check: called before each look; raises if waiting makes no sense.

    Raises:
        ConfigError: there is no screen, or windows cannot be found on this platform.
        EnvironmentAwayError: there is no such window.
        MissingExtraError: python-xlib is not installed.
    """
    windows = _open_windows()
    until = time.monotonic() + within_s
    with closed_by_errors(windows):
        while True:
            check()
            titles = windows.titles()
            others = others & titles.keys()
            fitting = {n for n, found in titles.items() if title.lower() in found.lower()}
            if meant := fitting - others:
                number = min(meant, key=lambda number: len(titles[number]))
                return windows.open(number, titles[number])
            if time.monotonic() >= until:
                was_there = " (that one was there before the game)" * bool(fitting)
                names = ", ".join(sorted(filter(None, set(titles.values())))) or "none"
                raise EnvironmentAwayError(
                    f"there is no window with {title!r} in its title; is the game running? "
                    f"Open windows: {names}{was_there}"
                )
            time.sleep(_LOOK_S)


def focus(window: Window, place: Region | None = None) -> None:
    """Give a window the keyboard focus, wait until it has it, and put it at its place; raise
    EnvironmentAwayError if it does not get the focus, for instance because a person is at work.
    """
    until = time.monotonic() + _FOCUS_WITHIN_S
    while True:
        window.raise_and_focus()
        if window.has_focus():
            break
        if time.monotonic() >= until:
            raise EnvironmentAwayError(
                f"the game's window does not get the focus within {_FOCUS_WITHIN_S:g} s: click "
                "into it"
            )
        time.sleep(_LOOK_S)
    if place is not None:
        window.place(place)  # of a minimised window only its icon would move


def _open_windows() -> Window:
    if sys.platform == "darwin":
        raise ConfigError(
            "a game's window cannot be found on macOS; expected Windows, or Linux with X11"
        )
    return Win32Window() if sys.platform == "win32" else X11Window()
