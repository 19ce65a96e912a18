"""An rtgym interface without a device."""

import numpy as np
from gymnasium import spaces
from rtgym import RealTimeGymInterface


class Interface(RealTimeGymInterface):
    """Its observation is the number of steps in the episode. It records its calls in `calls`, and
    the call named by `fails` raises ConnectionError.
    """

    action_space = spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, fails=""):
        self.steps, self.fails, self.is_closed = 0, fails, False
        self.calls = []
        self.sent = []
        self._note("__init__")

    def _note(self, call):
        self.calls.append(call)
        if call == self.fails:
            raise ConnectionError(f"no answer in {call}")

    def get_observation_space(self):
        self._note("get_observation_space")
        return spaces.Tuple((spaces.Box(0.0, 100.0, (1,)),))

    def get_action_space(self):
        return self.action_space

    def get_default_action(self):
        return np.zeros(self.action_space.shape, self.action_space.dtype)

    def reset(self, seed=None, options=None):
        self.steps = 0
        self._note("reset")
        return self._observation(), {}

    def send_control(self, control):
        self.sent.append(control)
        self._note("send_control")

    def get_obs_rew_terminated_info(self):
        self.steps += 1
        self._note("get_obs_rew_terminated_info")
        return self._observation(), 1.0, False, {}

    def wait(self):
        self._note("wait")

    def close(self):
        self.is_closed = True

    def _observation(self):
        return [np.array([self.steps], np.float32)]
