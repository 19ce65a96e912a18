import math
from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tmrl_like.agents import EnsembleCritic, REDQAgent, SACAgent, SquashedGaussianActor
from tmrl_like.agents.acceleration import leaves_of
from tmrl_like.agents.process import tune_process
from tmrl_like.agents.sac import actor_loss, critic_loss, td_target, temperature_loss
from tmrl_like.errors import ConfigError
from tmrl_like.policies.actor import ActorModule
from tmrl_like.trainer.snapshot import load_object_state, object_state
from tmrl_like.types import Batch

OBS = spaces.Tuple((spaces.Box(-np.inf, np.inf, (2,)), spaces.Box(-1.0, 1.0, (1,))))
ACT = spaces.Box(-2.0, 2.0, (2,))

ONES = torch.ones(3)
ALPHA = torch.tensor(0.5)


def test_the_target_is_reward_plus_discounted_soft_value_of_the_smallest_critic():
    next_q = torch.tensor([[10.0, 4.0, 6.0], [8.0, 5.0, 7.0]])
    target = td_target(ONES, torch.zeros(3), next_q, torch.tensor([2.0, 0.0, -2.0]), ALPHA, 0.9)
    torch.testing.assert_close(target, 1.0 + 0.9 * torch.tensor([7.0, 4.0, 7.0]))


def test_a_terminal_state_has_no_value_beyond_it():
    target = td_target(ONES, torch.tensor([0.0, 1.0, 1.0]), torch.full((2, 3), 10.0), torch.zeros(3), ALPHA, 0.9)
    torch.testing.assert_close(target, torch.tensor([10.0, 1.0, 1.0]))


def test_the_critic_loss_averages_over_the_batch_and_adds_over_the_critics():
    q = torch.tensor([[1.0, 3.0], [2.0, 2.0]])
    assert critic_loss(q, torch.tensor([1.0, 1.0])).item() == pytest.approx(0.5 * (2.0 + 1.0))


def test_a_discount_of_its_own_holds_for_each_transition():
    target = td_target(ONES, torch.zeros(3), torch.full((2, 3), 10.0), torch.zeros(3), ALPHA, torch.arange(3.0))
    assert target.tolist() == [1.0, 11.0, 21.0]


def test_the_actor_loss_trades_value_against_entropy():
    loss = actor_loss(torch.tensor([1.0, 3.0]), torch.tensor([4.0, 4.0]), ALPHA)
    assert loss.item() == pytest.approx(0.5 * 2.0 - 4.0)


@pytest.mark.parametrize(("entropy", "sign"), [(5.0, 1), (-5.0, -1)])
def test_the_temperature_falls_while_entropy_is_above_its_target_and_rises_below(entropy, sign):
    log_coef = torch.tensor(math.log(0.3), requires_grad=True)
    loss = temperature_loss(log_coef, torch.tensor(entropy), -2.0)
    loss.backward()
    assert math.copysign(1, log_coef.grad.item()) == sign
    assert loss.item() == pytest.approx(math.log(0.3) * (entropy + 2.0))


def small(cls=SACAgent, observation_space=OBS, action_space=ACT, hidden=(16, 16), **options):
    torch.manual_seed(0)
    return cls(
        observation_space,
        action_space,
        actor_cls=partial(SquashedGaussianActor, hidden_sizes=hidden),
        critic_cls=partial(EnsembleCritic, hidden_sizes=hidden),
        **options,
    )


def random_batch(size=32, seed=0, rew=None, terminated=0.0, truncated=0.0):
    g = torch.Generator().manual_seed(seed)

    def uniform(*shape):
        return torch.rand(*shape, generator=g) * 2 - 1

    return Batch(
        obs=(uniform(size, 2), uniform(size, 1)),
        act=uniform(size, 2) * 2,
        rew=uniform(size) if rew is None else torch.full((size,), rew),
        next_obs=(uniform(size, 2), uniform(size, 1)),
        terminated=torch.full((size,), terminated),
        truncated=torch.full((size,), truncated),
    )


