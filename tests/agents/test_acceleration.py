"""Steps on flat parameters; graphs with a stand-in for CUDA's."""

import copy
from functools import partial

import pytest
import torch
from gymnasium import spaces
from kit.learners import assert_same, batch_of, small, tensors_of, train

from tmrl_like.agents import (
    CategoricalActor,
    DiscreteEnsembleCritic,
    DiscreteSACAgent,
    IQNActor,
    IQNAgent,
    REDQAgent,
    SACAgent,
)
from tmrl_like.agents.acceleration import Flat, Graphed, accelerate, adam_step

OBS = spaces.Tuple((spaces.Box(-1.0, 1.0, (2,)), spaces.Box(-1.0, 1.0, (1,))))
SPACES = OBS, spaces.Box(-2.0, 2.0, (2,))


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


def sac(cls=SACAgent):
    return small(cls, SPACES, acceleration="off")


def discrete():
    choices = OBS, spaces.MultiDiscrete([2, 3])
    return small(DiscreteSACAgent, choices, CategoricalActor, DiscreteEnsembleCritic, acceleration="off")


def quantiles():
    torch.manual_seed(0)
    return IQNAgent(OBS, spaces.Discrete(2), actor_cls=partial(IQNActor, width=16, hidden_size=16), target_interval=2)


def graphed(agent):
    optimizers = [value for value in vars(agent).values() if isinstance(value, torch.optim.Adam)]
    backend = StandIn()
    agent._step = Graphed(agent._update, backend, optimizers, agent._numbers)
    return agent, backend


@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize(
    "options", [{}, {"betas": (0.5, 0.6)}, {"eps": 0.1}, {"weight_decay": 0.3}, {"amsgrad": True}], ids=str
)
def test_a_step_is_torch_s_step_with_every_option(cls, options):
    theirs = torch.nn.Linear(3, 2)
    ours = copy.deepcopy(theirs)
    optimizer, flat = cls(theirs.parameters(), lr=0.1, **options), Flat(ours).adam(cls, lr=0.1, **options)
    for model, made, step in ((theirs, optimizer, cls.step), (ours, flat, adam_step)):
        for i in range(5):
            made.zero_grad(set_to_none=False)
            (model(torch.full((1, 3), float(i))) ** 2).sum().backward()
            step(made)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_learning_rate_schedule_finds_the_step_that_it_wraps():
    trained = sac()
    schedule = torch.optim.lr_scheduler.StepLR(trained.critic_optimizer, step_size=1, gamma=0.5)
    train(trained, 1)
    schedule.step()
    assert trained.critic_optimizer.param_groups[0]["lr"] == pytest.approx(1.5e-4)


@pytest.mark.parametrize(
    ("make", "captures"),
    [(sac, 1), (partial(sac, partial(REDQAgent, n_critics=4, policy_delay=3)), 2), (discrete, 1), (quantiles, 2)],
    ids=["SAC", "REDQ", "discrete", "IQN"],
)
def test_graphs_change_no_result(make, captures):
    plain, (replayed, backend) = make(), graphed(make())
    assert train(plain, 20) == train(replayed, 20)
    assert backend.captures == captures
    assert_same(plain, replayed)


def test_a_replay_s_metrics_are_the_caller_s_to_keep():
    replayed, _ = graphed(sac())
    results = [replayed.train(batch_of(SPACES, seed)) for seed in range(6)]
    assert len({metrics["loss_critic"].data_ptr() for metrics in results}) == 6


def test_another_form_of_batch_gets_a_graph_of_its_own():
    replayed, backend = graphed(sac())
    train(replayed, 6)
    train(replayed, 6, rows=16)
    train(replayed, 6, discount=torch.ones(32))
    assert backend.captures == 3
    assert train(replayed, 1) != train(replayed, 1, discount=torch.zeros(32))


def test_a_changed_learning_rate_and_a_loaded_checkpoint_make_new_graphs():
    replayed, backend = graphed(sac())
    train(replayed, 6)
    replayed.critic_optimizer.param_groups[0]["lr"] = 0.0
    before = tensors_of(replayed)
    train(replayed, 6)
    after = tensors_of(replayed)
    assert all(torch.equal(before[name], after[name]) for name in before if name.startswith("critic "))
    assert backend.captures == 2
    replayed.critic_optimizer.load_state_dict(copy.deepcopy(replayed.critic_optimizer.state_dict()))
    train(replayed, 6)
    assert backend.captures == 3


@pytest.mark.parametrize(
    "tuned", [{"gamma": 0.5}, {"polyak": 0.5}, {"actor_polyak": 0.5}, {"target_entropy": 3.0}, {"lr_critic": 0.1}, {}]
)
def test_what_is_tuned_makes_a_new_graph_at_once(tuned):
    replayed, backend = graphed(sac())
    train(replayed, 6)
    replayed.tune(**tuned)
    train(replayed, 2)
    assert (backend.warm_ups, backend.captures) == (3, 2 if tuned else 1)


def test_on_a_processor_a_step_stays_as_it_is():
    def step(batch, flag):
        return {}

    assert accelerate(step, "cpu") is step
    assert isinstance(accelerate(step, "cuda"), Graphed)
