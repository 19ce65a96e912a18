"""TrackMania 2020 with a stand-in: the plugin's protocol, a window with a road, and a gamepad that
records.
"""

import math
import os
import struct
import subprocess
import sys
from contextlib import closing
from unittest.mock import Mock, call

import gymnasium
import numpy as np
import pytest
from driving import drive_to_end
from kit.ports import free_port
from kit.refusals import one_line
from playing import GAMES

from tmrl_like import load_experiment
from tmrl_like.base.functional import partial
from tmrl_like.config.document import shipped
from tmrl_like.envs.desktop.game_window import find_window
from tmrl_like.envs.desktop.telemetry import Telemetry
from tmrl_like.envs.keyboards import Keyboard
from tmrl_like.envs.trackmania import trackmania_env
from tmrl_like.envs.trackmania.trackmania_env import (
    CarReport,
    Lidar,
    TrackManiaEnv,
    TrackManiaInterface,
    is_car,
)
from tmrl_like.envs.trajectory import resample, save_trajectory
from tmrl_like.errors import EnvironmentAwayError

CAR = CarReport(30.0, 5.0, 1.0, 2.0, 3.0, 0.5, 1.0, 0.0, 0.0, 3.0, 8000.0)
THROTTLE, RIGHT = np.float32([1, -1, 0]), np.float32([-1, -1, 1])


@pytest.fixture
def track(tmp_path):
    file = tmp_path / "track.npz"
    save_trajectory(file, resample([(0, 1, 0), (0, 1, 10)], 1.0))
    return str(file)


@pytest.fixture(scope="module")
def running_game(x_server):
    """Start a game independently of the environment; yield the port of its telemetry."""
    port = free_port()
    game = subprocess.Popen(
        [sys.executable, GAMES, "Car", "Trackmania", str(port)],
        env=os.environ | {"DISPLAY": x_server},
    )
    yield port
    game.kill()
    game.wait()


def playing(port, **options):
    find_window("Trackmania", within_s=20.0).close()
    env = TrackManiaEnv(gamepad=None, port=port, restart_wait_s=0.1, **options)
    return closing(env)


def test_it_is_driven_to_the_finish_and_again_by_its_lidar(screen, track, running_game):
    with playing(running_game, trajectory=track) as env:
        obs, _ = env.reset()
        assert env.observation_space.contains(obs)
        right = left = 0.0
        while right > -5:  # until the right border has come nearer
            steered, _, _, truncated, _ = env.step(RIGHT)
            right, left = (steered[3][-1] - obs[3][-1])[[0, -1]]
            assert not truncated
        assert left == pytest.approx(-right, abs=1)
        env.reset()
        rewards, obs, _ = drive_to_end(env, THROTTLE)
        assert obs[0] == 20.0
        assert sum(rewards) == pytest.approx(
            100.0 + 100 * 0.01, abs=0.02
        )  # the finish, and 100 points
        env.reset()
        assert not env.step(THROTTLE)[2]


def test_numbers_press_keys_and_it_sees_pictures_of_the_screen(screen, track, running_game):
    inputs = load_experiment(shipped()["trackmania_iqn"], parts=("env",)).env.keywords["inputs"]
    with playing(
        running_game, trajectory=track, view="image", frames=1, size=(32, 64), inputs=inputs
    ) as env:
        assert env.action_space == gymnasium.spaces.Discrete(12)
        obs, info = env.reset()
        assert env.observation_space.contains(obs)
        assert obs[3].shape == (1, 32, 64)
        assert obs[3][0, 16, [1, 32]].tolist() == [0, 120]
        assert info["position"].tolist() == [0.0, 1.0, 0.0]
        _, obs, info = drive_to_end(env, np.int64(0))  # up
        assert obs[4:] == (0, 0)
        assert (info["progress"], info["distance"]) == (1.0, pytest.approx(10.0, abs=1e-4))


def test_without_its_plugin_the_game_is_away(screen, running_game, track, monkeypatch):
    hasty = partial(Telemetry, first_within_s=0.3)
    monkeypatch.setattr(trackmania_env, "Telemetry", hasty)
    told = r"within 0\.3 s .*\(connection refused\): is a race on, and .*plugin"
    with (
        playing(free_port(), trajectory=track) as env,
        pytest.raises(EnvironmentAwayError, match=told),
    ):
        env.reset()


