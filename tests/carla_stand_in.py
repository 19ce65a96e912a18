"""A stand-in for a CARLA simulator, to try an experiment with `tmrl_like.envs.carla` without one.

Map, transforms, controls and settings come from CARLA's own client (extra `carla`), used offline.
The rest is here: one car per vehicle actor, a bicycle model that advances by the wall clock or, in
synchronous mode, by `tick`; walls to run into; and camera, lidar, collision and lane-invasion
sensors that deliver data as time passes. Classes, methods and arguments have CARLA's names and
behave as CARLA's documentation says, as far as `tmrl_like.envs.carla` uses them.
"""

import contextlib
import copy
import itertools
import math
import threading
import time
import weakref
from types import SimpleNamespace

import numpy as np

from tmrl_like.envs.carla.world import require_carla

with contextlib.suppress(ImportError):
    import carla

CLIENT_VERSION = "0.9.16"
_WHEELBASE_M, _MOST_STEERING_RAD = 2.9, 0.6
_THROTTLE_M_S2, _BRAKE_M_S2, _DRAG_PER_S = 5.0, 9.0, 0.1
_CAR_RADIUS_M = 1.2
_SPAWN_POINTS_S_M = (5.0, 25.0, 45.0)
_DESTROYED = (
    "trying to operate on a destroyed actor; an actor's function was called, but the actor is "
    "already destroyed."
)
_SENSOR = {"role_name": "front", "sensor_tick": "0.0"}
_LIDAR = ("channels", "range", "rotation_frequency", "points_per_second", "upper_fov", "lower_fov")
BLUEPRINTS = {
    "vehicle.tesla.model3": {"role_name": "autopilot"},
    "sensor.camera.rgb": {**_SENSOR, "image_size_x": "800", "image_size_y": "600", "fov": "90.0"},
    "sensor.lidar.ray_cast": {**_SENSOR, **dict.fromkeys(_LIDAR, "0")},
    "sensor.other.collision": {"role_name": "front"},
    "sensor.other.lane_invasion": {"role_name": "front"},
}


def open_drive():
    """Return a road of one lane as OpenDRIVE: straight along x, then a quarter turn to the left."""
    straight_m, radius_m = 100.0, 60.0
    curve_m = radius_m * math.pi / 2
    mark = (
        '<roadMark sOffset="0" type="{}" weight="standard" color="standard" width="0.12" '
        'laneChange="{}"/>'
    )
    return f"""<?xml version="1.0" standalone="yes"?>
<OpenDRIVE>
  <header revMajor="1" revMinor="4" name="stand-in" version="1"
    north="0" south="0" east="0" west="0">
    <geoReference>+proj=tmerc +lat_0=0 +lon_0=0 +ellps=WGS84</geoReference>
  </header>
  <road name="road" length="{straight_m + curve_m}" id="1" junction="-1">
    <link/>
    <planView>
      <geometry s="0" x="0" y="0" hdg="0" length="{straight_m}"><line/></geometry>
      <geometry s="{straight_m}" x="{straight_m}" y="0" hdg="0" length="{curve_m}">
        <arc curvature="{1 / radius_m}"/>
      </geometry>
    </planView>
    <elevationProfile/>
    <lateralProfile/>
    <lanes>
      <laneSection s="0">
        <center>
          <lane id="0" type="none" level="false">{mark.format("broken", "both")}</lane>
        </center>
        <right>
          <lane id="-1" type="driving" level="false">
            <width sOffset="0" a="3.5" b="0" c="0" d="0"/>
            {mark.format("solid", "none")}
          </lane>
        </right>
      </laneSection>
    </lanes>
  </road>
</OpenDRIVE>"""


