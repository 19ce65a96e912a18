"""How many training steps a number of samples allows."""

import numpy as np
import pytest

from tmrl_like.trainer.pacing import Pacer
from tmrl_like.types import Buffer


@pytest.mark.parametrize(
    ("ratio", "start", "updates", "samples", "allowed"),
    [
        (1.0, 0, 0, 0, False),
        (1.0, 0, 0, 1, True),
        (1.0, 0, 1, 1, False),
        (0.5, 0, 0, 1, False),
        (0.5, 0, 0, 2, True),
        (4.0, 10, 0, 9, False),
        (4.0, 10, 39, 10, True),
        (4.0, 10, 40, 10, False),
    ],
)
def test_pacing_is_arithmetic(ratio: float, start: int, updates: int, samples: int, allowed: bool) -> None:
    assert Pacer(ratio, start).may_train(updates, samples) is allowed


def samples(n: int) -> Buffer:
    row = (np.zeros(1, np.float32), np.zeros(2, np.float32), 0.0, False, False, {})
    return Buffer([row] * n, "w/1/1")