def parameters_of(module):
    return [p.detach().clone() for p in module.parameters()]


def same(left, right):
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("acceleration", ["auto", "off"])
def test_metrics_are_named_numbers(acceleration):
    metrics = small(acceleration=acceleration).train(random_batch())
    names = {
        "loss_critic",
        "loss_actor",
        "loss_entropy_coef",
        "entropy_coef",
        "entropy_nats",
        "q_mean",
        "q_target_mean",
    }
    assert set(metrics) == names
    assert all(np.isfinite(float(value)) for value in metrics.values())


@pytest.mark.parametrize(("flags", "expected"), [({}, 2.0), ({"truncated": 1.0}, 2.0), ({"terminated": 1.0}, 1.0)])
def test_truncated_episodes_keep_their_value_and_terminated_ones_end_it(flags, expected):
    agent = small(gamma=0.5, polyak=0.5, lr_critic=1e-2, entropy_coef=1e-8, learn_entropy_coef=False)
    for step in range(200):
        metrics = agent.train(random_batch(rew=1.0, seed=step, **flags))
    assert metrics["q_mean"] == pytest.approx(expected, rel=0.05)


def test_it_solves_a_tiny_problem():
    """Reward is highest for the action that mirrors the state; the agent must find it in 500 steps."""
    space = spaces.Box(-1.0, 1.0, (1,))
    actions = spaces.Box(-3.0, 3.0, (1,))
    agent = small(
        observation_space=space, action_space=actions, hidden=(32, 32), lr_actor=3e-3, lr_critic=3e-3, entropy_coef=0.05
    )
    g = torch.Generator().manual_seed(1)
    for _ in range(500):
        obs = torch.rand(64, 1, generator=g) * 2 - 1
        with torch.no_grad():
            act, _ = agent.actor.sample(obs)
        rew = -(act + 2 * obs).square().sum(1)
        agent.train(Batch(obs, act, rew, obs, torch.ones(64), torch.zeros(64)))
    for state in (-0.8, -0.2, 0.5):
        action = agent.get_actor().act_(np.array([state], np.float32), test=True)
        assert action[0] == pytest.approx(-2 * state, abs=0.25)


def test_one_seed_gives_one_result():
    def result():
        agent = small(REDQAgent, n_critics=4, policy_delay=1)
        for step in range(3):
            agent.train(random_batch(seed=step))
        return parameters_of(agent.actor) + parameters_of(agent.critic)

    assert same(result(), result())


def test_get_actor_shares_the_parameters_in_training():
    agent = small(actor_polyak=0.0)
    actor = agent.get_actor()
    assert isinstance(actor, ActorModule)
    weights = actor.weights()
    agent.train(random_batch())
    assert actor.weights() != weights
    assert same(parameters_of(actor), parameters_of(agent.actor))


def test_workers_get_the_moving_average_of_the_actor():
    agent = small(actor_polyak=0.9)
    old = parameters_of(agent.get_actor())
    assert same(old, parameters_of(agent.actor))
    agent.train(random_batch())
    average = agent.get_actor()
    for before, actor, mean in zip(old, agent.actor.parameters(), average.parameters(), strict=True):
        torch.testing.assert_close(mean.detach(), 0.9 * before + 0.1 * actor.detach())
    average.act_(OBS.sample())


def test_targets_follow_by_polyak_averaging():
    agent = small(polyak=0.9)
    old = parameters_of(agent.critic_target)
    agent.train(random_batch())
    for before, critic, target in zip(old, agent.critic.parameters(), agent.critic_target.parameters(), strict=True):
        torch.testing.assert_close(target.detach(), 0.9 * before + 0.1 * critic.detach())


