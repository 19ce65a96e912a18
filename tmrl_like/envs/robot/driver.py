"""What a robot arm's driver looks like, and one whose arm is simulated in a process of its own.

A real arm: driver ── field bus ── controller and motors.
This one: driver ── UDP, loopback ── controller and MuJoCo, 500 Hz on their own clock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import math
import secrets
import select
import socket
import subprocess
import time
from pathlib import Path
from typing import NamedTuple, Protocol

from tmrl_like.base.processes import start_script
from tmrl_like.envs.robot import physics
from tmrl_like.envs.robot.physics import COMMAND, STATE, ArmOptions
from tmrl_like.errors import EnvironmentFaultError, MissingExtraError

_CONNECT_WITHIN_S = 20.0
_STALE_S = 0.1  # a state that is older by this than it has to be is waited for
_SILENT_S = 1.0
_LOOK_S = 0.05


class RobotState(NamedTuple):
    """What the arm measured last, as far as it has arrived.

    Attributes:
        cycle: of the controller; counts up by `1 / CYCLE_S` a second.
        time_s: when it was measured, on the clock of `time.perf_counter`.
        position_rad: of shoulder and elbow.
        velocity_rad_s: of shoulder and elbow.
        is_stopped: the emergency stop is on.
    """

    cycle: int
    time_s: float
    position_rad: tuple[float, float]
    velocity_rad_s: tuple[float, float]
    is_stopped: bool


class RobotCommand(NamedTuple):
    """What the arm shall do from now on, until the next command.

    Attributes:
        velocity_rad_s: of shoulder and elbow. Beyond the arm's limits it moves at its limits.
    """

    velocity_rad_s: tuple[float, float]


class RobotDriver(Protocol):
    """What an environment asks of a robot. Nothing here waits for the robot to move.

    Each raises EnvironmentFaultError, within a second, with one line that says what is wrong with the robot.

    A driver of a robot that is simulated says so: `moves_hardware = False`.
    """

    def connect(self) -> None:
        """Make the robot ready. Twice is fine."""

    def read_state(self) -> RobotState:
        """Return the newest state that has arrived."""

    def send_command(self, command: RobotCommand) -> None:
        """Order a movement. Without another command the robot brakes soon: it has a watchdog."""

    def emergency_stop(self) -> None:
        """Brake as hard as possible, and obey no command until the driver was closed and connected again."""

    def close(self) -> None:
        """Leave the robot at rest. From any thread; twice is fine."""


class SimulatedArm:
    """Driver of an arm in MuJoCo, which it starts, and which ends with it. See `RobotDriver` and `ArmOptions`.

    All calls but `connect` and `close` raise EnvironmentFaultError where the arm is not connected or its process ended.
    """

    moves_hardware = False

    def __init__(self, options: ArmOptions = ArmOptions()) -> None:  # noqa: B008 - frozen
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._bus: socket.socket | None = None
        self._newest: RobotState | None = None

    @property
    def pid(self) -> int | None:
        """Process of the arm; none before `connect`."""
        return self._process.pid if self._process is not None else None

    def connect(self) -> None:
        """Start the arm.

        Raises:
            MissingExtraError: MuJoCo is not installed.
            EnvironmentFaultError: it does not answer.
        """
        if self._process is not None:
            return
        if importlib.util.find_spec("mujoco") is None:
            raise MissingExtraError("the simulated arm needs MuJoCo: pip install 'tmrl_like[mujoco]'")
        token = secrets.token_hex(16).encode()
        self._bus = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._bus.bind(("127.0.0.1", 0))
        self._bus.setblocking(False)
        pipe = subprocess.PIPE
        self._process = start_script(Path(physics.__file__), stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe)
        job = {"port": self._bus.getsockname()[1], "token": token.decode()}
        job["options"] = dataclasses.asdict(self._options)
        assert self._process.stdin is not None
        try:
            with self._process.stdin as stdin:
                stdin.write(json.dumps(job).encode())
            self._connect_bus(token)
            self.read_state()
        except BaseException:
            self.close()
            raise

    def _connect_bus(self, token: bytes) -> None:
        """Wait for the arm's first datagram, and listen to nobody else from then on."""
        assert self._bus is not None
        deadline_s = time.monotonic() + _CONNECT_WITHIN_S
        while time.monotonic() < deadline_s:
            self._check_process()
            if select.select([self._bus], [], [], _LOOK_S)[0]:
                datagram, address = self._bus.recvfrom(len(token) + 1)
                if datagram == token:
                    return self._bus.connect(address)
        raise EnvironmentFaultError(f"the arm has not answered for {_CONNECT_WITHIN_S:g} s")

    def read_state(self) -> RobotState:
        """Return the newest state that has arrived; waits for a newer one where that is stale, for at most a second."""
        bus = self._connected()
        stale_s = _STALE_S + self._options.sensor_latency_s + self._options.jitter_s
        deadline_s = time.monotonic() + _SILENT_S
        while True:
            datagram = b""
            with contextlib.suppress(OSError):  # nothing more
                while True:
                    datagram = bus.recv(STATE.size + 1)
            if len(datagram) == STATE.size:
                cycle, time_s, shoulder, elbow, shoulder_speed, elbow_speed, is_stopped = STATE.unpack(datagram)
                self._newest = RobotState(cycle, time_s, (shoulder, elbow), (shoulder_speed, elbow_speed), is_stopped)
            if self._newest is not None and time.perf_counter() - self._newest.time_s < stale_s:
                return self._newest
            if time.monotonic() >= deadline_s:
                raise EnvironmentFaultError(f"the arm has sent no state for {_SILENT_S:g} s: its process hangs")
            select.select([bus], [], [], _LOOK_S)
            self._check_process()

    def send_command(self, command: RobotCommand) -> None:
        """Order velocities, finite ones."""
        if not all(map(math.isfinite, command.velocity_rad_s)):
            raise EnvironmentFaultError(f"the command is {command.velocity_rad_s} rad/s; expected finite velocities")
        self._send(COMMAND.pack(False, *command.velocity_rad_s))

    def emergency_stop(self) -> None:
        """Brake and stay: the stop is over when the arm was closed and connected again."""
        self._send(COMMAND.pack(True, 0.0, 0.0))

    def _send(self, datagram: bytes) -> None:
        bus = self._connected()
        try:
            bus.send(datagram)
        except OSError as error:
            self._check_process()
            raise EnvironmentFaultError(f"the command did not reach the arm: {error}") from None

    def _connected(self) -> socket.socket:
        bus = self._bus
        if bus is None:
            raise EnvironmentFaultError("the arm is not connected: call connect() first")
        self._check_process()
        return bus

    def _check_process(self) -> None:
        process = self._process
        if process is not None and process.poll() is not None:
            assert process.stderr is not None
            last_words = process.stderr.read().decode(errors="replace").strip().splitlines()[-1:]
            raise EnvironmentFaultError(": ".join((f"the arm's process ended with {process.returncode}", *last_words)))

    def close(self) -> None:
        """End the arm. From any thread; twice is fine."""
        process, bus = self._process, self._bus
        self._process = self._bus = self._newest = None
        if bus is not None:
            bus.close()
        if process is not None:
            process.kill()
            process.wait()
            process.stderr.close()  # type: ignore[union-attr]
