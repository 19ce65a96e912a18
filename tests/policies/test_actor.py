"""Abilities of every actor."""

import re

import numpy as np
import pytest
import torch
from gymnasium import spaces
from kit.boxes import box

from tmrl_like.errors import PolicyError
from tmrl_like.policies.action_check import action_problem
from tmrl_like.policies.actor import fit_action


@pytest.mark.parametrize(
    ("action", "space", "fitted"),
    [
        (np.array([0.1, -0.2]), box(1, 2), np.array([0.1, -0.2], np.float32)),
        (0.5, box(1, 1), np.array([0.5], np.float32)),
        (np.ones((1, 1)), box(1, 1), np.ones(1, np.float32)),
        (torch.ones(1, 1), box(1, 1), np.ones(1, np.float32)),
        ([1, 0], spaces.MultiDiscrete([2, 2], dtype=np.int32), np.array([1, 0], np.int32)),
        ([1.0, 0.0], spaces.MultiDiscrete([2, 2]), np.array([1, 0])),
        (np.array([2]), spaces.Discrete(3), np.int64(2)),
        (2, spaces.Discrete(3), 2),
    ],
    ids=str,
)
def test_actions_get_the_shape_and_dtype_of_their_space(action, space, fitted):
    found = fit_action(action, space)
    assert space.contains(found)
    assert type(found) is type(fitted)
    np.testing.assert_array_equal(found, fitted)


@pytest.mark.parametrize(
    ("number", "problem"),
    [
        (-1, "outside [0, 255]"),
        (256, "outside [0, 255]"),
        (2**40, "outside [0, 255]"),
        (1.5, "not an array of whole numbers"),
        (1e20, "not an array of whole numbers"),
    ],
)
def test_a_number_that_an_integer_space_cannot_hold_stays_what_it_is_and_is_refused(
    number, problem
):
    space = spaces.Box(0, 255, (1,), np.uint8)
    fitted = fit_action(np.array([number]), space)
    assert fitted.tolist() == [number]
    assert problem in action_problem(fitted, space)


@pytest.mark.parametrize(
    ("action", "named"),
    [
        (None, "None"),
        ((np.zeros(2), 1.0), "(array([0., 0.]), 1.0)"),
        (np.zeros(3), "an array of shape (3,)"),
    ],
)
def test_what_is_no_action_of_the_space_is_named(action, named):
    said = re.escape(f"act() returned {named}; the action space wants an array of shape (2,)")
    with pytest.raises(PolicyError, match=said):
        fit_action(action, box(1, 2))
