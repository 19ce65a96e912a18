"""A car that follows a route in CARLA: an rtgym interface, and two environments that use it.

| | `carla` |
|---|---|
| class | `tmrl_like.envs.carla.CarlaEnv` |
| time-step | 100 ms |
| episode | 600 steps |
| reward | metres along the route, minus penalties, see `RouteOptions` |
| ends | collision, off the route, stuck, or the route's end |

| observation of `carla` | shape | dtype | range | unit |
|---|---|---|---|---|
| speed ahead, to the right; turn | [3] | float32 | -60, -20, -180 to 60, 20, 180 | m/s, deg/s |
| points `ahead_m` on the route: how far ahead, then to the right | [8] | float32 | -44 to 44 | m |
| picture, RGB, with `sensors.camera` | [64, 64, 3] | uint8 | 0 to 255 | |
| ranges, clockwise from straight ahead, with `sensors.lidar_bins` | [32] | float32 | 0 to 40 | m |
| the last 2 actions | [2] | float32 | -1 to 1 | |

| action of `carla` | shape | dtype | range | unit |
|---|---|---|---|---|
| throttle (negative: brake); steering, left to right | [2] | float32 | -1 to 1 | |
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, cast

import numpy as np
from gymnasium import spaces
from msgspec import Meta

from tmrl_like.base.factories import said_to_memory
from tmrl_like.base.options import AboveZero, Natural, in_ranges
from tmrl_like.envs.carla.route import Drive, RouteOptions, plan_route
from tmrl_like.envs.carla.sensors import SensorOptions, SensorRig
from tmrl_like.envs.carla.vehicle import VehicleAction, VehicleState
from tmrl_like.envs.carla.world import CarlaWorld, SimulatorOptions, require_carla
from tmrl_like.envs.float32 import closed_by_errors
from tmrl_like.envs.real_time import ClockedGym, RealTimeEnv, also_takes
from tmrl_like.envs.task import TaskInterface
from tmrl_like.errors import EnvironmentFaultError

if TYPE_CHECKING:
    import carla

_AT_PLACE_M = 2.0
_MAX_MOTION = np.array((60.0, 20.0, 180.0), np.float32)  # m/s forward, m/s to the right, degrees/s


class CarlaInterface(TaskInterface[VehicleState]):
    """rtgym interface of one car in CARLA.

    Observation: motion float32 [3] (m/s forward, m/s to the right, degrees/s to the right); route
    float32 [2 * len(ahead_m)] (metres forward of each point ahead, then metres to the right of
    each); picture uint8 [H, W, 3] if there is a camera; ranges float32 [lidar_bins] in metres if
    there is a lidar. Action: float32 [2] in [-1, 1]: throttle where positive, brake where negative;
    steering, right is positive. `info`: see `Drive.info`, and "ended_by", what ended an episode.

    Attributes:
        fixed_step_s: simulated seconds of a tick, between which the world stands still; None for
            real time. Set it before the first reset.
    """

    fixed_step_s: float | None = None

    def __init__(
        self,
        simulator: SimulatorOptions = SimulatorOptions(),  # noqa: B008 - frozen, like the others
        sensors: SensorOptions = SensorOptions(),  # noqa: B008
        route: RouteOptions = RouteOptions(),  # noqa: B008
        client_cls: Callable[[str, int], Any] | None = None,
    ) -> None:
        """Set up the interface; the simulator is not needed before the first reset.

        Args:
            simulator: the simulator, and the vehicle in it.
            sensors: the car's sensors.
            route: the task.
            client_cls: makes CARLA's client; none for `carla.Client`.

        Raises:
            MissingExtraError: CARLA's client is not installed.
        """
        super().__init__()
        require_carla()
        self._simulator, self._sensors, self._task, self._client_cls = (
            simulator,
            sensors,
            route,
            client_cls,
        )
        self._is_connected = False
        self._world: CarlaWorld  # set by the first reset, as are the car, its sensors and the drive
        self._car: carla.Vehicle
        self._rig: SensorRig
        self._drive: Drive
        self._ended_by = ""

    def get_observation_space(self) -> spaces.Tuple[Any]:
        limit_m = max(self._task.ahead_m) + self._task.off_route_m
        ahead = spaces.Box(-limit_m, limit_m, (2 * len(self._task.ahead_m),))
        motion = spaces.Box(-_MAX_MOTION, _MAX_MOTION)
        return spaces.Tuple((motion, ahead, *self._sensors.spaces()))

    def get_action_space(self) -> spaces.Box:
        return spaces.Box(-1.0, 1.0, (2,))

    def send_control(self, control: Any) -> None:
        self._act(VehicleAction.from_policy(control))

    def begin(self) -> VehicleState:
        """Put the car at rest on a free spawn point, drawn at random.

        Raises:
            EnvironmentAwayError: there is no simulator, or one of another version.
            EnvironmentFaultError: the simulator refused, or no free spawn point has a long enough
                road ahead.
        """
        if not self._is_connected:
            self._connect()
        town = self._world.map
        for place in self._world.free_spawn_points(self.random):
            route = plan_route(town.get_waypoint(place.location), self._task.length_m, self.random)
            if route is not None:
                state = self._put(place)
                self._drive, self._ended_by = Drive(self._task, route, state), ""
                return state
        raise EnvironmentFaultError(
            f"the lanes of all free spawn points of {town.name} end at once"
        )

    def look(self) -> VehicleState:
        """Return the car's state in the newest frame, without a request to the simulator.

        Raises:
            EnvironmentAwayError: there has been no new frame for long, or none of camera or lidar.
            EnvironmentFaultError: the car is gone.
        """
        snapshot = self._world.snapshot()
        if snapshot.find(self._car.id) is None:
            raise EnvironmentFaultError(
                "the car is gone from the simulator: somebody destroyed it, or loaded a map"
            )
        state = VehicleState.seen(snapshot, self._car.id)
        self._rig.check(state.time_s)
        return state

    def judge(self, state: VehicleState) -> tuple[float, bool]:
        impulse, lines = self._rig.take_events(self._drive.began_in_frame)
        reward, self._ended_by = self._drive.judge(state, impulse, lines)
        return reward, bool(self._ended_by)

    def observe(self, state: VehicleState) -> list[Any]:
        motion = np.clip(np.array(state.motion, np.float32), -_MAX_MOTION, _MAX_MOTION)
        return [motion, self._drive.route_ahead(state), *self._rig.observe()]

    def render(self) -> Any:
        """Return the camera's newest picture, uint8 [H, W, 3] RGB, or None without a camera."""
        return self._rig.observe()[0] if self._sensors.camera else None

    def describe(self, state: VehicleState) -> dict[str, Any]:
        info = self._drive.info(state)
        return info | {"ended_by": self._ended_by} if self._ended_by else info

    def wait(self) -> None:
        """Brake between two episodes."""
        self._act(VehicleAction(brake=1.0))

    def tick(self) -> None:
        """Take one step in a world that stands still, and wait until camera and lidar saw it."""
        self._rig.wait_for(self._world.next_frame())

    def close(self) -> None:
        """Destroy every actor that was made, and give the simulator its own clock back. Calling it
        twice is fine.
        """
        if self._is_connected:
            self._is_connected = False
            self._world.close()

    def _connect(self) -> None:
        """Connect, and make the car on any free spawn point.

        Raises:
            ConfigError: the simulator has no such car or sensor.
            EnvironmentFaultError: the simulator does not answer, or all spawn points are taken.
        """
        self._world = world = CarlaWorld(self._simulator, self.fixed_step_s, self._client_cls)
        self._is_connected = True
        with closed_by_errors(self):
            made = (
                world.spawn(self._simulator.vehicle, place, {})
                for place in world.free_spawn_points(np.random.default_rng())
            )
            car = next((car for car in made if car is not None), None)
            if car is None:
                raise EnvironmentFaultError(
                    f"CARLA makes no {self._simulator.vehicle} on any spawn point: all are taken"
                )
            self._car = cast("carla.Vehicle", car)
            self._rig = SensorRig(world, self._car, self._sensors)

    def _put(self, place: carla.Transform) -> VehicleState:
        """Put the car at rest at a place; return its state there. Raise EnvironmentFaultError if it
        does not get there, for instance because something else moves it.
        """
        import carla

        with self._world.asking():
            self._car.set_transform(place)
            self._car.set_target_velocity(carla.Vector3D())
            self._car.set_target_angular_velocity(carla.Vector3D())
        until = time.monotonic() + self._simulator.timeout_s
        while time.monotonic() < until:
            self._act(VehicleAction(brake=1.0))
            frame = self._world.next_frame()
            seen = self._world.snapshot().find(self._car.id)
            if (
                seen is not None
                and seen.get_transform().location.distance(place.location) < _AT_PLACE_M
            ):
                self._rig.wait_for(frame)
                return self.look()
        raise EnvironmentFaultError(
            "the car did not get to its spawn point: is something else driving it?"
        )

    def _act(self, action: VehicleAction) -> None:
        """Send an action, without waiting for its effect."""
        with self._world.asking():
            self._car.apply_control(action.to_control())


