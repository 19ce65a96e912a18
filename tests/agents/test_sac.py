"""SAC and REDQ: the losses, what is learnt, and the effects of options."""

import copy
import math
import re
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium import spaces
from kit.boxes import box
from kit.fakes import LinearActor
from kit.learners import assert_same, batch_of, small, train
from torch.testing import assert_close

from tmrl_like.agents import (
    CrossQAgent,
    EnsembleCritic,
    REDQAgent,
    SACAgent,
    SquashedGaussianActor,
)
from tmrl_like.agents.models import SamplingActor
from tmrl_like.agents.process import tune_process
from tmrl_like.agents.sac import (
    actor_loss,
    critic_loss,
    smoothness_loss,
    td_target,
    temperature_loss,
)
from tmrl_like.errors import ConfigError
from tmrl_like.trainer.snapshot import load_object_state, object_state

OBS = spaces.Tuple((box(np.inf, 2), box(1, 1)))
ACT = box(2, 2)
SPACES = OBS, ACT


def sac(**options):
    return small(SACAgent, SPACES, **options)


def test_the_target_is_reward_plus_discounted_soft_value_and_ends_with_the_episode():
    next_q = torch.tensor([[10.0, 4.0, 6.0], [8.0, 5.0, 7.0]])
    next_log_prob, terminated = torch.tensor([2.0, 0.0, -2.0]), torch.tensor([0.0, 0.0, 1.0])
    for gamma, second in ((0.9, 4.6), (torch.tensor([0.9, 0.5, 0.9]), 3.0)):
        target = td_target(
            torch.ones(3), terminated, next_q, next_log_prob, torch.tensor(0.5), gamma
        )
        assert_close(target, torch.tensor([7.3, second, 1.0]))


def test_the_losses_are_those_of_the_equations():
    q = torch.tensor([[1.0, 3.0], [2.0, 2.0]])
    assert critic_loss(q, torch.ones(2)).item() == pytest.approx(0.5 * (2.0 + 1.0))
    assert (
        actor_loss(torch.tensor([1.0, 3.0]), torch.tensor([4.0, 4.0]), torch.tensor(0.5)).item()
        == 0.5 * 2.0 - 4.0
    )
    assert smoothness_loss(
        torch.tensor([[1.0, -1.0], [0.5, 0.0]]), torch.zeros(2, 2)
    ).item() == 0.5 * (2.0 + 0.25)
    too_much = temperature_loss(torch.tensor(math.log(0.3)), torch.tensor(5.0), -2.0)
    assert too_much.item() == pytest.approx(math.log(0.3) * (5.0 + 2.0))


class OddActor(SquashedGaussianActor):
    def sample(self, obs):
        act, log_prob = super().sample(obs)
        return act, log_prob[:, None]


