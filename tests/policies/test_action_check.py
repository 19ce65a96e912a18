"""The check whether an action belongs to a space."""

import numpy as np
import pytest
from gymnasium import spaces
from kit.boxes import box

from tmrl_like.policies.action_check import action_problem, finite_check

BOX = box(1, 2)
BYTE = spaces.Box(0, 255, (1,), np.uint8)
BOTH = spaces.Tuple((BOX, spaces.Discrete(3)))


@pytest.mark.parametrize(
    ("action", "space", "belongs"),
    [
        (np.array([5e3 + 1e-2], np.float32), box(5e3, 1), True),
        (np.array([1e30]), box(np.inf, 1), True),
        ((np.zeros(2, np.float32), 1), BOTH, True),
        (np.array([1.1, 0.0]), BOX, False),
        (np.zeros((2, 1)), BOX, False),
        (None, BOX, False),
        (np.array([200]), BYTE, True),
        (np.array([-1]), BYTE, False),
        (np.array([1.5]), BYTE, False),
        ((np.zeros(2), 3), BOTH, False),
        ({"b": np.zeros(2)}, spaces.Dict(a=BOX), False),
        (np.array([np.inf]), box(np.inf, 1), False),
    ],
)
def test_what_is_not_in_a_space_is_reported_and_nothing_else(action, space, belongs):
    assert (action_problem(action, space) == "") is belongs


LARGE = [
    np.full(2, np.finfo(dtype).max) for dtype in (np.float16, np.float32, np.float64, np.complex64)
]


@pytest.mark.parametrize("space", [BOX, spaces.Tuple((BOX, box(1, 3))), BOTH])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_found_and_what_is_large_is_not_mistaken_for_it(space, bad):
    is_fine = finite_check(space)
    assert is_fine(space.sample())
    for value in [*LARGE, np.arange(3), 0.5, np.zeros(0), "text", None]:
        assert all(map(is_fine, (value, (value, value), {"a": [value]})))
    wrong = [np.full_like(large, bad) for large in LARGE]
    for value in [*wrong, np.array([bad, -bad]), np.full((2, 50), bad), np.array(bad), bad]:
        nested = value, (np.zeros(2), np.zeros(2), value), {"a": np.zeros(2), "b": [value]}
        assert not any(map(is_fine, nested))
