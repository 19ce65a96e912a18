"""An environment with a camera: a success lights a lamp, and the episode terminates a little
later.
"""

import gymnasium
import numpy as np

LIT_STEPS = 3


class Lamp(gymnasium.Env):
    """Lights its lamp at the end of every other episode. `ends`: whether success terminates the
    episode.
    """

    observation_space = gymnasium.spaces.Tuple(
        (gymnasium.spaces.Box(-1.0, 1.0, (2,)), gymnasium.spaces.Box(0, 255, (16, 16, 3), np.uint8))
    )
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, ends=True):
        self.ends, self.episodes = ends, 0
        self.random = np.random.default_rng(0)

    def reset(self, **options):
        self.episodes, self.steps = self.episodes + 1, 0
        return self._obs(), {}

    def step(self, action):
        self.steps += 1
        is_over = self.steps == 15
        return self._obs(), 0.0, is_over and self.ends and self.is_lit, is_over, {}

    @property
    def is_lit(self):
        return self.episodes % 2 == 0 and self.steps > 15 - LIT_STEPS

    def _obs(self):
        picture = self.random.integers(0, 60, (16, 16, 3), np.uint8)
        if self.is_lit:
            picture[4:12, 4:12] += 180
        return np.zeros(2, np.float32), picture
