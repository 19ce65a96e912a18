"""Turns a frame of the racing game into what an agent sees."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tmrl_like.envs.racing.racing_game import FRAME_SHAPE
from tmrl_like.envs.vision import RangeFinder

ANGLES = np.linspace(-90.0, 90.0, 19)  # directions of the rays, in degrees; 0 is ahead
# each with the value that counts as 1
INSTRUMENTS = {"speed": 100.0, "slip": 20.0, "turn_rate": 5.0, "steering": 0.5}
_VIEW_ROWS = 84  # the rows below show the game's own instruments
AROUND_CAR = (0, _VIEW_ROWS, 6, 90)  # a square: rows, columns
_CAR = (71, 48)  # row and column of the car, in every frame
_MAX_RANGE = 70.0  # pixels
_GREENER_BY = 40  # grass has this much more green than red; road, kerbs and the car do not


class LidarView:
    """A view of the distances from the car to the road's edge in 19 directions; 1 is 70 pixels."""

    shape, dtype, full = (len(ANGLES),), np.float32, 1

    def __init__(self) -> None:
        self._measure = RangeFinder((_VIEW_ROWS, FRAME_SHAPE[1]), _CAR, ANGLES, _MAX_RANGE)

    def __call__(self, frame: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Convert a frame to float32 [19] in [0, 1]."""
        view = frame[:_VIEW_ROWS].astype(np.int16)
        return self._measure(view[..., 1] - view[..., 0] <= _GREENER_BY) / np.float32(_MAX_RANGE)
