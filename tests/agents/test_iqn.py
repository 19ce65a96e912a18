"""Implicit quantiles: the losses, learning a known distribution, and exploration."""

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
from gymnasium import spaces
from kit.boxes import box, picture
from kit.learners import batch_of, rows_of, train
from torch.testing import assert_close

from tmrl_like.agents import IQNActor, IQNAgent
from tmrl_like.agents.images import ConvolutionEncoder
from tmrl_like.agents.iqn import quantile_huber_loss
from tmrl_like.agents.observations import RunningNorm
from tmrl_like.base.functional import partial
from tmrl_like.errors import ConfigError
from tmrl_like.trainer.snapshot import load_object_state, object_state

NUMBERS = box(1, 3)
BOTH = spaces.Tuple((picture(1, 16, 16), NUMBERS))
SMALL = partial(IQNActor, width=32, hidden_size=32, cosines=16, acting_quantiles=16)


SPACES = NUMBERS, spaces.Discrete(2)


def test_quantiles_of_a_known_distribution_are_learnt_and_the_best_mean_is_chosen():
    torch.manual_seed(1)
    agent = IQNAgent(*SPACES, actor_cls=SMALL, kappa=0.02, lr=5e-3)
    zeros = torch.zeros(256, 3)
    blind = {"obs": zeros, "next_obs": zeros, "terminated": torch.ones(256)}
    for step in range(300):
        agent.tune(lr=5e-3 * (1 - step / 300))
        act = torch.randint(0, 2, (256,))
        rew = torch.where(act == 0, torch.rand(256), torch.tensor(0.4))
        agent.train(batch_of(SPACES, step, 256, act=act, rew=rew, **blind))
    actor = agent.get_actor()
    tau = torch.linspace(0.1, 0.9, 9)
    with torch.no_grad():
        of_both = actor.quantiles(actor.features(zeros[:1]), tau[None])[0]
    expected = torch.stack((tau, torch.full((9,), 0.4)), dim=1)  # uniform; always 0.4
    assert_close(of_both, expected, rtol=0, atol=0.06)
    obs = np.zeros(3, np.float32)
    assert actor.act_(obs, test=True) == 0  # 0.5 on average
    assert actor.extras["values"].tolist() == pytest.approx([0.5, 0.4], abs=0.06)


def test_one_quantile_has_no_spread():
    assert train(IQNAgent(*SPACES, actor_cls=SMALL, quantiles=1), 1)[0]["return_std_mean"] == 0.0


def act_often(actor, test=False, n=400):
    """Return actions of an actor, each with its extras."""
    obs = np.zeros(3, np.float32)
    return [(int(actor.act_(obs, test)), actor.extras) for _ in range(n)]


def actor_that_likes_the_third(longest_hold=1, **explores):
    torch.manual_seed(0)
    agent = IQNAgent(NUMBERS, spaces.Discrete(4, start=10), actor_cls=SMALL, **explores)
    with torch.no_grad():
        agent.actor.advantage.bias.copy_(torch.tensor([0.0, 0.0, 5.0, 4.0]))
    other = SMALL(NUMBERS, spaces.Discrete(4, start=10), longest_hold=longest_hold)
    other.load_weights(agent.get_actor().weights())
    return other


@pytest.mark.parametrize("longest_hold", [1, 8])
def test_exploration_travels_with_the_weights_and_takes_its_share_of_the_steps(longest_hold):
    taken = act_often(actor_that_likes_the_third(longest_hold, epsilon=0.5), n=2000)
    assert {action for action, _ in taken} == {10, 11, 12, 13}
    others = sum(action != 12 for action, _ in taken) / len(taken)
    assert others == pytest.approx(0.5 * 3 / 4, abs=0.06)  # a random action may be the best one
    assert all(said["greedy"] == (action == 12) for action, said in taken)


def changes_of(taken):
    return sum(one != following for one, following in pairwise(taken))


def test_a_hold_goes_on_in_the_next_policy_and_ends_with_the_episode():
    def actions(between):
        """Act in turns with two instances; `between` gets them after each step."""
        acting, other = (actor_that_likes_the_third(100, epsilon=1.0) for _ in range(2))
        taken = []
        for _ in range(200):
            taken.append(int(acting.act_(np.zeros(3, np.float32))))
            acting, other = between(acting, other)
        return taken

    def renew(acting, other):
        other.carry_over(acting)
        return other, acting

    def begin_episode(acting, other):
        acting.reset()
        return acting, other

    alone = actions(lambda acting, other: (acting, other))
    assert actions(renew) == alone
    assert changes_of(actions(begin_episode)) > 130 > 110 > changes_of(alone)


