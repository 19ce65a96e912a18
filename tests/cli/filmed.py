"""Environments for tests of films and of laps."""

from typing import ClassVar

import gymnasium
import numpy as np
from tiny import TinyEnv


class Filmed(TinyEnv):
    """An environment whose rendered picture brightens with each step."""

    time_step_s = 0.1

    def render(self):
        return np.full((96, 128, 3), 20 * self.steps, np.uint8)


class Growing(Filmed):
    """An environment whose picture grows after the first step, and that names no rate."""

    time_step_s, metadata = None, {"render_fps": None}

    def render(self):
        return super().render().repeat(1 + (self.steps > 1), 0)


def wrapped(step_s):
    return gymnasium.Wrapper(Filmed(step_s))


class Left:
    """A driver that always goes left."""

    def __init__(self, action_space, default_action):
        pass

    def __call__(self, obs):
        return np.float32([-1.0])

    def close(self):
        pass


class ByKeys(Filmed):
    """An environment whose laps are driven at the keyboard, beside a window."""

    lap_drivers: ClassVar = {"keyboard": Left}
    lap_arguments: ClassVar = {"step_s": 0.02}

    def reset(self, **options):
        return super().reset(**options)[0], {"position": np.zeros(2)}


class Circle(Filmed):
    """A circle with a radius of 10 m; `lap_steps` to the left make a lap."""

    lap_drivers: ClassVar = {"script": Left}

    def __init__(self, radius=10.0, lap_steps=100):
        super().__init__(step_s=0.001)
        self.radius, self.lap_steps = radius, lap_steps

    def reset(self, **options):
        self.turned = 0
        return super().reset(**options)[0], self._info()

    def step(self, action):
        obs, rew, *_ = super().step(action)
        self.turned += action[0] < 0
        return obs, rew, self.turned >= self.lap_steps, self.steps >= 300, self._info()

    def _info(self):
        turn = 2 * np.pi * self.turned / 100
        return {"position": self.radius * np.array((np.cos(turn), np.sin(turn)))}


class Broken(Left):
    """A driver whose device is not there."""

    def __call__(self, obs):
        raise ValueError("no wheel")


class Driverless(Circle):
    """A circle whose driver fails."""

    lap_drivers: ClassVar = {"script": Broken}


class Nowhere(Circle):
    """A circle that does not report where it is."""

    def _info(self):
        return {}


class Blinking(Circle):
    """A circle that does not see where it is in one step, nor in the last."""

    def _info(self):
        unseen = {50: {"position": np.full(2, np.nan)}, 100: {}}
        return unseen.get(self.turned, super()._info())
