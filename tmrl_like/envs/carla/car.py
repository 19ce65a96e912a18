"""One car with its sensors, on the spawn points and roads of a world."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, cast

import numpy as np

from tmrl_like.envs.carla.sensors import SensorOptions, SensorRig
from tmrl_like.envs.carla.vehicle import VehicleAction, VehicleState
from tmrl_like.envs.carla.world import CarlaWorld
from tmrl_like.errors import EnvironmentAwayError, EnvironmentFaultError

if TYPE_CHECKING:
    import carla

_AT_PLACE_M = 2.0
_SLOWEST_FRAMES_S = 1.0  # a simulator with less than a frame in this time does not run in real time


class Car:
    """A car that gets commands and is observed; raises as `CarlaWorld`.

    Attributes:
        world: it is in.
        sensors: on it.
    """

    def __init__(self, world: CarlaWorld, sensors: SensorOptions) -> None:
        """Make it on any free spawn point; it ends with its world's actors.

        Raises:
            ConfigError: the simulator has no such car or sensor.
            EnvironmentFaultError: it does not answer, or all spawn points are taken.
        """
        self.world = world
        places = world.free_spawn_points(np.random.default_rng())
        made = (world.spawn(world.options.vehicle, place, {}) for place in places)
        vehicle = next((vehicle for vehicle in made if vehicle is not None), None)
        if vehicle is None:
            raise EnvironmentFaultError(
                f"CARLA makes no {world.options.vehicle} on any spawn point: all are taken"
            )
        self._vehicle = cast("carla.Vehicle", vehicle)
        self.sensors = SensorRig(world, self._vehicle, sensors)
        self._newest_frame, self._newest_at = 0, 0.0

    def put(self, place: carla.Transform) -> VehicleState:
        """Put it somewhere, at rest; returns what is seen of it there. EnvironmentFaultError:
        others move it.
        """
        import carla

        with self.world.asking():
            self._vehicle.set_transform(place)
            self._vehicle.set_target_velocity(carla.Vector3D())
            self._vehicle.set_target_angular_velocity(carla.Vector3D())
        frame = self._settle(place)
        self.sensors.wait_for(frame, self.world.options.timeout_s)
        self.sensors.take_events(frame)
        return self.see()

    def act(self, action: VehicleAction) -> None:
        """Order it; does not wait for the effect."""
        with self.world.asking():
            self._vehicle.apply_control(action.to_control())

    def see(self) -> VehicleState:
        """The car in the simulator's newest frame; does not ask the simulator.

        Raises:
            EnvironmentAwayError: there has been no other frame for long.
            EnvironmentFaultError: the car is gone.
        """
        snapshot = self.world.snapshot()
        self._check_that_it_runs(snapshot.frame)
        if snapshot.find(self._vehicle.id) is None:
            raise EnvironmentFaultError(
                "the car is gone from the simulator: somebody destroyed it, or loaded a map"
            )
        return VehicleState.seen(snapshot, self._vehicle.id)

    def tick(self) -> None:
        """Let one step pass in a world that stands still; camera and lidar have then seen it."""
        self.sensors.wait_for(self.world.next_frame(), self.world.options.timeout_s)

    def _settle(self, place: carla.Transform) -> int:
        """Brake until the simulator shows the car where it was put; returns that frame."""
        until = time.monotonic() + self.world.options.timeout_s
        while time.monotonic() < until:
            self.act(VehicleAction(brake=1.0))
            frame = self.world.next_frame()
            seen = self.world.snapshot().find(self._vehicle.id)
            if (
                seen is not None
                and seen.get_transform().location.distance(place.location) < _AT_PLACE_M
            ):
                self._newest_frame, self._newest_at = frame, time.monotonic()
                return frame
        raise EnvironmentFaultError(
            "the car did not get to its spawn point: is something else driving it?"
        )

    def _check_that_it_runs(self, frame: int) -> None:
        """A simulator that died goes on showing its last frame; raise EnvironmentAwayError then."""
        now, limit_s = time.monotonic(), min(_SLOWEST_FRAMES_S, self.world.options.timeout_s)
        if frame != self._newest_frame or self.world.stands_still:
            self._newest_frame, self._newest_at = frame, now
        elif now - self._newest_at > limit_s:
            self.world.is_lost = True
            raise EnvironmentAwayError(
                f"the CARLA simulator has stood still for {limit_s:g} s: did it end?"
            )
