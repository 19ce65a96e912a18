"""Abilities of every actor."""

import numpy as np
import pytest
import torch
from kit.boxes import box

from tmrl_like.errors import PolicyError
from tmrl_like.policies.actor import fit_action


def test_actions_get_the_shape_of_their_space():
    space = box(1, 1)
    for action in (np.zeros((1, 1)), np.zeros(()), np.zeros(1), torch.zeros(1, 1)):
        assert fit_action(action, space).shape == (1,)
    with pytest.raises(PolicyError, match=r"shape \(2,\); the action space wants \(1,\)"):
        fit_action(np.zeros(2), space)
