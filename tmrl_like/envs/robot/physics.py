"""A simulated two-joint arm with its controller, on its own clock at 500 cycles a second; it is run
as a script, by its path.

The arm moves in the horizontal plane and takes velocities. Its measurements and commands travel as
on the field bus of a real arm: late, noisy, and without anyone waiting for them. It ends with the
process that started it.
"""

from __future__ import annotations

import math
import random
import struct
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from tmrl_like.base.device import DeviceProgram, cycles
from tmrl_like.base.options import NotNegative, Options

CYCLE_S = 0.002
MAX_VELOCITY = 2.0  # rad/s, each joint
MAX_ACCELERATION = 20.0  # rad/s^2, each joint
# rad, shoulder and elbow; the controller brakes here, before the mechanical stops
LIMITS = ((-1.7, 1.7), (0.2, 2.5))

# cycle, when measured (time.perf_counter), positions, velocities, is stopped
STATE = struct.Struct("<Qd2d2d?")
COMMAND = struct.Struct("<?2d")  # emergency stop, velocities

# after a longer delay of the process, the arm does not catch up
_MAX_BEHIND_S = 0.1
_MODEL = f"""
<mujoco model="two-joint arm">
  <option timestep="{CYCLE_S}" integrator="implicitfast"/>
  <compiler angle="radian" autolimits="true"/>
  <default>
    <joint axis="0 0 1" damping="0.5" armature="0.05"/>
    <geom type="capsule" size="0.03" contype="0" conaffinity="0"/>
    <velocity kv="20" forcerange="-60 60"/>
  </default>
  <worldbody>
    <body>
      <joint name="shoulder" range="-1.8 1.8"/>
      <geom fromto="0 0 0 0.4 0 0" mass="2"/>
      <body pos="0.4 0 0">
        <joint name="elbow" range="0.1 2.6"/>
        <geom fromto="0 0 0 0.3 0 0" mass="1"/>
        <site name="tip" pos="0.3 0 0"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <velocity joint="shoulder"/>
    <velocity joint="elbow"/>
  </actuator>
</mujoco>
"""


@dataclass(frozen=True, kw_only=True)
class ArmOptions(Options):
    """The simulated arm's delays and noise.

    Attributes:
        sensor_latency_s: shortest time from a measurement to its arrival.
        command_latency_s: shortest time from a command to its arrival at the controller.
        jitter_s: largest additional delay of either; drawn uniformly.
        position_noise_rad: standard deviation of a measured joint position.
        velocity_noise_rad_s: standard deviation of a measured joint velocity.
        command_noise: standard deviation of the velocity that is executed, as a share of the
            commanded one.
        watchdog_s: the arm brakes when no command has arrived for this many seconds.
        seed: seed of jitter and noise; none for a different one each time.
    """

    sensor_latency_s: NotNegative = 0.015
    command_latency_s: NotNegative = 0.015
    jitter_s: NotNegative = 0.01
    position_noise_rad: NotNegative = 0.001
    velocity_noise_rad_s: NotNegative = 0.02
    command_noise: NotNegative = 0.02
    watchdog_s: NotNegative = 0.25
    seed: int | None = None


class Line:
    """A line on which messages arrive late, in the order in which they were sent. Times are in
    seconds.
    """

    def __init__(self, rng: random.Random, latency_s: float, jitter_s: float) -> None:
        self._rng, self._latency_s, self._jitter_s = rng, latency_s, jitter_s
        self._last_arrival_s = -math.inf
        self._messages: deque[tuple[float, Any]] = deque()

    def put(self, now_s: float, message: Any) -> None:
        late_s = self._latency_s + self._jitter_s * self._rng.random()
        self._last_arrival_s = max(self._last_arrival_s, now_s + late_s)
        self._messages.append((self._last_arrival_s, message))

    def arrived(self, now_s: float) -> list[Any]:
        messages = []
        while self._messages and self._messages[0][0] <= now_s:
            messages.append(self._messages.popleft()[1])
        return messages


class Arm:
    """The arm and its controller. The caller runs one cycle after another, on any clock."""

    def __init__(self, options: ArmOptions, now_s: float) -> None:
        import mujoco

        self._step = mujoco.mj_step
        self.model = mujoco.MjModel.from_xml_string(_MODEL)
        self.data = mujoco.MjData(self.model)
        self.data.qpos[:] = [sum(limits) / 2 for limits in LIMITS]
        self.cycles = 0
        self.is_stopped = False
        self._options = options
        self._rng = random.Random(options.seed)
        self._commands = Line(self._rng, options.command_latency_s, options.jitter_s)
        self._measurements = Line(self._rng, options.sensor_latency_s, options.jitter_s)
        self._ordered = [0.0, 0.0]
        self._setpoint = [0.0, 0.0]
        self._heard_at_s = now_s

    def receive(self, now_s: float, message: bytes) -> None:
        """Put a command of the driver on its way to the controller."""
        self._commands.put(now_s, COMMAND.unpack(message))

    def cycle(self, now_s: float) -> bytes | None:
        """Control and move the arm for `CYCLE_S`, and measure.

        Returns:
            The newest measurement that has arrived at the driver by now; None if there is no new
            one.
        """
        self._control(now_s)
        self._step(self.model, self.data)
        self.cycles += 1
        self._measurements.put(now_s, self._measure(now_s))
        arrived: list[bytes] = self._measurements.arrived(now_s)
        return arrived[-1] if arrived else None

    def _control(self, now_s: float) -> None:
        for stop, *velocities in self._commands.arrived(now_s):
            self._heard_at_s = now_s
            self.is_stopped |= stop
            self._ordered = [
                v * self._rng.gauss(1.0, self._options.command_noise) for v in velocities
            ]
        brakes = self.is_stopped or now_s - self._heard_at_s > self._options.watchdog_s
        most = MAX_ACCELERATION * CYCLE_S
        for i, (low, high) in enumerate(LIMITS):
            wanted = 0.0 if brakes else min(max(self._ordered[i], -MAX_VELOCITY), MAX_VELOCITY)
            position = self.data.qpos[i]
            if (position <= low and wanted < 0) or (position >= high and wanted > 0):
                wanted = 0.0
            self._setpoint[i] += min(max(wanted - self._setpoint[i], -most), most)
        self.data.ctrl[:] = self._setpoint

    def _measure(self, now_s: float) -> bytes:
        gauss, options = self._rng.gauss, self._options
        positions = [gauss(x, options.position_noise_rad) for x in self.data.qpos]
        velocities = [gauss(v, options.velocity_noise_rad_s) for v in self.data.qvel]
        return STATE.pack(self.cycles, now_s, *positions, *velocities, self.is_stopped)


def main() -> None:
    """Run the arm in real time, for ever."""
    program = DeviceProgram()
    arm = Arm(ArmOptions(**program.options), time.perf_counter())
    heard = 0  # number of the last command
    for due_s in cycles(CYCLE_S, _MAX_BEHIND_S):
        command = program.newest_command()
        if command.number != heard:
            heard = command.number
            arm.receive(due_s, command.data)
        state = arm.cycle(due_s)
        if state is not None:
            program.publish(state)


if __name__ == "__main__":
    main()
