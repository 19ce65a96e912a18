"""Steps on flat parameters; graphs with a stand-in for CUDA's."""

import copy
from functools import partial

import pytest
import torch
from gymnasium import spaces

from tmrl_like.agents import EnsembleCritic, REDQAgent, SACAgent, SquashedGaussianActor
from tmrl_like.agents.acceleration import Flat, Graphed, accelerate, adam_step, leaves_of
from tmrl_like.errors import ConfigError
from tmrl_like.types import Batch

OBS = spaces.Tuple((spaces.Box(-1.0, 1.0, (2,)), spaces.Box(-1.0, 1.0, (1,))))
ACT = spaces.Box(-2.0, 2.0, (2,))
BOTH = pytest.mark.parametrize("cls", [SACAgent, partial(REDQAgent, n_critics=4, policy_delay=3)], ids=["SAC", "REDQ"])


class StandIn:
    """Records a call and repeats it, as a CUDA graph does: with the tensors it was recorded with."""

    def __init__(self):
        self.captures = self.warm_ups = 0

    def warm_up(self, call):
        self.warm_ups += 1
        return call()

    def capture(self, call):
        self.captures += 1
        return call


def agent(cls=SACAgent, acceleration="off", **options):
    torch.manual_seed(0)
    nets = {"hidden_sizes": (16, 16)}
    return cls(
        OBS,
        ACT,
        actor_cls=partial(SquashedGaussianActor, **nets),
        critic_cls=partial(EnsembleCritic, **nets),
        acceleration=acceleration,
        **options,
    )


def graphed(agent):
    agent._step = Graphed(agent._update, StandIn(), [agent.critic_optimizer], agent._numbers)
    return agent, agent._step._backend


def batch(seed=0, size=32, **extra):
    g = torch.Generator().manual_seed(seed)
    obs, next_obs = ((torch.rand(size, 2, generator=g), torch.rand(size, 1, generator=g)) for _ in range(2))
    act, rew = torch.rand(size, 2, generator=g), torch.rand(size, generator=g)
    return Batch(obs, act, rew, next_obs, torch.zeros(size), torch.zeros(size), **extra)


def train(agent, steps, **extra):
    torch.manual_seed(1)
    return [{k: v.item() for k, v in agent.train(batch(seed, **extra)).items()} for seed in range(steps)]


def net():
    torch.manual_seed(0)
    return torch.nn.Linear(3, 2)


def flat_net(cls=torch.optim.Adam, **options):
    model = net()
    return model, Flat(model).adam(cls, lr=0.1, **options)


def descend(model, optimizer, take_step, times):
    for i in range(times):
        optimizer.zero_grad(set_to_none=False)
        (model(torch.full((1, 3), float(i))) ** 2).sum().backward()
        take_step(optimizer)


def assert_same(one, other):
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize(
    "options", [{}, {"betas": (0.5, 0.6)}, {"eps": 0.1}, {"weight_decay": 0.3}, {"amsgrad": True}], ids=str
)
def test_a_step_is_torch_s_step_with_every_option(cls, options):
    theirs = net()
    descend(theirs, cls(theirs.parameters(), lr=0.1, **options), cls.step, 5)
    ours, optimizer = flat_net(cls, **options)
    descend(ours, optimizer, adam_step, 5)
    assert_same(ours, theirs)


def test_a_learning_rate_changed_in_param_groups_counts():
    model, optimizer = flat_net()
    descend(model, optimizer, adam_step, 2)
    optimizer.param_groups[0]["lr"] = 0.0
    before = copy.deepcopy(model.state_dict())
    descend(model, optimizer, adam_step, 2)
    assert all(torch.equal(before[name], p) for name, p in model.state_dict().items())


def test_steps_go_on_from_a_saved_state():
    (first, one), (second, two) = flat_net(), flat_net()
    descend(first, one, adam_step, 3)
    second.load_state_dict(first.state_dict())
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for model, optimizer in ((first, one), (second, two)):
        descend(model, optimizer, adam_step, 3)
    assert torch.equal(first.weight, second.weight)


def test_parameters_that_are_not_trained_stay_apart():
    model = net()
    model.bias.requires_grad_(False)
    bias = model.bias.data_ptr()
    assert Flat(model).parameter.numel() == model.weight.numel()
    assert model.bias.data_ptr() == bias


def test_a_learning_rate_schedule_finds_the_step_that_it_wraps():
    trained = agent()
    schedule = torch.optim.lr_scheduler.StepLR(trained.critic_optimizer, step_size=1, gamma=0.5)
    train(trained, 1)
    schedule.step()
    assert trained.critic_optimizer.param_groups[0]["lr"] == pytest.approx(1.5e-4)


@BOTH
def test_graphs_change_no_result(cls):
    plain = agent(cls)
    replayed, backend = graphed(agent(cls))
    assert train(plain, 30) == train(replayed, 30)
    assert backend.captures == (1 if cls is SACAgent else 2)
    for a, b in zip(plain.actor.parameters(), replayed.actor.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_replay_s_metrics_are_the_caller_s_to_keep():
    replayed, _ = graphed(agent())
    results = [replayed.train(batch(seed)) for seed in range(6)]
    assert len({metrics["loss_critic"].data_ptr() for metrics in results}) == 6


def test_another_form_of_batch_gets_a_graph_of_its_own():
    replayed, backend = graphed(agent())
    train(replayed, 6)
    train(replayed, 6, size=16)
    train(replayed, 6, discount=torch.ones(32))
    assert backend.captures == 3
    assert train(replayed, 1) != train(replayed, 1, discount=torch.zeros(32))


def test_a_changed_learning_rate_and_a_loaded_checkpoint_make_new_graphs():
    replayed, backend = graphed(agent())
    train(replayed, 6)
    replayed.critic_optimizer.param_groups[0]["lr"] = 0.0
    before = copy.deepcopy(replayed.critic.state_dict())
    train(replayed, 6)
    assert all(torch.equal(before[name], value) for name, value in replayed.critic.state_dict().items())
    assert backend.captures == 2
    replayed.critic_optimizer.load_state_dict(copy.deepcopy(replayed.critic_optimizer.state_dict()))
    train(replayed, 6)
    assert backend.captures == 3


@pytest.mark.parametrize(
    "tuned", [{"gamma": 0.5}, {"polyak": 0.5}, {"actor_polyak": 0.5}, {"target_entropy": 3.0}, {"lr_critic": 0.1}, {}]
)
def test_what_is_tuned_makes_a_new_graph_at_once(tuned):
    replayed, backend = graphed(agent())
    train(replayed, 6)
    replayed.tune(**tuned)
    train(replayed, 2)
    assert (backend.warm_ups, backend.captures) == (3, 2 if tuned else 1)


def test_on_a_processor_auto_leaves_the_step_and_a_graph_is_refused():
    def step(batch, flag):
        return {}

    assert accelerate(step, "auto", "cpu") is step
    with pytest.raises(ConfigError, match="'graph' needs device cuda"):
        accelerate(step, "graph", "cpu")
    with pytest.raises(ConfigError, match="acceleration='fast', expected 'auto', 'off'"):
        agent(acceleration="fast")


def test_all_tensors_of_a_batch_are_found():
    nested = batch(discount=torch.ones(32))._replace(obs={"a": (torch.ones(1), [torch.ones(2)])})
    assert sorted(t.shape[0] for _, t in leaves_of(nested)) == [1, 2, *[32] * 7]
