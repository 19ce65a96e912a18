"""rtgym's dummy RC drone in simulated time: the same task and delays at thousands of steps per
second.

`SimulatedDroneEnv` is `DroneEnv` with a drone that reproduces rtgym's event by event: its 10 ms
loop, and commands and observations that each take 20 to 50 ms and are dropped when a newer one
arrived first. Nothing sleeps and no thread runs. A seed determines the whole history, so that
agents can be developed and tested on it.
"""

import math
import random
from collections import deque
from functools import partial
from unittest import mock

from kit.simulated_time import Simulated

from tmrl_like.envs.drone import DroneEnv, drone_env

TIME_STEP_S = 0.05
TICK_S = 0.01
DELAY_MIN_S = 0.02
DELAY_MAX_S = 0.05
MAX_VELOCITY = 2.0  # per second, Euclidean norm
WORLD_SIZE = 1.0  # the drone stays within [-1, 1] on both axes


class Link:
    """A channel with random delay on which an older message never replaces a newer one.

    Sending and reading times must not decrease. Times in seconds.
    """

    def __init__(self, rng):
        self._uniform = rng.uniform
        self._flying = deque()  # (arrival time, x, y), in sending order
        self._value = (0.0, 0.0)

    def send(self, now_s, x, y):
        """Send a message."""
        arrival_s = now_s + self._uniform(DELAY_MIN_S, DELAY_MAX_S)
        flying = self._flying
        # overtaken by this one, so they will be dropped
        while flying and flying[-1][0] >= arrival_s:
            flying.pop()
        flying.append((arrival_s, x, y))

    def read(self, now_s):
        """Return the newest message that has arrived, or (0, 0) before the first."""
        flying = self._flying
        while flying and flying[0][0] <= now_s:
            _, x, y = flying.popleft()
            self._value = (x, y)
        return self._value


class SimulatedDrone:
    """`rtgym.DummyRCDrone`, and the clock of its world: time passes where somebody waits."""

    def __init__(self, seed):
        rng = random.Random(seed)
        self.position = (0.0, 0.0)
        self._commands = Link(rng)
        self._observations = Link(rng)
        # the drone's loop is not in step with the environment's
        self._next_tick_s = rng.uniform(0.0, TICK_S)
        self._now_s = 0.0

    def send_control(self, vel_x, vel_y):
        """Send a velocity; its norm is limited to MAX_VELOCITY."""
        vel_x, vel_y = float(vel_x), float(vel_y)
        norm = math.hypot(vel_x, vel_y)
        if norm > MAX_VELOCITY:
            vel_x, vel_y = vel_x * MAX_VELOCITY / norm, vel_y * MAX_VELOCITY / norm
        self._commands.send(self._now_s, vel_x, vel_y)

    def get_observation(self):
        """Return the newest position that has arrived."""
        return self._observations.read(self._now_s)

    def monotonic(self):
        return self._now_s

    def sleep(self, duration_s):
        self._now_s += duration_s
        while self._next_tick_s <= self._now_s:
            self._tick(self._next_tick_s)
            self._next_tick_s += TICK_S

    def _tick(self, now_s):
        vel_x, vel_y = self._commands.read(now_s)
        x, y = self.position
        self._observations.send(now_s, x, y)
        self.position = (_clip(x + vel_x * TICK_S), _clip(y + vel_y * TICK_S))


class SimulatedDroneEnv(Simulated):
    """Fly a delayed drone to a random target, as `DroneEnv`; one step is 50 ms.

    The drone and the delays continue across episodes, and the action of an episode's last step is
    never applied: `reset` puts the default action in its place.
    """

    def __init__(self, seed=None, ep_max_length=100, act_buf_len=4):
        """`seed` fixes targets and delays; None draws one."""
        self._make = partial(DroneEnv, TIME_STEP_S, ep_max_length, act_buf_len)
        self._restart(seed)

    def _restart(self, seed):
        self._seed, self.drone = seed, SimulatedDrone(seed)
        super().__init__(self._make, self.drone)
        with mock.patch.object(drone_env, "DummyRCDrone", return_value=self.drone):
            self._env.unwrapped.interface.begin()

    def reset(self, *, seed=None, options=None):
        """Start an episode at the drone's present position. With a seed, restart everything from
        the origin.
        """
        if seed is not None:
            self._restart(seed)
        seed, self._seed = self._seed, None
        return super().reset(seed=seed)


def _clip(value):
    return min(max(value, -WORLD_SIZE), WORLD_SIZE)
