"""An actor in an environment without worker and wire, and an agent that is trained beside it."""

from collections import deque
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from tmrl_like.agents import SACAgent
from tmrl_like.envs.actions import actions_of_reset
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


class Clockless(gymnasium.Env):
    """An environment of rtgym's, at once: an action that is chosen in one time-step acts in the next."""

    def __init__(self, interface, actions, episode_steps, pass_time):
        """`actions`: how many the observation ends in; `pass_time()` lets a time-step pass."""
        self._interface, self._episode_steps, self._pass_time = interface, episode_steps, pass_time
        self.act_buf_len = actions
        self.action_space = interface.get_action_space()
        inner = interface.get_observation_space().spaces
        self.observation_space = spaces.Tuple((*inner, *(self.action_space,) * actions))
        self.default_action = interface.get_default_action()
        self._actions = deque(maxlen=actions)

    def reset(self, **options):
        self._steps = 0
        self._actions.extend([self.default_action] * self.act_buf_len)
        obs, info = self._interface.reset()
        self._run_time_step(self.default_action)
        return (*obs, *self._actions), info

    def step(self, action):
        self._steps += 1
        self._actions.append(np.asarray(action, np.float32))
        obs, rew, terminated, info = self._result
        truncated = not terminated and self._steps >= self._episode_steps
        if terminated or truncated:
            self._interface.wait()
        else:
            self._run_time_step(action)
        return (*obs, *self._actions), rew, terminated, truncated, info

    def _run_time_step(self, action):
        self._interface.send_control(action)
        self._pass_time()
        self._result = self._interface.get_obs_rew_terminated_info()


def sac(env, actor_cls, **options):
    """An agent as the examples that ship have it, but for what is said."""
    usual = {"polyak": 0.98, "lr_actor": 1e-3, "lr_critic": 1e-3, "lr_entropy": 2e-3, "entropy_coef": 0.1}
    return SACAgent(env.observation_space, env.action_space, "cpu", actor_cls=actor_cls, **usual | options)


def begin(seed):
    torch.manual_seed(seed)
    torch.set_num_threads(1)