def test_a_mistake_about_the_demonstration_is_reported_before_a_game_is_started(tmp_path):
    file, started = tmp_path / "flat.npz", tmp_path / "started"
    save_trajectory(file, [(0, 0), (0, 10)])
    command = [sys.executable, "-c", f"open({str(started)!r}, 'w')"]
    env = TrackManiaEnv(trajectory=str(file), command=command)
    with closing(env), one_line("have 2 coordinates, this environment's 3"):
        env.reset()
    assert not started.exists()


@pytest.fixture
def pad():
    """A gamepad that only records what is written to it."""
    return Mock()


@pytest.fixture
def interface(track, pad):
    interface = TrackManiaInterface(track, gamepad=lambda: pad, restart_wait_s=0.0)
    interface.open_controls()
    return interface


def test_a_gamepad_has_analog_throttle_brake_and_steering(interface, pad):
    interface.control(np.float32([0.25, -1.0, -0.5]))
    interface.control(np.float32([-1.0, 0.75, 1.0]))
    interface.wait()
    interface.close()
    half_left = call.move((-0.5, 0.0), left_trigger=0.0, right_trigger=0.25)
    right_braking = call.move((1.0, 0.0), left_trigger=0.75, right_trigger=0.0)
    assert pad.mock_calls == [half_left, right_braking, call.move(), call.move(), call.close()]


FINISH = CAR._replace(z=9.0, y=1.0, x=0.0, has_finished=1.0)


@pytest.mark.parametrize(("car", "pressed"), [(CAR, ["b"]), (FINISH, ["b", "a", "b"])])
def test_a_race_begins_with_b_and_at_the_finish_the_pop_up_goes_first_whoever_drove_there(
    interface, pad, monkeypatch, car, pressed
):
    seen = iter([car, CAR])
    monkeypatch.setattr(interface, "look", lambda: (None, next(seen)))
    interface.begin_episode()
    assert pad.mock_calls == [call.tap(button) for button in pressed]
    assert not interface.judge(None, CAR)[1]
    assert interface.describe(None, CAR)["progress"] == pytest.approx(0.3)
    reward, terminated, _ = interface.judge(None, FINISH)
    assert (reward, terminated) == (pytest.approx(100.0 + 0.6), True)
    assert interface.describe(None, FINISH)["progress"] == 1.0


def test_a_race_that_does_not_begin_again_is_no_finish(interface, monkeypatch):
    monkeypatch.setattr(interface, "look", lambda: (None, FINISH))
    with pytest.raises(EnvironmentAwayError, match="does not begin again: is a dialog open"):
        interface.begin_episode()


def test_while_the_car_drives_records_that_lost_bytes_are_soon_refused():
    cars = np.random.default_rng(1).normal(500.0, 100.0, (60, 11)).astype("<f4")
    cars[:, 5:10] = [0.5, 1.0, 0.0, 0.0, 3.0]
    cars[::2, 7] = 1.0
    assert all(map(is_car, cars.tolist()))
    for lost in range(1, cars[0].nbytes):
        records = struct.iter_unpack("<11f", cars.tobytes()[lost : lost - 44])
        assert sum(map(is_car, records)) < 20, lost


def test_the_lidar_measures_up_to_the_black_borders_which_the_car_itself_is_not():
    frame = np.full((488, 958, 3), 130, np.uint8)
    frame[:, :379] = frame[:, 679:] = 30
    frame[:100] = 30
    frame[430:446, 470:490] = 0
    ranges = Lidar()(frame)
    row = 488 * 44 // 49
    assert ranges[[0, 9, 18]].tolist() == [200.0, row - 99.0, 101.0]  # right, ahead, left
    assert ranges[1] == pytest.approx(200 / math.cos(math.radians(10)), abs=1.5)


def test_a_lap_is_driven_by_you_to_the_finish(screen, running_game):
    fingers = Keyboard()
    with playing(running_game, **TrackManiaEnv.lap_arguments) as env, closing(fingers):
        env.reset()
        for _ in range(20):  # the policy's actions move nothing
            *_, info = env.step(THROTTLE)
        assert info["position"].tolist() == [0.0, 1.0, 0.0]
        fingers.hold(["up"])
        *_, info = drive_to_end(env, THROTTLE)
    assert info["position"][2] >= 10.0


def test_a_memory_knows_of_the_stack_of_pictures():
    assert load_experiment("trackmania").memory_cls.keywords["frame_stack"] == {3: 4}
