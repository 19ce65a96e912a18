"""Properties of every environment that ships: its spaces, ends of episodes, seeds, and the
processes that it starts.
"""

import importlib.util
import sys
import warnings
from functools import partial
from typing import NamedTuple

import numpy as np
import psutil
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from house import alone
from kit.boxes import box
from playing import SquareGame, command_of

from tmrl_like.cli.record import RandomActor
from tmrl_like.envs.carla import CarlaEnv, CarlaSyncEnv, SensorOptions
from tmrl_like.envs.desktop import DesktopGameEnv
from tmrl_like.envs.doom import VizDoomEnv
from tmrl_like.envs.drone import DroneEnv
from tmrl_like.envs.racing import RacingEnv
from tmrl_like.envs.robot import RobotEnv, SimulatedArm
from tmrl_like.envs.robot.physics import ArmOptions
from tmrl_like.envs.space_mouse import SpaceMouseDriver
from tmrl_like.errors import MissingExtraError

STEPS = 6
BOX = box(1.0, 6)
PLACE = {"progress": (), "distance": (), "potential": (), "position": (2,)}


class Case(NamedTuple):
    """An environment with short episodes, and its particulars."""

    make: object
    needs: str  # a module that must be installed
    process: str = ""  # part of the command line of its process, which may die
    starts_at_once: bool = False
    drawn: object = None  # returns from the first observation and info what a seed determines
    info: dict = {}  # shapes  # noqa: RUF012


def carla(kind, **options):
    from carla_stand_in import Client, Simulator

    client_cls = partial(Client, simulator=Simulator(period_s=0.01))
    return kind(
        **options, sensors=SensorOptions(camera=(8, 12), lidar_bins=8), client_cls=client_cls
    )


def square_game(**options):
    return DesktopGameEnv(partial(SquareGame, command_of()), **options)


CASES = {
    "drone": Case(DroneEnv, "rtgym", drawn=lambda obs, info: np.concatenate(obs[2:4])),
    "robot": Case(
        partial(RobotEnv, partial(SimulatedArm, ArmOptions(seed=0))),
        "mujoco",
        "physics.py",
        drawn=lambda obs, info: obs[3],
    ),
    "racing": Case(partial(RacingEnv, observation="image"), "Box2D", "racing_game.py", info=PLACE),
    "doom": Case(partial(VizDoomEnv, tics_per_step=2), "vizdoom", "vizdoom", starts_at_once=True),
    "carla": Case(
        partial(carla, CarlaEnv),
        "carla.libcarla",
        info=PLACE,
        drawn=lambda obs, info: info["position"],
    ),
    "carla sync": Case(
        partial(carla, CarlaSyncEnv),
        "carla.libcarla",
        info=PLACE,
        drawn=lambda obs, info: info["position"],
    ),
    "desktop": Case(square_game, "mss", "games.py"),
}


@pytest.fixture(params=CASES)
def case(request, tmp_path, monkeypatch):
    case = CASES[request.param]
    if importlib.util.find_spec(case.needs) is None:
        pytest.skip(f"needs {case.needs}")
    if request.param == "desktop":
        request.getfixturevalue("screen")
    monkeypatch.chdir(tmp_path)  # Doom makes a folder
    monkeypatch.setattr("tmrl_like.envs.supervision.MAX_BACKOFF_S", 0.0)
    return case


@pytest.fixture
def env(case):
    env = case.make(ep_max_length=STEPS)
    yield env
    env.close()
    env.close()
    assert not processes_of(case)


def processes_of(case):
    children = psutil.Process().children(recursive=True) if case.process else ()
    return [child for child in children if case.process in " ".join(child.cmdline())]


def test_its_spaces_are_read_before_anything_is_started(case, env):
    assert bool(processes_of(case)) is case.starts_at_once
    held = env.observation_space[-env.unwrapped.act_buf_len :]
    assert set(map(str, held)) == {str(env.action_space)}
    assert env.action_space.contains(env.unwrapped.default_action)


def test_an_episode_keeps_to_the_spaces_holds_its_actions_and_ends(case, env):
    for _ in range(2):
        (obs, info), ended, steps = env.reset(), False, 0
        while not ended:
            assert env.observation_space.contains(obs)
            assert {name: info[name].shape for name in case.info} == case.info
            assert all(info[name].dtype == np.float32 for name in case.info)
            obs, rew, terminated, truncated, info = env.step(action := env.action_space.sample())
            assert np.array_equal(obs[-1], action)
            assert (type(terminated), type(truncated)) == (bool, bool)
            assert isinstance(rew, float | np.float32)
            ended, steps = terminated or truncated, steps + 1
        assert env.observation_space.contains(obs)
        assert truncated is (steps == STEPS and not terminated)


@pytest.mark.parametrize(
    "case",
    [
        "drone",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("robot", "racing", "doom")),
    ],
    indirect=True,
)
def test_it_passes_gymnasiums_checks(case, env):
    inner = env.unwrapped
    inner.spec = EnvSpec("InRealTime-v0", entry_point=case.make, nondeterministic=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for usual in (".*Time-step timed out", ".*symmetric and normalized space"):
            warnings.filterwarnings("ignore", usual)
        check_env(inner, skip_render_check=True)


@pytest.mark.parametrize(
    ("make", "package", "extra"),
    [
        (CarlaEnv, "carla", "carla"),
        (RacingEnv, "Box2D", "box2d"),
        (VizDoomEnv, "vizdoom", "vizdoom"),
        (partial(SpaceMouseDriver, BOX, BOX.low), "pyspacemouse", "spacemouse"),
    ],
)
def test_without_its_package_the_extra_is_named(make, package, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=rf"pip install .*tmrl_like\[{extra}\]"):
        make()


@pytest.mark.parametrize(
    "case", [name for name, case in CASES.items() if case.drawn], indirect=True
)
def test_a_seed_says_how_the_episodes_after_it_begin(case, env):
    begun, again = [
        [case.drawn(*env.reset(seed=seed)) for seed in (1, None, None, None)] for _ in range(2)
    ]
    assert np.array(begun) == pytest.approx(np.array(again), abs=0.02)
    assert np.ptp(begun, axis=0).max() > 0.02


@pytest.mark.parametrize(
    "case", [name for name, case in CASES.items() if case.process], indirect=True
)
def test_what_it_started_dies_is_a_fault_and_is_started_again(case):
    with alone(partial(case.make, ep_max_length=STEPS), RandomActor) as worker:
        assert not worker.run_episode().fault
        first = processes_of(case)[0]
        first.kill()
        assert worker.run_episode().fault
        assert not worker.run_episode().fault
        assert processes_of(case)[0].pid != first.pid
    assert not processes_of(case)
