"""Camera, lidar, collision sensor and lane-invasion sensor of one vehicle.

CARLA calls listeners in a thread of its own. A listener converts the data and puts it into a queue
of bounded length; an observation takes the newest from there and never waits for more than a frame.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import numpy as np
from gymnasium import spaces
from msgspec import Meta
from numpy.typing import NDArray

from tmrl_like.base.options import Options
from tmrl_like.envs.carla.world import CarlaWorld
from tmrl_like.errors import EnvironmentAwayError, EnvironmentFaultError

if TYPE_CHECKING:
    import carla

_ABOVE_ROOF_M = 0.5
_LIDAR_CHANNELS = 16
_LIDAR_POINTS_PER_BIN = 40
_LIDAR_TURNS_PER_S = 20.0
_GROUND_M = 0.4  # lidar points below this height are the road
_OWN_BODY = 1.2  # and those in a box larger than the vehicle by this factor are the vehicle
_MAX_SWEEPS = 16
_MAX_EVENTS = 64

Array = NDArray[Any]
_Pixels = Annotated[int, Meta(ge=8)]


@dataclass(frozen=True, kw_only=True)
class SensorOptions(Options):
    """The vehicle's sensors; collisions and crossed lines are always sensed.

    Attributes:
        camera: height and width of the picture in pixels, 8 or more; none for no camera.
        camera_fov_deg: the camera's horizontal field of view.
        lidar_bins: number of the lidar's directions, clockwise from straight ahead, each of a tenth
            of a degree or more; 0 for no lidar.
        lidar_range_m: the lidar's reach, and its value in a direction in which there is nothing.
    """

    camera: tuple[_Pixels, _Pixels] | None = (84, 84)
    camera_fov_deg: Annotated[float, Meta(gt=0, lt=180)] = 100.0
    lidar_bins: Annotated[int, Meta(ge=0, le=3600)] = 0
    lidar_range_m: Annotated[float, Meta(gt=0, le=1000)] = 40.0

    def spaces(self) -> list[spaces.Box[Any]]:
        """Return the spaces of what `SensorRig.observe` returns: picture uint8 [H, W, 3], ranges
        float32 [lidar_bins] in metres.
        """
        seen: list[spaces.Box[Any]] = []
        if self.camera:
            seen.append(spaces.Box(0, 255, (*self.camera, 3), np.uint8))
        if self.lidar_bins:
            seen.append(spaces.Box(0.0, self.lidar_range_m, (self.lidar_bins,)))
        return seen


class Reading(NamedTuple):
    """A sensor's data, converted, with the simulator's frame and time."""

    frame: int
    time_s: float
    value: Any


class Readings:
    """A queue of the newest readings of one sensor; when it is full, the oldest is dropped."""

    def __init__(self, convert: Callable[[Any], Any], length: int) -> None:
        self._convert = convert
        self._queue: deque[Reading] = deque(maxlen=length)
        self._changed = threading.Condition()

    def put(self, data: carla.SensorData) -> None:
        """Convert and keep the sensor's data; this is the listener that CARLA calls."""
        reading = Reading(data.frame, data.timestamp, self._convert(data))
        with self._changed:
            self._queue.append(reading)
            self._changed.notify_all()

    def newest(self) -> list[Reading]:
        """Return all readings, oldest first, and keep them."""
        with self._changed:
            return list(self._queue)

    def take(self, after_frame: int) -> Any:
        """Remove all readings; return the sum of the values of frames after this one."""
        with self._changed:
            total = sum(reading.value for reading in self._queue if reading.frame > after_frame)
            self._queue.clear()
            return total

    def wait(self, frame: int, timeout_s: float) -> bool:
        """Wait for a reading of this frame or a later one; return whether it came."""
        with self._changed:
            return self._changed.wait_for(
                lambda: bool(self._queue) and self._queue[-1].frame >= frame, timeout_s
            )


