"""The robot: its driver, its clock, its delays, and what happens when it dies."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tmrl_like.base.functional import partial
from tmrl_like.envs.robot import robot_env as robot
from tmrl_like.envs.robot.driver import RobotCommand, RobotDriver, RobotState, SimulatedArm
from tmrl_like.envs.robot.physics import (
    COMMAND,
    CYCLE_S,
    LIMITS,
    MAX_ACCELERATION,
    MAX_VELOCITY,
    STATE,
    Arm,
    ArmOptions,
)
from tmrl_like.envs.robot.robot_env import HOME_RAD, RobotEnv, RobotInterface, tip_m
from tmrl_like.envs.supervision import SupervisedEnv
from tmrl_like.errors import ConfigError, EnvironmentFaultError
from tmrl_like.networking import RolloutWorker
from tmrl_like.testing.fakes import LinearActor

ROOT = Path(__file__).parents[3]
EXACT = {"jitter_s": 0.0, "position_noise_rad": 0.0, "velocity_noise_rad_s": 0.0, "command_noise": 0.0}
AT_REST = RobotCommand((0.0, 0.0))

needs_mujoco = pytest.mark.skipif(importlib.util.find_spec("mujoco") is None, reason="needs the extra mujoco")


class FakeArm:
    """A driver whose arm is where its last command would have brought it in a tenth of a second."""

    def __init__(self, moves: bool = True) -> None:
        self.is_connected = self.is_stopped = False
        self._moves = moves
        self._cycle = 0
        self._position, self._velocity = (0.5, 0.8), (0.0, 0.0)

    def connect(self) -> None:
        if not self.is_connected:
            self.is_connected, self.is_stopped = True, False

    def read_state(self) -> RobotState:
        self._check()
        self._cycle += 1
        return RobotState(self._cycle, time.perf_counter(), self._position, self._velocity, self.is_stopped)

    def send_command(self, command: RobotCommand) -> None:
        self._check()
        if not all(map(math.isfinite, command.velocity_rad_s)):
            raise EnvironmentFaultError("not finite")
        if self._moves and not self.is_stopped:
            self._velocity = command.velocity_rad_s
            self._position = tuple(x + v / 10 for x, v in zip(self._position, self._velocity, strict=True))

    def emergency_stop(self) -> None:
        self._check()
        self.is_stopped, self._velocity = True, (0.0, 0.0)

    def close(self) -> None:
        self.is_connected = False

    def _check(self) -> None:
        if not self.is_connected:
            raise EnvironmentFaultError("the arm is not connected: call connect() first")


@pytest.fixture(params=["fake", pytest.param("simulated", marks=needs_mujoco)])
def driver(request: pytest.FixtureRequest) -> Iterator[RobotDriver]:
    driver = FakeArm() if request.param == "fake" else SimulatedArm(ArmOptions(seed=0))
    yield driver
    driver.close()


def test_a_driver_connects_reads_moves_stops_and_closes(driver: RobotDriver, until: Callable[..., None]) -> None:
    for call in (driver.read_state, partial(driver.send_command, AT_REST), driver.emergency_stop):
        with pytest.raises(EnvironmentFaultError, match="not connected"):
            call()
    driver.connect()
    driver.connect()
    first = driver.read_state()
    assert len(first.position_rad) == len(first.velocity_rad_s) == 2
    assert not first.is_stopped

    def moved(after: RobotState) -> bool:
        driver.send_command(RobotCommand((1.0, -1.0)))
        now = driver.read_state()
        shoulder, elbow = np.subtract(now.position_rad, after.position_rad)
        return now.cycle > after.cycle and shoulder > 0.05 and elbow < -0.05

    until(lambda: moved(first))
    with pytest.raises(EnvironmentFaultError, match="finite"):
        driver.send_command(RobotCommand((math.nan, 0.0)))

    driver.emergency_stop()
    until(lambda: driver.read_state().is_stopped)
    until(lambda: max(map(abs, driver.read_state().velocity_rad_s)) < 0.1)
    stopped = driver.read_state()
    for _ in range(5):
        assert not moved(stopped)
        time.sleep(0.01)
    assert driver.read_state().is_stopped

    driver.close()
    driver.close()
    with pytest.raises(EnvironmentFaultError, match="not connected"):
        driver.read_state()
    driver.connect()
    begin = driver.read_state()
    assert not begin.is_stopped
    until(lambda: moved(begin))


# -- the arm, without a clock ------------------------------------------------------------------------


class Bench:
    """An arm whose time passes as fast as it can be computed; commands at once, states as they arrive."""

    def __init__(self, **options: Any) -> None:
        self.now_s = 0.0
        self.arm = Arm(ArmOptions(**{**EXACT, "seed": 0, **options}), 0.0)
        self.states: list[tuple[float, RobotState]] = []  # when it arrived, the state

    def send(self, *velocities: float, stop: bool = False) -> None:
        self.arm.receive(self.now_s, COMMAND.pack(stop, *velocities))

    def run(self, duration_s: float) -> None:
        for _ in range(round(duration_s / CYCLE_S)):
            self.now_s += CYCLE_S
            if datagram := self.arm.cycle(self.now_s):
                cycle, time_s, *numbers, is_stopped = STATE.unpack(datagram)
                state = RobotState(cycle, time_s, tuple(numbers[:2]), tuple(numbers[2:]), is_stopped)
                self.states.append((self.now_s, state))

    @property
    def speeds(self) -> list[float]:
        return [float(v) for v in self.arm.data.qvel]


@needs_mujoco
@pytest.mark.parametrize("latency_s", [0.0, 0.03])
def test_a_measurement_arrives_as_late_as_configured(latency_s: float) -> None:
    bench = Bench(sensor_latency_s=latency_s, jitter_s=0.01)
    bench.run(2.0)
    late_s = [arrived - state.time_s for arrived, state in bench.states]
    assert latency_s - 1e-9 <= min(late_s) < latency_s + 2 * CYCLE_S
    assert latency_s + 0.006 < max(late_s) <= latency_s + 0.01 + CYCLE_S + 1e-9
    cycles = [state.cycle for _, state in bench.states]
    assert cycles == sorted(set(cycles))


@needs_mujoco
@pytest.mark.parametrize("latency_s", [0.0, 0.03])
def test_a_command_acts_as_late_as_configured(latency_s: float) -> None:
    bench = Bench(command_latency_s=latency_s)
    bench.run(0.1)
    bench.send(1.0, 0.0)
    sent_s = bench.now_s
    while bench.speeds[0] < 1e-6:
        bench.run(CYCLE_S)
    assert latency_s <= bench.now_s - sent_s <= latency_s + 2 * CYCLE_S + 1e-9


@needs_mujoco
def test_measurements_and_commands_are_as_noisy_as_configured() -> None:
    bench = Bench(position_noise_rad=0.004, velocity_noise_rad_s=0.05)
    bench.run(4.0)
    states = [state for _, state in bench.states]
    for joint in range(2):
        assert statistics.stdev(s.position_rad[joint] for s in states) == pytest.approx(0.004, rel=0.1)
        assert statistics.stdev(s.velocity_rad_s[joint] for s in states) == pytest.approx(0.05, rel=0.1)

    bench = Bench(command_noise=0.1)
    executed = []
    for i in range(60):
        bench.send(0.2 * (-1) ** i, 0.0)
        bench.run(0.2)
        executed.append(abs(bench.speeds[0]))
    assert statistics.mean(executed) == pytest.approx(0.2, rel=0.1)
    assert statistics.stdev(executed) == pytest.approx(0.02, rel=0.4)


@needs_mujoco
def test_the_watchdog_brakes_an_arm_that_hears_nothing_and_lets_it_go_on() -> None:
    bench = Bench(watchdog_s=0.1, command_latency_s=0.0)
    for _ in range(2):
        bench.send(1.0, -1.0)
        bench.run(0.1)
        assert bench.speeds == pytest.approx([1.0, -1.0], abs=0.1)
        bench.run(0.3)
        assert bench.speeds == pytest.approx([0.0, 0.0], abs=0.01)
    assert not bench.arm.is_stopped


@needs_mujoco
def test_an_emergency_stop_brakes_within_the_arms_limits_and_stays() -> None:
    bench = Bench(command_latency_s=0.0)
    bench.send(MAX_VELOCITY, 0.0)
    bench.run(0.2)
    bench.send(0.0, 0.0, stop=True)
    bench.run(MAX_VELOCITY / MAX_ACCELERATION + 0.15)
    assert bench.speeds == pytest.approx([0.0, 0.0], abs=0.05)
    bench.send(1.0, 1.0)
    bench.run(0.2)
    assert bench.speeds == pytest.approx([0.0, 0.0], abs=0.01)
    assert bench.states[-1][1].is_stopped


@needs_mujoco
def test_the_arm_keeps_to_its_limits() -> None:
    bench = Bench()
    for sign in (1, -1):
        for _ in range(30):
            bench.send(100.0 * sign, 100.0 * sign)
            bench.run(0.1)
            assert max(map(abs, bench.speeds)) < 1.1 * MAX_VELOCITY
        for angle, limits in zip(bench.arm.data.qpos, LIMITS, strict=True):
            assert angle == pytest.approx(limits[sign > 0], abs=0.15)
        assert bench.arm.data.ctrl == pytest.approx([0.0, 0.0])  # it brakes there, the mechanics need not hold it


@needs_mujoco
def test_the_tip_and_the_target_as_seen_from_it_are_where_mujoco_has_them() -> None:
    bench, interface, target = Bench(), RobotInterface(FakeArm()), np.array((0.3, -0.4), np.float32)
    for _ in range(5):
        bench.send(1.5, -0.7)
        bench.run(0.1)
        import mujoco

        mujoco.mj_kinematics(bench.arm._model, bench.arm.data)
        place, axes = bench.arm.data.site_xpos[0][:2], bench.arm.data.site_xmat[0].reshape(3, 3)[:2, :2]
        assert tip_m(bench.arm.data.qpos) == pytest.approx(place, abs=1e-6)
        interface._target = target
        state = RobotState(0, 0.0, tuple(bench.arm.data.qpos), (0.0, 0.0), False)
        assert interface.observe(state)[3] == pytest.approx(axes.T @ (target - place), abs=1e-6)


# -- the arm on its own clock ------------------------------------------------------------------------


@pytest.fixture
def arm() -> Iterator[SimulatedArm]:
    if importlib.util.find_spec("mujoco") is None:
        pytest.skip("needs the extra mujoco")
    arm = SimulatedArm(ArmOptions(sensor_latency_s=0.05, seed=0))
    yield arm
    arm.close()


def test_the_arm_keeps_its_clock_while_nobody_listens_and_brakes_when_it_hears_nothing(
    arm: SimulatedArm, until: Callable[..., None]
) -> None:
    arm.connect()
    first = arm.read_state()
    arm.send_command(RobotCommand((1.0, 0.0)))
    time.sleep(0.7)
    second = arm.read_state()
    age_s = time.perf_counter() - second.time_s
    assert second.time_s - first.time_s > 0.1
    assert age_s >= 0.05
    assert 0.0 < (second.cycle - first.cycle) * CYCLE_S < 1.05 * (second.time_s - first.time_s)
    until(lambda: abs(arm.read_state().velocity_rad_s[0]) < 0.1)
    assert 0.1 < arm.read_state().position_rad[0] - first.position_rad[0] < 0.6
    assert not arm.read_state().is_stopped


def test_an_arm_whose_process_died_says_so_at_once(arm: SimulatedArm, until: Callable[..., None]) -> None:
    arm.connect()
    psutil.Process(arm.pid).kill()

    def has_ended() -> bool:  # its last threads end a moment later
        with contextlib.suppress(EnvironmentFaultError):
            arm.read_state()
            return False
        return True

    until(has_ended)
    for call in (arm.read_state, partial(arm.send_command, AT_REST), arm.emergency_stop):
        with pytest.raises(EnvironmentFaultError, match=r"^the arm's process ended with -?\d+$"):
            call()


def test_an_arm_that_cannot_start_says_why() -> None:
    pytest.importorskip("mujoco")
    arm = SimulatedArm(ArmOptions(seed=[]))  # type: ignore[arg-type]
    with pytest.raises(EnvironmentFaultError, match=r"^the arm's process ended with 1: .+$"):
        arm.connect()
    assert arm.pid is None


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="a process cannot be stopped here")
def test_an_arm_that_hangs_is_reported_and_closes(arm: SimulatedArm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tmrl_like.envs.robot.driver._SILENT_S", 0.3)
    arm.connect()
    process = psutil.Process(arm.pid)
    process.suspend()
    with pytest.raises(EnvironmentFaultError, match=r"the arm has sent no state for 0\.3 s"):
        for _ in range(1000):
            arm.read_state()
            time.sleep(0.001)
    arm.close()
    assert not process.is_running()


def test_options_that_make_no_sense_are_refused() -> None:
    for value in (-0.1, math.nan):
        with pytest.raises(ConfigError, match=f"watchdog_s is {value}; expected 0 or more"):
            ArmOptions(watchdog_s=value)


ORPHAN = """
import time
from tmrl_like.envs.robot.driver import SimulatedArm
arm = SimulatedArm()
arm.connect()
print(arm.pid, flush=True)
time.sleep(3600)
"""


@needs_mujoco
def test_the_arm_ends_when_its_driver_is_killed(until: Callable[..., None]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", ORPHAN], env=environment, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        process = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    until(lambda: not process.is_running())


# -- the environment ---------------------------------------------------------------------------------


def short_env(made: list[RobotEnv]) -> RobotEnv:
    made.append(RobotEnv(driver=partial(SimulatedArm, ArmOptions(seed=0)), ep_max_length=8))
    return made[-1]


def arm_of(env: RobotEnv) -> Any:
    return env.unwrapped.interface._driver


def test_reading_the_spaces_starts_no_arm() -> None:
    env = RobotEnv()
    assert arm_of(env).pid is None
    assert [space.shape for space in env.observation_space] == [(2,)] * 6
    env.close()


def test_an_arm_is_hardware_unless_its_driver_says_otherwise() -> None:
    class Yours:
        """Everything else is as a `RobotDriver` wants it."""

    for driver, moves in ((SimulatedArm, False), (Yours, True)):
        supervised = SupervisedEnv(partial(RobotEnv, driver))
        assert supervised.moves_hardware is moves
        supervised.env.unwrapped.interface.close = lambda: None
        supervised.close()


@needs_mujoco
@pytest.mark.filterwarnings("ignore:Time-step timed out")
def test_an_episode_begins_at_home_fits_its_spaces_and_ends_with_the_arm_at_rest() -> None:
    env = short_env([])
    for _ in range(2):
        obs, _ = env.reset()
        assert obs[0] == pytest.approx(HOME_RAD, abs=0.1)
        ended = False
        while not ended:
            obs, rew, terminated, truncated, _ = env.step(np.array((1.0, 1.0), np.float32))
            assert obs in env.observation_space
            assert rew == pytest.approx(-0.1 - np.linalg.norm(obs[3]))
            ended = terminated or truncated
    process = psutil.Process(arm_of(env).pid)
    env.close()
    assert not process.is_running()


@needs_mujoco
@pytest.mark.filterwarnings("ignore:Time-step timed out")
@pytest.mark.parametrize(
    "trouble", ["SIGKILL", *(pytest.param(t, marks=pytest.mark.long) for t in ("SIGSTOP", "emergency stop"))]
)
def test_an_arm_that_fails_is_a_fault_and_is_started_again(
    trouble: str, monkeypatch: pytest.MonkeyPatch, until: Callable[..., None]
) -> None:
    if trouble == "SIGSTOP" and not hasattr(signal, "SIGSTOP"):
        pytest.skip("a process cannot be stopped here")
    monkeypatch.setattr("tmrl_like.envs.supervision._FIRST_BACKOFF_S", 0.0)
    made: list[RobotEnv] = []
    processes: list[psutil.Process] = []

    class Troubled(LinearActor):
        """Breaks the arm in its third action."""

        def act(self, obs: Any, test: bool = False) -> Any:
            acted.append(1)
            if len(acted) == 3:
                processes.append(psutil.Process(arm_of(made[0]).pid))
                if trouble == "emergency stop":
                    arm_of(made[0]).emergency_stop()
                else:
                    os.kill(processes[0].pid, getattr(signal, trouble))
            return np.zeros(2, np.float32)

    acted: list[int] = []
    with RolloutWorker(partial(short_env, made), Troubled, standalone=True) as worker:
        assert worker.run_episode().fault
        assert not worker.run_episode().fault
        assert len(made) == 2
        assert not processes[0].is_running()
        processes.append(psutil.Process(arm_of(made[1]).pid))
    assert not processes[1].is_running()


def test_a_picture_shows_the_arm_and_its_target_from_above() -> None:
    interface = RobotInterface(FakeArm())
    interface.reset(seed=1)
    picture = interface.render()
    assert (picture.dtype, picture.shape) == (np.uint8, (300, 300, 3))
    (target_row, target_column), tip = _middle(picture == (255, 0, 0)), tip_m(HOME_RAD)
    assert (target_column, 300 - target_row) == pytest.approx(150 + 200 * interface._target, abs=2)
    assert (picture[round(150 - 200 * tip[1]), round(150 + 200 * tip[0])] == 0).all()
    assert (picture[150 - 20, 150 + 60] == 255).all()


def _middle(is_colour: np.ndarray[Any, Any]) -> tuple[float, float]:
    row, column = np.argwhere(is_colour.all(axis=-1)).mean(axis=0)
    return float(row), float(column)


def test_an_arm_that_does_not_come_home_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robot, "_HOME_WITHIN_S", 0.1)
    arm = FakeArm(moves=False)
    with pytest.raises(EnvironmentFaultError, match=r"not at home after 0\.1 s"):
        RobotInterface(arm).reset()
    assert arm.is_stopped


def test_an_arm_that_is_stopped_is_not_waited_for() -> None:
    arm = FakeArm()
    arm.connect()
    arm.emergency_stop()
    with pytest.raises(EnvironmentFaultError, match="the robot's emergency stop is on"):
        RobotInterface(arm).reset()


def test_a_seed_fixes_the_targets() -> None:
    arm = FakeArm()
    targets = []
    for seed in (1, 1, 2):
        interface = RobotInterface(arm)
        interface.reset(seed=seed)
        targets.append(interface._target.tolist())
    assert targets[0] == targets[1] != targets[2]
