"""Spaces that many tests need."""

import numpy as np
from gymnasium import spaces


def box(bound, *shape):
    """Return a float32 Box of this shape, from `-bound` to `bound`."""
    return spaces.Box(-bound, bound, shape)


def picture(*shape):
    """Return a uint8 Box of this shape, from 0 to 255."""
    return spaces.Box(0, 255, shape, np.uint8)


# all that is not a picture
MIXED = spaces.Dict(
    {
        "gear": spaces.Discrete(3, start=-1),
        "speed": spaces.Box(0.0, 10.0, (1,)),
        "pair": spaces.Tuple((spaces.MultiDiscrete([2, 3], start=[5, 0]), spaces.MultiBinary(2))),
    }
)

# what a car sees
CAR = spaces.Dict({"camera": picture(16, 16, 3), "speed": spaces.Box(0.0, 10.0, (1,))})
