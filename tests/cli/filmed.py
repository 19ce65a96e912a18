"""Environments of the tests with pictures and with laps."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from tiny import TinyEnv


class Filmed(TinyEnv):
    """Its picture brightens with each step; it can be driven around."""

    time_step_s = 0.1

    def render(self):
        return np.full((96, 128, 3), 20 * self.steps, np.uint8)


class Left:
    """A driver."""

    def __init__(self, action_space, default_action):
        pass

    def __call__(self, obs):
        return np.array([-1.0], np.float32)

    def close(self):
        pass


class Idle(Left):
    """One that takes over never."""

    def __call__(self, obs):
        return None


class Circle(Filmed):
    """Driven to the left it goes around once in 100 steps, 10 m from the middle."""

    lap_drivers: ClassVar[dict[str, Any]] = {"script": Left}
    lap_arguments: ClassVar[dict[str, Any]] = {"step_s": 0.001}

    def __init__(self, radius=10.0, step_s=5.0):
        super().__init__(step_s)
        self.radius, self.turned = radius, 0

    def reset(self, **options):
        self.turned = 0
        return super().reset(**options)[0], self._info()

    def step(self, action):
        obs, rew, *_ = super().step(action)
        self.turned += action[0] < 0
        return obs, rew, self.turned >= 100, self.steps >= 300, self._info()

    def _info(self):
        turn = 2 * np.pi * self.turned / 100
        return {"position": self.radius * np.array((np.cos(turn), np.sin(turn)))}


class Still(Circle):
    """Nobody drives it."""

    lap_drivers: ClassVar[dict[str, Any]] = {"script": Idle}
