"""A program that drives the racing game by its range finders, to take over from a policy or to
record laps.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tmrl_like.base.options import AboveZero, NotNegative, in_ranges
from tmrl_like.envs.racing.racing_game import COASTING
from tmrl_like.envs.racing.view import ANGLES, INSTRUMENTS
from tmrl_like.errors import ConfigError

# speed that a free view ahead allows `follow_road`, on top of its slowest, in units per second
_PACE = 40.0


def follow_road(ranges: NDArray[Any], speed: float) -> NDArray[np.float32]:
    """Steer to where the road is longest, and drive slower where it is short: a clean lap, not a
    fast one.

    Args:
        ranges: a scan of `LidarView`, [19].
        speed: forward speed, in units per second.

    Returns:
        Steering and pedal, float32 [2], as `RacingInterface` takes them.
    """
    angles, weights = np.deg2rad(ANGLES), ranges**3
    heading = np.arctan2(weights @ np.sin(angles), weights @ np.cos(angles))
    steering = np.clip(1.5 * heading, -1.0, 1.0)
    too_slow_by = 10.0 + _PACE * ranges[np.abs(ANGLES) <= 20.0].max() - speed
    firmness = 1.5 - 0.75 * abs(steering) if too_slow_by > 0.0 else 1 / 24  # brakes gently
    pedal = np.clip(COASTING + firmness * too_slow_by, -1.0, 1.0)
    return np.array((steering, pedal), np.float32)


class RoadDriver:
    """A program that takes over from a policy at intervals and drives by `follow_road`; for
    `observation: lidar`.
    """

    is_program = True

    @in_ranges
    def __init__(
        self,
        action_space: spaces.Space[Any],
        default_action: Any,
        every_s: AboveZero = 20.0,
        for_s: NotNegative = 5.0,
    ) -> None:
        """Set up the driver, which takes over every `every_s` seconds for `for_s` seconds. Raise
        ConfigError if actions are row numbers of a table, or a time is out of its range.
        """
        if not isinstance(action_space, spaces.Box):
            raise ConfigError(
                f"RoadDriver steers and pedals, and actions are {action_space}: leave out env's "
                "inputs"
            )
        self._every_s, self._for_s = every_s, for_s
        self._started_at = time.monotonic()

    def __call__(self, obs: tuple[Any, ...]) -> NDArray[np.float32] | None:
        """Return steering and pedal, float32 [2], or None while the policy drives."""
        if (time.monotonic() - self._started_at) % self._every_s < self._every_s - self._for_s:
            return None
        instruments, seen, *_ = obs
        if seen.shape[1:] != ANGLES.shape:
            raise ConfigError("RoadDriver follows range finders: set env's observation to lidar")
        return follow_road(seen[-1], instruments[0] * INSTRUMENTS["speed"])

    def close(self) -> None:
        """Do nothing; there is nothing to release."""
