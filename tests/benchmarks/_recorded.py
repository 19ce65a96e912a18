"""Environments and an actor that record their times, without torch. Each process has one
`RECORD`.
"""

import math
import time
from array import array
from typing import NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from kit.boxes import box, picture

from tmrl_like.agents.in_numpy import NumpyGaussianActor
from tmrl_like.envs.clock import MAX_SPIN_SHARE, SPIN_S, Clock
from tmrl_like.envs.drone.drone_env import DroneInterface
from tmrl_like.envs.real_time import RealTimeEnv

EPISODE_S = 2.0
PICTURES = picture(4, 64, 64)
_MAX_STEPS = 1 << 20
_FLAT_STEP_S = 1e-4


class Record:
    """The times of a loop's steps and resets, in memory that is allocated at the start.

    Attributes:
        rows: number of steps and resets so far.
        called, returned: `time.perf_counter`, the same clock in all processes, [rows].
        act_s: duration of the decision before a step; NaN for a reset, [rows].
        newest_act_s: duration of the newest decision.
        on_reset: called in each reset, within its measured time.
    """

    def __init__(self):
        self.rows = 0
        self.called, self.returned, self.act_s = (
            array("d", bytes(8 * _MAX_STEPS)) for _ in range(3)
        )
        self.newest_act_s = 0.0
        self.on_reset = lambda: None

    def times(self):
        names = "called", "returned", "act_s"
        return {name: np.array(getattr(self, name)[: self.rows]) for name in names}


RECORD = Record()


class Recorded(gymnasium.Env):
    """A mixin for an environment's class that records its resets and steps. Nothing runs between
    the last look at the clock and the return.
    """

    def reset(self, **options):
        called = time.perf_counter()
        RECORD.on_reset()
        result = super().reset(**options)
        self._note(called, math.nan)
        return result

    def step(self, action):
        called = time.perf_counter()
        result = super().step(action)
        self._note(called, RECORD.newest_act_s)
        return result

    def _note(self, called, act_s):
        row = RECORD.rows
        RECORD.called[row], RECORD.act_s[row], RECORD.rows = called, act_s, row + 1
        RECORD.returned[row] = time.perf_counter()


class Timed:
    """A mixin for an actor's class that records the duration of its decisions."""

    def act_(self, obs, test=False):
        started = time.perf_counter()
        action = super().act_(obs, test)
        RECORD.newest_act_s = time.perf_counter() - started
        return action


class TimedGaussian(Timed, NumpyGaussianActor):
    """The included actor, timed."""


# -- environments with the drone's spaces ----------------------------------------------------------


class _Still(DroneInterface):
    """Returns random positions of the drone, without a drone."""

    def __init__(self):
        super().__init__()
        space = self.get_observation_space()
        self._observations, self._steps = [list(space.sample()) for _ in range(16)], 0

    def send_control(self, control):
        pass

    def reset(self, seed=None, options=None):
        return self._observations[0], {}

    def get_obs_rew_terminated_info(self):
        self._steps += 1
        return self._observations[self._steps % 16], np.float32(-1.0), False, {}


class _StillEnv(RealTimeEnv):
    def __init__(self, hz):
        episode_steps = int(EPISODE_S * hz)
        super().__init__(
            _Still, 1 / hz, episode_steps, act_buf_len=4, wait_on_done=False, reset_act_buf=False
        )


class _FlatEnv(_StillEnv):
    """An environment without a clock, whose step computes for 0.1 ms."""

    def reset(self, **options):
        result = super().reset(**options)
        self._obs, self._until = result[0], time.perf_counter() + EPISODE_S
        return result

    def step(self, action):
        until = time.perf_counter() + _FLAT_STEP_S
        while time.perf_counter() < until:
            pass
        return self._obs, np.float32(-1.0), False, until > self._until, {}


class Clocked(Recorded, _StillEnv):
    """Our real-time environment around an interface that takes no time."""


class Flat(Recorded, _FlatEnv):
    """An environment that computes for 0.1 ms, and never waits."""


# -- environments on a clock of their own ----------------------------------------------------------


class Kind(NamedTuple):
    """An environment on a clock of its own."""

    hz: float
    observation: spaces.Space = box(1.0, 8)
    episode_steps: int = 1000
    spins: bool = False


class _TickingEnv(gymnasium.Env):
    action_space = box(1.0, 2)

    def __init__(self, kind):
        self.observation_space = kind.observation
        self.time_step_s = 1.0 / kind.hz
        self._episode_steps = kind.episode_steps
        self._clock = Clock(min(SPIN_S, MAX_SPIN_SHARE * self.time_step_s) if kind.spins else 0.0)
        values = np.random.default_rng(0).integers(0, 255, (16, *kind.observation.shape))
        self._observations = list(values.astype(kind.observation.dtype))

    def reset(self, **_):
        self._step, self._due = 0, self._clock.now()
        return self._observations[0], {}

    def step(self, action):
        self._due += self.time_step_s
        self._clock.wait_until(self._due)
        now = self._clock.now()
        if now >= self._due + self.time_step_s:
            self._due = now
        self._step += 1
        return (
            self._observations[self._step % 16],
            0.0,
            self._step >= self._episode_steps,
            False,
            {},
        )


class Ticking(Recorded, _TickingEnv):
    """An environment whose step only waits for the next tick of its clock: the bare loop."""
