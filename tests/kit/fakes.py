"""Small stand-ins for tests: an environment without physics, and the simplest actor, memory and
agent.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from tmrl_like.agents.agent import TrainingAgent
from tmrl_like.policies.actor import ActorModule
from tmrl_like.replay.contract import MemoryDataloading
from tmrl_like.types import Transition


@dataclass(eq=False, repr=False)
class CountingEnv(gymnasium.Env):
    """An environment that counts: its observation is (episode, step) as float32 [2], and its reward
    is the number of the step.

    Attributes:
        episode_steps: number of steps after which an episode terminates.
        step_s: duration of a step in seconds.
        raise_at: number of the step that raises, counted over all episodes; 0 for none.
        hang_at: number of the step that sleeps for `hang_s` seconds, counted over all episodes; 0
            for none.
    """

    episode_steps: int = 10
    step_s: float = 0.0
    raise_at: int = 0
    hang_at: int = 0
    hang_s: float = 1.0

    def __post_init__(self):
        self.observation_space = spaces.Box(0.0, 1e6, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.total_steps = 0
        self._episode = 0
        self._step = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._episode += 1
        self._step = 0
        return self._obs(), {}

    def step(self, action):
        self.total_steps += 1
        self._step += 1
        if self.step_s:
            time.sleep(self.step_s)
        if self.total_steps == self.raise_at:
            raise RuntimeError("the motor is on fire")
        if self.total_steps == self.hang_at:
            time.sleep(self.hang_s)
        return self._obs(), float(self._step), self._step >= self.episode_steps, False, {}

    def _obs(self):
        return np.array([self._episode, self._step], np.float32)


class LinearActor(ActorModule):
    """One linear layer over a flat observation, without exploration."""

    def __init__(self, observation_space, action_space):
        super().__init__(observation_space, action_space)
        self.layer = torch.nn.Linear(math.prod(observation_space.shape or ()), 1)
        torch.nn.init.zeros_(self.layer.weight)
        torch.nn.init.zeros_(self.layer.bias)

    def act(self, obs, test=False):
        return torch.tanh(self.layer(obs)).numpy().astype(np.float32)


class ListMemory(MemoryDataloading):
    """The simplest memory there is: a list of samples. It ignores resets."""

    def append_buffer(self, buffer):
        self.data.extend(buffer.memory)
        del self.data[: max(0, len(self.data) - self.memory_size)]

    def __len__(self):
        return max(0, len(self.data) - 1)

    def get_transition(self, item):
        last, new = self.data[item], self.data[item + 1]
        return Transition(
            last.obs, new.act, new.rew, new.obs, new.terminated, new.truncated, new.info
        )


class CountingAgent(TrainingAgent):
    """Learns nothing: each training step adds 1 to the actor's bias."""

    def __init__(self, observation_space, action_space, device="cpu"):
        super().__init__(observation_space, action_space, device)
        self.actor = LinearActor(observation_space, action_space)
        self.steps = 0

    def train(self, batch):
        self.steps += 1
        with torch.no_grad():
            self.actor.layer.bias.add_(1.0)
        return {"loss": torch.tensor(float(self.steps)), "reward_mean": batch.rew.mean()}

    def get_actor(self):
        return self.actor
