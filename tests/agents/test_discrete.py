"""SAC for choices: a categorical policy, critics of all values, exact expectations."""

import itertools
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium import spaces
from test_acceleration import StandIn

from tmrl_like.agents import CategoricalActor, DiscreteEnsembleCritic, DiscreteSACAgent, SACAgent
from tmrl_like.agents.acceleration import Graphed
from tmrl_like.errors import ConfigError
from tmrl_like.policies.actor import to_batch_of_one
from tmrl_like.types import Batch

OBS = spaces.Box(-1.0, 1.0, (3,))
ONE = spaces.Discrete(4, start=-1)
SEVERAL = spaces.MultiDiscrete([2, 3], start=[0, 5])
NETS = {"hidden_sizes": (16, 16)}
SPACES = pytest.mark.parametrize("space", [ONE, SEVERAL, spaces.MultiDiscrete([[2], [3]])], ids=str)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
    for space in (OBS, ONE, SEVERAL):
        space.seed(0)


def agent_for(space, **options):
    nets = {name: options.pop(name, NETS["hidden_sizes"]) for name in NETS}
    return DiscreteSACAgent(
        OBS,
        space,
        actor_cls=partial(CategoricalActor, **nets),
        critic_cls=partial(DiscreteEnsembleCritic, **nets),
        **options,
    )


def batch_for(space, size=32, **flags):
    obs = torch.rand(2, size, 3) * 2 - 1
    act = torch.as_tensor(np.stack([space.sample() for _ in range(size)]))
    zeros = torch.zeros(size)
    return Batch(obs[0], act, torch.rand(size), obs[1], flags.get("terminated", zeros), zeros)


@SPACES
@pytest.mark.parametrize("test", [True, False])
def test_actions_are_in_the_space_as_the_environment_has_them(space, test):
    actor = CategoricalActor(OBS, space, **NETS)
    drawn = [actor.act_(OBS.sample(), test) for _ in range(50)]
    assert all(space.contains(action) for action in drawn)
    assert {type(action) for action in drawn} == {type(space.sample())}
    assert all(np.asarray(action).dtype == np.int64 for action in drawn)


@SPACES
def test_a_test_action_is_the_likeliest_and_others_are_drawn_by_their_probabilities(space):
    actor = CategoricalActor(OBS, space, **NETS)
    obs = OBS.sample()
    with torch.no_grad():
        prob = actor(to_batch_of_one(obs))[0].exp()
    drawn = np.stack([np.ravel(actor.act_(obs)) for _ in range(4000)]) - np.array(actor.spec.first)
    for k, part in enumerate(torch.split(prob, actor.spec.sizes)):
        assert part.sum().item() == pytest.approx(1.0)
        counted = np.bincount(drawn[:, k], minlength=len(part)) / len(drawn)
        np.testing.assert_allclose(counted, part.numpy(), atol=0.03)
        best = np.ravel(actor.act_(obs, test=True))[k] - actor.spec.first[k]
        assert best == part.argmax().item()


@pytest.mark.parametrize("space", [ONE, SEVERAL], ids=str)
def test_a_policy_that_has_gone_astray_gives_no_action_that_looks_right(space):
    """NaN is what the worker replaces by its safe action."""
    actor = CategoricalActor(OBS, space, **NETS)
    with torch.no_grad():
        actor.head.bias[0] = torch.nan
    for test in (True, False):
        action = actor.act_(OBS.sample(), test)
        assert np.isnan(action).all()
        assert np.shape(action) == space.shape


def test_a_subclass_with_a_network_of_its_own_acts_by_it():
    class Own(CategoricalActor):
        def forward(self, obs):
            return torch.tensor([[-9.0, 0.0, -9.0, -9.0, 0.0]])

    actor = Own(OBS, SEVERAL, **NETS)
    for test in True, False:
        np.testing.assert_array_equal(actor.act_(OBS.sample(), test), [1, 7])


@SPACES
def test_critics_value_an_action_as_the_sum_over_its_choices(space):
    critic = DiscreteEnsembleCritic(OBS, space, n_critics=3, **NETS)
    batch = batch_for(space, 8)
    q = critic(batch.obs, batch.act)
    assert q.shape == (3, 8)
    values = critic.outputs(critic.encoder(batch.obs), None)
    sizes = np.ravel(space.n if isinstance(space, spaces.Discrete) else space.nvec)
    columns = np.cumsum(sizes) - sizes + batch.act.reshape(8, -1).numpy() - np.ravel(space.start)
    for b in range(8):
        torch.testing.assert_close(q[:, b], values[:, b, columns[b]].sum(-1))


@pytest.mark.parametrize("space", [ONE, SEVERAL], ids=str)
def test_probabilities_give_the_expectation_over_all_actions(space):
    actor, critic = CategoricalActor(OBS, space, **NETS), DiscreteEnsembleCritic(OBS, space, **NETS)
    obs = torch.rand(1, 3)
    with torch.no_grad():
        prob = actor(obs).exp()
        expected = critic(obs, prob)[:, 0]
        parts = torch.split(prob[0], actor.spec.sizes)
        total = torch.zeros(2)
        for action in itertools.product(*(range(len(part)) for part in parts)):
            act = torch.tensor([[f + a for f, a in zip(actor.spec.first, action, strict=True)]])
            likely = torch.prod(torch.stack([part[a] for part, a in zip(parts, action, strict=True)]))
            total += likely * critic(obs, act)[:, 0]
    torch.testing.assert_close(expected, total)


