"""A way of ten that is the same each time, for tests of records."""

from __future__ import annotations

import gymnasium
import numpy as np

WAY = 10.0


class Chain(gymnasium.Env):
    """The pedal moves it, from 0 to 2 a step; the end of the way is a terminal state."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        self.steps, self.at = 0, 0.0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        self.at += 1.0 + float(action[0])
        position = np.array([self.at, self.at**2, 0.0], np.float32)
        info = {"progress": np.float32(min(self.at / WAY, 1.0)), "distance": np.float32(self.at), "position": position}
        obs = np.array([self.at / WAY - 1.0, 0.0], np.float32).clip(-1, 1)
        return obs, float(action[0]), self.at >= WAY, self.steps >= 20, info


def note(rollout):
    """A hook."""
