"""Typed state and action of a vehicle, which can be written as bytes and rebuilt exactly."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from tmrl_like.errors import DecodingError

if TYPE_CHECKING:
    import carla


class Record:
    """Base of frozen dataclasses of numbers that convert to and from bytes."""

    FORMAT: ClassVar[str]
    """One format letter of `struct` per field; the bytes are little-endian."""

    def to_bytes(self) -> bytes:
        """Return all fields in order, without padding."""
        return struct.pack("<" + self.FORMAT, *vars(self).values())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Rebuild what `to_bytes` wrote.

        Raises:
            DecodingError: the length is wrong, or a value is not valid for its field.
        """
        try:
            return cls(*struct.unpack("<" + cls.FORMAT, data))
        except (struct.error, ValueError) as error:
            raise DecodingError(f"{cls.__name__}: {error}") from None


@dataclass(frozen=True)
class VehicleAction(Record):
    """A driver's action: the fields of `carla.VehicleControl` without gears."""

    throttle: float = 0.0
    """0 to 1."""
    steer: float = 0.0
    """-1 (left) to 1 (right)."""
    brake: float = 0.0
    """0 to 1."""
    hand_brake: bool = False
    reverse: bool = False

    FORMAT = "ddd??"

    def __post_init__(self) -> None:
        for name, low in (("throttle", 0.0), ("steer", -1.0), ("brake", 0.0)):
            value = getattr(self, name)
            if not low <= value <= 1.0:
                raise ValueError(f"{name} is {value}; it must be between {low:g} and 1")

    @classmethod
    def from_policy(cls, action: np.ndarray[Any, Any]) -> VehicleAction:
        """Convert a policy's action.

        Args:
            action: [2]: throttle if positive or brake if negative, and steering; clipped to [-1,
                1].
        """
        drive, steer = np.clip(action, -1.0, 1.0).tolist()
        return cls(throttle=max(drive, 0.0), steer=steer, brake=max(-drive, 0.0))

    def to_control(self) -> carla.VehicleControl:
        """Return the action in CARLA's own type."""
        import carla

        return carla.VehicleControl(**vars(self))


@dataclass(frozen=True)
class VehicleState(Record):
    """A vehicle in one frame of the simulator, in CARLA's left-handed coordinates: x forward, y
    right, z up.
    """

    frame: int
    """Number of the simulator's frame."""
    time_s: float
    """Simulated time since the map was loaded."""
    x_m: float
    y_m: float
    z_m: float
    pitch_deg: float
    yaw_deg: float
    roll_deg: float
    velocity_x_m_s: float
    velocity_y_m_s: float
    velocity_z_m_s: float
    acceleration_x_m_s2: float
    acceleration_y_m_s2: float
    acceleration_z_m_s2: float
    angular_velocity_x_deg_s: float
    angular_velocity_y_deg_s: float
    angular_velocity_z_deg_s: float

    FORMAT = "Q" + 16 * "d"

    @classmethod
    def seen(cls, world: carla.WorldSnapshot, actor_id: int) -> VehicleState:
        """Read the state of one actor, all of it from one frame."""
        actor, clock = world.find(actor_id), world.timestamp
        transform = actor.get_transform()
        vectors = (actor.get_velocity(), actor.get_acceleration(), actor.get_angular_velocity())
        at, turned = transform.location, transform.rotation
        return cls(
            *(clock.frame, clock.elapsed_seconds),
            *(at.x, at.y, at.z),
            *(turned.pitch, turned.yaw, turned.roll),
            *(component for v in vectors for component in (v.x, v.y, v.z)),
        )

    @property
    def motion(self) -> tuple[float, float, float]:
        """Speed forward and to the right in m/s, and turn to the right in degrees per second."""
        forward, right = self.to_own_frame(self.velocity_x_m_s, self.velocity_y_m_s)
        return forward, right, self.angular_velocity_z_deg_s

    def to_own_frame(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Rotate a vector (or arrays of them) from world axes to the vehicle's: forward, right."""
        yaw = math.radians(self.yaw_deg)
        cos, sin = math.cos(yaw), math.sin(yaw)
        return cos * x + sin * y, cos * y - sin * x
