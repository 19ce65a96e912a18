"""The racing game of `racing`: Gymnasium's CarRacing in a process of its own, on its own clock.

It behaves as any game does: it runs whether or not it is observed, a command stays in effect until
the next one, and it shows only the newest picture and its instruments.
"""

from __future__ import annotations

import importlib.util
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np

from tmrl_like.base.device import DeviceProcess, DeviceProgram, cycles
from tmrl_like.errors import MissingExtraError

TICK_S = 1 / 50
FRAME_SHAPE = (96, 96, 3)
STATE = np.dtype(
    [
        ("starts", np.int64),  # number of restarts done
        ("position", np.float32, (2,)),  # on the map, in its units: the road is 13.3 wide
        ("speed", np.float32),  # units per second
        ("slip", np.float32),  # sideways, units per second; positive to the right
        ("turn_rate", np.float32),  # rad/s; positive to the left
        ("steering", np.float32),  # angle of the front wheels, rad; positive to the left
        ("frame", np.uint8, FRAME_SHAPE),  # RGB; the car points up
    ]
)
COASTING = -0.5  # the pedal's position between brake and gas
_FULL_GAS = 0.1  # of the game's range: gives more speed than any corner allows
_FULL_BRAKE = 0.6  # of the game's range: more would lock the wheels, and the car could not steer
# number of restarts asked for; steering, gas, brake
_COMMAND = struct.Struct("<q3f")
_START_WITHIN_S = 60.0
_RESTART_WITHIN_S = 10.0
_SILENT_FOR_S = 3.0


def gas_and_brake(pedal: float) -> tuple[float, float]:
    """Return the gas and brake of a pedal position: -1 is full brake, -0.5 nothing, 1 full gas."""
    beyond = pedal - COASTING
    gas = _FULL_GAS * max(beyond, 0.0) / (1.0 - COASTING)
    return gas, _FULL_BRAKE * max(-beyond, 0.0) / (1.0 + COASTING)


def require_game() -> None:
    """Raise MissingExtraError if the game is not installed."""
    if importlib.util.find_spec("Box2D") is None or importlib.util.find_spec("pygame") is None:
        raise MissingExtraError("the racing game is not installed: pip install 'tmrl_like[box2d]'")


class RacingGame:
    """A running game. It has no window; it ends with `close`, or with the process that started
    it.
    """

    def __init__(self, track: int) -> None:
        """Start the game with the car at the start of a track. A number always gives the same
        track.

        Raises:
            EnvironmentFaultError: the game did not start.
        """
        sizes = _COMMAND.size, STATE.itemsize
        self._process = DeviceProcess(
            "the racing game", Path(__file__), {"track": track}, *sizes, _START_WITHIN_S
        )
        self._starts = 0

    def drive(self, steering: float, gas: float, brake: float) -> None:
        """Set the controls until the next call: steering -1 (left) to 1, gas and brake 0 to 1."""
        self._process.command(_COMMAND.pack(self._starts, steering, gas, brake))

    def look(self) -> np.void:
        """Return the newest state, one `STATE`; raise EnvironmentFaultError if the game has died or
        stood still for 3 s.
        """
        return _state(self._process.look(_SILENT_FOR_S))

    def restart(self) -> None:
        """Put the car back at the start, and wait until it is there."""
        self._starts += 1
        self.drive(0.0, 0.0, 0.0)
        self._process.wait_for(
            lambda state: _state(state.data)["starts"] == self._starts,
            "restart",
            _RESTART_WITHIN_S,
        )

    def close(self) -> None:
        """End the game. Calling it twice is fine."""
        self._process.close()


def _state(data: bytes) -> np.void:
    state: np.void = np.frombuffer(data, STATE)[0]
    return state


class Simulation:
    """The game without a clock: it moves when `tick` is called."""

    def __init__(self, track: int) -> None:
        """Build the track with this number, and put the car at its start."""
        from gymnasium.envs.box2d.car_racing import CarRacing

        self._track = track
        self._env = CarRacing()
        self._starts = -1
        self.restart()

    def restart(self) -> None:
        self._starts += 1
        self._env.reset(seed=self._track)
        # skips the first second, in which the game's camera zooms in on the car
        self._env.t = 1.0
        self.tick(0.0, 0.0, 0.0)

    def tick(self, steering: float, gas: float, brake: float) -> None:
        """Advance the game by `TICK_S`; for the controls see `RacingGame.drive`."""
        frame, *_ = self._env.step(np.array([steering, gas, brake]))
        car: Any = self._env.car
        hull, wheels = car.hull, car.wheels[0].joint.angle
        speed = hull.linearVelocity.dot(hull.GetWorldVector((0, 1)))
        slip = hull.linearVelocity.dot(hull.GetWorldVector((1, 0)))
        motion = (tuple(hull.position), speed, slip, hull.angularVelocity, wheels)
        self.state = np.array((self._starts, *motion, frame), STATE)


def main() -> None:
    """Run the game in real time, for ever."""
    program = DeviceProgram()
    os.environ["SDL_VIDEODRIVER"] = "dummy"
    os.environ["PYGAME_HIDE_SUPPORT_PROMPT"] = "1"
    simulation = Simulation(program.options["track"])
    for _ in cycles(TICK_S, TICK_S):
        starts, *controls = _COMMAND.unpack(program.newest_command().data)
        if starts == simulation.state["starts"]:
            simulation.tick(*controls)
        else:
            simulation.restart()
        program.publish(simulation.state.tobytes())


if __name__ == "__main__":
    main()