def test_neither_targets_nor_the_actor_s_view_of_the_critics_take_gradients():
    agent = small()
    agent.train(random_batch())
    for module in (agent.critic_target, agent.critic_frozen):
        assert not any(p.requires_grad for p in module.parameters())
    assert same(parameters_of(agent.critic_frozen), parameters_of(agent.critic))
    agent.critic.zero_grad()
    agent._train_actor(random_batch().obs)
    assert all(p.grad is None for p in agent.critic.parameters())


def test_redq_draws_two_of_ten_critics_without_repetition_and_in_the_end_all():
    agent = small(REDQAgent)
    draws = [agent._draw_critics() for _ in range(200)]
    assert all(len(set(draw.tolist())) == 2 for draw in draws)
    assert set(torch.cat(draws).tolist()) == set(range(10))
    assert agent.train(random_batch())["loss_critic"] > 0


def test_redq_s_target_asks_the_drawn_critics_only(monkeypatch):
    agent = small(REDQAgent, gamma=1.0, entropy_coef=1e-8)
    with torch.no_grad():
        agent.critic_target.head.weight.zero_()
        agent.critic_target.head.bias.copy_(torch.arange(10.0)[:, None, None])
    monkeypatch.setattr(agent, "_draw_critics", lambda: torch.tensor([7, 3]))
    torch.testing.assert_close(agent._td_target(random_batch(rew=0.0)), torch.full((32,), 3.0), atol=1e-4, rtol=0)