class World:
    """The world as `Client.get_world` returns it; it is the simulator."""

    def get_map(self):
        return self.answer().map

    def get_settings(self):
        """Return a copy of the settings."""
        now = self.answer().settings
        return carla.WorldSettings(now.synchronous_mode, False, now.fixed_delta_seconds or 0.0)

    def apply_settings(self, world_settings):
        self.answer().settings = world_settings
        return self.frame

    def get_blueprint_library(self):
        self.answer()
        return BlueprintLibrary()

    def try_spawn_actor(self, blueprint, transform, attach_to=None):
        """Make and return an actor, or return None if a vehicle is in its way."""
        with self.answer().lock:
            ways_m = (o.get_location().distance(transform.location) for o in self.actors.values())
            if attach_to is None and min(ways_m, default=math.inf) < 2 * _CAR_RADIUS_M:
                return None
            kind = Vehicle if attach_to is None else Sensor
            actor = kind(self, next(self._ids), blueprint, transform, attach_to)
            self.actors[actor.id] = actor
            return actor

    def get_actors(self):
        return list(self.answer().actors.values())

    def get_snapshot(self):
        return self.snapshot

    def tick(self, seconds=10.0):
        return self.answer().advance(self.settings.fixed_delta_seconds or self.period_s)

    def wait_for_tick(self, seconds=10.0):
        frame = self.frame
        with self.ticked:
            if not self.ticked.wait_for(lambda: self.frame != frame, seconds):
                raise _time_out(seconds)
            return self.snapshot


class Simulator(World):
    """The simulator's side, which clients of the real CARLA never see.

    Attributes:
        actors: all actors in the world, by id.
        walls: obstacles (x, y, radius) in metres; cars stop there.
        settings, timeout_s: as the clients set them.
        version: what `get_server_version` returns.
        frame, time_s: the world's clock.
        is_dead: whether it answers no clients and makes no frames.
    """

    def __init__(self, period_s=0.02, walls=()):
        """Start the world.

        Args:
            period_s: time between two frames outside of synchronous mode.
            walls: x, y and radius in metres.

        Raises:
            MissingExtraError: CARLA's client is not installed.
        """
        require_carla()
        self.period_s, self.walls = period_s, list(walls)
        self.version, self.timeout_s = CLIENT_VERSION, 5.0
        self.actors = {}
        self.frame, self.time_s, self.is_dead = 0, 0.0, False
        self.lock = threading.RLock()
        self.ticked = threading.Condition(self.lock)
        self._ids = itertools.count(1)
        self._passed_at = time.monotonic()
        self.load()
        threading.Thread(
            target=_live, args=(weakref.ref(self),), name="carla-stand-in", daemon=True
        ).start()

    def load(self):
        """Begin a new world with CARLA's default settings and without actors."""
        with self.lock:
            for actor in self.actors.values():
                actor.is_alive = False
            self.actors.clear()
            self.map = _offline_map()
            self.settings = carla.WorldSettings()
            self.snapshot = self._see(0.0)

    def answer(self):
        """Begin a client's call, and return itself; if it is dead, raise what CARLA raises."""
        if self.is_dead:
            time.sleep(self.timeout_s)
            raise _time_out(self.timeout_s)
        return self

    # -- time --------------------------------------------------------------------------------------

    def live(self):
        """Advance the world by the time passed since the last call, unless it is in synchronous
        mode.
        """
        with self.lock:
            now = time.monotonic()
            passed_s, self._passed_at = now - self._passed_at, now
            if not (self.settings.synchronous_mode or self.is_dead):
                self.advance(self.settings.fixed_delta_seconds or passed_s)
        time.sleep(self.period_s)

    def advance(self, step_s):
        """Advance by one frame, notify listeners, and return the frame's number."""
        with self.lock:
            self.frame += 1
            self.time_s += step_s
            for actor in list(self.actors.values()):
                actor.advance(step_s)
            self.snapshot = self._see(step_s)
            for actor in self.actors.values():
                actor.measure()
            self.ticked.notify_all()
            return self.frame

    def _see(self, step_s):
        seen = {actor.id: copy.copy(actor) for actor in self.actors.values()}
        return WorldSnapshot(carla.Timestamp(self.frame, self.time_s, step_s, time.time()), seen)


