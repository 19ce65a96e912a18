"""Access to this machine's screen, if it has one."""

from __future__ import annotations

import os
import sys
from typing import Any

from tmrl_like.errors import ConfigError, MissingExtraError


def has_display() -> bool:
    """Whether a window can be shown; assumed to be true anywhere but on Linux."""
    return not sys.platform.startswith("linux") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )


def require_display() -> None:
    """Raise ConfigError if there is no screen."""
    if sys.platform.startswith("linux") and not os.environ.get("DISPLAY"):
        raise ConfigError(
            "a game's window and the keyboard need a screen, and DISPLAY is not set: start in an "
            "X11 session, or under Xvfb (xvfb-run)"
        )


def open_x11() -> Any:
    """Return the X server that DISPLAY names, as python-xlib's `Display`; raise ConfigError if
    there is none.
    """
    require_display()
    try:
        from Xlib import display, error
    except ImportError:
        raise MissingExtraError(
            "windows and keys need python-xlib: pip install 'tmrl_like[desktop]'"
        ) from None
    try:
        return display.Display()
    except (error.DisplayError, OSError) as failed:
        raise ConfigError(f"the screen cannot be opened: {failed}") from None
