"""A game in real time. `Game` runs it; `MyTask` defines observation, action and reward.

For a game in a window of the screen, `tmrl_like.envs.desktop` takes pictures and presses keys.
"""

import time

import numpy as np
from gymnasium import spaces
from rtgym import RealTimeGymInterface

from tmrl_like.envs.real_time import RealTimeEnv
from tmrl_like.envs.vision import History

SIZE = 32  # height and width of a picture, in pixels
FRAMES = 3  # pictures in an observation, so that it shows motion


class Game:
    """Simulates a car that drives on along a winding road. Replace these methods with your game."""

    def restart(self):
        """Begin a round."""
        self._at = self._started_at = time.monotonic()
        self._x = self._steering = 0.0

    def steer(self, value):
        """Steer from now on: -1 is left, 1 is right."""
        self.offset()
        self._steering = float(value)

    def picture(self):
        """Return what the screen shows now, uint8 [SIZE, SIZE]: the road from above, with the car
        in the middle of the last row.
        """
        # seconds of driving, from the top of the picture to its bottom
        ahead = np.linspace(2.0, 0.0, SIZE)[:, None]
        columns = np.linspace(-2.0, 2.0, SIZE)
        self.offset()
        return np.where(np.abs(columns - self._middle(ahead) + self._x) < 1.0, 200, 30).astype(
            np.uint8
        )

    def offset(self):
        """Return the car's distance from the middle of the road; beyond 1 it is off the road."""
        now = time.monotonic()
        self._x += 1.5 * self._steering * (now - self._at)
        self._at = now
        return abs(self._x - self._middle(0.0))

    def close(self):
        """End the game."""

    def _middle(self, ahead):
        return 0.7 * np.sin(self._at - self._started_at + ahead)


class MyTask(RealTimeGymInterface):
    """Stay on the road. Observation: the last pictures, uint8 [FRAMES, SIZE, SIZE]. Action:
    steering, float32 [1].
    """

    def __init__(self):
        """Start no game here: a trainer also makes an instance, to read the spaces."""
        self._game = Game()
        self._history = History(FRAMES)

    def get_observation_space(self):
        return spaces.Tuple([spaces.Box(0, 255, (FRAMES, SIZE, SIZE), np.uint8)])

    def get_action_space(self):
        return spaces.Box(-1.0, 1.0, (1,))

    def get_default_action(self):
        return np.zeros(1, np.float32)

    def reset(self, seed=None, options=None):
        self._game.restart()
        self._history.clear()
        return [self._history(self._game.picture())], {}

    def send_control(self, control):
        """Apply the action and return; its effect shows in later observations."""
        if control is not None:
            self._game.steer(control[0])

    def get_obs_rew_terminated_info(self):
        obs, offset = [self._history(self._game.picture())], self._game.offset()
        return obs, np.float32(1.0 - offset), bool(offset > 1.0), {}

    def wait(self):
        """Stop steering between two episodes."""
        self._game.steer(0.0)

    def close(self):
        self._game.close()

    def render(self):
        """Return a picture for `tmrl-like test --window`, uint8 [H, W, 3] RGB."""
        return np.repeat(self._game.picture()[:, :, None], 3, axis=2)


class MyTaskEnv(RealTimeEnv):
    """The game with a clock. Only the newest picture is sent; the memory stacks pictures again."""

    @staticmethod
    def memory_arguments(arguments):
        """Return what the memory must know, beside what `RealTimeEnv` tells it: item 0 of an
        observation is a stack of pictures.
        """
        return RealTimeEnv.memory_arguments(arguments) | {"frame_stack": {0: FRAMES}}
