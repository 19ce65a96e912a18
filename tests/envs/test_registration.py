"""The environments that ship are in Gymnasium's registry."""

import sys
from importlib.util import find_spec

import gymnasium
import pytest
from kit.pythons import python

from tmrl_like import GenericGymEnv
from tmrl_like.envs.carla import CarlaEnv
from tmrl_like.envs.doom import VizDoomEnv
from tmrl_like.envs.racing import RacingEnv
from tmrl_like.envs.registration import IDS, register_all
from tmrl_like.envs.robot.driver import SimulatedArm
from tmrl_like.errors import MissingExtraError

CHECK = """
import warnings
import gymnasium
from gymnasium.utils.env_checker import check_env
env = gymnasium.make("tmrl_like.envs:tmrl_like/{}-v0", render_mode="rgb_array")
with warnings.catch_warnings():
    warnings.simplefilter("error")
    for usual in (".*Time-step timed out", ".*symmetric and normalized space"):
        warnings.filterwarnings("ignore", usual)
    check_env(env.unwrapped)
env.close()
"""


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("Drone", "rtgym"),
        pytest.param("Robot", "mujoco", marks=pytest.mark.long),
        pytest.param("Racing", "Box2D", marks=pytest.mark.long),
        pytest.param("RacingImage", "Box2D", marks=pytest.mark.long),
        pytest.param("VizDoom", "vizdoom", marks=pytest.mark.long),
    ],
)
def test_an_environment_that_ships_passes_gymnasiums_checks(name, needs):
    """It runs in a separate process, because the drone's threads never end."""
    if find_spec(needs) is None:
        pytest.skip(f"needs {needs}")
    python("-c", CHECK.format(name))


def test_every_id_is_known_and_takes_the_arguments_of_its_class():
    register_all()  # calling it twice is fine
    assert {f"tmrl_like/{name}-v0" for name in IDS} <= gymnasium.registry.keys()
    env = gymnasium.make("tmrl_like/Drone-v0", act_buf_len=2, ep_max_length=7)
    assert len(env.observation_space) == 4 + 2
    assert env.metadata == {"render_modes": ["rgb_array"], "render_fps": 20}
    assert GenericGymEnv("tmrl_like/Drone-v0").time_step_s == 0.05


@pytest.mark.parametrize(
    ("make", "package", "extra"),
    [
        (CarlaEnv, "carla", "carla"),
        (RacingEnv, "Box2D", "box2d"),
        (SimulatedArm().connect, "mujoco", "mujoco"),
        (VizDoomEnv, "vizdoom", "vizdoom"),
    ],
)
def test_without_its_package_the_extra_is_named(make, package, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=rf"pip install .*tmrl_like\[{extra}\]"):
        make()
