"""An rtgym interface without a device."""

from typing import Any

import numpy as np
from gymnasium import spaces
from rtgym import RealTimeGymInterface


class Interface(RealTimeGymInterface):  # type: ignore[misc]
    """Observes how many steps the episode has; notes what it is asked for, and raises where `fails` says."""

    action_space: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, fails: str = "") -> None:
        self.steps, self.fails, self.is_closed = 0, fails, False
        self.calls: list[str] = []
        self.sent: list[Any] = []
        self._note("__init__")

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if call == self.fails:
            raise ConnectionError(f"no answer in {call}")

    def get_observation_space(self) -> Any:
        self._note("get_observation_space")
        return spaces.Tuple((spaces.Box(0.0, 100.0, (1,)),))

    def get_action_space(self) -> Any:
        return self.action_space

    def get_default_action(self) -> Any:
        return np.zeros(self.action_space.shape, self.action_space.dtype)

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.steps = 0
        self._note("reset")
        return self._observation(), {}

    def send_control(self, control: Any) -> None:
        self.sent.append(control)
        self._note("send_control")

    def get_obs_rew_terminated_info(self) -> Any:
        self.steps += 1
        self._note("get_obs_rew_terminated_info")
        return self._observation(), 1.0, False, {}

    def wait(self) -> None:
        self._note("wait")

    def close(self) -> None:
        self.is_closed = True

    def _observation(self) -> list[Any]:
        return [np.array([self.steps], np.float32)]
