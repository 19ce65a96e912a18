"""Rewards divided by how large returns are."""

import numpy as np
import pytest
import torch

from tmrl_like.agents.returns import ReturnScale


def scale_of(batches, discount):
    scale = ReturnScale()
    for rew in batches:
        seen = scale.update(rew, discount)
    return seen.item()


@pytest.mark.parametrize(("mean", "std"), [(0.0, 2.0), (3.0, 1.0), (-1.0, 3.0)])
def test_it_is_the_root_mean_square_of_the_returns_of_independent_rewards(mean, std):
    rng = np.random.default_rng(0)
    rewards, ends = (
        mean + std * rng.choice([-1.0, 1.0], (5000, 300)),
        rng.random((5000, 300)) < 0.02,
    )
    discounts = 0.95 * ~ends
    alive = np.cumprod(np.hstack((np.ones((5000, 1)), discounts[:, :-1])), axis=1)
    expected = np.sqrt(np.square((rewards * alive).sum(1)).mean())
    seen = ReturnScale()
    for rew, discount in zip(rewards.T, discounts.T, strict=True):
        scale = seen.update(torch.tensor(rew[:256]).float(), torch.tensor(discount[:256]).float())
    assert scale.item() == pytest.approx(expected, rel=0.05)


def test_no_reward_is_larger_than_1_after_it():
    nothing, rare = torch.zeros(64), torch.zeros(64)
    rare[0] = -5.0
    assert scale_of([nothing] * 50 + [rare] + [nothing] * 50, torch.full((64,), 0.5)) == 5.0


def test_where_there_are_no_rewards_zero_stays_zero():
    for discount in (0.0, 0.99, 1.0):
        scale = scale_of([torch.zeros(8)] * 3, torch.full((8,), discount))
        assert 0.0 < scale < 1e-3


def test_equal_rewards_for_ever_have_a_value_of_1():
    assert scale_of([torch.full((8,), -2.0)] * 3, torch.full((8,), 0.99)) == pytest.approx(
        200.0, rel=1e-4
    )
