"""The robot: its driver, its clock, its delays, and what happens when its process dies."""

import importlib.util
import math
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from tmrl_like.base.functional import partial
from tmrl_like.envs.robot.driver import RobotCommand, RobotState, SimulatedArm, state_of
from tmrl_like.envs.robot.physics import (
    COMMAND,
    CYCLE_S,
    LIMITS,
    MAX_ACCELERATION,
    MAX_VELOCITY,
    Arm,
    ArmOptions,
)
from tmrl_like.envs.robot.robot_env import HOME_RAD, REACHED_M, RobotEnv, RobotInterface, tip_m
from tmrl_like.envs.supervision import SupervisedEnv
from tmrl_like.errors import EnvironmentFaultError

EXACT = ArmOptions(
    jitter_s=0.0, position_noise_rad=0.0, velocity_noise_rad_s=0.0, command_noise=0.0, seed=0
)

needs_mujoco = pytest.mark.skipif(
    importlib.util.find_spec("mujoco") is None, reason="needs the extra mujoco"
)


def still_at(position_rad, velocity_rad_s=0.0):
    """Return a state in which only the shoulder moves, if anything does."""
    return RobotState(0, 0.0, tuple(position_rad), (velocity_rad_s, 0.0), False)


class FakeArm:
    """A driver whose arm is where its last command would have moved it in 0.1 s."""

    def __init__(self, position=(0.5, 0.8), moves=True):
        self.state, self.moves, self.sent = still_at(position), moves, []

    def connect(self): ...

    def read_state(self):
        return self.state

    def send_command(self, command):
        self.sent.append(command.velocity_rad_s)
        if self.moves:
            self.state = still_at(np.add(self.state.position_rad, np.divide(self.sent[-1], 10)))

    def emergency_stop(self):
        self.state = self.state._replace(is_stopped=True)

    def close(self): ...


@pytest.fixture
def driver():
    driver = SimulatedArm(ArmOptions(seed=0))
    yield driver
    driver.close()


@needs_mujoco
def test_a_driver_connects_reads_moves_stops_and_closes(driver, until):
    def moves_on():
        driver.send_command(RobotCommand((1.0, -1.0)))
        shoulder, elbow = driver.read_state().velocity_rad_s
        return shoulder > 0.5 and elbow < -0.5

    for _ in range(2):
        for call in (driver.read_state, driver.emergency_stop):
            with pytest.raises(EnvironmentFaultError, match="not connected"):
                call()
        driver.connect()
        driver.connect()
        assert not driver.read_state().is_stopped
        until(moves_on)
        with pytest.raises(EnvironmentFaultError, match="finite"):
            driver.send_command(RobotCommand((math.nan, 0.0)))
        driver.emergency_stop()
        until(lambda: driver.read_state().is_stopped)
        until(lambda: max(map(abs, driver.read_state().velocity_rad_s)) < 0.1)
        driver.close()
        driver.close()


# -- the arm, without a clock ----------------------------------------------------------------------


class Bench:
    """An arm in simulated time, which takes commands at once and records states as they arrive."""

    def __init__(self, **options):
        self.now_s = 0.0
        self.arm = Arm(replace(EXACT, **options), 0.0)
        self.states = []  # (time of arrival, state)

    def send(self, *velocities, stop=False):
        self.arm.receive(self.now_s, COMMAND.pack(stop, *velocities))

    def run(self, duration_s):
        for _ in range(round(duration_s / CYCLE_S)):
            self.now_s += CYCLE_S
            if data := self.arm.cycle(self.now_s):
                self.states.append((self.now_s, state_of(data)))

    @property
    def speeds(self):
        return [float(v) for v in self.arm.data.qvel]


@needs_mujoco
@pytest.mark.parametrize("latency_s", [0.0, 0.03])
def test_measurements_arrive_and_commands_act_as_late_as_configured(latency_s):
    bench = Bench(sensor_latency_s=latency_s, command_latency_s=latency_s, jitter_s=0.01)
    bench.run(2.0)
    late_s = [arrived - state.time_s for arrived, state in bench.states]
    assert latency_s - 1e-9 <= min(late_s) < latency_s + 2 * CYCLE_S
    assert latency_s + 0.006 < max(late_s) <= latency_s + 0.01 + CYCLE_S + 1e-9
    cycles = [state.cycle for _, state in bench.states]
    assert cycles == sorted(set(cycles))
    bench.send(1.0, 0.0)
    sent_s = bench.now_s
    while bench.speeds[0] < 1e-6:
        bench.run(CYCLE_S)
    assert latency_s <= bench.now_s - sent_s <= latency_s + 0.01 + 2 * CYCLE_S + 1e-9


@needs_mujoco
def test_measurements_and_commands_are_as_noisy_as_configured():
    bench = Bench(position_noise_rad=0.004, velocity_noise_rad_s=0.05)
    bench.run(4.0)
    spread = np.std([(s.position_rad, s.velocity_rad_s) for _, s in bench.states], axis=0)
    assert spread == pytest.approx(np.array([[0.004, 0.004], [0.05, 0.05]]), rel=0.1)

    bench, executed = Bench(command_noise=0.1), []
    for i in range(60):
        bench.send(0.2 * (-1) ** i, 0.0)
        bench.run(0.2)
        executed.append(abs(bench.speeds[0]))
    assert np.std(executed) == pytest.approx(0.02, rel=0.4)


@needs_mujoco
def test_the_watchdog_brakes_an_arm_that_hears_nothing_and_lets_it_go_on():
    bench = Bench(watchdog_s=0.1, command_latency_s=0.0)
    for _ in range(2):
        bench.send(1.0, -1.0)
        bench.run(0.1)
        assert bench.speeds == pytest.approx([1.0, -1.0], abs=0.1)
        bench.run(0.3)
        assert bench.speeds == pytest.approx([0.0, 0.0], abs=0.01)
    assert not bench.arm.is_stopped