class SensorRig:
    """The sensors on one vehicle; they are destroyed with the other actors of their world."""

    def __init__(self, world: CarlaWorld, vehicle: carla.Vehicle, options: SensorOptions) -> None:
        """Mount the sensors on the vehicle and listen to them; raises as `CarlaWorld.spawn`."""
        self._world, self._vehicle, self._body = world, vehicle, vehicle.bounding_box.extent
        self._views: dict[str, Readings] = {}
        self._collisions = self._mount(  # N s
            "sensor.other.collision", lambda collision: collision.normal_impulse.length()
        )
        self._crossings = self._mount(
            "sensor.other.lane_invasion", lambda invasion: len(invasion.crossed_lane_markings)
        )
        if options.camera:
            height, width = options.camera
            self._views["camera"] = self._mount(
                "sensor.camera.rgb",
                image_of,
                1,
                {"image_size_x": width, "image_size_y": height, "fov": options.camera_fov_deg},
            )
        if bins := options.lidar_bins:
            range_m = options.lidar_range_m
            self._views["lidar"] = self._mount(
                "sensor.lidar.ray_cast",
                lambda sweep: ranges_of(sweep, bins, range_m, self._body),
                _MAX_SWEEPS,
                {
                    "channels": _LIDAR_CHANNELS,
                    "range": range_m,
                    "rotation_frequency": _LIDAR_TURNS_PER_S,
                    "points_per_second": int(_LIDAR_POINTS_PER_BIN * bins * _LIDAR_TURNS_PER_S),
                    "upper_fov": 5.0,
                    "lower_fov": -20.0,
                },
            )

    def _mount(
        self,
        kind: str,
        convert: Callable[[Any], Any],
        length: int = _MAX_EVENTS,
        attributes: Mapping[str, float] = MappingProxyType({}),
    ) -> Readings:
        """Mount a sensor, and return the queue of its newest `length` readings."""
        import carla

        place = carla.Transform(carla.Location(z=_height_of_sensors(self._body)))
        sensor = self._world.spawn(kind, place, attributes, self._vehicle)
        if sensor is None:
            raise EnvironmentFaultError(f"the CARLA simulator makes no {kind}")
        readings = Readings(convert, length)
        with self._world.asking():
            cast("carla.Sensor", sensor).listen(readings.put)
        return readings

    def wait_for(self, frame: int) -> None:
        """Wait until camera and lidar have seen this frame; raise EnvironmentAwayError if they have
        not within the simulator's `timeout_s`.
        """
        timeout_s = self._world.options.timeout_s
        self._expect(lambda readings: readings.wait(frame, timeout_s))

    def check(self, now_s: float) -> None:
        """Raise EnvironmentAwayError if camera or lidar has seen nothing for `timeout_s`; the
        simulator's clock shows `now_s`.
        """
        timeout_s = self._world.options.timeout_s
        self._expect(lambda readings: now_s - readings.newest()[-1].time_s <= timeout_s)

    def _expect(self, has_seen: Callable[[Readings], bool]) -> None:
        for name, readings in self._views.items():
            if not has_seen(readings):
                raise EnvironmentAwayError(
                    f"CARLA's {name} sent nothing for {self._world.options.timeout_s:g} s: is the "
                    "simulator rendering (no_rendering_mode)?"
                )

    def observe(self) -> list[Array]:
        """Return the newest picture, and the ranges of the lidar's last full turn; see
        `SensorOptions.spaces`.
        """
        seen = []
        for readings in self._views.values():
            kept = readings.newest()  # of the camera's, one
            since_s = kept[-1].time_s - 1.0 / _LIDAR_TURNS_PER_S + 1e-6
            seen.append(np.minimum.reduce([r.value for r in kept if r.time_s > since_s]))
        return seen

    def take_events(self, after_frame: int) -> tuple[float, int]:
        """Return the impulse of collisions in N s and the number of lines crossed, since the last
        call and after this frame.
        """
        return self._collisions.take(after_frame), self._crossings.take(after_frame)


def image_of(image: carla.Image) -> Array:
    """Convert CARLA's BGRA to RGB, uint8 [H, W, 3]."""
    bgra = np.frombuffer(image.raw_data, np.uint8).reshape(image.height, image.width, 4)
    return np.ascontiguousarray(bgra[:, :, 2::-1])


def ranges_of(
    sweep: carla.LidarMeasurement, bins: int, range_m: float, body: carla.Vector3D
) -> Array:
    """Return the distance of the nearest point in each direction, float32 [bins] in metres,
    clockwise from straight ahead.

    Points on the road and on the vehicle itself do not count; `body` has the vehicle's half length,
    half width and half height. A direction without points has the value `range_m`.
    """
    x, y, z, _ = np.frombuffer(sweep.raw_data, np.float32).reshape(-1, 4).T
    is_own = (abs(x) < body.x * _OWN_BODY) & (abs(y) < body.y * _OWN_BODY)
    others = (z > _GROUND_M - _height_of_sensors(body)) & ~is_own
    x, y = x[others], y[others]
    directions = np.round(np.arctan2(y, x) * (bins / (2 * np.pi))).astype(np.int64) % bins
    ranges = np.full(bins, range_m, np.float32)
    np.minimum.at(ranges, directions, np.hypot(x, y))
    return ranges


def _height_of_sensors(body: carla.Vector3D) -> float:
    return 2.0 * float(body.z) + _ABOVE_ROOF_M