def test_noise_on_the_values_takes_the_best_actions_more_often():
    noisy = actor_that_likes_the_third(epsilon=0.0, epsilon_boltzmann=1.0, boltzmann_noise=1.0)
    taken = [action for action, _ in act_often(noisy)]
    assert {12, 13} == set(taken)
    assert 0.1 < taken.count(13) / len(taken) < 0.4
    assert {
        a for a, _ in act_often(actor_that_likes_the_third(epsilon=0.0, boltzmann_noise=9.0), n=50)
    } == {12}


def test_a_test_is_greedy_and_what_is_said_has_one_form():
    actor = actor_that_likes_the_third(epsilon=1.0)
    first = actor.extras
    taken = act_often(actor, test=True, n=20)
    assert {action for action, _ in taken} == {12}
    for said in (first, *(said for _, said in taken)):
        assert type(said["greedy"]) is np.bool_
        assert (said["values"].dtype, said["values"].shape) == (np.float32, (4,))
    assert len({id(said) for _, said in taken}) == 20
    assert taken[0][1]["values"].argmax() == 2
    torch.nn.init.constant_(actor.value.bias, np.nan)
    assert np.isnan(actor.act_(np.zeros(3, np.float32))), "values that are not finite"


def test_pictures_numbers_and_time_are_seen_together_and_the_picture_encoder_is_replaced():
    torch.manual_seed(0)
    pictures, numbers = rows_of(BOTH, 2)
    encoder = partial(ConvolutionEncoder, channels=(4, 4, 2))
    actor = SMALL(BOTH, spaces.Discrete(2), picture_encoder=encoder)
    assert actor.encoder.size == 3 + 2 * 2 * 2
    values = actor((pictures, numbers))
    assert torch.equal(values, actor((pictures, numbers), torch.ones(2)))
    for changed in (
        actor((255 - pictures, numbers)),
        actor((pictures, -numbers)),
        actor((pictures, numbers), torch.zeros(2)),
    ):
        assert not torch.allclose(values, changed)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (partial(SMALL, *SPACES, obs_range=-3.0), r"obs_range is -3\.0; expected 0 or more"),
        (partial(ConvolutionEncoder, BOTH[0], channels=(16, 32)), "channels is .* 3 numbers"),
        (partial(IQNAgent, NUMBERS, NUMBERS), r"needs Discrete.*table of inputs"),
    ],
)
def test_an_argument_out_of_its_range_is_refused(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_what_may_change_while_training_does():
    agent = IQNAgent(*SPACES, actor_cls=SMALL)
    actor = agent.get_actor()
    explores = {"epsilon": 0.75, "epsilon_boltzmann": 0.125, "boltzmann_noise": 3.0}
    values = dict.fromkeys(agent.tunable, 0.5) | explores
    agent.tune(**values)
    assert {name: getattr(agent, name) for name in values} == values
    assert actor.behaviour.tolist() == [*explores.values()]


@pytest.mark.parametrize(
    ("before", "said", "count"), [(1, 10, 10), (1, 0, RunningNorm.HORIZON), (0, 0, 0)]
)
def test_a_training_starts_from_the_policy_of_another(before, said, count):
    free = box(np.inf, 3), spaces.Discrete(2)
    first, second = (
        IQNAgent(*free, actor_cls=SMALL, epsilon=e, actor_polyak=0.75) for e in (0.5, 0.25)
    )
    train(first, before)
    second.start_from(first.get_actor().weights(), said)
    obs = batch_of(free, 1).obs
    for network in (second.actor, second.target, second.get_actor()):
        assert torch.equal(network(obs), first.actor_ema(obs))
    assert float(second.obs_norm.count) == count
    assert second.get_actor().behaviour[0] == 0.25


@pytest.mark.parametrize(("before", "after"), [(0.75, 0.0), (0.0, 0.75)])
def test_a_training_goes_on_with_or_without_an_average_of_the_actor(before, after):
    first, second = (IQNAgent(*SPACES, actor_cls=SMALL, actor_polyak=p) for p in (before, after))
    train(first, 3)
    load_object_state(second, copy.deepcopy(object_state(first)))
    obs = batch_of(SPACES, 1).obs
    assert torch.equal(second.actor(obs), first.actor(obs))
    expected = first.get_actor() if after else first.actor
    assert torch.equal(second.get_actor()(obs), expected(obs))


@pytest.mark.parametrize(
    ("quantile", "targets", "loss"),
    [
        # linear beyond a kappa of 0.5: 0.5 (2 - 0.25); squared within: 0.4^2 / 2
        (0.0, [2.0, 0.4], 0.25 * (0.875 + 0.08) / 2 / 0.5),
        (2.0, [0.0], 0.75 * 0.875 / 0.5),  # a share of 0.75 where the target is below
    ],
)
def test_the_loss_is_that_of_the_equation(quantile, targets, loss):
    tau_BN, z_BN = torch.full((1, 2), 0.25), torch.full((1, 2), quantile)
    found = quantile_huber_loss(z_BN, torch.tensor([targets]), tau_BN, 0.5)
    assert_close(found, torch.tensor([2 * loss]))  # a sum over both quantiles
