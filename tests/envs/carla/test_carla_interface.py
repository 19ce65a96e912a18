"""CARLA, with its real client where no simulator is needed and a stand-in for the simulator
elsewhere.
"""

import contextlib
import inspect
import logging
import re
import time
from types import SimpleNamespace

import numpy as np
import pytest

# not "carla": Python takes this folder for it
pytest.importorskip("carla.libcarla", reason="there is no wheel of carla for this Python")

import carla
import carla_stand_in as stand_in
from driving import drive_to_end
from kit.ports import free_port
from kit.refusals import one_line

from tmrl_like.base.functional import partial
from tmrl_like.envs.carla import (
    CarlaEnv,
    CarlaSyncEnv,
    RouteOptions,
    SensorOptions,
    SimulatorOptions,
)
from tmrl_like.envs.carla.sensors import Readings, ranges_of
from tmrl_like.errors import EnvironmentAwayError, EnvironmentFaultError

STEP_S = 0.05
GAS = np.float32([0.8, 0.0])
SEES = SensorOptions(camera=(8, 12), lidar_bins=8)
SOON = SimulatorOptions(timeout_s=0.3)


@pytest.fixture
def simulator():
    return stand_in.Simulator(period_s=0.01)


@pytest.fixture
def make(simulator):
    """Return a function that makes an environment, by default small and impatient; close it at the
    end.
    """
    with contextlib.ExitStack() as until_end:

        def make(kind=CarlaSyncEnv, **options):
            client_cls = partial(stand_in.Client, simulator=simulator)
            env = kind(
                STEP_S, **{"simulator": SOON, "sensors": SEES, "client_cls": client_cls} | options
            )
            return until_end.enter_context(contextlib.closing(env))

        yield make


@pytest.fixture
def sync_env(make):
    return make()


@pytest.fixture
def env(make):
    return make(CarlaEnv)


def add_car(simulator, place):
    """Make a car as another client does."""
    return simulator.try_spawn_actor(stand_in.ActorBlueprint("vehicle.tesla.model3"), place)


def data(frame=1, **values):
    return SimpleNamespace(frame=frame, timestamp=0.0, **values)


def sensor_of(simulator, kind):
    (sensor,) = [a for a in simulator.actors.values() if kind in a.type_id.split(".")]
    return sensor


def is_as_it_was(simulator):
    settings = simulator.settings
    return not (simulator.actors or settings.synchronous_mode or settings.fixed_delta_seconds)


# -- two clocks ------------------------------------------------------------------------------------


def test_in_real_time_the_world_goes_on_when_nobody_steps(env, simulator, until):
    env.reset()
    _, _, _, _, info = env.step(GAS)
    frame = simulator.frame
    until(lambda: simulator.frame > frame + 5)
    assert env.step(GAS)[4]["distance"] > info["distance"]
    assert not simulator.settings.synchronous_mode


def test_past_actions_stay_what_they_were_if_one_array_holds_each_action_in_turn(sync_env):
    first, _ = sync_env.reset()
    first[-1][:] = 9.0  # nor does what is done to an observation change the default action
    action = GAS.copy()
    for gas in (0.25, 0.5):
        action[0] = gas
        obs, *_ = sync_env.step(action)
    assert [past[0] for past in obs[-2:]] == [0.25, 0.5]
    assert sync_env.reset()[0][-1].tolist() == [0.0, 0.0]


def test_in_synchronous_mode_the_world_stands_still_between_steps(sync_env, simulator):
    sync_env.reset()
    before = simulator.frame, simulator.time_s
    time.sleep(5 * simulator.period_s)
    assert (simulator.frame, simulator.time_s) == before
    obs, *_ = sync_env.step(GAS)
    assert simulator.frame == before[0] + 1
    assert simulator.time_s == pytest.approx(before[1] + STEP_S)
    # the picture is RGB, and of this frame
    assert obs[2][0, 0].tolist() == [0, 0, simulator.frame % 256]
    assert np.array_equal(sync_env.render(), obs[2])


def test_a_policy_goes_from_one_environment_to_the_other(env, sync_env):
    assert env.observation_space == sync_env.observation_space
    assert env.action_space == sync_env.action_space


# -- how an episode ends ---------------------------------------------------------------------------


def test_driving_straight_on_earns_metres_until_the_route_ends(make):
    env = make(route=RouteOptions(length_m=40))
    env.reset()
    rewards, obs, info = drive_to_end(env, GAS)
    assert info["ended_by"] == "end of route"
    assert sum(rewards) == pytest.approx(38, abs=1.5)
    assert obs[0][0] > 5.0


def test_steering_away_crosses_a_line_and_leaves_the_route(make):
    env = make(route=RouteOptions(lane_penalty=5.0))
    env.reset()
    rewards, _, info = drive_to_end(env, np.float32([0.8, 0.4]))
    assert info["ended_by"] == "off route"
    assert sum(reward < -4 for reward in rewards) == 1


@pytest.fixture
def walls(simulator):
    """Walls 8 m ahead of the spawn points."""
    for point in simulator.map.get_spawn_points():
        simulator.walls.append((point.location.x + 9.0, point.location.y, 1.0))