def _time_out(seconds):
    ready = "make sure the simulator is ready and connected to 127.0.0.1:2000"
    return RuntimeError(
        f"time-out of {seconds * 1e3:.0f}ms while waiting for the simulator, {ready}"
    )


def _offline_map():
    """Return CARLA's own map, with spawn points that otherwise only a simulator has."""

    class Map(carla.Map):
        def get_spawn_points(self):
            start = self.get_waypoint(carla.Location())
            return [start.next(s_m)[0].transform for s_m in _SPAWN_POINTS_S_M]

    return Map("Carla/Maps/Straight", open_drive())


def _live(simulator):
    """Let time pass until nobody has the simulator any more."""
    while (alive := simulator()) is not None:
        alive.live()
        del alive


# -- what a client has -----------------------------------------------------------------------------


class Client:
    """A client of a `Simulator`; without one, it starts its own."""

    def __init__(self, host="127.0.0.1", port=2000, simulator=None):
        self._simulator = simulator or Simulator()

    def set_timeout(self, second):
        self._simulator.timeout_s = second

    def get_client_version(self):
        return CLIENT_VERSION

    def get_server_version(self):
        return self._simulator.answer().version

    def get_world(self):
        return self._simulator.answer()


class BlueprintLibrary:
    """The blueprints of all actors that can be made."""

    def find(self, id):
        if id not in BLUEPRINTS:
            raise IndexError(f"blueprint '{id}' not found")
        return ActorBlueprint(id)


class ActorBlueprint:
    """A kind of actor, with its attributes."""

    def __init__(self, id):
        self.id, self.attributes = id, dict(BLUEPRINTS[id])

    def has_attribute(self, id):
        return id in self.attributes

    def set_attribute(self, id, value):
        if not isinstance(value, str):
            raise TypeError(f"attribute {id}: CARLA takes text, got {value!r}")
        self.attributes[id] = value


class WorldSnapshot:
    """The world in one frame, with copies of its actors."""

    def __init__(self, timestamp, actors):
        self.timestamp, self.frame, self._actors = timestamp, timestamp.frame, actors

    def find(self, actor_id):
        return self._actors.get(actor_id)


# -- actors ----------------------------------------------------------------------------------------


class Actor:
    """An object in the world: a vehicle or a sensor."""

    def __init__(self, simulator, id, blueprint, at, parent):
        self._simulator, self.id, self.parent = simulator, id, parent
        self.type_id, self.attributes, self.is_alive = blueprint.id, blueprint.attributes, True
        self._at, self._speed_m_s, self._turn_deg_s = at, 0.0, 0.0

    def destroy(self):
        with self._simulator.answer().lock:
            self.is_alive = False
            self._simulator.actors.pop(self.id, None)

    def get_location(self):
        return self._at.location

    def get_transform(self):
        return self._at

    def get_velocity(self):
        return self._at.get_forward_vector() * self._speed_m_s

    def get_acceleration(self):
        return carla.Vector3D()  # nobody looks at it

    def get_angular_velocity(self):
        return carla.Vector3D(z=self._turn_deg_s)

    def advance(self, step_s):
        """Move by `step_s` seconds."""

    def measure(self):
        """Deliver this frame's measurements to the listener."""

    def _check_alive(self):
        if not self.is_alive:
            raise RuntimeError(_DESTROYED)


