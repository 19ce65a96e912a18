"""TrackMania 2020: drive a track as fast as possible, by what the screen shows.

The game must run in a window, on the track, with the OpenPlanet plugin TMRL_GrabData, which sends
the car's position to a client on port 9000. The reward is progress along a demonstration, see
`tmrl-like record --lap`.

| | `trackmania` |
|---|---|
| class | `tmrl_like.envs.trackmania.TrackManiaEnv` |
| time-step | 50 ms |
| episode | 1000 steps |
| reward | points passed of the demonstration, see `TrajectoryReward` |
| ends | the finish, or no point is passed any more |

| observation of `trackmania` | shape | dtype | range | unit |
|---|---|---|---|---|
| speed | [1] | float32 | -300 to 300 | m/s |
| gear | [1] | float32 | 0 to 7 | |
| engine speed | [1] | float32 | 0 to 1.2e+04 | 1/min |
| distances to black pixels, right over ahead to left | [4, 19] | float32 | 0 to 1075 | pixels |
| the last 2 actions | [3] | float32 | -1 to 1 | |

| action of `trackmania` | shape | dtype | range | unit |
|---|---|---|---|---|
| throttle, brake (none below 0) and steering | [3] | float32 | -1 to 1 | |
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tmrl_like.base.factories import said_to_memory
from tmrl_like.base.options import AboveZero, Positive, in_ranges
from tmrl_like.envs.desktop.desktop_env import DesktopGameEnv, DesktopGameInterface
from tmrl_like.envs.desktop.gamepad import VirtualGamepad, XboxGamepad
from tmrl_like.envs.desktop.telemetry import Record, Telemetry
from tmrl_like.envs.drivers import KeyDriver
from tmrl_like.envs.real_time import also_takes
from tmrl_like.envs.trajectory import (
    Lap,
    RewardOptions,
    TrajectoryReward,
    load_trajectory,
    resample,
)
from tmrl_like.envs.vision import Frame, RangeFinder, load_opencv
from tmrl_like.errors import EnvironmentAwayError

PORT = 9000
LAYOUT = "<11f"
HINT = (
    "is a race on, and the OpenPlanet plugin TMRL_GrabData loaded (F3, Developer, Reload plugin)?"
)
SPACING_M = 0.1
KEYS = (("", "up"), ("", "down"), ("left", "right"))  # throttle, brake, steering

_LIDAR_PLACE = (0, 40, 958, 488)  # of the window's contents: left, top, width, height
_IMAGE_PLACE = (0, 40, 256, 128)
_LIDAR_ANGLES = range(90, -91, -10)
_LIDAR_MAX_PX = math.hypot(*_LIDAR_PLACE[2:])
_LIDAR_FROM_PX = 20
_BORDER = (54, 54, 54)  # the road's black borders are no brighter than this
_POP_UP_AFTER_S = 0.5
_LAP_STEPS = 12_000  # ten minutes
# the instruments in the observation, with their limits
_INSTRUMENTS = {"speed": (-300.0, 300.0), "gear": (0.0, 7.0), "rpm": (0.0, 12000.0)}


@dataclass(frozen=True, kw_only=True)
class RaceReward(RewardOptions):
    """Options of the reward, with defaults for points 10 cm apart and 20 steps a second."""

    forward_limit: Positive = 500
    failure_countdown: Positive = 10
    max_distance: AboveZero = 100.0


class CarReport(NamedTuple):
    """The record that the plugin sends about the car, once per frame of the game."""

    speed: float  # m/s
    distance: float  # m since the start
    x: float  # m
    y: float
    z: float
    steering: float  # -1 to 1
    throttle: float  # 0 to 1
    is_braking: float  # 0 or 1
    has_finished: float  # 0 or 1
    gear: float
    rpm: float


def is_car(record: Record) -> bool:
    """Whether these eleven numbers can be a `CarReport`."""
    car = CarReport(*record)
    return (
        all(map(math.isfinite, car))
        and car.is_braking in (0.0, 1.0)
        and car.has_finished in (0.0, 1.0)
        and abs(car.steering) <= 1.0
        and 0.0 <= car.throttle <= 1.0
        and abs(car.speed) < 1000.0
        and car.gear.is_integer()
    )


class Lidar:
    """Measures the distances from the car to the road's black borders, in 19 directions from right
    over ahead to left.
    """

    shape, dtype, full = (len(_LIDAR_ANGLES),), np.float32, _LIDAR_MAX_PX

    def __init__(self) -> None:
        self._shape, self._cv2 = (0, 0), load_opencv()

    def __call__(self, frame: Frame) -> NDArray[np.float32]:
        """Return the distances in pixels, float32 [19], for a frame, uint8 [H, W, 3]."""
        if frame.shape[:2] != self._shape:
            self._shape = height, width = frame.shape[:2]
            row, column = height * 44 // 49, width // 2
            self._ranges = RangeFinder(self._shape, (row, column), _LIDAR_ANGLES, _LIDAR_MAX_PX)
            rows, columns = np.ogrid[:height, :width]
            self._near = np.hypot(rows - row, columns - column) < _LIDAR_FROM_PX  # the car itself
        border = self._cv2.inRange(frame, (0, 0, 0), _BORDER)
        return self._ranges((border == 0) | self._near)


class TrackManiaInterface(DesktopGameInterface):
    """rtgym interface of TrackMania 2020.

    Observation: speed in m/s, gear, engine speed in 1/min, each float32 [1]; and the last `frames`
    views: pictures, uint8 [frames, height, width], or lidar measurements, float32 [frames, 19].
    Action: throttle, brake and steering, float32 [3] in [-1, 1]; a throttle or brake below 0 counts
    as 0. `info`: see `TrajectoryReward.info`, in metres.
    """

    @in_ranges
    def __init__(
        self,
        trajectory: str,
        view: Literal["image", "lidar"] = "lidar",
        size: tuple[int, int] = (64, 64),
        frames: int = 4,
        gamepad: Callable[[], VirtualGamepad] | None = XboxGamepad,
        reward: RaceReward = RaceReward(),
        title: str = "Trackmania",
        command: Sequence[str] | None = None,
        port: int = PORT,
        restart_wait_s: float = 1.5,
    ) -> None:
        """Set up the interface; game and trajectory are looked for at the first reset.

        Args:
            trajectory: file of the demonstration. With "" there is no reward, an episode is a
                `Lap`, and you steer, not the interface.
            view: what is seen of the screen.
            size: height and width of the pictures.
            frames: number of views in an observation.
            gamepad: makes the gamepad; None to steer by the keyboard.
            reward: how progress along the demonstration is rewarded.
            title: a part of the window's title.
            command: starts the game; None if you start it.
            port: port on which the plugin listens.
            restart_wait_s: duration of the countdown before a race, in seconds.
        """
        super().__init__(
            title,
            command,
            axes=KEYS,
            restart_wait_s=restart_wait_s,
            size=size,
            frames=frames,
            place=_LIDAR_PLACE if view == "lidar" else _IMAGE_PLACE,
            telemetry=partial(Telemetry, LAYOUT, port, is_valid=is_car, hint=HINT),
            frozen_after_s=math.inf,  # telemetry shows whether the game hangs
        )
        if view == "lidar":
            self._view = Lidar()
        self._make_gamepad = gamepad
        self._gamepad: VirtualGamepad | None = None
        self._trajectory, self._reward_options = trajectory, reward

    def get_observation_space(self) -> spaces.Tuple[Any]:
        instruments = [spaces.Box(low, high, (1,)) for low, high in _INSTRUMENTS.values()]
        return spaces.Tuple((*instruments, *super().get_observation_space()))

    def observe(self, frame: Frame, record: Record) -> list[Any]:
        car = CarReport(*record)
        instruments = [
            np.array([getattr(car, name)], np.float32).clip(*limits)
            for name, limits in _INSTRUMENTS.items()
        ]
        return [*instruments, *super().observe(frame, record)]

    def judge(self, frame: Frame, record: Record) -> tuple[float, bool, dict[str, Any]]:
        car = CarReport(*record)
        reward, terminated = self._reward((car.x, car.y, car.z))
        if car.has_finished and not self._reward.is_at_end:
            return reward + self._reward_options.end_of_track_reward, True, {}
        return reward, terminated, {}

    def describe(self, frame: Frame, record: Record) -> dict[str, Any]:
        car = CarReport(*record)
        info = self._reward.info((car.x, car.y, car.z))
        return info | {"progress": np.float32(1.0)} if car.has_finished else info

    @cached_property
    def _reward(self) -> TrajectoryReward | Lap:
        if not self._trajectory:
            return Lap()
        points = resample(load_trajectory(Path(self._trajectory).expanduser(), 3), SPACING_M)
        return TrajectoryReward(points, self._reward_options)

    def _open(self) -> None:
        self._reward.reset()  # made here, so that its errors come before a game is started
        super()._open()

    def begin_episode(self) -> None:
        if CarReport(*self.look()[1]).has_finished:  # closes the pop-up of the finish
            self._press("b", "delete")
            time.sleep(_POP_UP_AFTER_S)
            self._press("a", "enter")
        self._press("b", "delete")
        time.sleep(self._restart_wait_s)
        if CarReport(*self.look()[1]).has_finished:
            raise EnvironmentAwayError(
                "the race does not begin again: is a dialog open in the game? Close it by hand"
            )
        self._reward.reset()

    def _press(self, button: str, key: str) -> None:
        if self._gamepad is not None:
            self._gamepad.tap(button)
        else:
            self.tap(key)

    def open_controls(self) -> None:
        if self._make_gamepad is None:
            super().open_controls()
        else:
            self._gamepad = self._make_gamepad()

    def control(self, action: NDArray[np.float32]) -> None:
        if not self._trajectory:
            return
        if self._gamepad is None:
            super().control(action)
            return
        throttle, brake, steering = action.tolist()
        self._gamepad.move(
            (steering, 0.0), left_trigger=max(brake, 0.0), right_trigger=max(throttle, 0.0)
        )

    def let_go(self) -> None:
        super().let_go()
        if self._gamepad is not None:
            self._gamepad.move()

    def close(self) -> None:
        super().close()
        if self._gamepad is not None:
            self._gamepad.close()
            self._gamepad = None


class TrackManiaEnv(DesktopGameEnv):
    """TrackMania 2020 at 20 Hz, with the last `act_buf_len` actions in its observation.

    Attributes:
        lap_drivers: drivers for `tmrl-like record --lap`, by name; you steer the game itself.
        lap_arguments: arguments of the environment that replace the experiment's while recording.
    """

    lap_drivers: ClassVar[dict[str, Any]] = {"keyboard": KeyDriver}
    lap_arguments: ClassVar[dict[str, Any]] = {
        "trajectory": "",
        "inputs": None,
        "ep_max_length": _LAP_STEPS,
    }

    memory_arguments = staticmethod(partial(said_to_memory, stack=(3, "frames")))

    @also_takes(TrackManiaInterface)
    def __init__(
        self,
        time_step_duration: float = 0.05,
        ep_max_length: int = 1000,
        act_buf_len: int = 2,
        inputs: Sequence[Any] | None = None,
        **game: Any,
    ) -> None:
        """Take arguments as `TrackManiaInterface` and `RealTimeEnv`."""
        super().__init__(
            partial(TrackManiaInterface, **game),
            time_step_duration,
            ep_max_length,
            act_buf_len,
            inputs,
        )
