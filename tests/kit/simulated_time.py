"""Environments in real time, run in simulated time."""

from unittest import mock

import gymnasium

from tmrl_like.envs import real_time
from tmrl_like.envs.clock import Clock


class SteppedClock(Clock):
    """The clock of a simulated `world`, whose time advances only in its `sleep`."""

    def __init__(self, world):
        super().__init__(0.0, world.monotonic)
        self.world = world

    def wait_until(self, deadline):
        self.world.sleep(max(0.0, deadline - self.now()))


class Simulated(gymnasium.Env):
    """Runs the real-time environment that `make` returns on the simulated time of a `world`
    (`monotonic`, `sleep`).
    """

    def __init__(self, make, world):
        with mock.patch.object(real_time, "Clock", return_value=SteppedClock(world)):
            self._env = env = make()
        inner = env.unwrapped
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.default_action, self.act_buf_len = env.default_action, inner.act_buf_len

    def reset(self, *, seed=None, options=None):
        return self._env.reset(seed=seed)

    def step(self, action):
        return self._env.step(action)

    def close(self):
        self._env.close()
