"""One car with its sensors in a CARLA world."""

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
_SLOWEST_FRAMES_S = 1.0  # a simulator that takes longer for a frame does not run in real time


class Car:
    """A car that is commanded and observed; methods raise as those of `CarlaWorld`.

    Attributes:
        world: the world that the car is in.
        sensors: the sensors on the car.
    """

    def __init__(self, world: CarlaWorld, sensors: SensorOptions) -> None:
        """Make the car on any free spawn point; it is destroyed with the other actors of `world`.

        Raises:
            ConfigError: the simulator has no such car or sensor.
            EnvironmentFaultError: the simulator does not answer, or all spawn points are taken.
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
        """Put the car at rest at a place; return its state there. Raise EnvironmentFaultError if it
        does not get there, for instance because something else moves it.
        """
        import carla

        with self.world.asking():
            self._vehicle.set_transform(place)
            self._vehicle.set_target_velocity(carla.Vector3D())
            self._vehicle.set_target_angular_velocity(carla.Vector3D())
        until = time.monotonic() + self.world.options.timeout_s
        while time.monotonic() < until:
            self.act(VehicleAction(brake=1.0))
            frame = self.world.next_frame()
            seen = self.world.snapshot().find(self._vehicle.id)
            if (
                seen is not None
                and seen.get_transform().location.distance(place.location) < _AT_PLACE_M
            ):
                self.sensors.wait_for(frame)
                self.sensors.take_events(frame)
                return self.see()
        raise EnvironmentFaultError(
            "the car did not get to its spawn point: is something else driving it?"
        )

    def act(self, action: VehicleAction) -> None:
        """Send an action, without waiting for its effect."""
        with self.world.asking():
            self._vehicle.apply_control(action.to_control())

    def see(self) -> VehicleState:
        """Return the car's state in the newest frame, without a request to the simulator.

        Raises:
            EnvironmentAwayError: there has been no new frame for long, or none of camera or lidar.
            EnvironmentFaultError: the car is gone.
        """
        snapshot = self.world.snapshot()
        self._check_that_it_runs(snapshot.frame)
        if snapshot.find(self._vehicle.id) is None:
            raise EnvironmentFaultError(
                "the car is gone from the simulator: somebody destroyed it, or loaded a map"
            )
        state = VehicleState.seen(snapshot, self._vehicle.id)
        self.sensors.check(state.time_s)
        return state

    def tick(self) -> None:
        """Take one step in a world that stands still, and wait until camera and lidar saw it."""
        self.sensors.wait_for(self.world.next_frame())

    def _check_that_it_runs(self, frame: int) -> None:
        """Raise EnvironmentAwayError if the simulator has died: then its last frame stays."""
        now, limit_s = time.monotonic(), min(_SLOWEST_FRAMES_S, self.world.options.timeout_s)
        if frame != self._newest_frame or self.world.stands_still:
            self._newest_frame, self._newest_at = frame, now
        elif now - self._newest_at > limit_s:
            raise EnvironmentAwayError(
                f"the CARLA simulator has stood still for {limit_s:g} s: did it end?"
            )
