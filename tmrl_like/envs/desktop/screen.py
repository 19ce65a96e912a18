"""Pictures of a part of the screen."""

from __future__ import annotations

import importlib.util
import sys
import time
from typing import Any, NamedTuple

import numpy as np

from tmrl_like.envs.display import require_display
from tmrl_like.envs.vision import Frame, load_opencv
from tmrl_like.errors import ConfigError, EnvironmentFaultError, MissingExtraError

_FIRST_FRAME_WITHIN_S = 2.0


class Region(NamedTuple):
    """A rectangle of the screen, in pixels from its upper left corner."""

    left: int
    top: int
    width: int
    height: int


def open_screen() -> MssGrabber | DxcamGrabber:
    """The fastest grabber of this machine: dxcam on Windows where it is installed, mss elsewhere.

    Raises:
        ConfigError: there is no screen.
        MissingExtraError: mss is not installed.
    """
    if sys.platform == "win32" and importlib.util.find_spec("dxcam"):
        return DxcamGrabber()
    return MssGrabber()


class MssGrabber:
    """mss: every platform."""

    def __init__(self) -> None:
        require_display()
        try:
            import mss
        except ImportError:
            raise MissingExtraError("the screen is grabbed with mss: pip install 'tmrl_like[desktop]'") from None
        self._error = mss.ScreenShotError
        try:
            self._mss = mss.MSS()
        except mss.ScreenShotError as error:
            raise ConfigError(f"the screen cannot be grabbed: {error}") from None
        self._cv2 = load_opencv()

    def grab(self, region: Region) -> Frame:
        """What the screen shows there now, uint8 [height, width, 3] RGB; EnvironmentFaultError: it gives no image."""
        try:
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
        """Let the screen go. Twice is fine."""
        self._mss.close()


class DxcamGrabber:
    """dxcam: Windows, what the graphics card shows on the first monitor."""

    def __init__(self) -> None:
        import dxcam

        self._camera: Any = dxcam.create(output_color="RGB")
        self._newest: Frame | None = None
        self._region: Region | None = None

    def grab(self, region: Region) -> Frame:
        """As `MssGrabber.grab`."""
        if region != self._region:
            self._region, self._newest = region, None
        box = (region.left, region.top, region.left + region.width, region.top + region.height)
        until = time.monotonic() + _FIRST_FRAME_WITHIN_S
        while True:
            try:
                frame = self._camera.grab(region=box)  # None: nothing changed since the last
            except ValueError as error:
                raise EnvironmentFaultError(f"the screen cannot be grabbed at {region}: {error}") from None
            self._newest = self._newest if frame is None else frame
            if self._newest is not None:
                return self._newest.copy()
            if time.monotonic() >= until:
                raise EnvironmentFaultError(f"the screen gives no picture of {region}; is it on the first monitor?")
            time.sleep(0.005)

    def close(self) -> None:
        if self._camera is not None:
            self._camera.release()
            self._camera = None
