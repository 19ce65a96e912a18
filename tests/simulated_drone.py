"""rtgym's dummy RC drone in simulated time: the same task and delays at thousands of steps per
second.

`SimulatedDroneEnv` reproduces `rtgym.tuto` behind `real-time-gym-ts-v1` event by event: the drone's
10 ms loop, commands and observations that each take 20 to 50 ms and are dropped when a newer one
arrived first, actions that are applied one time-step after they were chosen, and an action buffer
in the observation. Nothing sleeps and no thread runs. A seed determines the whole history, so that
agents can be developed and tested on it.
"""

import math
import random
from collections import deque

import gymnasium
import numpy as np
from gymnasium import spaces

TIME_STEP_S = 0.05
TICK_S = 0.01
DELAY_MIN_S = 0.02
DELAY_MAX_S = 0.05
MAX_VELOCITY = 2.0  # per second, Euclidean norm
WORLD_SIZE = 1.0  # the drone stays within [-1, 1] on both axes
TARGET_RANGE = 0.5
REACHED = 0.01  # distance below which the episode terminates


class Link:
    """A channel with random delay on which an older message never replaces a newer one.

    Sending and reading times must not decrease. Times in seconds.
    """

    def __init__(self, rng, delay_min_s=DELAY_MIN_S, delay_max_s=DELAY_MAX_S):
        self._uniform = rng.uniform
        self._delay_min_s = delay_min_s
        self._delay_max_s = delay_max_s
        self._flying = deque()  # (arrival time, x, y), in sending order
        self._value = (0.0, 0.0)

    def send(self, now_s, x, y):
        """Send a message."""
        arrival_s = now_s + self._uniform(self._delay_min_s, self._delay_max_s)
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
    """`rtgym.DummyRCDrone` with a clock that `advance` moves."""

    def __init__(self, rng):
        self.position = (0.0, 0.0)
        self._commands = Link(rng)
        self._observations = Link(rng)
        # the drone's loop is not in step with the environment's
        self._next_tick_s = rng.uniform(0.0, TICK_S)
        self.now_s = 0.0

    def send_control(self, vel_x, vel_y):
        """Send a velocity; its norm is limited to MAX_VELOCITY."""
        norm = math.hypot(vel_x, vel_y)
        if norm > MAX_VELOCITY:
            vel_x, vel_y = vel_x * MAX_VELOCITY / norm, vel_y * MAX_VELOCITY / norm
        self._commands.send(self.now_s, vel_x, vel_y)

    def get_observation(self):
        """Return the newest position that has arrived."""
        return self._observations.read(self.now_s)

    def advance(self, duration_s):
        """Advance the clock by `duration_s`."""
        self.now_s += duration_s
        while self._next_tick_s <= self.now_s:
            self._tick(self._next_tick_s)
            self._next_tick_s += TICK_S

    def _tick(self, now_s):
        vel_x, vel_y = self._commands.read(now_s)
        x, y = self.position
        self._observations.send(now_s, x, y)
        self.position = (_clip(x + vel_x * TICK_S), _clip(y + vel_y * TICK_S))


class SimulatedDroneEnv(gymnasium.Env):
    """Fly a delayed drone to a random target.

    Observation: Tuple of x, y (float32 [1], the newest position that has arrived), target x, target
    y (float32 [1]) and the last `act_buf_len` actions (float32 [2] each), newest last. Action:
    velocity per axis, float32 [2] in [-2, 2]. Reward: minus the distance to the target. Terminated
    below a distance of 0.01, truncated after `ep_max_length` steps. One step is 50 ms.

    As in `rtgym`, the drone and the delays continue across episodes, and the action of an episode's
    last step is never applied: `reset` puts the default action in its place.
    """

    def __init__(self, seed=None, ep_max_length=100, act_buf_len=4):
        """`seed` fixes targets and delays; None draws one."""
        self.ep_max_length = ep_max_length
        self.act_buf_len = act_buf_len
        self.default_action = np.zeros(2, dtype=np.float32)
        self.action_space = spaces.Box(-2.0, 2.0, shape=(2,))
        self.observation_space = spaces.Tuple(
            (
                *(spaces.Box(-WORLD_SIZE, WORLD_SIZE, shape=(1,)) for _ in range(2)),
                *(spaces.Box(-TARGET_RANGE, TARGET_RANGE, shape=(1,)) for _ in range(2)),
                *(spaces.Box(-2.0, 2.0, shape=(2,)) for _ in range(act_buf_len)),
            )
        )
        self._restart(seed)

    def _restart(self, seed):
        self._rng = random.Random(seed)
        self.drone = SimulatedDrone(self._rng)
        self.target = np.zeros(2, dtype=np.float32)
        self._act_buf = deque([self.default_action] * self.act_buf_len, maxlen=self.act_buf_len)
        self._steps = 0
        self._running = False

    def reset(self, *, seed=None, options=None):
        """Start an episode at the drone's present position. With a seed, restart everything from
        the origin.
        """
        super().reset(seed=seed)
        if seed is not None:
            self._restart(seed)
        self._steps = 0
        self._running = True
        self._act_buf[-1] = self.default_action
        self.target[:] = [self._rng.uniform(-TARGET_RANGE, TARGET_RANGE) for _ in range(2)]
        obs = self._observation(*self.drone.get_observation())
        self._run_time_step(self.default_action)
        return obs, {}

    def step(self, action):
        """Return the result of the current time-step; `action` is applied in the next one.

        Raises:
            RuntimeError: the episode is over, or `reset` was never called.
        """
        if not self._running:
            raise RuntimeError("The episode is terminated or truncated. Call reset before step.")
        self._steps += 1
        self._act_buf.append(action)
        pos_x, pos_y = self.drone.get_observation()
        reward = -np.float32(math.hypot(pos_x - self.target[0], pos_y - self.target[1]))
        terminated = bool(reward > -REACHED)
        truncated = not terminated and self._steps >= self.ep_max_length
        self._running = not (terminated or truncated)
        if self._running:
            self._run_time_step(action)
        return self._observation(pos_x, pos_y), reward, terminated, truncated, {}

    def _run_time_step(self, action):
        self.drone.send_control(float(action[0]), float(action[1]))
        self.drone.advance(TIME_STEP_S)

    def _observation(self, pos_x, pos_y):
        target = self.target
        scalars = np.array((pos_x, pos_y, target[0], target[1]), dtype=np.float32)
        return (scalars[0:1], scalars[1:2], scalars[2:3], scalars[3:4], *self._act_buf)


def _clip(value):
    return min(max(value, -WORLD_SIZE), WORLD_SIZE)