def test_redq_s_actor_climbs_the_mean_and_sac_s_the_minimum():
    batch = random_batch()
    for agent, reduce in ((small(REDQAgent), torch.mean), (small(), torch.amin)):
        torch.manual_seed(3)
        act, log_prob = agent._sample(batch.obs)
        q = reduce(agent.critic(batch.obs, act), dim=0)
        expected = (agent.temperature() * log_prob - q).mean().item()
        torch.manual_seed(3)
        assert float(agent._train_actor(batch.obs)["loss_actor"]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_betas_apply_to_actor_and_critics(optimizer):
    agents = [small(optimizer=optimizer, betas=betas) for betas in ((0.9, 0.999), (0.5, 0.6))]
    for agent in agents:
        for step in range(3):
            torch.manual_seed(step)
            agent.train(random_batch(seed=step))
        assert agent.actor_optimizer.param_groups[0]["betas"] == agent.critic_optimizer.param_groups[0]["betas"]
    assert not same(parameters_of(agents[0].actor), parameters_of(agents[1].actor))
    assert not same(parameters_of(agents[0].critic), parameters_of(agents[1].critic))


def test_the_first_moment_decays_with_the_first_beta():
    agent = small(betas=(0.25, 0.999))
    agent.train(random_batch())
    parameter = agent.critic_optimizer.param_groups[0]["params"][0]
    torch.testing.assert_close(agent.critic_optimizer.state[parameter]["exp_avg"], 0.75 * parameter.grad)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_weight_decay_shrinks_the_weights(optimizer):
    plain, decayed = (small(optimizer=optimizer, weight_decay=w, lr_critic=1e-2) for w in (0.0, 1.0))
    for agent in (plain, decayed):
        for step in range(50):
            agent.train(random_batch(seed=step))

    def norm(agent):
        return agent.critic.hidden[1].weight.norm().item()

    assert norm(decayed) < 0.9 * norm(plain)


def test_decoupled_weight_decay_is_exact_where_gradients_vanish():
    agent = small(optimizer="adamw", weight_decay=0.5, lr_critic=0.1, lr_actor=0.0)
    before = parameters_of(agent.critic)
    loss = sum((p * 0.0).sum() for p in agent.critic.parameters())
    loss.backward()
    agent.critic_optimizer.step()
    for old, new in zip(before, agent.critic.parameters(), strict=True):
        torch.testing.assert_close(new.detach(), old * (1 - 0.1 * 0.5))


def test_a_fixed_entropy_coefficient_stays():
    agent = small(learn_entropy_coef=False, entropy_coef=0.125)
    for _ in range(3):
        metrics = agent.train(random_batch())
    assert metrics["entropy_coef"] == pytest.approx(0.125)
    assert "loss_entropy_coef" not in metrics


def test_the_learned_entropy_coefficient_steers_entropy_to_its_target():
    agent = small(lr_actor=3e-3, lr_critic=1e-2, lr_entropy=1e-2, entropy_coef=1.0, target_entropy=-1.4)
    for step in range(600):
        batch = random_batch(seed=step, terminated=1.0)
        metrics = agent.train(batch._replace(rew=-batch.act.square().sum(1)))
    assert metrics["entropy_nats"] == pytest.approx(-1.4, abs=0.4)


def test_the_automatic_target_is_minus_one_nat_per_dimension():
    assert small(action_space=spaces.Box(-1.0, 1.0, (3,))).target_entropy == -3.0
    assert small().target_entropy == -2.0
    assert small(target_entropy=-7.0).target_entropy == -7.0


def test_entropy_does_not_depend_on_the_units_of_the_actions():
    def entropy(bound):
        agent = small(action_space=spaces.Box(-bound, bound, (2,)))
        torch.manual_seed(1)
        return float(agent._train_actor(random_batch().obs)["entropy_nats"])

    assert entropy(1000.0) == pytest.approx(entropy(0.001), abs=1e-3)


def test_policy_delay_trains_the_actor_every_so_many_steps():
    agent = small(policy_delay=3)
    trained = ["loss_actor" in agent.train(random_batch(seed=step)) for step in range(6)]
    assert trained == [False, False, True, False, False, True]


def test_critics_have_the_actor_s_hidden_layers_where_they_are_given_none():
    agent = SACAgent(OBS, ACT, actor_cls=partial(SquashedGaussianActor, hidden_sizes=(8, 12)))
    assert [layer.weight.shape[-1] for layer in agent.critic.hidden] == [8, 12]
    actor_cls, critic_cls = agent.actor.__class__, partial(EnsembleCritic, hidden_sizes=(5,))
    agent = SACAgent(OBS, ACT, actor_cls=partial(actor_cls, hidden_sizes=(8,)), critic_cls=EnsembleCritic)
    assert [layer.weight.shape[-1] for layer in agent.critic.hidden] == [8]
    agent = SACAgent(OBS, ACT, actor_cls=partial(actor_cls, hidden_sizes=(8,)), critic_cls=critic_cls)
    assert [layer.weight.shape[-1] for layer in agent.critic.hidden] == [5]


def test_critics_have_layers_of_256_beside_an_actor_that_does_not_say_its_own():
    class Mine(SquashedGaussianActor):
        def __init__(self, observation_space, action_space):
            super().__init__(observation_space, action_space, hidden_sizes=(8,))
            del self.hidden_sizes

    agent = SACAgent(OBS, ACT, actor_cls=Mine)
    assert [layer.weight.shape[-1] for layer in agent.critic.hidden] == [256, 256]


def test_a_user_s_critic_gets_the_observation_as_the_memory_gives_it():
    class Mine(torch.nn.Module):
        def __init__(self, observation_space, action_space, n_critics):
            super().__init__()
            self.net = torch.nn.Linear(5, n_critics)

        def forward(self, obs, act, members=None):
            q = self.net(torch.cat((obs[0], obs[1], act), 1)).T
            return q if members is None else q[members]

    agent = SACAgent(OBS, ACT, critic_cls=Mine, n_critics=3, critics_in_target=2)
    assert np.isfinite(float(agent.train(random_batch())["loss_critic"]))


def test_a_training_continues_from_its_modules_optimisers_and_numbers():
    def walk(agent):
        return {k: v for k, v in vars(agent).items() if hasattr(v, "state_dict")}

    first, second = small(scale_rewards=True), small(scale_rewards=True)
    for step in range(3):
        first.train(random_batch(seed=step))
    for name, part in walk(first).items():
        getattr(second, name).load_state_dict(deepcopy(part.state_dict()))
    second.updates = first.updates
    for agent in (first, second):
        torch.manual_seed(5)
        agent.train(random_batch(seed=9))
    for name, part in walk(first).items():
        if isinstance(part, torch.nn.Module):
            assert same(part.state_dict().values(), getattr(second, name).state_dict().values())
    assert first.obs_norm.count.item() == 4.0
    assert same(parameters_of(second.critic_frozen), parameters_of(second.critic))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"n_critics": 2, "critics_in_target": 3}, "critics_in_target is 3; expected 1 to 2"),
        ({"gamma": 1.5}, "gamma is 1.5; expected 0 to 1"),
        ({"polyak": 1.0}, "polyak is 1.0; expected 0 to below 1"),
        ({"actor_polyak": -0.1}, "actor_polyak is -0.1; expected 0 to below 1"),
        ({"actor_polyak": 1.0}, "actor_polyak is 1.0; expected 0 to below 1"),
        ({"optimizer": "sgd"}, "optimizer is 'sgd'; expected 'adam' or 'adamw'"),
        ({"entropy_coef": 0.0}, "entropy_coef is 0.0; expected more than 0"),
        ({"policy_delay": 0}, "policy_delay is 0; expected a whole number, 1 or more"),
    ],
)
def test_options_out_of_range_are_refused_by_name_with_what_is_expected(options, named):
    with pytest.raises(ConfigError, match=f"^{named}$"):
        small(**options)