class OddCritic(EnsembleCritic):
    def forward(self, obs, act):
        return super().forward(obs, act)[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"actor": OddActor},
            "log-density of OddActor.sample has the shape [32, 1]; expected [32]",
        ),
        ({"critic": OddCritic}, "OddCritic.forward has the shape [32]; expected [2, 32]"),
    ],
)
def test_networks_of_ones_own_must_give_the_shapes_that_the_losses_take(options, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        sac(**options).train(batch_of(SPACES))


def test_truncated_episodes_keep_their_value_and_terminated_ones_end_it():
    zeros, ones, losses = torch.zeros(32), torch.ones(32), []
    for terminated, truncated in ((zeros, zeros), (zeros, ones), (ones, zeros)):
        torch.manual_seed(0)
        batch = batch_of(SPACES, terminated=terminated, truncated=truncated)
        losses.append(float(sac().evaluate(batch)["loss_critic"]))
    assert losses[0] == losses[1] != losses[2]


def counting(cls):
    """Return a user's own network with a buffer that its passes change, as statistics of batches
    are.
    """

    class Counting(cls):
        def __init__(self, *both_spaces, **options):
            super().__init__(*both_spaces, **options)
            self.register_buffer("passes", torch.zeros(()))

        def outputs(self, x):
            self.passes += 1
            return super().outputs(x)

    return Counting


def test_networks_of_ones_own_have_targets_with_their_buffers_and_no_average():
    agent = small(SACAgent, SPACES, counting(SquashedGaussianActor), counting(EnsembleCritic))
    for made in (agent, copy.deepcopy(agent)):
        train(made, 2)
        assert (made.get_actor().passes, made.get_actor().average.is_used) == (4, 0)
        assert made.critic_target.passes == made.critic.passes == 6


def layers_of(mlp):
    """Return a copy of the parameters of hidden layers and head."""
    return torch.cat([p.detach().reshape(-1) for part in mlp.tensors() for p in part]).clone()


@pytest.mark.parametrize("acceleration", ["off", "auto"])
@pytest.mark.parametrize("cls", [SACAgent, CrossQAgent])
def test_an_average_of_the_actor_acts_in_tests_and_the_actor_itself_explores(cls, acceleration):
    critic = partial(EnsembleCritic, layer_norm=False)
    agent = small(cls, SPACES, critic=critic, acceleration=acceleration, actor_polyak=0.2)
    actor, expected, obs = agent.get_actor(), 0.0, OBS.sample()
    assert (actor.average.is_used, agent.tune(lr_actor=0.1)) == (0.0, None)
    for update, kept in enumerate((0.0, 1 / 12, 2 / 13, 0.2, 0.2)):
        train(agent, 1, first=update)
        expected = kept * expected + (1.0 - kept) * layers_of(actor)
        assert_close(layers_of(actor.average), expected)
    assert actor.average.is_used
    best = actor.act_(obs, test=True)
    with torch.no_grad():
        actor.head.bias.copy_(torch.tensor([9.0, 9.0, -9.0, -9.0]))
    assert (actor.act_(obs, test=True) == best).all()
    assert (actor.act_(obs) > 1.9).all()


def test_usual_values_are_those_of_the_papers():
    assert (sac().target_entropy, sac(target_entropy=-7.0).target_entropy) == (-2, -7)
    found = [sac(scale_rewards=scales).entropy_coef for scales in (False, True)]
    assert found == pytest.approx([0.2, 0.01])
    redq = small(REDQAgent, SPACES)
    assert (redq.n_critics, redq.critics_in_target, redq.policy_delay) == (10, 2, 20)


class Silent(LinearActor, SamplingActor):
    """An actor without `hidden_sizes`."""

    def sample(self, obs):
        return self.layer(obs), torch.zeros(len(obs))


def test_critics_have_the_actor_s_hidden_layers_where_they_are_given_none():
    own = partial(SquashedGaussianActor, hidden_sizes=(8, 12))
    given = partial(EnsembleCritic, hidden_sizes=(5,))
    for actor, critic, widths in (
        (own, None, [8, 12]),
        (own, given, [5]),
        (Silent, None, [256, 256]),
    ):
        agent = SACAgent(OBS[0], ACT, actor_cls=actor, critic_cls=critic)
        assert [layer.weight.shape[-1] for layer in agent.critic.hidden] == widths


def test_a_training_that_continues_with_other_bounds_of_actions_says_so(caplog):
    spaces_of = ACT, ACT, box(3, 2)
    before, same, wide = (small(SACAgent, (OBS, act)) for act in spaces_of)
    for after in (same, wide):
        load_object_state(after, object_state(before))
    (line,) = caplog.messages
    assert "is of Box(-2.0, 2.0, (2,), float32), this training of Box(-3.0, 3.0" in line
    assert wide.action_space == spaces_of[2]


def test_a_training_continues_with_what_is_switched_on_or_installed_before_the_restart():
    before = sac(acceleration="off")
    train(before, 3)
    after = sac(scale_rewards=True)
    load_object_state(after, object_state(before))
    assert after.compiled is not None
    train(after, 1)
    assert float(after.return_scale.count) == 1


def test_a_training_continues_with_the_optimiser_s_options_of_the_restart():
    options = {"betas": (0, 0), "eps": 1}
    first, second = sac(), sac(**options)
    train(first, 2)
    first.lr_critic = 0.25
    load_object_state(second, object_state(first))
    train(second, 1, first=2)
    group = second.critic_optimizer.param_groups[0]
    assert group.items() >= (options | {"lr": 0.25}).items()
    assert float(second.critic_optimizer.state[group["params"][0]]["step"]) == 3


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"critics_in_target": 3}, "critics_in_target is 3; expected 1 to 2"),
        ({"entropy_coef": 0.0}, "entropy_coef is 0.0; expected more than 0"),
        ({"target_entropy": 10**400}, "target_entropy is 10{400}; expected -10000 to 10000"),
    ],
)
def test_options_out_of_range_are_refused_by_name_with_what_is_expected(options, named):
    with pytest.raises(ConfigError, match=f"^{named}$"):
        sac(**options)


@pytest.mark.parametrize(
    ("tuned", "named"),
    [
        ({"gamma": 1.5}, "gamma is 1.5; expected 0 to 1"),
        ({"entropy_coef": 0.5}, "learn_entropy_coef is True; expected false to set alpha"),
    ],
)
def test_what_cannot_be_tuned_is_refused_and_nothing_changes(tuned, named):
    agent = sac()
    with pytest.raises(ConfigError, match=f"^{named}$"):
        agent.tune(lr_critic=0.5, **tuned)
    assert agent.lr_critic == 3e-4


def test_tuning_the_process_flushes_denormals():
    try:
        tune_process()
        assert (torch.tensor(1e-38) * 1e-3).item() == 0.0
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("said", [{}, {"discount": torch.full((32,), 0.9)}])
def test_with_scaled_rewards_it_learns_the_same_whatever_their_unit(said):
    small_unit, large_unit, unscaled = sac(scale_rewards=True), sac(scale_rewards=True), sac()
    for agent, unit in ((small_unit, 1.0), (large_unit, 1024.0), (unscaled, 1024.0)):
        train(agent, 5, rew=unit * torch.linspace(-1.0, 1.0, 32), **said)
    assert_same(small_unit, large_unit, but="return_scale")
    assert unscaled.actor.weights() != large_unit.actor.weights()


def test_smoothness_of_an_actor_without_means_is_one_line():
    with pytest.raises(ConfigError, match=r"smoothness is 0\.1; expected 0, or a SquashedGaussia"):
        SACAgent(box(1, 2), ACT, actor_cls=Silent, smoothness=0.1)
