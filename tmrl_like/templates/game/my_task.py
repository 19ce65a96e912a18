"""A game in real time. `Game` plays it, `MyTask` says what the policy sees, does, and what that is
worth.

Pictures and keys of a game in a window of the screen come from `tmrl_like.envs.desktop`.
"""

import time

import numpy as np
from gymnasium import spaces
from rtgym import RealTimeGymInterface

from tmrl_like.envs.real_time import RealTimeEnv
from tmrl_like.envs.vision import History

SIZE = 32  # of a picture, in pixels each way
FRAMES = 3  # pictures in an observation, so that it shows what moves


class Game:
    """Simulates a car on a road that bends; it does not wait. Write your game into these
    methods.
    """

    def restart(self):
        """Begin a round."""
        self._at = self._started_at = time.monotonic()
        self._x = self._steering = 0.0

    def steer(self, value):
        """Steer from now on: -1 is left, 1 is right."""
        self.offset()
        self._steering = float(value)

    def picture(self):
        """What the screen shows now, uint8 [SIZE, SIZE]: the road from above, in the middle of the
        last row the car.
        """
        # seconds, from the top of the picture to its bottom
        ahead = np.linspace(2.0, 0.0, SIZE)[:, None]
        columns = np.linspace(-2.0, 2.0, SIZE)
        self.offset()
        return np.where(np.abs(columns - self._middle(ahead) + self._x) < 1.0, 200, 30).astype(
            np.uint8
        )

    def offset(self):
        """How far the car is from the middle of the road; beyond 1 it is off."""
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
        """Starts no game: a trainer makes one, too, to see the spaces."""
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
        """Order it and return: what it does shows in later observations."""
        if control is not None:
            self._game.steer(control[0])

    def get_obs_rew_terminated_info(self):
        obs, offset = [self._history(self._game.picture())], self._game.offset()
        return obs, np.float32(1.0 - offset), bool(offset > 1.0), {}

    def wait(self):
        """Between two episodes."""
        self._game.steer(0.0)

    def close(self):
        self._game.close()

    def render(self):
        """For `tmrl-like test --window`, uint8 [H, W, 3] RGB."""
        return np.repeat(self._game.picture()[:, :, None], 3, axis=2)


class MyTaskEnv(RealTimeEnv):
    """The game with a clock. Only the newest picture travels: the memory stacks them again."""

    @staticmethod
    def memory_arguments(arguments):
        """What the memory must know beside the clock's own: item 0 of an observation is a stack of
        pictures.
        """
        return RealTimeEnv.memory_arguments(arguments) | {"frame_stack": {0: FRAMES}}