@pytest.mark.parametrize("space", [ONE, SEVERAL], ids=str)
def test_target_and_losses_are_those_of_the_paper_written_out(space):
    agent = agent_for(space, gamma=0.5, entropy_coef=0.3)
    batch = batch_for(space, terminated=torch.arange(32) % 2.0)
    with torch.no_grad():
        log_prob = agent.actor(batch.next_obs)
        q = torch.stack([agent.critic_target(batch.next_obs, log_prob.exp())[i] for i in range(2)])
        value = torch.minimum(q[0], q[1]) - 0.3 * (log_prob.exp() * log_prob).sum(1)
        torch.testing.assert_close(agent._td_target(batch), batch.rew + 0.5 * (1 - batch.terminated) * value)
        log_prob = agent.actor(batch.obs)
        soft = 0.3 * (log_prob.exp() * log_prob).sum(1) - agent.critic(batch.obs, log_prob.exp()).amin(0)
    assert agent._train_actor(batch.obs)["loss_actor"].item() == pytest.approx(soft.mean().item(), rel=1e-5)


def test_the_usual_target_is_half_of_the_largest_entropy():
    assert agent_for(ONE).target_entropy == pytest.approx(0.5 * np.log(4))
    assert agent_for(SEVERAL).target_entropy == pytest.approx(0.5 * np.log(6))
    assert agent_for(ONE, target_entropy=0.1).target_entropy == 0.1


@pytest.mark.parametrize(
    "options",
    [{}, {"n_critics": 4, "critics_in_target": 2, "policy_delay": 2}, {"actor_polyak": 0.9, "scale_rewards": True}],
    ids=["SAC", "REDQ", "average"],
)
@SPACES
def test_a_step_trains_everything_and_its_weights_drive_a_worker_s_actor(space, options):
    agent = agent_for(space, **options)
    modules = agent.actor, agent.critic, agent.critic_target, agent.temperature
    before = [[p.detach().clone() for p in module.parameters()] for module in modules]
    for _ in range(2):
        metrics = agent.train(batch_for(space))
    assert all(np.isfinite(float(value)) for value in metrics.values())
    for module, old in zip(modules, before, strict=True):
        assert not any(torch.equal(a, b) for a, b in zip(old, module.parameters(), strict=True))
    worker = CategoricalActor(OBS, space, **NETS)
    worker.load_weights(agent.get_actor().weights())
    obs = OBS.sample()
    np.testing.assert_array_equal(worker.act_(obs, test=True), agent.get_actor().act_(obs, test=True))


@pytest.mark.parametrize("space", [spaces.Discrete(4), spaces.MultiDiscrete([4, 2])], ids=str)
def test_it_finds_the_best_arm_in_each_state_of_a_bandit(space):
    """The state says, by its sign, which arm pays; a second choice pays with its value 1."""
    fast = {"lr_actor": 5e-3, "lr_critic": 5e-3, "entropy_coef": 0.05, "learn_entropy_coef": False}
    agent = agent_for(space, **fast)
    for _ in range(300):
        obs = torch.rand(64, 3) * 2 - 1
        act = torch.as_tensor(np.stack([space.sample() for _ in range(64)]))
        arm = act.reshape(64, -1)[:, 0]
        rew = (arm == torch.where(obs[:, 0] > 0, 3, 1)).float() + (act.reshape(64, -1)[:, 1:] == 1).sum(1)
        agent.train(Batch(obs, act, rew, obs, torch.ones(64), torch.zeros(64)))
    for sign, best in ((1.0, 3), (-1.0, 1)):
        action = np.ravel(agent.get_actor().act_(np.array([0.5 * sign, 0.0, 0.0], np.float32), test=True))
        assert action.tolist() == [best, 1][: len(action)]


def test_critics_have_the_actor_s_hidden_layers_where_no_class_is_given_for_them():
    agent = DiscreteSACAgent(OBS, ONE, actor_cls=partial(CategoricalActor, hidden_sizes=(8,)))
    assert [layer.weight.shape[-1] for layer in agent.critic.hidden] == [8]


def test_dropout_plugs_in():
    agent = DiscreteSACAgent(OBS, ONE, critic_cls=partial(DiscreteEnsembleCritic, **NETS, dropout=0.01))
    assert np.isfinite(float(agent.train(batch_for(ONE))["loss_critic"]))


@pytest.mark.parametrize(
    "space",
    [spaces.Box(-1.0, 1.0, (2,)), spaces.MultiBinary(3), spaces.Tuple((ONE,)), spaces.Discrete(20_000)],
    ids=str,
)
def test_actions_that_are_not_choices_are_refused_by_name(space):
    for cls in (CategoricalActor, DiscreteEnsembleCritic, DiscreteSACAgent):
        with pytest.raises(ConfigError, match=r"the action space is .*; this agent needs Discrete or MultiDiscrete"):
            cls(OBS, space)


@pytest.mark.parametrize("space", [ONE, spaces.Box(0, 5, (2,), np.int64), spaces.MultiBinary(3)], ids=str)
def test_the_agent_for_boxes_names_the_one_for_choices(space):
    with pytest.raises(ConfigError, match="take DiscreteSACAgent with CategoricalActor"):
        SACAgent(OBS, space)


@pytest.mark.parametrize("space", [ONE, SEVERAL], ids=str)
def test_graphs_change_no_result(space):
    results = []
    for accelerated in (False, True):
        torch.manual_seed(0)
        space.seed(0)
        agent = agent_for(space, acceleration="off")
        if accelerated:
            agent._step = Graphed(agent._update, StandIn(), [agent.critic_optimizer])
        results.append([agent.train(batch_for(space))["loss_critic"] for _ in range(6)])
    assert results[0] == results[1]
