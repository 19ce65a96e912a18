"""Pictures of a part of the screen."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tmrl_like.envs.display import require_display
from tmrl_like.envs.vision import Frame, load_opencv
from tmrl_like.errors import ConfigError, EnvironmentFaultError, MissingExtraError


class Region(NamedTuple):
    """A rectangle of the screen, in pixels from its upper left corner."""

    left: int
    top: int
    width: int
    height: int


class Screen:
    """The screen, grabbed with mss."""

    def __init__(self) -> None:
        """Open the screen.

        Raises:
            ConfigError: there is no screen.
            MissingExtraError: mss is not installed.
        """
        require_display()
        try:
            import mss
        except ImportError:
            raise MissingExtraError(
                "the screen is grabbed with mss: pip install 'tmrl_like[desktop]'"
            ) from None
        self._error = mss.ScreenShotError
        try:
            self._mss = mss.MSS()
        except mss.ScreenShotError as error:
            raise ConfigError(f"the screen cannot be grabbed: {error}") from None
        self._cv2 = load_opencv()

    def grab(self, region: Region) -> Frame:
        """Return what the screen shows in a region, uint8 [height, width, 3] RGB; raise
        EnvironmentFaultError if it cannot be grabbed, or lies partly beside the screen, where
        Windows would show black.
        """
        try:
            screen = self._mss.monitors[0]  # all of them together
            left, top = region.left - screen["left"], region.top - screen["top"]
            right, bottom = left + region.width, top + region.height
            if min(left, top) < 0 or right > screen["width"] or bottom > screen["height"]:
                raise self._error(f"the screen is {screen}")
            shot = self._mss.grab(region._asdict())
        except self._error as error:
            reason = str(error).partition("\n")[0]
            raise EnvironmentFaultError(
                f"the screen cannot be grabbed at {region} ({reason}): is all of the window on it?"
            ) from None
        frame_bgra = np.frombuffer(shot.bgra, np.uint8).reshape(shot.height, shot.width, 4)
        frame: Frame = self._cv2.cvtColor(frame_bgra, self._cv2.COLOR_BGRA2RGB)
        return frame

    def close(self) -> None:
        """Close the screen. Calling it twice is fine."""
        self._mss.close()
