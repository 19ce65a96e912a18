"""The tutorial's environment: rtgym's dummy RC drone, which must fly to a target.

The drone is simulated in threads of its own and does not wait: each command takes effect, and each
position becomes known, after a random delay of 20 to 50 ms. The reward of a step is minus the
distance to the target; the episode terminates within 1 cm of it.

| | `drone` |
|---|---|
| class | `tmrl_like.envs.drone.DroneEnv` |
| time-step | 50 ms |
| episode | 100 steps |
| reward | minus the distance to the target in m |
| ends | within 1 cm of the target |

| observation of `drone` | shape | dtype | range | unit |
|---|---|---|---|---|
| x of the drone, as far as it is known | [1] | float32 | -1 to 1 | m |
| y of the drone | [1] | float32 | -1 to 1 | m |
| x of the target | [1] | float32 | -0.5 to 0.5 | m |
| y of the target | [1] | float32 | -0.5 to 0.5 | m |
| the last 4 actions | [2] | float32 | -2 to 2 | m/s |

| action of `drone` | shape | dtype | range | unit |
|---|---|---|---|---|
| velocity along x and y; beyond 2 m/s in all it is shortened | [2] | float32 | -2 to 2 | m/s |
"""

from __future__ import annotations

import threading
from typing import Any

import gymnasium.spaces as spaces
import numpy as np
from rtgym import DummyRCDrone

from tmrl_like.envs.real_time import RealTimeEnv
from tmrl_like.envs.task import TaskInterface
from tmrl_like.envs.vision import Frame, load_opencv

REACHED_M = 0.01
_NEAR_M = 0.01
_IMAGE_PX = 400

Position = tuple[float, float]  # x and y in m


class DroneInterface(TaskInterface[Position]):
    """rtgym interface of the dummy RC drone.

    Observation: x and y of the drone in [-1, 1] m, x and y of the target in [-0.5, 0.5] m, each
    float32 [1]. Action: velocity in x and y, float32 [2] in [-2, 2] m/s.
    """

    def __init__(self) -> None:
        """Set up the interface; the drone starts with the first reset."""
        super().__init__()
        self._drone: Any = None
        self._target = np.zeros(2, np.float32)

    def get_observation_space(self) -> spaces.Tuple[Any]:
        position = spaces.Box(-1.0, 1.0, (1,))
        target = spaces.Box(-0.5, 0.5, (1,))
        return spaces.Tuple((position, position, target, target))

    def get_action_space(self) -> spaces.Box:
        return spaces.Box(-2.0, 2.0, (2,))

    def send_control(self, control: Any) -> None:
        self._drone.send_control(control[0], control[1])

    def begin(self) -> Position:
        self._drone = self._drone or DummyRCDrone()
        self._target = self.random.uniform(-0.5, 0.5, 2).astype(np.float32)
        return self.look()

    def look(self) -> Position:
        position: Position = self._drone.get_observation()
        return position

    def judge(self, state: Position) -> tuple[float, bool]:
        distance = np.linalg.norm(np.array(state, np.float32) - self._target)
        return -float(distance), bool(distance < REACHED_M)

    def observe(self, state: Position) -> list[Any]:
        return [np.array([value], np.float32) for value in (*state, *self._target)]

    def render(self) -> Frame:
        """Draw the drone (a circle) and its target (a dot), uint8 [400, 400, 3] RGB."""
        cv2 = load_opencv()
        image = np.full((_IMAGE_PX, _IMAGE_PX, 3), 255, np.uint8)
        cv2.circle(image, _pixel(self._drone.get_observation()), 10, (0, 0, 255), 1)
        cv2.circle(image, _pixel(self._target), 5, (255, 0, 0), -1)
        return image

    def close(self) -> None:
        """Make the drone's thread stand still: it cannot be ended, and would start another thread
        every 10 ms.
        """
        if self._drone is not None:
            self._drone._send_obs = lambda *position: threading.Event().wait()


class DroneEnv(RealTimeEnv):
    """The drone at 20 Hz, with the last `act_buf_len` actions in its observation."""

    def __init__(
        self,
        time_step_duration: float = 0.05,
        ep_max_length: int = 100,
        act_buf_len: int = 4,
        reset_act_buf: bool = False,
    ) -> None:
        super().__init__(
            DroneInterface,
            time_step_duration,
            ep_max_length,
            act_buf_len,
            wait_on_done=False,
            reset_act_buf=reset_act_buf,
        )


class TargetInView:
    """Observation preprocessor that replaces the positions of drone and target by the way to the
    target.

    Only the target's position relative to the drone matters, and the last centimetres matter most.
    (x, y, target x, target y, actions…) becomes (near x, near y, far x, far y, actions…), with the
    same shapes: `far = d / 2`, `near = 0.7 d / sqrt(|d| + 0.01 m)`, where d is the way to the
    target in m. `near` is steep close to the target and flat far from it.

    Works on one observation (arrays) and on a batch of them (tensors [B, 1]).
    """

    batched = True

    def __call__(self, obs: tuple[Any, ...]) -> tuple[Any, ...]:
        x, y, target_x, target_y, *actions = obs
        ways = (target_x - x, target_y - y)
        return (
            *(0.7 * d / (abs(d) + _NEAR_M) ** 0.5 for d in ways),
            *(d / 2 for d in ways),
            *actions,
        )


class MirroredFlights:
    """Sample preprocessor that leaves each transition as it is, mirrors it, or turns it by a
    quarter, at random.

    The drone flies to the left just as it flies to the right, and along y just as along x, so one
    flight is worth eight. Works on whole batches (tensors [B, …]), after `TargetInView`.
    """

    batched = True

    def __init__(self, seed: int | None = None) -> None:
        self._random = np.random.default_rng(seed)

    def __call__(self, *transitions: Any) -> tuple[Any, ...]:
        last_obs, act, rew, obs, terminated, truncated = transitions
        import torch

        signs = act.new_tensor(self._random.choice((-1.0, 1.0), act.shape))
        is_turned = act.new_tensor(self._random.integers(2, size=(len(act), 1)))
        # the factors of a component itself and of the one it is swapped with
        same, other = signs * (1.0 - is_turned), signs * is_turned

        def mirrored(vector: Any) -> Any:
            return vector * same + vector.flip(-1) * other

        def mirrored_obs(observation: tuple[Any, ...]) -> tuple[Any, ...]:
            near, far = torch.cat(observation[:2], -1), torch.cat(observation[2:4], -1)
            ways = (*mirrored(near).split(1, -1), *mirrored(far).split(1, -1))
            return (*ways, *map(mirrored, observation[4:]))

        return mirrored_obs(last_obs), mirrored(act), rew, mirrored_obs(obs), terminated, truncated


def _pixel(point: Any) -> tuple[int, int]:
    half = _IMAGE_PX // 2
    return int(point[0] * half) + half, int(point[1] * half) + half
