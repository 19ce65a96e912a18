"""A simulator that stands still between two steps, as a Gymnasium environment."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Simulator:
    """Simulates a cart. Replace these methods with your simulator, or with calls to it."""

    def restart(self, place):
        self.place, self.speed = place, 0.0

    def advance(self, force, seconds):
        self.speed += seconds * (force - 0.5 * self.speed)
        self.place += seconds * self.speed


class MyTask(gymnasium.Env):
    """Bring the cart to the middle. Observation: position and speed, float32 [2]. Action: a force,
    float32 [1].
    """

    observation_space = spaces.Box(-3.0, 3.0, (2,))
    action_space = spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, max_steps: int = 100):
        self._simulator = Simulator()
        self._steps, self._max_steps = 0, max_steps

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        self._simulator.restart(self.np_random.uniform(-1.0, 1.0))
        return self._observe(), {}

    def step(self, action):
        self._steps += 1
        self._simulator.advance(float(action[0]), 0.1)
        place = self._simulator.place
        return self._observe(), -abs(place), abs(place) > 2.0, self._steps >= self._max_steps, {}

    def render(self):
        """Return a picture for `tmrl-like test --window`, uint8 [100, 300, 3] RGB: the middle, and
        the cart.
        """
        picture = np.full((100, 300, 3), 255, np.uint8)
        left = round(150 + 50 * self._simulator.place) - 15
        picture[:, 149:151] = 200, 0, 0
        picture[60:80, left : left + 30] = 0
        return picture

    def _observe(self):
        return np.array((self._simulator.place, self._simulator.speed), np.float32)