class CarlaEnv(RealTimeEnv):
    """CARLA in real time: the simulator runs on its own clock, whatever the policy does."""

    @also_takes(CarlaInterface)
    @in_ranges
    def __init__(
        self,
        time_step_duration: AboveZero = 0.05,
        ep_max_length: int = 1000,
        act_buf_len: int = 2,
        inputs: Sequence[Any] | None = None,
        **car: Any,
    ) -> None:
        """Take arguments as `CarlaInterface` and `RealTimeEnv`."""
        interface = partial(CarlaInterface, **car)
        super().__init__(interface, time_step_duration, ep_max_length, act_buf_len, inputs=inputs)


class CarlaSyncEnv(ClockedGym):
    """CARLA step by step: the world stands still between two steps, for as long as training takes.

    Spaces, rewards and ends are those of `CarlaEnv`; an action takes effect at once instead of one
    time-step later.

    Attributes:
        act_buf_len: number of actions at the end of each observation; a reset fills them with the
            default action.
    """

    act_buf_len: Natural = 2

    memory_arguments = staticmethod(said_to_memory)

    @also_takes(CarlaInterface)
    @in_ranges
    def __init__(
        self,
        step_s: Annotated[float, Meta(gt=0, le=0.1)] = 0.05,
        ep_max_length: int = 1000,
        act_buf_len: int = 2,
        inputs: Sequence[Any] | None = None,
        **car: Any,
    ) -> None:
        """Take arguments as `CarlaInterface` and `RealTimeEnv`, and the simulated time of a step,
        `step_s`.

        It is at most 0.1 s, because CARLA's physics takes at most ten substeps of 10 ms.
        """
        interface = partial(CarlaInterface, **car)
        super().__init__(
            {
                "interface": interface,
                "ep_max_length": ep_max_length,
                "act_buf_len": act_buf_len,
                "inputs": inputs,
            }
        )
        self.interface.fixed_step_s = step_s

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode; raises as `CarlaInterface.begin`."""
        obs, info = self.interface.reset(seed, options)
        self.act_buf.extend([self.default_action] * self.act_buf_len)
        self.current_step = 0
        return tuple(self._with_actions(obs)), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Send the action, let `step_s` seconds pass in the simulator, and observe."""
        self.interface.send_control(action if self.table is None else self.table(action))
        self.interface.tick()
        obs, reward, terminated, info = self.interface.get_obs_rew_terminated_info()
        self.act_buf.append(copy(action))
        self.current_step += 1
        truncated = not terminated and self.current_step >= self.ep_max_length
        return tuple(self._with_actions(obs)), reward, terminated, truncated, info
