"""An environment with a camera: a success lights a lamp, and the episode terminates a little
later.
"""

import gymnasium
import numpy as np
from kit.boxes import box, picture


class Lamp(gymnasium.Env):
    """Lights its lamp at the end of every other episode. `ends`: whether success terminates the
    episode.
    """

    observation_space = gymnasium.spaces.Tuple((box(1.0, 2), picture(16, 16, 3)))
    action_space = box(1.0, 1)

    def __init__(self, ends=True):
        self.ends, self.episodes = ends, 0

    def reset(self, **options):
        self.episodes, self.steps = self.episodes + 1, 0
        return self._obs(), {}

    def step(self, action):
        self.steps += 1
        is_over = self.steps == 15
        return self._obs(), 0.0, is_over and self.ends and self.is_lit, is_over, {}

    @property
    def is_lit(self):
        return self.episodes % 2 == 0 and self.steps > 12

    def _obs(self):
        seen = np.zeros((16, 16, 3), np.uint8)
        seen[4:12, 4:12] = 180 * self.is_lit
        return np.zeros(2, np.float32), seen
