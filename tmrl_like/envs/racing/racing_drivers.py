"""Who drives the racing game while a demonstration is recorded: a script, or a person at the keyboard."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tmrl_like.envs.keyboards import open_keyboard
from tmrl_like.envs.racing.racing_game import TICK_S, RacingGame
from tmrl_like.envs.racing.view import ANGLES, LidarView
from tmrl_like.envs.vision import load_opencv
from tmrl_like.errors import ConfigError

Controls = tuple[float, float, float]  # steering -1 to 1, gas 0 to 1, brake 0 to 1
Driver = Callable[[Any], Controls]  # from a state of the game

_PACE = 40.0  # how much speed a free view ahead allows, beyond a walk, in units per second
_AT_START_WITHIN = 7.0  # half the road's width
_AWAY_FROM = 50.0
_SCALE = 6  # of the window in which a person drives


class FollowTheRoad:
    """Steers to where the road is longest, slower where it is short: a clean lap, not a fast one."""

    def __init__(self) -> None:
        self._measure = LidarView()
        self._angles = np.deg2rad(ANGLES)
        self._ahead = np.abs(ANGLES) <= 20.0

    def __call__(self, state: Any) -> Controls:
        return self.controls(self._measure(state["frame"]), state["speed"])

    def controls(self, ranges: NDArray[Any], speed: float) -> Controls:
        """From a scan of `LidarView` and the speed ahead, in units per second."""
        weights = ranges**3
        heading = np.arctan2(weights @ np.sin(self._angles), weights @ np.cos(self._angles))
        steering = float(np.clip(1.5 * heading, -1.0, 1.0))
        too_slow_by = 10.0 + _PACE * ranges[self._ahead].max() - speed
        gas = np.clip(0.1 * too_slow_by, 0.0, 0.6) * (1.0 - 0.5 * abs(steering))
        return steering, float(gas), float(np.clip(-0.05 * too_slow_by, 0.0, 0.6))

    def close(self) -> None:
        """Nothing to close."""


class ArrowKeys:
    """Arrow keys steer, Escape gives up; the game is shown in a window. Needs a display."""

    def __init__(self) -> None:
        """Open the window.

        Raises:
            MissingExtraError: what reads keys is not installed.
            ConfigError: there is no display.
        """
        self._cv2 = load_opencv()
        try:
            self._keyboard = open_keyboard()
        except ConfigError as error:
            raise ConfigError(f"driving from the keyboard needs a display ({error}); use --lap script") from None
        self._keys = [self._keyboard.key(name) for name in ("right", "left", "up", "down", "esc")]

    def __call__(self, state: Any) -> Controls:
        frame = self._cv2.cvtColor(state["frame"], self._cv2.COLOR_RGB2BGR)
        self._cv2.imshow("tmrl_like racing", self._cv2.resize(frame, None, fx=_SCALE, fy=_SCALE))
        self._cv2.waitKey(1)
        right, left, up, down, escape = map(self._keyboard.is_down, self._keys)
        if escape:
            raise ConfigError("given up with Escape: nothing was recorded")
        return 0.6 * (right - left), 0.5 * up, 0.6 * down

    def close(self) -> None:
        """Close the window, and stop listening."""
        self._keyboard.close()
        self._cv2.destroyAllWindows()


def record_lap(game: RacingGame, driver: Driver, within_s: float) -> NDArray[np.float32]:
    """Drive around the track once, in real time, from the start on; `driver` is called at each tick.

    Returns:
        Where the car was at each tick, [T, 2].

    Raises:
        ConfigError: it did not come round in that time.
    """
    positions = [game.look()["position"]]
    was_away = False
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        state = game.look()
        positions.append(state["position"])
        distance = float(np.linalg.norm(positions[-1] - positions[0]))
        was_away |= distance > _AWAY_FROM
        if was_away and distance < _AT_START_WITHIN:
            return np.stack(positions)
        game.drive(*driver(state))
        time.sleep(TICK_S)
    raise ConfigError(f"the car did not come round the track within {within_s:g} s: nothing was recorded")
