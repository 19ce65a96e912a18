"""Rewards are divided by the scale of returns."""

import numpy as np
import pytest
import torch

from tmrl_like.agents.returns import ReturnScale


def scale_of(rewards, discounts):
    scale = ReturnScale()
    for rew, discount in zip(rewards, discounts, strict=True):
        seen = scale.update(torch.tensor(rew).float(), torch.tensor(discount).float())
    return seen.item()


def test_it_is_the_root_mean_square_of_the_returns_of_independent_rewards():
    rng = np.random.default_rng(0)
    rewards = rng.choice([-4.0, 2.0], (5000, 300))
    discounts = 0.95 * (rng.random((5000, 300)) > 0.02)
    alive = np.cumprod(np.hstack((np.ones((5000, 1)), discounts[:, :-1])), axis=1)
    expected = np.sqrt(np.square((rewards * alive).sum(1)).mean())
    assert scale_of(rewards[:256].T, discounts[:256].T) == pytest.approx(expected, rel=0.05)


def test_no_reward_is_larger_than_1_after_it():
    rewards = np.zeros((101, 64))
    rewards[50, 0] = -5.0
    assert scale_of(rewards, np.full((101, 64), 0.5)) == 5.0


def test_equal_rewards_for_ever_have_a_value_of_1_and_none_stay_zero():
    equal = np.full((3, 8), -2.0)
    assert scale_of(equal, np.full((3, 8), 0.99)) == pytest.approx(200.0, rel=1e-4)
    for discount in (0.0, 0.99, 1.0):
        assert 0.0 < scale_of(0.0 * equal, np.full((3, 8), discount)) < 1e-3
