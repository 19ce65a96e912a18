"""Any space of Gymnasium passes through environment, wire, memory, batch and one training step, bit
for bit.
"""

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from house import buffers_of
from kit.boxes import CAR, box, picture
from kit.interfaces import Interface

from tmrl_like.agents import (
    CategoricalActor,
    DiscreteEnsembleCritic,
    DiscreteSACAgent,
    EnsembleCritic,
    SACAgent,
    SquashedGaussianActor,
)
from tmrl_like.base import tree
from tmrl_like.cli.check import traffic_of_episodes
from tmrl_like.envs.float32 import Float32Env
from tmrl_like.envs.real_time import RealTimeEnv
from tmrl_like.networking import RolloutWorker
from tmrl_like.policies.probe import PolicyProbe
from tmrl_like.replay import DropHistory, ReplayMemory

NETS = {"hidden_sizes": (16,)}


def through_everything(env, act_buf_len=0):
    """Act, encode, decode, store, compare every transition, train a step, and load the weights;
    return a batch.
    """
    discrete = not isinstance(env.action_space, spaces.Box)
    actor_cls = partial(CategoricalActor if discrete else SquashedGaussianActor, **NETS)
    critic_cls = partial(DiscreteEnsembleCritic if discrete else EnsembleCritic, **NETS)
    memory = ReplayMemory(act_buf_len=act_buf_len, crc_debug=True, batch_size=8, memory_size=1000)
    compressor = DropHistory(act_buf_len) if act_buf_len else None
    options = {"crc_debug": True, "max_samples_per_episode": 20}
    with RolloutWorker(lambda: env, actor_cls, compressor, standalone=True, **options) as worker:
        drive(worker, memory)
        agent_cls = DiscreteSACAgent if discrete else SACAgent
        agent = agent_cls(
            env.observation_space, env.action_space, actor_cls=actor_cls, critic_cls=critic_cls
        )
        batch = memory.sample()
        assert all(np.isfinite(float(value)) for value in agent.train(batch).values())
        worker.actor.load_weights(agent.get_actor().weights())
        PolicyProbe(env.observation_space, env.action_space).check(worker.actor)
        drive(worker, memory)  # with the trained policy, which normalises
    return batch


def drive(worker, memory):
    """Collect an episode, store it, and compare every transition."""
    (traffic,) = traffic_of_episodes(worker, 1)
    for buffer in buffers_of(traffic):
        memory.append(buffer)
    checked = memory.crc_checked
    for item in range(len(memory)):
        memory[item]
    assert memory.crc_checked - checked == len(memory) > 0


class Fake(gymnasium.Env):
    """An environment with any spaces, whose observations and rewards are random."""

    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space
        observation_space.seed(0)

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        assert action in self.action_space
        return self.observation_space.sample(), 1.0, False, False, {}


PICTURE = picture(16, 16, 3)
MIXTURES = [  # spaces of observations and actions
    (PICTURE, spaces.Discrete(3, start=4)),
    (spaces.Box(0, 9, ()), box(1.0)),
    (spaces.Box(0, 9, (3, 2), np.int16), spaces.Box(0.0, 1.0, (2, 2), np.float64)),
    (CAR, spaces.MultiDiscrete([2, 3], start=[5, -7])),
    (
        spaces.Tuple((spaces.Discrete(5, start=-3), PICTURE, spaces.Discrete(1))),
        spaces.Discrete(3, start=4),
    ),
    (
        spaces.Dict(
            a=spaces.Tuple((spaces.MultiDiscrete([1, 4]), spaces.Box(0, 9, (2,), np.float64))),
            b=spaces.Dict(c=spaces.MultiBinary(1)),
        ),
        spaces.Box(-1.0, 2.0, (2,)),
    ),
]


@pytest.mark.parametrize(("observation_space", "action_space"), MIXTURES)
def test_any_mixture_of_spaces_goes_through_everything(observation_space, action_space):
    through_everything(Float32Env(Fake(observation_space, action_space)))


class Loose(Fake):
    """An environment that returns values which Gymnasium accepts, but which no sample can hold."""

    def step(self, action):
        obs, _, terminated, _, _ = super().step(action)
        return obs, 1, np.bool_(terminated), 0, None


def test_observations_rewards_and_ends_get_one_type():
    observation_space = spaces.Dict(a=spaces.Box(1, 9, (2,), np.float64), b=spaces.Discrete(3))
    env = Float32Env(Loose(observation_space, spaces.Discrete(2)))
    through_everything(env)
    first, _ = env.reset()
    obs, *others = env.step(0)
    for seen in (first, obs):
        assert env.observation_space.contains(seen)
        assert (seen["a"].dtype, seen["b"].dtype) == (np.float32, np.int64)
    assert [*map(type, others)] == [float, bool, bool, dict]


@pytest.mark.parametrize("form", [lambda x: x, lambda x: (x, x), lambda x: {"a": (3, x)}])
def test_numbers_that_are_float64_in_a_late_step_alone_become_float32(form):
    """What ran for long dies of it otherwise, in the trainer."""
    numbers = iter((np.float32([0.0]), np.float64([0.5])))
    env = Fake(PICTURE, spaces.Discrete(2))
    env.step = lambda _: (form(next(numbers)), 0.0, False, False, {})
    wrapped = Float32Env(env)
    steps = [tree.leaves(wrapped.step(0)[0]) for _ in range(2)]
    early, late = ([np.asarray(leaf).dtype for leaf in leaves] for leaves in steps)
    assert late == early
    assert np.float64 not in early


def test_choices_stand_in_the_action_buffer_of_a_real_time_environment():
    """The default action is a plain number."""
    how = {"action_space": spaces.Discrete(3), "get_default_action": lambda self: 0}
    lamp = type("Lamp", (Interface,), how)
    batch = through_everything(RealTimeEnv(lamp, 0.005, ep_max_length=10), act_buf_len=2)
    assert [leaf.dtype for leaf in (*batch.obs, batch.act)] == [torch.float32, *3 * [torch.int64]]