@pytest.mark.parametrize(
    ("options", "tuned", "named"),
    [
        ({}, {"gamma": 1.5}, "gamma is 1.5; expected 0 to 1"),
        ({}, {"lr_actor": -1.0}, "lr_actor is -1.0; expected 0 or more"),
        ({}, {"entropy_coef": 0.5}, "learn_entropy_coef is True; expected false to set alpha"),
        ({"actor_polyak": 0.0}, {"actor_polyak": 0.9}, "actor_polyak is 0.9; expected 0, as at the start.*"),
        ({}, {"n_critics": 3}, "n_critics of SACAgent cannot change while training; gamma, polyak, .* can"),
    ],
)
def test_what_cannot_be_tuned_is_refused_and_nothing_changes(options, tuned, named):
    agent = small(**options)
    with pytest.raises(ConfigError, match=f"^{named}$"):
        agent.tune(lr_critic=0.5, **tuned)
    assert agent.lr_critic == 3e-4


def test_spaces_it_cannot_learn_from_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"action space is Discrete\(3\)"):
        SACAgent(OBS, spaces.Discrete(3))


def test_tuning_the_process_flushes_denormals():
    try:
        tune_process()
        assert (torch.tensor(1e-38) * 1e-3).item() == 0.0
    finally:
        torch.set_flush_denormal(False)


def test_the_discount_of_a_batch_stands_for_gamma():
    batch = random_batch()
    agents = [small(gamma=0.5), small(gamma=0.9)]
    batch.discount = torch.full((32,), 0.5)
    assert torch.equal(*[seeded(agent._td_target, batch) for agent in agents])
    batch.discount = None
    assert not torch.equal(*[seeded(agent._td_target, batch) for agent in agents])


def seeded(call, *arguments):
    torch.manual_seed(0)
    return call(*arguments)


