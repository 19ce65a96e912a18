"""CrossQ compared with a slow reference, and the policy that it publishes."""

import math
from functools import partial

import pytest
import torch
from kit.boxes import picture
from kit.learners import small, train
from test_as_before import BOX, OBS
from torch.testing import assert_close

from tmrl_like.agents import CrossQAgent, EnsembleCritic, SquashedGaussianActor
from tmrl_like.agents.batch_norm import MAX_D, MAX_R, fold, renormalise
from tmrl_like.agents.crossq import categorical_target
from tmrl_like.errors import ConfigError, PolicyError

NEAR = {"rtol": 1e-4, "atol": 1e-4}
CRITIC = partial(EnsembleCritic, layer_norm=False)


def crossq(acceleration="off", **options):
    return small(CrossQAgent, (OBS, BOX), critic=CRITIC, acceleration=acceleration, **options)


@torch.no_grad()
def test_plain_networks_do_what_those_in_training_do_once_they_renormalise():
    made = crossq()
    for normed, plain in ((made.actor, made.plain_actor), (made.critic, made.critic_target)):
        network = normed.network
        for parameter in (*network.gains, *network.offsets, network.bias):
            parameter.add_(0.2 * torch.randn_like(parameter))
        x = 3.0 + torch.randn(32, network.gains[0].shape[-1])
        for _ in range(200):
            network(x)
        fold(network, plain)
        network.count.fill_(network.renorm_after)
        assert_close(plain.outputs(x).view(-1), network(x).view(-1), **NEAR)


def test_a_batch_far_from_what_is_running_is_corrected_no_further_than_the_limits():
    x_NBH, zero = 100.0 + 100.0 * torch.randn(1, 1000, 1), torch.zeros(1, 1, 1)
    found = renormalise(x_NBH, zero, zero + 1.0, torch.tensor(True))
    assert_close(found.mean(), torch.tensor(MAX_D))
    assert_close(found.std(correction=0), torch.tensor(MAX_R))


def test_a_target_is_a_distribution_with_the_mean_of_the_soft_target_within_the_bins():
    bins, next_p = torch.linspace(-5.0, 5.0, 101), torch.rand(3, 101).softmax(dim=1)
    rew, ends = torch.tensor([0.3, 0.1, 50.0]), torch.tensor([0.0, 1.0, 0.0])
    alpha, log_prob = torch.tensor(0.1), torch.tensor([0.5, 2.0, 0.0])
    found = categorical_target(rew, ends, next_p, log_prob, alpha, 0.9, bins)
    assert_close(found.sum(1), torch.ones(3))
    assert (found >= 0.0).all()
    soft = rew + 0.9 * (1.0 - ends) * (next_p @ bins - alpha * log_prob)
    assert_close(found @ bins, soft.clamp(max=5.0), **NEAR)
    assert_close(found[1, 51], torch.tensor(1.0), **NEAR)  # nothing follows, and 0.1 is a bin


@pytest.mark.parametrize("acceleration", ["off", "auto"])
@pytest.mark.parametrize("broken", ["a critic", "the actor"])
def test_what_is_not_finite_makes_the_losses_so(acceleration, broken):
    made = crossq(acceleration, lr_critic=0.0)
    with torch.no_grad():
        if broken == "a critic":
            made.critic.network.bias[1] = torch.nan
        else:
            made.plain_actor.head.bias.fill_(torch.nan)
            made.actor.network.bias.fill_(torch.nan)
    (metrics,) = train(made, 1)
    assert math.isnan(metrics["loss_critic"])
    assert math.isnan(metrics["loss_actor"])


def test_critics_are_as_wide_as_the_actor_and_half_a_nat_per_dimension_is_aimed_at():
    made = CrossQAgent(OBS, BOX, actor_cls=partial(SquashedGaussianActor, hidden_sizes=(8, 7)))
    assert made.target_entropy == -1.5  # minus half a nat per dimension
    # as wide as the actor
    assert [weight.shape[-1] for weight in made.critic.network.weights] == [8, 7, 101]


def test_what_may_change_changes_and_averages_of_critics_are_not_offered():
    made = crossq()
    made.tune(lr_actor=1e-3, gamma=0.9, target_entropy=-1.0)
    assert (made.lr_actor, made.gamma, made.target_entropy) == (1e-3, 0.9, -1.0)
    with pytest.raises(ConfigError, match="polyak of CrossQAgent cannot change"):
        made.tune(polyak=0.5)


def test_a_policy_of_another_training_is_refused():
    made = crossq()
    with pytest.raises(PolicyError, match="init_policy"):
        made.start_from(made.get_actor().weights())


class Own(SquashedGaussianActor):
    """A user's own actor, which may process observations in any way."""


@pytest.mark.parametrize(
    ("obs", "options", "said"),
    [
        (OBS, {"actor_cls": partial(SquashedGaussianActor, layer_norm=True)}, "actor_cls"),
        (OBS, {"actor_cls": Own}, "actor_cls is 'Own'; expected SquashedGaussianActor"),
        (OBS, {"critic_cls": partial(EnsembleCritic, layer_norm=False, dropout=0.1)}, "critic_cls"),
        (picture(3, 16, 16), {}, "pictures"),
    ],
)
def test_what_it_cannot_train_is_refused(obs, options, said):
    with pytest.raises(ConfigError, match=said):
        CrossQAgent(obs, BOX, **options)