class Vehicle(Actor):
    """A car as a bicycle model with two axles, throttle, brake and drag."""

    def __init__(self, *args):
        super().__init__(*args)
        self.bounding_box = carla.BoundingBox(carla.Location(), carla.Vector3D(2.4, 1.0, 0.75))
        self._control = carla.VehicleControl()
        self._to_place = None
        self.hit_m_s, self.crossed = 0.0, False

    def apply_control(self, control):
        self._check_alive()
        if not isinstance(control, carla.VehicleControl):
            raise TypeError(f"CARLA takes a VehicleControl, got {control!r}")
        self._control = control

    def set_transform(self, transform):
        self._to_place = transform

    def set_target_velocity(self, velocity):
        self._speed_m_s = velocity.length()

    def set_target_angular_velocity(self, angular_velocity):
        """Take it; the car only turns with its wheels."""

    def advance(self, step_s):
        if self._to_place is not None:
            self._at, self._to_place = self._to_place, None
            return
        on_lane = self.is_on_lane()
        self._roll(step_s)
        self.hit_m_s = 0.0
        if any(self._distance_m(x, y) < r + _CAR_RADIUS_M for x, y, r in self._simulator.walls):
            self.hit_m_s, self._speed_m_s = self._speed_m_s, 0.0
        self.crossed = on_lane != self.is_on_lane()

    def _roll(self, step_s):
        control = self._control
        pull = control.throttle * _THROTTLE_M_S2 - control.brake * _BRAKE_M_S2
        pull -= _DRAG_PER_S * self._speed_m_s
        self._speed_m_s = max(0.0, self._speed_m_s + pull * step_s)
        turn = self._speed_m_s / _WHEELBASE_M * math.tan(control.steer * _MOST_STEERING_RAD)
        self._turn_deg_s = math.degrees(turn)
        yaw, way_m = self._at.rotation.yaw + self._turn_deg_s * step_s, self._speed_m_s * step_s
        at = carla.Transform(self._at.location, carla.Rotation(yaw=yaw))
        self._at = carla.Transform(at.transform(carla.Location(way_m)), at.rotation)

    def is_on_lane(self):
        lane = self._simulator.map.get_waypoint(self._at.location)
        return bool(lane.transform.location.distance(self._at.location) < lane.lane_width / 2)

    def _distance_m(self, x, y):
        return math.hypot(self._at.location.x - x, self._at.location.y - y)


class Sensor(Actor):
    """A camera, lidar, collision or lane-invasion sensor; its data have the attributes of
    CARLA's.
    """

    callback = None

    def listen(self, callback):
        self.callback = callback

    def is_listening(self):
        return self.callback is not None

    def stop(self):
        self._check_alive()
        self.callback = None

    def measure(self):
        *_, kind = self.type_id.split(".")
        measured = getattr(self, f"_{kind}")(self.parent)
        if measured and self.callback is not None:
            frame, time_s = self._simulator.frame, self._simulator.time_s
            self.callback(SimpleNamespace(frame=frame, timestamp=time_s, **measured))

    def _collision(self, car):
        return car.hit_m_s and {"normal_impulse": carla.Vector3D(x=1800.0 * car.hit_m_s)}

    def _lane_invasion(self, car):
        return car.crossed and {"crossed_lane_markings": [object()]}

    def _rgb(self, car):
        """Return a picture whose blue counts frames."""
        height, width = (int(self.attributes[f"image_size_{axis}"]) for axis in "yx")
        pixel = bytes([self._simulator.frame % 256, 0, 0, 255])
        return {"width": width, "height": height, "raw_data": height * width * pixel}

    def _ray_cast(self, car):
        """Return the nearest point of each wall and points on the road; a frame that is too short
        for a whole turn sees half a turn.
        """
        points = [(5.0, 0.0, -2.1, 1.0), (-5.0, 0.0, -2.1, 1.0)]
        for x, y, radius in self._simulator.walls:
            distance_m, seen = car._distance_m(x, y), carla.Location(x, y)
            car.get_transform().inverse_transform(seen)
            share = max(0.0, distance_m - radius) / max(distance_m, 1e-6)
            points.append((seen.x * share, seen.y * share, -1.0, 0.5))
        range_m, turns_per_s = (
            float(self.attributes[name]) for name in ("range", "rotation_frequency")
        )
        reached = [p for p in points if math.hypot(*p[:2]) <= range_m]
        if self._simulator.snapshot.timestamp.delta_seconds < 1.0 / turns_per_s - 1e-6:
            reached = [p for p in reached if (p[1] >= 0) == (self._simulator.frame % 2 == 0)]
        return {"raw_data": np.array(reached, np.float32).tobytes(), "channels": 1}