def test_all_networks_normalise_by_the_statistics_of_the_batches_and_what_was_published_stays():
    agent = small(actor_polyak=0.9)
    for step in range(3):
        published = agent.get_actor().snapshot()
        agent.train(random_batch(seed=step))
    raw = torch.cat([torch.cat(random_batch(seed=step).obs, 1) for step in range(3)])
    expected = (raw - raw.mean(0)) / raw.std(0, correction=0)
    expected[:, 2] = 3.0 * raw[:, 2]  # it has bounds
    for network in (agent.actor, agent.actor_ema, agent.critic, agent.critic_target, agent.critic_frozen):
        torch.testing.assert_close(network.encoder(raw), expected, rtol=1e-4, atol=1e-4)
        assert network.encoder.rescale.scale.data_ptr() == agent.actor.encoder.rescale.scale.data_ptr()
    assert not torch.equal(published["encoder.rescale.scale"], agent.actor.encoder.rescale.scale)


@pytest.mark.parametrize(("before", "after"), [(0.0, 0.9), (0.9, 0.0)])
def test_a_training_continues_with_the_actor_that_acted_where_its_average_is_switched_on_or_off(before, after):
    first, second = small(actor_polyak=before), small(actor_polyak=after)
    for step in range(3):
        first.train(random_batch(seed=step))
    load_object_state(second, object_state(first))
    acted = parameters_of(first.get_actor())
    assert same(acted, parameters_of(second.get_actor()))
    second.train(random_batch())
    assert not same(acted, parameters_of(second.get_actor()))
    assert same(parameters_of(second.actor), parameters_of(second.get_actor())) == (not after)


def test_a_step_leaves_its_batch_as_the_memory_gave_it():
    space = spaces.Box(-1.0, 1.0, (3,))
    for agent, flat in ((small(), False), (small(observation_space=space), True)):
        given = [random_batch() for _ in range(2)]
        if flat:
            given = [b._replace(obs=torch.cat(b.obs, 1), next_obs=torch.cat(b.next_obs, 1)) for b in given]
        agent.train(given[0])
        assert all(torch.equal(a, b) for (_, a), (_, b) in zip(*map(leaves_of, given), strict=True))


def test_networks_that_do_not_normalise_stay_as_they_are():
    class Joints(SquashedGaussianActor):
        """Sees a part of the observation."""

        def __init__(self, observation_space, action_space):
            super().__init__(observation_space[0], action_space, hidden_sizes=(8,))

        def forward(self, obs):
            return super().forward(obs[0])

    as_it_is = partial(EnsembleCritic, normalize_obs=False)
    agent = SACAgent(OBS, ACT, actor_cls=Joints, critic_cls=as_it_is)
    agent.train(random_batch())
    assert agent.obs_norm is None
    assert agent.actor.encoder.rescale.scale.tolist() == [1.0, 1.0]
    assert list(agent.critic.encoder.state_dict()) == []


@pytest.mark.parametrize("n_steps", [False, True])
def test_with_scaled_rewards_it_learns_the_same_whatever_their_unit(n_steps):
    def learnt(unit, **options):
        agent = small(**options)
        for step in range(5):
            batch = random_batch(seed=step)
            if n_steps:
                batch.discount = torch.full((32,), 0.9)
            seeded(agent.train, batch._replace(rew=unit * batch.rew))
        return parameters_of(agent.critic) + parameters_of(agent.actor)

    assert same(learnt(1.0, scale_rewards=True), learnt(1024.0, scale_rewards=True))
    assert not same(learnt(1.0), learnt(1024.0))


def test_rewards_are_divided_by_the_size_of_returns_and_alpha_begins_smaller():
    agent, batch = small(scale_rewards=True, gamma=0.9), random_batch(rew=2.0)
    assert agent._normalize(batch).rew.tolist() == pytest.approx([0.1] * 32)
    batch.discount = torch.full((32,), 0.75)
    agent = small(scale_rewards=True, gamma=0.9)
    assert agent._normalize(batch).rew.tolist() == pytest.approx([0.25] * 32)
    assert batch.rew.tolist() == [2.0] * 32
    coefs = [small(**options).temperature().item() for options in ({}, {"scale_rewards": True}, {"entropy_coef": 0.5})]
    assert coefs == pytest.approx([0.2, 0.01, 0.5])
