"""Behaviour cloning, compared with torch's distributions and with the imitated behaviour."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from kit.boxes import box
from torch.testing import assert_close

from tmrl_like.agents import CategoricalActor, IQNActor, SquashedGaussianActor
from tmrl_like.agents.cloning import Shown, clone
from tmrl_like.errors import ConfigError

OBS = box(1, 3)
ACT = spaces.Box(np.float32([-2.0, 0.0]), np.float32([2.0, 2.0]))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def shown(obs, act, episodes=4, **more):
    return Shown(obs, act, torch.arange(len(act)) * episodes // len(act), **more)


def test_the_likelihood_of_a_squashed_gaussian_is_that_of_the_distribution():
    actor = SquashedGaussianActor(OBS, ACT, hidden_sizes=(8,))
    obs = torch.rand(5, 3)
    act, drawn_log_prob = actor.sample(obs)
    mean, log_std = actor(obs)
    D = torch.distributions
    bounds = D.AffineTransform(torch.tensor([0.0, 1.0]), torch.tensor([2.0, 1.0]))
    there = D.TransformedDistribution(D.Normal(mean, log_std.exp()), [D.TanhTransform(), bounds])
    expected = there.log_prob(act).sum(-1)
    assert_close(drawn_log_prob, expected, rtol=1e-4, atol=1e-4)
    assert_close(actor.log_prob(obs, act), expected, rtol=1e-4, atol=1e-4)
    assert actor.log_prob(obs, torch.full((5, 2), 2.0)).isfinite().all()  # at the bounds


def test_the_likelihood_of_categories_is_that_of_all_variables():
    space = spaces.MultiDiscrete([2, 3], start=[0, 5])
    actor = CategoricalActor(OBS, space, hidden_sizes=(8,))
    obs = torch.rand(4, 3)
    pairs = [torch.tensor([[i, 5 + j]] * 4) for i in range(2) for j in range(3)]
    likely = torch.stack([actor.log_prob(obs, pair) for pair in pairs])
    assert_close(likely.exp().sum(0), torch.ones(4))
    assert_close(actor.log_prob(obs, actor.best_actions(obs)), likely.amax(0))


@pytest.mark.parametrize("low", [-1.0, -math.inf])
def test_an_actor_does_what_was_shown_and_says_how_likely_that_was(low):
    space = spaces.Box(low, -low, (3,))
    directions = torch.rand(2000, 3) * 2 - 1
    act = torch.stack((1.5 * directions[:, 0], torch.full((2000,), 0.5)), dim=1)
    obs = directions * (50.0 if low < -1.0 else 1.0)  # without bounds, any magnitude
    actor = SquashedGaussianActor(space, ACT, hidden_sizes=(32,))
    learnt, held_out = shown(obs, act, episodes=20).split(0.2)
    before, after = clone(actor, learnt, held_out, 300)
    assert min(after) > max(before) + 2.0
    assert (actor.best_actions(held_out.obs) - held_out.act).abs().mean() < 0.1


def test_past_actions_are_not_imitated_in_the_place_of_the_observation():
    """Actions persist for long: an actor that only looks at the last action is nearly always right,
    but never turns.
    """
    target = torch.rand(40, 1).repeat_interleave(25, 0) * 2 - 1
    last = torch.cat((target[:1], target[:-1]))
    seen = target + 0.2 * torch.randn(1000, 1)
    one = box(1, 1)
    must_turn, error = (torch.tensor([[0.8]]), torch.tensor([[-0.8]])), {}
    for past_actions in (0, 1):
        actor = SquashedGaussianActor(spaces.Tuple((one, one)), one, hidden_sizes=(32,))
        data = shown((seen, last), target, past_actions=past_actions)
        clone(actor, *data.split(0.25), 250)
        error[past_actions] = abs(actor.best_actions(must_turn).item() - 0.8)
    assert error[1] < 0.5 < error[0]


def test_whole_episodes_are_held_out():
    data = shown(torch.arange(40.0), torch.zeros(40, 1), episodes=10)
    learnt, held_out = data.split(0.2)
    assert len(held_out.episode.unique()) == 2
    assert not set(learnt.episode.tolist()) & set(held_out.episode.tolist())
    assert sorted(learnt.obs.tolist() + held_out.obs.tolist()) == list(range(40))
    assert len(data.split(0.001)[1].episode.unique()) == 1
    with pytest.raises(ConfigError, match=r"recorded episodes is 1; expected 2 or more"):
        shown(torch.zeros(4, 1), torch.zeros(4, 1), episodes=1).split(0.5)


def test_an_actor_without_a_likelihood_is_refused():
    actor = IQNActor(OBS, spaces.Discrete(3))
    data = shown(torch.zeros(4, 3), torch.zeros(4))
    with pytest.raises(ConfigError, match="a IQNActor cannot be cloned: give it a method log_prob"):
        clone(actor, data, data, 1)


def test_an_action_without_dimensions_is_learnt_as_well():
    actor = SquashedGaussianActor(OBS, box(1), hidden_sizes=(8,))
    learnt, held_out = shown(torch.rand(40, 3), torch.rand(40)).split(0.25)
    before, after = clone(actor, learnt, held_out, 1)
    assert before != after


class NormedActor(SquashedGaussianActor):
    """A user's own actor, with batch normalisation of observations, and of features by fixed
    statistics.
    """

    def __init__(self, *both_spaces):
        super().__init__(*both_spaces)
        self.norm, self.fixed = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3).eval()

    def forward(self, obs):
        return super().forward(self.fixed(self.norm(obs)))


def test_what_is_held_out_is_measured_as_the_actor_drives_and_not_learnt():
    actor = NormedActor(OBS, ACT)
    learnt, held_out = (shown(torch.rand(50, 3) + far, torch.rand(50, 2)) for far in (0.0, 1000.0))
    _, said = clone(actor, learnt, held_out, 5)
    assert actor.norm.running_mean.max() < 1.0
    assert actor.norm.training
    assert not actor.fixed.training
    actor.eval()
    for mean, data in zip(said, (learnt, held_out), strict=True):
        assert mean == pytest.approx(actor.log_prob(data.obs, data.act).mean().item())