def test_a_wall_is_seen_by_the_lidar_hit_and_ends_the_episode(walls, sync_env):
    obs, _ = sync_env.reset()
    assert obs[3].argmin() == 0  # straight ahead
    assert obs[3][0] == pytest.approx(8.0, abs=0.1)
    rewards, _, info = drive_to_end(sync_env, GAS)
    assert (info["ended_by"], len(rewards) > 5) == ("collision", True)
    assert rewards[-1] < -15
    assert "ended_by" not in sync_env.reset()[1]


def test_an_event_of_the_episode_before_that_comes_late_does_not_count(sync_env, simulator):
    def collide(frame):
        hit = data(frame, normal_impulse=carla.Vector3D(x=9))
        sensor_of(simulator, "collision").callback(hit)
        return sync_env.step(GAS)[4].get("ended_by")

    sync_env.reset()
    began = simulator.frame
    assert collide(began) is None
    assert collide(began + 1) == "collision"


def test_a_table_drives_it_step_by_step_and_info_says_where_it_is(make):
    env = make(inputs=[[-1, 0], [0, 0], [1, 0]])
    for _ in range(2):
        obs, info = env.reset()
        assert obs[-2:] == (1, 1)
        assert info["potential"] == pytest.approx(0.0, abs=0.1)
        for _ in range(10):
            obs, *_, later = env.step(np.int64(2))
        assert obs[-2:] == (2, 2)
        assert later["progress"] > info["progress"]


# -- where it begins -------------------------------------------------------------------------------


def begins_at(env, place):
    """Whether four resets begin there, on the straight road."""
    begun = [env.reset(seed=seed)[1]["position"][0] for seed in range(4)]
    return begun == pytest.approx([place.location.x] * 4, abs=0.1)


def test_spawn_points_that_are_taken_are_not_used(sync_env, simulator):
    first, second, third = simulator.map.get_spawn_points()
    add_car(simulator, first)
    add_car(simulator, second)
    assert begins_at(sync_env, third)
    sync_env.close()
    add_car(simulator, third)
    told = "none of the 3 spawn points of Carla/Maps/Straight is free"
    with pytest.raises(EnvironmentFaultError, match=told):
        sync_env.reset()


def test_a_spawn_point_at_a_lane_s_end_is_not_used(sync_env, simulator):
    usual, *_ = simulator.map.get_spawn_points()
    (end_of_lane,) = simulator.map.get_waypoint(carla.Location()).next(190)
    places = [end_of_lane.transform, usual]
    simulator.map.get_spawn_points = lambda: places
    assert begins_at(sync_env, usual)
    places.remove(usual)
    told = "the lanes of all free spawn points of Carla/Maps/Straight end"
    with pytest.raises(EnvironmentFaultError, match=told):
        sync_env.reset()


# -- what is made is removed -----------------------------------------------------------------------


def test_a_sensor_that_cannot_be_made_leaves_nothing_behind(sync_env, simulator, monkeypatch):
    monkeypatch.delitem(stand_in.BLUEPRINTS, "sensor.lidar.ray_cast")
    with one_line("the simulator has no blueprint 'sensor.lidar.ray_cast'"):
        sync_env.reset()
    assert is_as_it_was(simulator)


def test_what_a_killed_worker_left_is_removed_and_others_actors_stay(
    env, make, simulator, caplog, monkeypatch
):
    make().reset()  # never closed
    get_actors, seen = simulator.get_actors, simulator.frame
    # a client knows the actors of the frames that it has seen
    monkeypatch.setattr(
        simulator, "get_actors", lambda: get_actors() if simulator.frame > seen else []
    )
    other = add_car(simulator, carla.Transform(carla.Location(80, 2, 0)))
    with caplog.at_level(logging.WARNING, logger="tmrl_like.envs"):
        env.reset()
    assert "destroyed 5 actors with role_name 'tmrl_like' that were left over" in caplog.text
    env.close()
    assert list(simulator.actors.values()) == [other]
    assert not simulator.settings.synchronous_mode  # the killed environment had set it


def test_a_clock_that_was_set_without_an_answer_is_set_back(sync_env, simulator, monkeypatch):
    apply_settings = simulator.apply_settings

    def answer_late(settings):
        apply_settings(settings)
        if settings.synchronous_mode:
            raise RuntimeError("time-out of 5000ms while waiting for the simulator")

    monkeypatch.setattr(simulator, "apply_settings", answer_late)
    with pytest.raises(EnvironmentAwayError):
        sync_env.reset()
    assert not simulator.settings.synchronous_mode


def test_a_reset_keeps_the_car_and_its_sensors(sync_env, simulator):
    sync_env.reset()
    before = set(simulator.actors)
    sync_env.reset()
    assert set(simulator.actors) == before


def test_a_car_that_somebody_destroys_is_a_fault(sync_env, simulator):
    sync_env.reset()
    simulator.load()
    with one_line("refused: trying to operate on a destroyed actor", EnvironmentFaultError):
        sync_env.step(GAS)
    with one_line("the car is gone from the simulator: somebody", EnvironmentFaultError):
        sync_env.interface.look()


