"""The interface of a robot arm's driver, and a driver whose arm is simulated in a process of its
own.

A real arm: driver ── field bus ── controller and motors.
This one: driver ── shared memory ── controller and MuJoCo, 500 Hz on their own clock.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from pathlib import Path
from typing import NamedTuple, Protocol

from tmrl_like.base.device import DeviceProcess
from tmrl_like.envs.robot import physics
from tmrl_like.envs.robot.physics import COMMAND, STATE, ArmOptions
from tmrl_like.errors import EnvironmentFaultError, MissingExtraError

_CONNECT_WITHIN_S = 20.0
_STALE_S = 0.1  # `read_state` waits for a newer state if the newest is older than this
_SILENT_S = 1.0


class RobotState(NamedTuple):
    """The arm's newest measurement that has arrived.

    Attributes:
        cycle: number of the controller's cycle; counts up by `1 / CYCLE_S` a second.
        time_s: time of the measurement, on the clock of `time.perf_counter`.
        position_rad: positions of shoulder and elbow.
        velocity_rad_s: velocities of shoulder and elbow.
        is_stopped: whether the emergency stop is on.
    """

    cycle: int
    time_s: float
    position_rad: tuple[float, float]
    velocity_rad_s: tuple[float, float]
    is_stopped: bool


def state_of(data: bytes) -> RobotState:
    """Return the state in the bytes that the simulated arm sends."""
    cycle, time_s, *numbers, is_stopped = STATE.unpack(data)
    shoulder, elbow, shoulder_speed, elbow_speed = numbers
    return RobotState(cycle, time_s, (shoulder, elbow), (shoulder_speed, elbow_speed), is_stopped)


class RobotCommand(NamedTuple):
    """What the arm does until the next command.

    Attributes:
        velocity_rad_s: velocities of shoulder and elbow; the arm limits them to what it can do.
    """

    velocity_rad_s: tuple[float, float]


class RobotDriver(Protocol):
    """The methods that an environment needs of a robot. None of them waits for the robot to move.

    On a fault of the robot, each raises EnvironmentFaultError within a second; the message is one
    line that says what is wrong.

    The driver of a simulated robot declares `moves_hardware = False`.
    """

    def connect(self) -> None:
        """Make the robot ready. Calling it twice is fine."""

    def read_state(self) -> RobotState:
        """Return the newest state that has arrived."""

    def send_command(self, command: RobotCommand) -> None:
        """Start a movement. Without another command the robot soon brakes: it has a watchdog."""

    def emergency_stop(self) -> None:
        """Brake as hard as possible, and ignore commands until the driver has been closed and
        connected again.
        """

    def close(self) -> None:
        """Leave the robot at rest, also if `connect` raised. Any thread; any number of times."""


class SimulatedArm:
    """Driver of a simulated arm in MuJoCo, which it starts and ends; see `RobotDriver` and
    `ArmOptions`.

    All calls but `connect` and `close` raise EnvironmentFaultError if the arm is not connected or
    its process has ended.
    """

    moves_hardware = False

    def __init__(self, options: ArmOptions = ArmOptions()) -> None:  # noqa: B008 - frozen
        self._options = options
        self._arm: DeviceProcess | None = None
        self._is_stopped = False

    def connect(self) -> None:
        """Start the arm.

        Raises:
            MissingExtraError: MuJoCo is not installed.
            EnvironmentFaultError: the arm does not answer.
        """
        if self._arm is not None:
            return
        if importlib.util.find_spec("mujoco") is None:
            raise MissingExtraError(
                "the simulated arm needs MuJoCo: pip install 'tmrl_like[mujoco]'"
            )
        options = dataclasses.asdict(self._options)
        script = Path(physics.__file__)
        self._arm = DeviceProcess(
            "the arm", script, options, COMMAND.size, STATE.size, _CONNECT_WITHIN_S
        )
        self._is_stopped = False

    def read_state(self) -> RobotState:
        """Return the newest state that has arrived; if it is stale (over 0.1 s old), wait for a
        newer one for at most a second.
        """
        return state_of(self._connected().look(_STALE_S, _SILENT_S))

    def send_command(self, command: RobotCommand) -> None:
        """Send velocities, which must be finite."""
        if not all(map(math.isfinite, command.velocity_rad_s)):
            raise EnvironmentFaultError(
                f"the command is {command.velocity_rad_s} rad/s; expected finite velocities"
            )
        self._connected().command(COMMAND.pack(self._is_stopped, *command.velocity_rad_s))

    def emergency_stop(self) -> None:
        """Brake and stay stopped until the arm has been closed and connected again."""
        self._is_stopped = True  # repeated in each command, because the arm reads only the newest
        self._connected().command(COMMAND.pack(True, 0.0, 0.0))

    def _connected(self) -> DeviceProcess:
        arm = self._arm
        if arm is None:
            raise EnvironmentFaultError("the arm is not connected: call connect() first")
        return arm

    def close(self) -> None:
        """End the arm's process. Any thread; calling it twice is fine."""
        arm, self._arm = self._arm, None
        if arm is not None:
            arm.close()
