"""What a robot arm's driver looks like, and one whose arm is simulated in a process of its own.

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
_STALE_S = 0.1  # a state that is older than that is waited for
_SILENT_S = 1.0


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

    Each raises EnvironmentFaultError, within a second, with one line that says what is wrong with
    the robot.

    A driver of a robot that is simulated says so: `moves_hardware = False`.
    """

    def connect(self) -> None:
        """Make the robot ready. Twice is fine."""

    def read_state(self) -> RobotState:
        """Return the newest state that has arrived."""

    def send_command(self, command: RobotCommand) -> None:
        """Order a movement. Without another command the robot brakes soon: it has a watchdog."""

    def emergency_stop(self) -> None:
        """Brake as hard as possible, and obey no command until the driver was closed and connected
        again.
        """

    def close(self) -> None:
        """Leave the robot at rest. From any thread; twice is fine."""


class SimulatedArm:
    """Driver of an arm in MuJoCo, which it starts, and which ends with it. See `RobotDriver` and
    `ArmOptions`.

    All calls but `connect` and `close` raise EnvironmentFaultError where the arm is not connected
    or its process ended.
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
            EnvironmentFaultError: it does not answer.
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
        """Return the newest state that has arrived; waits for a newer one where that is stale, for
        at most a second.
        """
        data = self._connected().look(_STALE_S, _SILENT_S)
        cycle, time_s, shoulder, elbow, shoulder_speed, elbow_speed, is_stopped = STATE.unpack(data)
        return RobotState(
            cycle, time_s, (shoulder, elbow), (shoulder_speed, elbow_speed), is_stopped
        )

    def send_command(self, command: RobotCommand) -> None:
        """Order velocities, finite ones."""
        if not all(map(math.isfinite, command.velocity_rad_s)):
            raise EnvironmentFaultError(
                f"the command is {command.velocity_rad_s} rad/s; expected finite velocities"
            )
        self._connected().command(COMMAND.pack(self._is_stopped, *command.velocity_rad_s))

    def emergency_stop(self) -> None:
        """Brake and stay: the stop is over when the arm was closed and connected again."""
        self._is_stopped = True  # in each command from now on: the arm reads the newest one only
        self._connected().command(COMMAND.pack(True, 0.0, 0.0))

    def _connected(self) -> DeviceProcess:
        arm = self._arm
        if arm is None:
            raise EnvironmentFaultError("the arm is not connected: call connect() first")
        return arm

    def close(self) -> None:
        """End the arm. From any thread; twice is fine."""
        arm, self._arm = self._arm, None
        if arm is not None:
            arm.close()