# -- no simulator, a wrong one, one that dies ------------------------------------------------------


def test_without_a_simulator_the_real_client_says_one_line_in_time(command_line, capsys):
    closed_port = free_port()
    given = ["--env.simulator.port", str(closed_port), "--env.simulator.timeout_s", "0.5"]
    assert command_line("check", "carla", "--timing", "3", *given) == 1
    *_, last = capsys.readouterr().err.splitlines()
    told = f"error: no CARLA simulator answers at 127.0.0.1:{closed_port} (0.5 s): start it, or"
    assert last.startswith(f"tmrl-like: {told}")


def test_another_version_is_one_line(sync_env, simulator):
    simulator.version = "0.9.15"
    told = r"has version 0.9.15, the client here 0.9.16: start a simulator of"
    with one_line(told, EnvironmentAwayError):
        sync_env.reset()


def test_a_simulator_that_shows_its_last_frame_for_ever_has_ended_until_it_is_back(env, simulator):
    for _ in range(2):
        env.reset()
        env.step(GAS)
        simulator.is_dead = True
        with pytest.raises(EnvironmentAwayError, match=r"has stood still for 0.3 s"):
            while True:
                env.step(GAS)
        with pytest.raises(EnvironmentAwayError, match="CARLA simulator"):
            env.reset()
        env.close()
        simulator.load()
        simulator.is_dead = False


def test_closing_waits_for_two_seconds_at_most_however_patient_the_user_is(make, simulator):
    env = make(simulator=SimulatorOptions(timeout_s=30.0))
    env.reset()
    assert simulator.timeout_s == 30.0
    env.close()
    assert simulator.timeout_s == 2.0


def test_a_simulator_that_was_slow_once_is_left_as_it_was(sync_env, simulator):
    sync_env.reset()
    simulator.is_dead = True
    with pytest.raises(EnvironmentAwayError):
        sync_env.step(GAS)
    simulator.is_dead = False
    sync_env.close()
    assert is_as_it_was(simulator)


# -- sensors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["camera", "lidar"])
def test_a_sensor_that_falls_silent_while_the_world_goes_on_is_a_fault(name, env, simulator):
    env.reset()
    env.step(GAS)
    sensor_of(simulator, name).stop()
    with pytest.raises(EnvironmentAwayError, match=f"CARLA's {name} sent nothing for 0.3 s"):
        while True:
            env.step(GAS)


def test_nobody_who_looks_away_lets_the_queues_grow():
    readings = Readings(lambda data: data.frame, length=3)
    for frame in range(9):
        readings.put(data(frame))
    assert [reading.value for reading in readings.newest()] == [6, 7, 8]


def test_ranges_are_the_nearest_points_clockwise_without_the_road_and_the_car_itself():
    def ranges(*points):
        raw = np.float32([(*point, 1) for point in points]).tobytes()
        return ranges_of(data(raw_data=raw), 4, 30.0, carla.Vector3D(2.4, 1.0, 0.75)).tolist()

    road, own = (4, 0, -1.9), (2, 0.5, -0.5)
    found = ranges((10, 0, 0), (7, 0.1, -1), road, own, (0, 5, 0), (-4, 0, 0))
    assert found == pytest.approx([7.0007, 5.0, 4.0, 30.0], abs=1e-3)
    assert ranges() == [30.0] * 4


def test_the_lidar_shows_a_whole_turn_where_a_frame_is_too_short_for_one(walls, env):
    env.reset()
    ahead = [env.step(np.zeros(2, np.float32))[0][3][0] for _ in range(8)]
    assert ahead == pytest.approx([8.0] * 8, abs=0.1)


# -- the stand-in ----------------------------------------------------------------------------------

OWN = {"advance", "measure", "is_on_lane"}
STANDS_FOR = "Client World BlueprintLibrary ActorBlueprint WorldSnapshot Actor Vehicle Sensor"


@pytest.mark.parametrize("name", STANDS_FOR.split())
def test_the_stand_in_has_no_method_and_no_argument_that_carla_does_not_have(name):
    for method, ours in inspect.getmembers(getattr(stand_in, name), inspect.isfunction):
        if not method.startswith("_") and method not in OWN:
            theirs = getattr(getattr(carla, name), method)
            taken = re.findall(r"\(\w+\)(\w+)", theirs.__doc__.partition("->")[0])
            assert len(inspect.signature(ours).parameters) <= len(taken), f"{name}.{method}"


@pytest.mark.parametrize(
    ("of", "wrong", "told"),
    [
        (SimulatorOptions, {"vehicle": "sensor.camera.rgb"}, "vehicle is .*; expected a blueprint"),
        (SensorOptions, {"camera": (4, 8)}, "a number in camera is 4; expected 8 or more"),
        (RouteOptions, {"ahead_m": (-5.0,)}, r"ahead_m is \(-5.0,\); expected metres"),
        (CarlaSyncEnv, {"step_s": 0.5}, "step_s is 0.5; expected more than 0 to 0.1"),
    ],
)
def test_what_is_out_of_range_is_named(of, wrong, told):
    with one_line(told):
        of(**wrong)