@needs_mujoco
def test_an_emergency_stop_brakes_within_the_arms_limits_and_stays():
    bench = Bench(command_latency_s=0.0)
    bench.send(MAX_VELOCITY, 0.0)
    bench.run(0.2)
    bench.send(0.0, 0.0, stop=True)
    bench.run(MAX_VELOCITY / MAX_ACCELERATION + 0.15)
    bench.send(1.0, 1.0)
    bench.run(0.01)
    assert bench.speeds == pytest.approx([0.0, 0.0], abs=0.05)
    assert bench.states[-1][1].is_stopped


@needs_mujoco
def test_the_arm_keeps_to_its_limits():
    bench = Bench()
    for sign, ends in zip((-1, 1), np.transpose(LIMITS), strict=True):
        for _ in range(30):
            bench.send(*2 * [100.0 * sign])
            bench.run(0.1)
            assert max(map(abs, bench.speeds)) < 1.1 * MAX_VELOCITY
        assert bench.arm.data.qpos == pytest.approx(ends, abs=0.15)
        # it brakes there, without being held by the end stop
        assert bench.arm.data.ctrl == pytest.approx([0.0, 0.0])


# -- the environment -------------------------------------------------------------------------------


def test_an_arm_is_hardware_unless_its_driver_says_otherwise():
    for driver, moves in ((SimulatedArm, False), (FakeArm, True)):
        with closing(SupervisedEnv(partial(RobotEnv, driver))) as env:
            assert env.moves_hardware is moves


def test_an_arm_that_does_not_come_home_is_stopped_and_not_waited_for_again():
    arm = FakeArm(moves=False)
    for told in (r"not at home after 0\.1 s", "the robot's emergency stop is on"):
        with pytest.raises(EnvironmentFaultError, match=told):
            RobotInterface(arm, home_within_s=0.1).reset()
    assert arm.state.is_stopped


def test_a_measurement_that_is_no_number_moves_nothing():
    arm = FakeArm((0.5, math.nan))
    with pytest.raises(EnvironmentFaultError, match=r"measured positions \(0\.5, nan\) rad"):
        RobotInterface(arm).reset()
    assert arm.sent == []


def test_an_arm_that_nobody_drives_stands_until_the_next_reset():
    interface = RobotInterface(arm := FakeArm())
    interface.reset()
    interface.send_control((1.0, 0.5))
    interface.stop()
    assert arm.sent[-2:] == [(1.0, 0.5), (0.0, 0.0)]
    for expected in ((0.0, 0.0), (1.0, 0.5)):  # the first as from a reset that still moves home
        interface.send_control((1.0, 0.5))
        assert arm.sent[-1] == expected
        interface.reset()


def test_an_arm_that_is_not_connected_needs_no_stop():
    RobotInterface(SimulatedArm()).stop()  # each call of this driver would raise
    interface = RobotInterface(arm := FakeArm())
    interface.reset()
    interface.close()
    sent = len(arm.sent)
    interface.stop()
    assert len(arm.sent) == sent


def test_an_arm_that_moves_before_it_is_connected_is_stopped_or_closed():
    class SwitchedOn(FakeArm):
        is_on = False

        def connect(self):
            self.is_on = True
            interface.stop()  # as by another thread, while this hangs
            raise TimeoutError("no state within 1 s")

        def close(self):
            self.is_on = False

    interface = RobotInterface(arm := SwitchedOn())
    with pytest.raises(TimeoutError, match="no state"):
        interface.reset()
    assert not arm.is_on
    interface.stop()
    assert arm.sent == [(0.0, 0.0)]


@needs_mujoco
def test_the_tip_and_the_target_as_seen_from_it_are_where_mujoco_has_them():
    import mujoco

    arm, interface = Arm(EXACT, 0.0), RobotInterface(FakeArm())
    interface.reset(seed=1)
    for position in ((0.3, 1.0), (-0.9, 1.9)):
        arm.data.qpos = position
        mujoco.mj_kinematics(arm.model, arm.data)
        place, axes = arm.data.site_xpos[0][:2], arm.data.site_xmat[0].reshape(3, 3)[:2, :2]
        assert tip_m(position) == pytest.approx(place, abs=1e-6)
        *_, way = interface.observe(still_at(position))
        assert way == pytest.approx(axes.T @ (interface.target_m - place), abs=1e-6)


def test_an_episode_begins_at_home_and_ends_where_the_tip_rests_on_its_target():
    interface = RobotInterface(FakeArm())
    (position, *_, way), _ = interface.reset(seed=1)
    assert position == pytest.approx(HOME_RAD, abs=0.1)
    assert np.linalg.norm(way) > REACHED_M
    interface.target_m = tip_m(HOME_RAD) + np.float32([0.0, 0.015])
    for velocity, is_over in ((0.3, False), (0.1, True)):
        reward, terminated = interface.judge(still_at(HOME_RAD, velocity))
        assert reward == pytest.approx(-0.1 - 0.015)
        assert terminated is is_over


def test_a_picture_shows_the_arm_and_its_target_from_above():
    interface = RobotInterface(FakeArm())
    interface.reset(seed=1)
    picture = interface.render()
    assert (picture.dtype, picture.shape) == (np.uint8, (300, 300, 3))
    upwards = picture[::-1]
    row, column = np.argwhere((upwards == (255, 0, 0)).all(axis=-1)).mean(axis=0)
    assert (column, row) == pytest.approx(150 + 200 * interface.target_m, abs=2)
    column, row = np.round(150 + 200 * tip_m(HOME_RAD)).astype(int)
    assert not upwards[row - 1, column].any()
