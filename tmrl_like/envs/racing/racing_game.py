"""The racing game of `racing`: Gymnasium's CarRacing in a process of its own, on its own clock.

It stands for any game: it runs whether or not anybody looks, a command stays in effect until the next one, and
what is known of it is the newest picture and the instruments.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from tmrl_like.errors import EnvironmentFaultError, MissingExtraError

TICK_S = 1 / 50
FRAME_SHAPE = (96, 96, 3)
STATE = np.dtype(
    [
        ("tick", np.int64),  # since the game was started
        ("position", np.float32, (2,)),  # on the map, in its unit: the road is 13.3 wide
        ("speed", np.float32),  # units per second
        ("slip", np.float32),  # sideways, units per second; positive to the right
        ("turn_rate", np.float32),  # rad/s; positive to the left
        ("steering", np.float32),  # angle of the front wheels, rad; positive to the left
        ("frame", np.uint8, FRAME_SHAPE),  # RGB; the car points up
    ]
)
_SLOTS = 4  # a state that is being read is written over this many ticks later
_START_WITHIN_S = 60.0
_RESTART_WITHIN_S = 10.0
_SILENT_FOR_S = 3.0
_CLOSE_WITHIN_S = 1.0


def require_game() -> None:
    """Raise MissingExtraError where the game is not installed."""
    if importlib.util.find_spec("Box2D") is None or importlib.util.find_spec("pygame") is None:
        raise MissingExtraError("the racing game is not installed: pip install 'tmrl_like[box2d]'")


class RacingGame:
    """A running game. It has no window; it ends with `close`, or with the process that started it."""

    def __init__(self, track: int) -> None:
        """Start it; the car stands at the start of the track of this number, always the same one.

        Raises:
            MissingExtraError: it is not installed.
            EnvironmentFaultError: it did not start.
        """
        require_game()
        context = multiprocessing.get_context("spawn")
        states = context.RawArray("b", _SLOTS * STATE.itemsize)
        newest = context.RawValue("q", -1)
        command = context.RawArray("f", 3)
        self._states = np.frombuffer(states, STATE)
        self._newest, self._command = newest, np.frombuffer(command, np.float32)
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_run, args=(theirs, states, newest, command, track), name="racing game", daemon=True
        )
        self._process.start()
        theirs.close()
        self._seen, self._seen_at = -1, 0.0
        try:
            self._answer("start", _START_WITHIN_S)
        except BaseException:
            self.close()
            raise

    def drive(self, steering: float, gas: float, brake: float) -> None:
        """Set the controls, which stay until the next call: steering -1 (left) to 1, gas and brake 0 to 1."""
        self._command[:] = (steering, gas, brake)

    def look(self) -> Any:
        """The newest state, a copy of one `STATE`; EnvironmentFaultError: the game has died, or stood still for 3 s."""
        while True:
            newest = self._newest.value
            state = self._states[newest % _SLOTS].copy()
            if self._newest.value < newest + _SLOTS - 1:
                break
        now = time.monotonic()
        if newest != self._seen:
            self._seen, self._seen_at = newest, now
        elif not self._process.is_alive():
            raise EnvironmentFaultError(f"the racing game has died (exit code {self._process.exitcode})")
        elif now - self._seen_at > _SILENT_FOR_S:
            raise EnvironmentFaultError(f"the racing game has stood still for {now - self._seen_at:.1f} s")
        return state

    def restart(self) -> None:
        """Put the car back to the start, and wait until it is there."""
        self.drive(0.0, 0.0, 0.0)
        try:
            self._pipe.send_bytes(b"restart")
        except OSError as error:
            raise EnvironmentFaultError(f"the racing game has died: {error}") from None
        self._answer("restart", _RESTART_WITHIN_S)

    def close(self) -> None:
        """End the game. Twice is fine."""
        self._pipe.close()
        if self._process.pid is None:
            return
        for end in (self._process.terminate, self._process.kill):
            end()
            self._process.join(_CLOSE_WITHIN_S)

    def _answer(self, request: str, within_s: float) -> None:
        try:
            if self._pipe.poll(within_s):
                self._pipe.recv_bytes()
                self._seen_at = time.monotonic()
                return
        except (EOFError, OSError):
            self._process.join(_CLOSE_WITHIN_S)
            raise EnvironmentFaultError(
                f"the racing game died during {request} (exit code {self._process.exitcode})"
            ) from None
        raise EnvironmentFaultError(f"the racing game did not {request} within {within_s:g} s")


# -- in the game's process ---------------------------------------------------------------------------


def _run(pipe: Connection, states: Any, newest: Any, command: Any, track: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the pipe's end ends the game
    os.environ["SDL_VIDEODRIVER"] = "dummy"
    os.environ["PYGAME_HIDE_SUPPORT_PROMPT"] = "1"
    slots, controls = np.frombuffer(states, STATE), np.frombuffer(command, np.float32)
    simulation = Simulation(track)

    def publish() -> None:
        slots[(newest.value + 1) % _SLOTS] = simulation.state
        newest.value += 1

    try:
        publish()
        pipe.send_bytes(b"started")
        next_tick = time.perf_counter() + TICK_S
        while True:
            if pipe.poll(max(0.0, next_tick - time.perf_counter())):
                pipe.recv_bytes()
                simulation.restart()
                publish()
                pipe.send_bytes(b"restarted")
                next_tick = time.perf_counter()
            elif time.perf_counter() >= next_tick:
                simulation.tick(*controls)
                publish()
                next_tick = max(next_tick, time.perf_counter() - TICK_S) + TICK_S  # what is late by more is lost
    except (EOFError, OSError):
        return


class Simulation:
    """The game without a clock: it moves when `tick` is called."""

    def __init__(self, track: int) -> None:
        """Build the track of this number; the car stands at its start."""
        from gymnasium.envs.box2d.car_racing import CarRacing

        self._track = track
        self._env = CarRacing()
        self._ticks = 0
        self.restart()

    def restart(self) -> None:
        self._env.reset(seed=self._track)
        self._env.t = 1.0  # the camera is near: the game would take a second to come down to the car
        self.tick(0.0, 0.0, 0.0)

    def tick(self, steering: float, gas: float, brake: float) -> None:
        """Move on by `TICK_S`; see `RacingGame.drive`."""
        frame, *_ = self._env.step(np.array([steering, gas, brake]))
        self._ticks += 1
        car: Any = self._env.car
        to_the_front, to_the_right = car.hull.GetWorldVector((0, 1)), car.hull.GetWorldVector((1, 0))
        velocity = car.hull.linearVelocity
        motion = (velocity.dot(to_the_front), velocity.dot(to_the_right), car.hull.angularVelocity)
        wheels = car.wheels[0].joint.angle
        self.state = np.array((self._ticks, tuple(car.hull.position), *motion, wheels, frame), STATE)
