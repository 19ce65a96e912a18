"""A racing game in real time, driven from what its screen shows: Gymnasium's CarRacing, which does
not wait.

An environment to copy: `RacingInterface` defines observations, actions and rewards, and `RacingEnv`
gives them a clock. The game itself is `racing_game.RacingGame`, a process of its own.

| | `racing_lidar` |
|---|---|
| class | `tmrl_like.envs.racing.RacingEnv` |
| time-step | 60 ms |
| episode | 1000 steps |
| reward | points passed of the demonstration, see `TrajectoryReward` |
| ends | the lap is driven, or no point is passed any more |

| observation of `racing_lidar` | shape | dtype | range | unit |
|---|---|---|---|---|
| instruments | [4] | float32 | -1 to 1 | see above |
| distances to the road's edge, left over ahead to right | [1, 19] | float32 | 0 to 1 | 70 pixels |
| the last action | [2] | float32 | -1 to 1 | |

| action of `racing_lidar` | shape | dtype | range | unit |
|---|---|---|---|---|
| steering, left to right; pedal: full brake, nothing (-0.5), full gas | [2] | float32 | -1 to 1 | |
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import gymnasium.spaces as spaces
import numpy as np
from numpy.typing import NDArray

from tmrl_like.base.factories import said_to_memory
from tmrl_like.base.options import Natural, Positive, in_ranges
from tmrl_like.envs.drivers import KeyDriver
from tmrl_like.envs.racing.racing_game import (
    COASTING,
    FRAME_SHAPE,
    TICK_S,
    RacingGame,
    gas_and_brake,
    require_game,
)
from tmrl_like.envs.racing.road_driver import RoadDriver
from tmrl_like.envs.racing.view import AROUND_CAR, INSTRUMENTS, LidarView
from tmrl_like.envs.real_time import RealTimeEnv, also_takes
from tmrl_like.envs.task import TaskInterface
from tmrl_like.envs.trajectory import Lap, RewardOptions, TrajectoryReward, load_trajectory
from tmrl_like.envs.vision import History, Shrink
from tmrl_like.envs.way import Points
from tmrl_like.errors import ConfigError

_HALF_ROAD = 6.65  # on the map
_AWAY = 50.0  # on the map: a lap can end only after the car was this far from its start


class RacingInterface(TaskInterface[np.void]):
    """rtgym interface of the racing game.

    Observation: instruments, float32 [4] in [-1, 1] (speed, slip, turn rate, steering); then a
    history, newest last, of range-finder scans, float32 [history, 19] in [0, 1] ("lidar"), or of
    pictures, uint8 [history, height, width], or [history, height, width, 3] in colour ("image").
    Action: float32 [2] in [-1, 1]: steering (left to right), and one pedal with full brake at -1,
    nothing at -0.5 and full gas at 1, so that an untrained policy drives off. `info`: see
    `TrajectoryReward.info`; the potential is minus the distance from the demonstrated way in half
    widths of the road.
    """

    @in_ranges
    def __init__(
        self,
        observation: Literal["lidar", "image"] = "lidar",
        history: Positive = 2,
        image_size: tuple[int, int] = (64, 64),
        grey: bool = True,
        track: Natural = 1,
        reward: RewardOptions = RewardOptions(),  # noqa: B008 - frozen
        trajectory: str | Path | None = None,
    ) -> None:
        """Set up the interface; the game starts with the first reset.

        Args:
            observation: "lidar" or "image".
            history: number of scans or pictures in an observation.
            image_size: height and width of pictures.
            grey: pictures have one value per pixel instead of three.
            track: the game's seed; the demonstration must be of the same track.
            reward: how progress along the demonstration is rewarded.
            trajectory: file of the demonstration, see `tmrl-like record --lap`. None for the one
                that ships, of track 1. With "" there is no reward, and an episode is a `Lap`.
        """
        super().__init__()
        self._track = track
        self._game: RacingGame | None = None
        self._reward: TrajectoryReward | Lap = Lap(_AWAY, _HALF_ROAD)
        if trajectory != "":
            self._reward = TrajectoryReward(demonstration(track, trajectory), reward, _HALF_ROAD)
        self._view: LidarView | Shrink = (
            LidarView() if observation == "lidar" else Shrink(image_size, AROUND_CAR, grey)
        )
        self._history = History(history)
        self._frame = np.zeros(FRAME_SHAPE, np.uint8)

    def get_observation_space(self) -> spaces.Tuple[Any]:
        instruments = spaces.Box(-1.0, 1.0, (len(INSTRUMENTS),))
        return spaces.Tuple((instruments, self._history.space(self._view)))

    def get_action_space(self) -> spaces.Box:
        return spaces.Box(-1.0, 1.0, (2,))

    def get_default_action(self) -> NDArray[np.float32]:
        return np.array([0.0, COASTING], np.float32)

    def wait(self) -> None:
        """Let the car roll without gas after an episode."""
        self.send_control((0.0, COASTING))

    def send_control(self, control: Any) -> None:
        assert self._game is not None
        steering, pedal = np.clip(control, -1.0, 1.0).tolist()
        self._game.drive(steering, *gas_and_brake(pedal))

    def begin(self) -> np.void:
        if self._game is None:
            self._game = RacingGame(self._track)
        else:
            self._game.restart()
        self._reward.reset()
        self._history.clear()
        return self.look()

    def look(self) -> np.void:
        """Return the newest state, one `racing_game.STATE`."""
        assert self._game is not None
        return self._game.look()

    def judge(self, state: np.void) -> tuple[float, bool]:
        return self._reward(state["position"])

    def observe(self, state: np.void) -> list[Any]:
        self._frame = state["frame"]
        instruments = np.array(
            [state[name] / full for name, full in INSTRUMENTS.items()], np.float32
        )
        return [instruments.clip(-1.0, 1.0), self._history(self._view(self._frame))]

    def describe(self, state: np.void) -> dict[str, Any]:
        return self._reward.info(state["position"])

    def render(self) -> NDArray[np.uint8]:
        """Return the newest frame that the agent saw, uint8 [96, 96, 3]."""
        return self._frame

    def close(self) -> None:
        """End the game."""
        if self._game is not None:
            self._game.close()


def demonstration(track: int, file: str | Path | None = None) -> Points:
    """Return the points of a demonstration, [N, 2], from `file` or, without one, from the file that
    ships. Raise ConfigError if there are none for this track.
    """
    if file is None and track != 1:
        raise ConfigError(
            f"no demonstration of track {track} ships: record one with `tmrl-like record --lap`"
        )
    return load_trajectory(Path(__file__).with_name("track_1.npz") if file is None else file, 2)


class RacingEnv(RealTimeEnv):
    """The racing game at 17 decisions a second, with the last `act_buf_len` actions in its
    observation.

    Attributes:
        lap_drivers: drivers for `tmrl-like record --lap`, by name.
        lap_arguments: arguments of the environment that replace the experiment's while recording.
    """

    lap_drivers: ClassVar[dict[str, Any]] = {
        "script": partial(RoadDriver, every_s=1.0, for_s=1.0),
        "keyboard": KeyDriver,
    }
    lap_arguments: ClassVar[dict[str, Any]] = {
        "trajectory": "",
        "observation": "lidar",
        "inputs": None,
        "time_step_duration": TICK_S,  # with a longer one, drivers leave the road
        "ep_max_length": 9000,
    }

    memory_arguments = staticmethod(partial(said_to_memory, stack=(1, "history")))

    @also_takes(RacingInterface)
    def __init__(
        self,
        time_step_duration: float = 0.06,
        ep_max_length: int = 1000,
        act_buf_len: int = 1,
        inputs: Sequence[Any] | None = None,
        **game: Any,
    ) -> None:
        """Take arguments as `RacingInterface` and `RealTimeEnv`.

        Raises:
            MissingExtraError: the game is not installed.
            ConfigError: there is no demonstration of this track.
        """
        require_game()
        interface = partial(RacingInterface, **game)
        super().__init__(interface, time_step_duration, ep_max_length, act_buf_len, inputs=inputs)
