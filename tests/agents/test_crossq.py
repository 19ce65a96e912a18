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
from tmrl_like.agents.batch_norm import MAX_D, MAX_R, renormalise
from tmrl_like.errors import ConfigError, PolicyError

CRITIC = partial(EnsembleCritic, layer_norm=False)


def crossq(acceleration="off", **options):
    return small(CrossQAgent, (OBS, BOX), critic=CRITIC, acceleration=acceleration, **options)


def test_a_batch_far_from_what_is_running_is_corrected_no_further_than_the_limits():
    x_NBH, zero = 100.0 + 100.0 * torch.randn(1, 1000, 1), torch.zeros(1, 1, 1)
    found = renormalise(x_NBH, zero, zero + 1.0, torch.tensor(True))
    assert_close(found.mean(), torch.tensor(MAX_D))
    assert_close(found.std(correction=0), torch.tensor(MAX_R))


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
