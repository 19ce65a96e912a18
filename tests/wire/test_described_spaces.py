"""Spaces as text, and what is said of two that differ."""

import numpy as np
import pytest
from gymnasium import spaces

from tmrl_like.wire.messages import Spaces
from tmrl_like.wire.spaces import describe_spaces

ACTIONS = spaces.Discrete(3)


def described(*leaves: spaces.Space) -> Spaces:
    return describe_spaces(spaces.Tuple(leaves), ACTIONS)


def test_two_spaces_differ_in_a_leaf_that_is_named_with_its_bounds() -> None:
    speed, arm = spaces.Box(0.0, 10.0, (1,)), spaces.Box(np.float32([-1, -2]), np.float32([1, 2]))
    longer = spaces.Box(np.float32([-1, -2.5]), np.float32([1, 2]))
    assert described(speed, arm).difference(described(speed, longer)) == (
        "observation",
        "[1] Box([-1.0, -2.0], [1.0, 2.0], (2,), float32)",
        "[1] Box([-1.0, -2.5], [1.0, 2.0], (2,), float32)",
    )
    assert described(speed).difference(described(speed, arm))[1] == "without this part"
    other = describe_spaces(spaces.Tuple([speed]), spaces.Discrete(4))
    assert described(speed).difference(other) == ("action", "Discrete(3)", "Discrete(4)")


def test_many_bounds_are_a_range_and_a_hash_and_many_leaves_end_with_one() -> None:
    low = np.linspace(-1.0, 0.0, 64, dtype=np.float32)
    one, other = described(spaces.Box(low, 1.0)), described(spaces.Box(low**3, 1.0))
    assert one.observation.startswith("[0] Box(-1.0 to 0.0 #")
    assert one != other
    crowds = [described(*[spaces.Box(-1.0, 1.0, (1,))] * 200, spaces.Discrete(n)) for n in (2, 3)]
    assert len(crowds[0].observation) < 3100
    assert crowds[0] != crowds[1]


@pytest.mark.parametrize("step", [np.float32(1e-6), -np.float32(1e-6)])
def test_no_difference_is_too_small_to_be_seen(step: np.float32) -> None:
    assert described(spaces.Box(-1.0, 1.0, (1,))) != described(spaces.Box(-1.0, np.float32(1.0) + step, (1,)))
