"""Behaviour common to all agents that ship."""

import copy
import math
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium import spaces
from kit.boxes import CAR, box
from kit.fakes import LinearActor
from kit.learners import HIDDEN, assert_same, batch_of, tensors_of, train
from kit.refusals import one_line
from test_as_before import CASES, COMPILED

from tmrl_like.agents import (
    CategoricalActor,
    CrossQAgent,
    DiscreteEnsembleCritic,
    DiscreteSACAgent,
    EnsembleCritic,
    IQNActor,
    IQNAgent,
    SACAgent,
    SquashedGaussianActor,
)
from tmrl_like.agents.acceleration import leaves_of
from tmrl_like.trainer.snapshot import load_object_state, object_state

OF_PICTURES = partial(
    SACAgent,
    CAR,
    box(2, 2),
    actor_cls=partial(SquashedGaussianActor, hidden_sizes=HIDDEN),
)
AGENTS = CASES | {"SAC of pictures": OF_PICTURES}
WAYS = [*((case, "off") for case in AGENTS), *((case, "auto") for case in sorted(COMPILED))]


@pytest.fixture(params=WAYS, ids=" ".join)
def make(request):
    """Return a function that makes an agent, always with the same initial state."""
    case, acceleration = request.param

    def made():
        torch.manual_seed(0)
        return AGENTS[case](acceleration=acceleration)

    return made


def batch_for(agent, seed):
    return batch_of((agent.observation_space, agent.action_space), seed)


def test_a_training_goes_on_from_its_state_and_so_does_a_copy_of_the_agent(make):
    agent, resumed = make(), make()
    setattr(agent, "lr" if "lr" in agent.tunable else "lr_actor", 1e-2)
    train(agent, 3)
    train(resumed, 1, first=50)  # its own state, which loading replaces
    load_object_state(resumed, copy.deepcopy(object_state(agent)))
    copied, pickled = copy.deepcopy(agent), pickle.loads(pickle.dumps(agent))  # noqa: S301
    before = tensors_of(agent)
    for other in (resumed, copied, pickled):
        train(other, 3, first=10)
    assert all(torch.equal(value, before[name]) for name, value in tensors_of(agent).items())
    train(agent, 3, first=10)
    for other in (resumed, copied, pickled):
        assert_same(other, agent)


def test_a_batch_that_is_held_out_gives_losses_and_changes_nothing(make):
    agent = make()
    metrics = train(agent, 3)
    before = copy.deepcopy(agent)
    losses = agent.evaluate(batch_for(agent, 50))
    assert_same(agent, before)
    assert losses
    assert set(losses) <= set(metrics[-1]) | set(metrics[-2]) | set(metrics[-3])
    assert all(math.isfinite(loss) for loss in losses.values())


def test_a_step_leaves_its_batch_as_the_memory_gave_it(make):
    agent = make()
    given, kept = (batch_for(agent, 1) for _ in range(2))
    agent.train(given)
    for (_, one), (_, other) in zip(leaves_of(given), leaves_of(kept), strict=True):
        assert torch.equal(one, other)


def test_what_it_publishes_drives_a_workers_actor(make):
    agent = make()
    train(agent, 6)
    published, worker = agent.get_actor(), make().get_actor()
    worker.load_weights(published.weights())
    for seed in range(5):
        agent.observation_space.seed(seed)
        obs = agent.observation_space.sample()
        np.testing.assert_array_equal(worker.act_(obs, test=True), published.act_(obs, test=True))
        assert agent.action_space.contains(worker.act_(obs, test=True))


@pytest.mark.parametrize(
    ("agent", "networks", "said"),
    [
        (SACAgent, {"actor_cls": LinearActor}, "actor_cls makes LinearActor; expected SamplingA"),
        (CrossQAgent, {"actor_cls": CategoricalActor}, "actor_cls makes CategoricalActor; expec"),
        (CrossQAgent, {"critic_cls": DiscreteEnsembleCritic}, "critic_cls makes DiscreteEnsemb"),
        (IQNAgent, {"actor_cls": CategoricalActor}, "actor_cls makes CategoricalActor; expected I"),
        (
            DiscreteSACAgent,
            {"critic_cls": partial(EnsembleCritic, layer_norm=False)},
            "critic_cls makes EnsembleCritic; expected DiscreteEnsembleCritic",
        ),
        (
            DiscreteSACAgent,
            {"actor_cls": lambda *both: IQNActor(*both)},
            "actor_cls makes IQNActor; expected CategoricalActor",
        ),
    ],
)
def test_networks_that_it_cannot_train_are_refused_by_name(agent, networks, said):
    act = box(1, 2) if agent in (SACAgent, CrossQAgent) else spaces.Discrete(3)
    with one_line(said):
        agent(box(1, 2), act, **networks)


class WithOwnSample(SACAgent):
    def _sample(self, obs):
        act = self.actor.layer(obs).tanh()
        return act, -act.square().sum(dim=1)


def test_a_subclass_that_draws_actions_in_a_way_of_its_own_takes_any_actor():
    (metrics,) = train(WithOwnSample(box(1, 2), box(1, 1), actor_cls=LinearActor), 1)
    assert math.isfinite(metrics["loss_actor"])
