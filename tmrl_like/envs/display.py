"""Whether there is a screen to play on."""

from __future__ import annotations

import os
import sys

from tmrl_like.errors import ConfigError


def require_display() -> None:
    """Check that there is a screen to play on.

    Raises:
        ConfigError: there is none.
    """
    if sys.platform.startswith("linux") and not os.environ.get("DISPLAY"):
        raise ConfigError(
            "a desktop game needs a screen, and DISPLAY is not set: "
            "start the worker in an X11 session, or under Xvfb (xvfb-run)"
        )
