"""The tutorial's environment: rtgym's dummy RC drone, which must fly to a target.

The drone lives in threads of its own and does not wait: commands take effect, and positions become
known, after a random delay of 20 to 50 ms each. Reward: minus the distance to the target, per step;
the episode terminates within 1 cm of it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import gymnasium.spaces as spaces
import numpy as np
from rtgym import DEFAULT_CONFIG_DICT, DummyRCDrone, RealTimeGymInterface

from tmrl_like.envs.generic import GenericGymEnv
from tmrl_like.errors import ConfigError, MissingExtraError

REACHED_M = 0.01


class DroneInterface(RealTimeGymInterface):  # type: ignore[misc]
    """rtgym interface of the dummy RC drone.

    Observation: x and y of the drone in [-1, 1] m, x and y of the target in [-0.5, 0.5] m, each float32
    [1]. Action: velocity in x and y, float32 [2] in [-2, 2] m/s.
    """

    def __init__(self, render: bool = False) -> None:
        """Prepare; the drone starts with the first reset.

        Args:
            render: show the drone in a window (OpenCV) while it flies; needs a display.
        """
        self._drone: Any = None
        self._target = np.zeros(2, np.float32)
        self._window = _Window() if render else None

    def get_observation_space(self) -> spaces.Tuple[Any]:
        position = spaces.Box(-1.0, 1.0, (1,))
        target = spaces.Box(-0.5, 0.5, (1,))
        return spaces.Tuple((position, position, target, target))

    def get_action_space(self) -> spaces.Box:
        return spaces.Box(-2.0, 2.0, (2,))

    def get_default_action(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        return np.zeros(2, np.float32)

    def send_control(self, control: Any) -> None:
        if control is not None:
            self._drone.send_control(control[0], control[1])

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[list[Any], dict[str, Any]]:
        if self._drone is None:
            self._drone = DummyRCDrone()
        self._target = np.random.uniform(-0.5, 0.5, 2).astype(np.float32)
        return self._observation(self._drone.get_observation()), {}

    def get_obs_rew_terminated_info(self) -> tuple[list[Any], np.float32, bool, dict[str, Any]]:
        position = self._drone.get_observation()
        distance = np.linalg.norm(np.array(position, np.float32) - self._target)
        if self._window is not None:
            self._window.show(position, self._target)
        return self._observation(position), np.float32(-distance), bool(distance < REACHED_M), {}

    def _observation(self, position: tuple[float, float]) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
        return [np.array([value], np.float32) for value in (*position, *self._target)]


class DroneEnv(GenericGymEnv):
    """The drone at 20 Hz, with the last `act_buf_len` actions in its observation."""

    def __init__(
        self,
        time_step_duration: float = 0.05,
        ep_max_length: int = 100,
        act_buf_len: int = 4,
        reset_act_buf: bool = False,
        render: bool = False,
    ) -> None:
        config = dict(DEFAULT_CONFIG_DICT)
        config |= {
            "interface": DroneInterface,
            "interface_kwargs": {"render": render},
            "time_step_duration": time_step_duration,
            "start_obs_capture": time_step_duration,
            "time_step_timeout_factor": 1.0,
            "ep_max_length": ep_max_length,
            "act_buf_len": act_buf_len,
            "reset_act_buf": reset_act_buf,
        }
        super().__init__("real-time-gym-ts-v1", {"config": config})


class _Window:
    """Draws drone (circle) and target (dot)."""

    SIZE_PX = 400

    def __init__(self) -> None:
        if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            raise ConfigError("render: true needs a display, and there is none here; leave it off")
        try:
            import cv2
        except ImportError as error:
            raise MissingExtraError(f"rendering needs opencv-python: {error}") from None
        self._cv2 = cv2

    def show(self, position: tuple[float, float], target: np.ndarray[Any, Any]) -> None:
        image = np.full((self.SIZE_PX, self.SIZE_PX, 3), 255, np.uint8)
        self._cv2.circle(image, self._pixel(position), 10, (255, 0, 0), 1)
        self._cv2.circle(image, self._pixel(target), 5, (0, 0, 255), -1)
        self._cv2.imshow("tmrl_like drone", image)
        self._cv2.waitKey(1)

    def _pixel(self, point: Any) -> tuple[int, int]:
        half = self.SIZE_PX // 2
        return int(point[0] * half) + half, int(point[1] * half) + half
