"""A robot in real time. `Device` talks to it; `MyTask` defines observation, action and reward."""

import time

import numpy as np
from gymnasium import spaces
from rtgym import RealTimeGymInterface

JOINTS = 2
MAX_ANGLE, MAX_SPEED = 1.5, 2.0  # rad, rad/s
REACHED = 0.1  # rad


class Device:
    """Simulates two joints that follow the commanded speed with a lag. Replace these methods with
    your device.
    """

    moves_hardware = False  # True if real: a worker warns before an untrained policy moves it

    def __init__(self):
        self._angle, self._speed, self._ordered = np.zeros((3, JOINTS))
        self._at = time.monotonic()

    def connect(self):
        """Connect, if that is not done yet; called at each reset."""

    def read(self):
        """Return the current angles in rad and speeds in rad/s, float [JOINTS] each."""
        now, lag = time.monotonic(), 0.05
        passed, self._at = now - self._at, now
        kept, ahead = np.exp(-passed / lag), self._speed - self._ordered
        self._speed = self._ordered + kept * ahead
        self._angle = self._angle + self._ordered * passed + ahead * lag * (1 - kept)
        self._angle = np.clip(self._angle, -MAX_ANGLE, MAX_ANGLE)
        return self._angle, self._speed

    def order(self, speed):
        """Move the joints at these speeds, rad/s [JOINTS], from now on; return without waiting for
        them.
        """
        self.read()
        self._ordered = np.array(speed, float)

    def close(self):
        """Disconnect; the joints stand still."""


class MyTask(RealTimeGymInterface):
    """Bring the joints to angles that each reset draws at random.

    Observation, each float32 [JOINTS]: angles in rad, speeds in rad/s, and the way to the target in
    rad. Action: speeds in rad/s, float32 [JOINTS].
    """

    def __init__(self):
        """Touch no device here: a trainer also makes an instance, to read the spaces."""
        self._driver = Device()
        self.moves_hardware = self._driver.moves_hardware
        self._random = np.random.default_rng()
        self._target = np.zeros(JOINTS)

    def get_observation_space(self):
        return spaces.Tuple(
            [spaces.Box(-b, b, (JOINTS,)) for b in (MAX_ANGLE, MAX_SPEED, 2 * MAX_ANGLE)]
        )

    def get_action_space(self):
        return spaces.Box(-MAX_SPEED, MAX_SPEED, (JOINTS,))

    def get_default_action(self):
        return np.zeros(JOINTS, np.float32)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._driver.connect()
        self._target = self._random.uniform(-1.0, 1.0, JOINTS)
        return self._observe(), {}

    def send_control(self, control):
        """Apply the action and return; its effect shows in later observations."""
        if control is not None:
            self._driver.order(control)

    def get_obs_rew_terminated_info(self):
        obs = self._observe()
        distance = np.abs(obs[2]).max()
        return obs, np.float32(-distance), bool(distance < REACHED), {}

    def wait(self):
        """Hold the joints still between two episodes."""
        self._driver.order(np.zeros(JOINTS))

    def stop(self):
        """Stop the joints, because nobody drives any more: after a fault, Ctrl-C, or the end.
        Called in another thread, perhaps while `_driver` hangs.
        """
        self._driver.order(np.zeros(JOINTS))

    def render(self):
        """Return a picture for `tmrl-like test --window`, uint8 [300, 300, 3] RGB: the joints in
        black, and a thinner red line where they should be.
        """
        import cv2

        picture = np.full((300, 300, 3), 255, np.uint8)
        for angles, colour, thickness in (
            (self._target, (200, 0, 0), 2),
            (self._driver.read()[0], (0, 0, 0), 6),
        ):
            turned = np.cumsum(angles)
            way = np.cumsum([np.sin(turned), -np.cos(turned)], axis=1).T
            joints = 150 + 65 * np.vstack([np.zeros((1, 2)), way])
            cv2.polylines(picture, [joints.astype(np.int32)], False, colour, thickness)
        return picture

    def close(self):
        self._driver.close()

    def _observe(self):
        angle, speed = self._driver.read()
        return [np.array(values, np.float32) for values in (angle, speed, self._target - angle)]
