"""The wrapper for any Gymnasium environment."""

from unittest.mock import Mock

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from kit.boxes import box
from kit.interfaces import Interface
from kit.refusals import one_line
from rtgym import DEFAULT_CONFIG_DICT

from tmrl_like.envs import GenericGymEnv, ResidualEnv, SuccessEnv
from tmrl_like.envs.actions import actions_of_reset
from tmrl_like.envs.float32 import Float32Env
from tmrl_like.errors import ConfigError


def by_rtgym(**changed):
    return GenericGymEnv(
        "real-time-gym-ts-v1", {"config": DEFAULT_CONFIG_DICT | {"interface": Interface} | changed}
    )


class Device(gymnasium.Env):
    """An environment that must be closed."""

    observation_space = action_space = box(1.0, 1)


class Graded(Device):
    """An environment whose actions are no Box, and have no default."""

    action_space = spaces.Graph(spaces.Discrete(2), None)


class Broken:
    """A model or a controller that cannot be made."""

    def __init__(self):
        raise ConfigError("there is no file")


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: SuccessEnv(Device, Broken), "there is no file"),
        (lambda: ResidualEnv(Device, Broken), "there is no file"),
        (lambda: ResidualEnv(Device, Broken, 0.0), "scale is 0.0; expected"),
        (lambda: SuccessEnv(Graded, Broken), "has no neutral action"),
        (lambda: by_rtgym(interface_kwargs={"fails": "get_observation_space"}), "no answer in"),
    ],
)
@pytest.mark.parametrize("error", [AttributeError("no reset yet"), SystemExit("bye")])
def test_an_environment_whose_wrapper_cannot_be_made_is_closed_and_why_is_said(
    make, told, error, monkeypatch
):
    close = Mock(side_effect=error)
    monkeypatch.setattr(Device, "close", close)
    monkeypatch.setattr(Interface, "close", close)
    with pytest.raises((ConfigError, ConnectionError), match=told):
        make()
    close.assert_called_once()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"interface": None}, r"^interface is None; .* \(in a file {class_path: …}\)"),
        ({"time_step_duration": -1}, "time_step_duration is -1; expected 0 to 1000000"),
        ({"start_obs_capture": 0.06}, "start_obs_capture is 0.06; expected time_step_duration, 0"),
        ({"act_buf_len": 0}, "act_buf_len is 0; expected 1 or more"),
        ({"ep_max_len": 9}, "an argument of rtgym's config is 'ep_max_len'; expected one of inter"),
    ],
)
def test_keys_that_rtgym_cannot_work_with_are_refused_by_name(changed, told):
    with one_line(told):
        by_rtgym(**changed)


def test_an_observation_may_be_captured_at_the_end_of_a_time_step_that_is_not_exact():
    by_rtgym(time_step_duration=0.3, start_obs_capture=3 * 0.1)


@pytest.mark.parametrize(
    ("attributes", "obs", "actions"),
    [
        ({"act_buf_len": 2}, (7.0, 1, 2), [1, 2]),
        ({"act_buf_len": 2, "act_in_obs": False}, (7.0, 1, 2), [9]),
        ({"act_buf_len": 2}, np.ones(3), [9]),
    ],
)
def test_the_actions_of_a_reset_are_those_of_the_action_buffer(attributes, obs, actions):
    always = {"default_action": 9, "action_space": spaces.Discrete(10)}
    env = type("Env", (), always | attributes)()
    assert list(actions_of_reset(env, obs)) == actions


@pytest.mark.parametrize(
    ("space", "neutral"),
    [
        (spaces.Box(1.0, 2.0, (2,)), [1.0, 1.0]),
        (spaces.Discrete(4, start=2), 2),
        (spaces.MultiBinary(2), [0, 0]),
    ],
)
def test_an_environment_without_default_action_gets_a_neutral_one_of_its_space(space, neutral):
    device = Device()
    device.action_space = space
    action = Float32Env(device).default_action
    assert np.array(action).tolist() == neutral
    assert action in space


MISTAKE = r"environment '{}' .*unsupported operand.*test_generic\.py:\d+\)$"


@pytest.mark.parametrize(
    ("id", "arguments", "told"),
    [
        ("real-time-gym-ts-v1", {"config": {"interface": lambda: None + 1}}, MISTAKE),
        ("Buggy-v0", {}, MISTAKE),
        ("Pendulum-v1", {"gravity": 3}, "'{}'.*'gravity'"),
    ],
)
def test_what_cannot_be_made_is_said_an_environment_s_own_mistake_with_its_place(
    id, arguments, told, monkeypatch
):
    buggy = EnvSpec("Buggy-v0", lambda: None + 1)
    monkeypatch.setitem(gymnasium.registry, "Buggy-v0", buggy)
    with one_line(told.format(id)):
        GenericGymEnv(id, arguments)
