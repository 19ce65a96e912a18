"""An actor in an environment without worker and wire, and an agent that is trained beside it."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch

from tmrl_like.agents import SACAgent
from tmrl_like.envs.actions import actions_of_reset
from tmrl_like.envs.clock import Clock
from tmrl_like.replay import DropHistory
from tmrl_like.types import Buffer, Info

View = Callable[[Any], Any]


def drive(env, actor, act_buf_len, test, view=lambda obs: obs):
    """One episode: its samples, its return, whether it was terminated, and the last info."""
    compress = DropHistory(act_buf_len)
    actor.reset()
    obs, info = env.reset()
    resets = [(act, obs, 0.0, False, False, Info(info, is_reset=True)) for act in actions_of_reset(env, obs)]
    samples = [compress(*reset) for reset in resets]
    total, terminated, truncated = 0.0, False, False
    while not (terminated or truncated):
        action = actor.act_(view(obs), test)
        obs, rew, terminated, truncated, info = env.step(action)
        samples.append(compress(action, obs, rew, terminated, truncated, Info(info)))
        total += float(rew)
    return samples, total, terminated, info


def learn(agent, memory, collect, steps, first_steps, ratio):
    """Collect episodes until there are so many steps; after the first ones, train `ratio` times for each."""
    collected = trained = 0
    while collected < steps:
        samples = collect()
        memory.append(Buffer(samples, "solo"))
        collected += len(samples) - 1
        while collected > first_steps and trained < ratio * collected:
            agent.train(memory.sample())
            trained += 1


def seen_alike(view, obs):
    """What the view makes of an observation; the same of a batch, in the observation's own shapes."""
    alone = view(obs)
    batch = view(tuple(torch.from_numpy(o)[None] for o in obs))
    assert [a.shape for a in alone] == [o.shape for o in obs]
    for one, many in zip(alone, batch, strict=True):
        assert one.dtype == np.float32
        assert torch.allclose(torch.from_numpy(one), many[0])
    return alone


class SteppedClock(Clock):
    """Of a world that moves on while somebody sleeps."""

    def wait_until(self, deadline):
        self._sleep(max(0.0, deadline - self.now()))


class Simulated(gymnasium.Env):
    """An environment in real time whose time is that of a `world`, with `monotonic` and `sleep`."""

    def __init__(self, env, world):
        self._env, inner = env, env.unwrapped
        inner._clock = SteppedClock(0.0, world.monotonic, world.sleep)
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.default_action, self.act_buf_len = env.default_action, inner.act_buf_len

    def reset(self, *, seed=None, options=None):
        return self._env.reset(seed=seed)

    def step(self, action):
        return self._env.step(action)

    def close(self):
        self._env.close()


def sac(env, actor_cls, **options):
    """An agent as the examples that ship have it, but for what is said."""
    usual = {"polyak": 0.98, "lr_actor": 1e-3, "lr_critic": 1e-3, "lr_entropy": 2e-3, "entropy_coef": 0.1}
    return SACAgent(env.observation_space, env.action_space, "cpu", actor_cls=actor_cls, **usual | options)


def begin(seed):
    torch.manual_seed(seed)
    torch.set_num_threads(1)
