"""A robot arm that must put its tip on a target, in real time: it takes 20 decisions a second, and
does not wait.

A driver (`tmrl_like.envs.robot.driver`) moves the arm: by default a simulated one, or your own. To
write an environment of your own, start from a copy of this file. The reward of a step is minus the
distance to the target in metres, minus 0.1 for not being there; the episode terminates when the tip
rests on the target.

| | `robot` |
|---|---|
| class | `tmrl_like.envs.robot.RobotEnv` |
| time-step | 50 ms |
| episode | 60 steps |
| reward | minus the distance to the target in m, minus 0.1 |
| ends | the tip rests within 2 cm of the target |

| observation of `robot` | shape | dtype | range | unit |
|---|---|---|---|---|
| positions of shoulder and elbow | [2] | float32 | -3.142 to 3.142 | rad |
| their velocities | [2] | float32 | -2.4 to 2.4 | rad/s |
| the tip's place, x and y, seen from the shoulder | [2] | float32 | -1 to 1 | m |
| the way from tip to target, along the forearm and to its left | [2] | float32 | -1.4 to 1.4 | m |
| the last 2 actions | [2] | float32 | -1.2 to 1.2 | rad/s |

| action of `robot` | shape | dtype | range | unit |
|---|---|---|---|---|
| velocities of shoulder and elbow | [2] | float32 | -1.2 to 1.2 | rad/s |
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium.spaces as spaces
import numpy as np
from numpy.typing import NDArray

from tmrl_like.envs.float32 import closed_by_errors
from tmrl_like.envs.real_time import RealTimeEnv
from tmrl_like.envs.robot.driver import RobotCommand, RobotDriver, RobotState, SimulatedArm
from tmrl_like.envs.task import TaskInterface
from tmrl_like.envs.vision import Frame, load_opencv
from tmrl_like.errors import EnvironmentFaultError

MAX_SPEED = 1.2  # rad/s, each joint: the most that the agent may command, less than the arm can do
LINKS_M = (0.4, 0.3)  # from shoulder to elbow, from elbow to tip
HOME_RAD = (0.0, 1.35)  # joint positions at the start of each episode
TARGETS_RAD = ((-1.0, 1.0), (0.7, 2.0))  # ranges of joint positions that put the tip on a target
REACHED_M = 0.02
AT_REST_RAD_S = 0.2
STEP_COSTS = 0.1
_NEAR_M = 0.01
_CLOSE_M = 0.03  # standard deviation, along x and y
_IMAGE_PX, _PX_PER_M = 300, 200
_ARM, _JOINT, _TARGET = (95, 135, 180), (0, 0, 0), (255, 0, 0)  # RGB

_HOME_GAIN = 5.0  # 1/s
_AT_HOME_RAD = 0.05
_HOME_PERIOD_S = 0.02


class RobotInterface(TaskInterface[RobotState]):
    """rtgym interface of an arm with two joints.

    Observation, each float32 [2]: joint positions in rad, joint velocities in rad/s, position of
    the tip in m, and the way from the tip to the target in m (along the forearm, to its left).
    Action: velocities of shoulder and elbow, float32 [2] in [-1.2, 1.2] rad/s.

    Attributes:
        target_m: x and y of the target, float32 [2].
    """

    def __init__(self, driver: RobotDriver, home_within_s: float = 5.0) -> None:
        """Set up the interface without touching the robot, because a trainer also makes one, to
        read the spaces. The first reset connects the robot. An arm that is not at home within
        `home_within_s` is stopped.
        """
        super().__init__()
        self._driver, self._home_within_s = driver, home_within_s
        self.target_m = np.zeros(2, np.float32)
        self._position_rad = HOME_RAD
        self._is_connected = self._is_stopped = False

    @property
    def moves_hardware(self) -> bool:
        """Whether the arm is real and could hurt somebody; a worker then warns of an untrained
        policy.
        """
        return getattr(self._driver, "moves_hardware", True)

    def get_observation_space(self) -> spaces.Tuple[Any]:
        bounds = (math.pi, 2 * MAX_SPEED, 1.0, 2 * sum(LINKS_M))
        return spaces.Tuple([spaces.Box(-bound, bound, (2,)) for bound in bounds])

    def get_action_space(self) -> spaces.Box:
        return spaces.Box(-MAX_SPEED, MAX_SPEED, (2,))

    def send_control(self, control: Any) -> None:
        if self._is_stopped:
            control = (0.0, 0.0)
        self._driver.send_command(RobotCommand((float(control[0]), float(control[1]))))

    def begin(self) -> RobotState:
        self._is_stopped = False
        self._is_connected = True  # it may move before the driver has come back, or raised
        with closed_by_errors(self):
            self._driver.connect()
        state = self._go_home()
        self.target_m = tip_m(self.random.uniform(*np.transpose(TARGETS_RAD)))
        return state

    def look(self) -> RobotState:
        state = self._driver.read_state()
        if state.is_stopped:
            raise EnvironmentFaultError("the robot's emergency stop is on")
        if not all(map(math.isfinite, (*state.position_rad, *state.velocity_rad_s))):
            raise EnvironmentFaultError(
                f"the robot measured positions {state.position_rad} rad and velocities "
                f"{state.velocity_rad_s} rad/s; expected finite ones"
            )
        return state

    def judge(self, state: RobotState) -> tuple[float, bool]:
        distance_m = float(np.linalg.norm(self.target_m - tip_m(state.position_rad)))
        rests = max(map(abs, state.velocity_rad_s)) < AT_REST_RAD_S
        return -distance_m - STEP_COSTS, distance_m < REACHED_M and rests

    def observe(self, state: RobotState) -> list[Any]:
        self._position_rad = state.position_rad
        angle = sum(state.position_rad)  # of the forearm
        along, left = (math.cos(angle), math.sin(angle)), (-math.sin(angle), math.cos(angle))
        tip = tip_m(state.position_rad)
        way = np.array((along, left)) @ (self.target_m - tip)
        return [
            np.array(values, np.float32)
            for values in (state.position_rad, state.velocity_rad_s, tip, way)
        ]

    def render(self) -> Frame:
        """Draw the arm and its target from above, as last observed, uint8 [300, 300, 3] RGB."""
        cv2 = load_opencv()
        image = np.full((_IMAGE_PX, _IMAGE_PX, 3), 255, np.uint8)
        elbow_m = LINKS_M[0] * np.array(
            (math.cos(self._position_rad[0]), math.sin(self._position_rad[0]))
        )
        joints = [_pixel(at) for at in (np.zeros(2), elbow_m, tip_m(self._position_rad))]
        cv2.polylines(image, [np.array(joints)], False, _ARM, 10, cv2.LINE_AA)
        disc = partial(cv2.circle, image, thickness=-1, lineType=cv2.LINE_AA)
        disc(_pixel(self.target_m), round(REACHED_M * _PX_PER_M), _TARGET)
        for joint in joints:
            disc(joint, 5, _JOINT)
        return image

    def wait(self) -> None:
        """Hold the arm still between two episodes."""
        self.send_control((0.0, 0.0))

    def stop(self) -> None:
        """Stop the arm because nobody drives it, even on its way home."""
        self._is_stopped = True
        if self._is_connected:
            self.send_control((0.0, 0.0))

    def close(self) -> None:
        self._driver.close()
        self._is_connected = False

    def _go_home(self) -> RobotState:
        """Move to where episodes begin. If the arm does not get there, stop it: something is in its
        way.
        """
        deadline_s = time.monotonic() + self._home_within_s
        while time.monotonic() < deadline_s:
            state = self.look()
            way_rad = np.subtract(HOME_RAD, state.position_rad)
            if (
                np.abs(way_rad).max() < _AT_HOME_RAD
                and np.abs(state.velocity_rad_s).max() < AT_REST_RAD_S
            ):
                self.wait()
                return state
            self.send_control(np.clip(_HOME_GAIN * way_rad, -MAX_SPEED, MAX_SPEED))
            time.sleep(_HOME_PERIOD_S)
        self._driver.emergency_stop()
        raise EnvironmentFaultError(
            f"the robot is not at home after {self._home_within_s:g} s; emergency stop"
        )


class RobotEnv(RealTimeEnv):
    """The arm at 20 Hz, with the last `act_buf_len` actions in its observation."""

    def __init__(
        self,
        driver: Callable[[], RobotDriver] = SimulatedArm,
        time_step_duration: float = 0.05,
        ep_max_length: int = 60,
        act_buf_len: int = 2,
    ) -> None:
        """Take arguments as `RealTimeEnv`; `driver` makes the robot's driver, and the first reset
        connects it.
        """
        super().__init__(
            partial(RobotInterface, driver()), time_step_duration, ep_max_length, act_buf_len
        )


class TargetUpClose:
    """Observation preprocessor that replaces the tip's position by an enlarged view of the last
    centimetres to the target.

    (positions, velocities, tip, way, actions…) becomes (positions, velocities, near, way,
    actions…), with the same shapes and `near = 0.7 way / sqrt(|way| + 0.01 m)` for each axis, which
    is steep close to the target and flat far from it.

    Works on one observation (arrays) and on a batch of them (tensors [B, 2]).
    """

    batched = True

    def __call__(self, obs: tuple[Any, ...]) -> tuple[Any, ...]:
        position, velocity, _, way, *actions = obs
        near = 0.7 * way / (abs(way) + _NEAR_M) ** 0.5
        return (position, velocity, near, way, *actions)


class OtherTargets:
    """Sample preprocessor that gives transitions other targets, as if the arm had moved towards
    those.

    Andrychowicz et al., "Hindsight Experience Replay", 2017 (arXiv:1707.01495): the arm moves in
    the same way whatever its target. So most transitions of a batch get another target, with the
    reward and the end that belong to it: half of them the target of another transition, half a
    target close to where the tip arrived. Without the latter, hardly any transition would reach its
    target or show the last centimetres. Rewards are those of one step, so the memory's `n_steps`
    must be 1. Works on whole batches (tensors [B, …]), after `TargetUpClose`.
    """

    batched = True
    one_step = True

    def __init__(self, seed: int | None = None, share: float = 0.8) -> None:
        """Set up; `share` of the transitions get another target. `seed` is that of the random
        draws, None for a different one each time.
        """
        self._random = np.random.default_rng(seed)
        self._share = share

    def __call__(self, *transitions: Any) -> tuple[Any, ...]:
        last_obs, act, rew, obs, terminated, truncated = transitions
        chance = act.new_tensor(self._random.random(len(act)))
        is_moved, is_close = chance < self._share, chance < self._share / 2
        close_m = act.new_tensor(self._random.normal(0.0, _CLOSE_M, (2, len(act)))).T
        tips_m, along, left = _tips(obs[0])
        target_m = tips_m + along * obs[3][:, :1] + left * obs[3][:, 1:]
        other_m = target_m.roll(1, 0).where(is_moved[:, None], target_m)
        target_m = (tips_m + close_m).where(is_close[:, None], other_m)
        last_obs, obs = _towards(last_obs, target_m), _towards(obs, target_m)
        distance_m = obs[3].norm(dim=-1)
        rests = obs[1].abs().amax(-1) < AT_REST_RAD_S
        rew = (-distance_m - STEP_COSTS).where(is_moved, rew)
        terminated = (
            ((distance_m < REACHED_M) & rests).to(terminated.dtype).where(is_moved, terminated)
        )
        return last_obs, act, rew, obs, terminated, truncated


def _towards(obs: tuple[Any, ...], target_m: Any) -> tuple[Any, ...]:
    """Return observations as of `TargetUpClose`, with these targets, [B, 2]."""
    tips_m, along, left = _tips(obs[0])
    to_target_m = target_m - tips_m
    way = obs[3].clone()
    way[:, 0] = (along * to_target_m).sum(-1)
    way[:, 1] = (left * to_target_m).sum(-1)
    return TargetUpClose()((*obs[:3], way, *obs[4:]))


def _tips(position_rad: Any) -> tuple[Any, Any, Any]:
    """Return the tip's x and y in m for joint positions, and unit vectors along the forearm and to
    its left, each [B, 2].
    """
    import torch

    angles = position_rad.cumsum(-1)  # of the upper arm, of the forearm
    upper, fore = torch.stack((angles.cos(), angles.sin()), -1).unbind(1)
    left = torch.stack((-fore[:, 1], fore[:, 0]), -1)
    return LINKS_M[0] * upper + LINKS_M[1] * fore, fore, left


def tip_m(position_rad: Any) -> NDArray[np.float32]:
    """Return the tip's x and y in m, float32 [2], for joint positions [2]."""
    shoulder, both = position_rad[0], position_rad[0] + position_rad[1]
    upper_m, fore_m = LINKS_M
    x = upper_m * math.cos(shoulder) + fore_m * math.cos(both)
    y = upper_m * math.sin(shoulder) + fore_m * math.sin(both)
    return np.array((x, y), np.float32)


def _pixel(point_m: Any) -> tuple[int, int]:
    """Return column and row of a point; the shoulder is in the middle, x is to the right, y up."""
    middle = _IMAGE_PX // 2
    return middle + round(float(point_m[0]) * _PX_PER_M), middle - round(
        float(point_m[1]) * _PX_PER_M
    )
