"""CrossQ compared with a slow reference, and the policy that it publishes."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from kit.boxes import picture
from kit.learners import small, train
from test_as_before import BOX, OBS
from torch.testing import assert_close

from tmrl_like.agents import CrossQAgent, EnsembleCritic, SquashedGaussianActor
from tmrl_like.agents.batch_norm import BatchNormCritic, fold, renormalise
from tmrl_like.agents.crossq import CrossQOptions
from tmrl_like.errors import ConfigError, PolicyError

ROWS = 32
NEAR = {"rtol": 1e-4, "atol": 1e-4}
CRITIC = partial(EnsembleCritic, layer_norm=False)


def crossq(acceleration="off", **options):
    return small(CrossQAgent, (OBS, BOX), critic=CRITIC, acceleration=acceleration, **options)


def shaken(network):
    """Return the network with random normalisations instead of initial ones."""
    with torch.no_grad():
        for gain, (mean, var) in zip(network.gains, network.running(), strict=True):
            gain.uniform_(0.5, 2.0)
            mean.normal_()
            var.uniform_(0.1, 3.0)
        for offset in network.offsets:
            offset.normal_()
        network.bias.normal_()
    return network


def in_order(network, n, x):
    """Compute network n layer by layer, normalising by running statistics."""
    for i, (mean, var) in enumerate(network.running()):
        if i:
            x = x @ network.weights[i - 1][n]
        x = F.batch_norm(x, mean[n, 0], var[n, 0], network.gains[i][n, 0], eps=1e-3)
        if i:
            x = (x + network.offsets[i - 1][n, 0]).relu()
    return x @ network.weights[-1][n] + network.bias[n, 0]


@torch.no_grad()
def test_plain_networks_do_what_those_in_training_do_by_running_statistics():
    made = crossq()
    for normed, plain in ((made.actor, made.actor_ema), (made.critic, made.critic_target)):
        network = shaken(normed.network)
        fold(network, plain)
        x_BI = torch.randn(ROWS, network.gains[0].shape[-1])
        expected = torch.stack([in_order(network, n, x_BI) for n in range(len(network.bias))])
        assert_close(plain.outputs(x_BI).view_as(expected), expected, **NEAR)


@pytest.mark.parametrize("is_renormed", [False, True])
def test_a_batch_is_normalised_by_itself_and_moves_what_is_running(is_renormed):
    x_NBH = torch.randn(1, ROWS, 7) * 3 + 5
    mean, var = torch.randn(1, 1, 7), torch.rand(1, 1, 7) + 0.1
    before = mean.clone(), var.clone()
    found = renormalise(x_NBH, mean, var, torch.tensor(is_renormed))
    expected = F.batch_norm(x_NBH[0], None, None, training=True, eps=1e-3)
    of_batch = x_NBH.mean(1, keepdim=True), x_NBH.var(1, correction=0, keepdim=True)
    if is_renormed:
        running_std, std = (before[1] + 1e-3).sqrt(), (of_batch[1] + 1e-3).sqrt()
        shift = ((of_batch[0] - before[0]) / running_std).clamp(-5, 5)
        expected = expected * (std / running_std).clamp(1 / 3, 3) + shift
    assert_close(found.squeeze(), expected.squeeze(), **NEAR)
    for now, old, new in zip((mean, var), before, of_batch, strict=True):
        assert_close(now, 0.99 * old + 0.01 * new, **NEAR)


def test_usual_values_are_those_of_the_robot_s():
    made = CrossQAgent(OBS, BOX, actor_cls=partial(SquashedGaussianActor, hidden_sizes=(8, 7)))
    assert made.target_entropy == -1.5  # minus half a nat per dimension
    # as wide as the actor
    assert [weight.shape[-1] for weight in made.critic.network.weights] == [8, 7, 1]


@pytest.mark.parametrize("acceleration", ["off", "auto"])
def test_each_step_folds_what_it_has_changed_and_the_same_actor_is_published(acceleration):
    made = crossq(acceleration, policy_delay=2)
    assert (made.compiled is None) is (acceleration == "off")
    published, before = made.get_actor(), made.get_actor().weights()
    for step in (1, 2):
        train(made, 1, first=step)
        for normed, plain in ((made.actor, made.actor_ema), (made.critic, made.critic_target)):
            expected = copy.deepcopy(plain)
            fold(normed.network, expected)
            assert all(map(torch.equal, plain.parameters(), expected.parameters()))
        assert (published.weights() != before) is (step == 2)
    assert made.get_actor() is published
    obs = OBS.sample()
    acted = published.in_numpy().act_(obs, True)
    np.testing.assert_allclose(acted, published.act_(obs, True), **NEAR)


def test_what_may_change_changes_and_averages_are_not_offered():
    made = crossq()
    made.tune(lr_actor=1e-3, gamma=0.9, target_entropy=-1.0)
    assert (made.lr_actor, made.gamma, made.target_entropy) == (1e-3, 0.9, -1.0)
    for name in ("polyak", "actor_polyak", "critics_in_target"):
        with pytest.raises(ConfigError, match=f"{name} of CrossQAgent cannot change"):
            made.tune(**{name: 0.5})
        with pytest.raises(TypeError, match=name):
            CrossQOptions(**{name: 1})


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
        (OBS, {"critic_cls": partial(EnsembleCritic, layer_norm=True)}, "critic_cls"),
        (OBS, {"critic_cls": partial(EnsembleCritic, layer_norm=False, dropout=0.1)}, "critic_cls"),
        (OBS, {"critic_cls": BatchNormCritic}, "critic_cls"),
        (OBS, {"smoothness": -0.1}, "smoothness is -0.1; expected 0 or more"),
        (picture(3, 16, 16), {}, "pictures"),
    ],
)
def test_what_it_cannot_train_is_refused(obs, options, said):
    with pytest.raises(ConfigError, match=said):
        CrossQAgent(obs, BOX, **options)
