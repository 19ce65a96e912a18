"""Abilities of every actor."""

import numpy as np
import pytest
import torch
from kit.boxes import box

from tmrl_like.errors import PolicyError
from tmrl_like.policies.actor import fit_action, to_batch_of_one


def test_an_observation_becomes_a_batch_of_one_that_does_not_share_memory():
    array = np.zeros(2, np.float32)
    obs = (array, {"k": np.float32(3)}, [np.uint8(4)])
    batch = to_batch_of_one(obs)
    array[:] = 9
    assert batch[0].tolist() == [[0.0, 0.0]]
    assert batch[1]["k"].tolist() == [3.0]
    assert batch[2][0].dtype == torch.uint8


def test_actions_get_the_shape_of_their_space():
    space = box(1, 1)
    for action in (np.zeros((1, 1)), np.zeros(()), np.zeros(1), torch.zeros(1, 1)):
        assert fit_action(action, space).shape == (1,)
    with pytest.raises(PolicyError, match=r"shape \(2,\); the action space wants \(1,\)"):
        fit_action(np.zeros(2), space)
