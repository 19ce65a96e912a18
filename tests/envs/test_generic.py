"""The wrapper for any Gymnasium environment."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from kit.interfaces import Interface
from rtgym import DEFAULT_CONFIG_DICT

from tmrl_like.envs import GenericGymEnv, ResidualEnv, SuccessEnv
from tmrl_like.envs.actions import actions_of_reset, neutral_action
from tmrl_like.errors import ConfigError


def by_rtgym(**changed):
    return GenericGymEnv(
        "real-time-gym-ts-v1", {"config": DEFAULT_CONFIG_DICT | {"interface": Interface} | changed}
    )


def test_an_interface_whose_environment_cannot_be_made_is_closed(monkeypatch):
    closed = []
    monkeypatch.setattr(Interface, "close", lambda self: closed.append(self))
    with pytest.raises(ConnectionError, match="no answer in get_observation_space"):
        by_rtgym(interface_kwargs={"fails": "get_observation_space"})
    assert len(closed) == 1


class Device(gymnasium.Env):
    """Holds something until it is closed."""

    observation_space = action_space = spaces.Box(-1.0, 1.0, (1,))
    open = 0

    def __init__(self):
        Device.open += 1

    def close(self):
        Device.open -= 1


class Broken:
    """A model or a controller that cannot be made."""

    def __init__(self):
        raise ConfigError("there is no file")


@pytest.mark.parametrize(
    "make",
    [
        lambda: SuccessEnv(Device, Broken),
        lambda: ResidualEnv(Device, Broken),
        lambda: GenericGymEnv("Device-v0", inputs=[[7.0]]),
    ],
)
def test_an_environment_whose_wrapper_cannot_be_made_is_closed(make, monkeypatch):
    monkeypatch.setitem(gymnasium.registry, "Device-v0", EnvSpec("Device-v0", Device))
    with pytest.raises(ConfigError):
        make()
    assert Device.open == 0


@pytest.mark.parametrize("error", [AttributeError("no reset yet"), SystemExit("bye")])
def test_a_close_that_fails_does_not_hide_why_a_wrapper_cannot_be_made(error):
    class Closing(Device):
        def close(self):
            super().close()
            raise error

    with pytest.raises(ConfigError, match="there is no file"):
        SuccessEnv(Closing, Broken)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"interface": None}, r"^interface is None; .* \(in a file {class_path: …}\)"),
        ({"time_step_duration": -1}, "time_step_duration is -1; expected 0 to 1000000"),
        ({"start_obs_capture": float("inf")}, "start_obs_capture is inf"),
        ({"start_obs_capture": 0.06}, "start_obs_capture is 0.06; expected time_step_duration, 0"),
        ({"act_buf_len": 0}, "act_buf_len is 0; expected 1 or more"),
        ({"ep_max_length": 0}, "ep_max_length is 0; expected 1 or more"),
        ({"time_step_duration": "fast"}, "time_step_duration is 'fast'; expected a nu"),
        ({"spin_s": None}, "spin_s is None; expected a number, 0 to"),
        ({"ep_max_length": None}, "ep_max_length is None; expected a number, 1 or more"),
        ({"act_buf_len": 1.5}, "act_buf_len is 1.5; expected a whole number"),
        ({"ep_max_len": 9}, "an argument of rtgym's config is 'ep_max_len'; expected one of inter"),
    ],
)
def test_keys_that_rtgym_cannot_work_with_are_refused_by_name(changed, told):
    with pytest.raises(ConfigError, match=told):
        by_rtgym(**changed)


def test_an_observation_may_be_captured_at_the_end_of_a_time_step_that_is_not_exact():
    by_rtgym(time_step_duration=0.3, start_obs_capture=3 * 0.1)


@pytest.mark.parametrize(
    ("attributes", "obs", "actions"),
    [
        ({"act_buf_len": 2}, (7.0, 1, 2), [1, 2]),
        ({"act_buf_len": 2, "act_in_obs": False}, (7.0, 1, 2), [9]),
        ({}, (7.0, 1, 2), [9]),
        ({"act_buf_len": 2}, np.ones(3), [9]),
    ],
    ids=["in the observation", "kept out of it", "no attribute", "flattened"],
)
def test_the_actions_of_a_reset_are_those_of_the_action_buffer(attributes, obs, actions):
    always = {"default_action": 9, "action_space": spaces.Discrete(10)}
    env = type("Env", (), always | attributes)()
    assert list(actions_of_reset(env, obs)) == actions


def test_an_environment_without_default_action_gets_a_neutral_one():
    env = GenericGymEnv("Pendulum-v1")
    assert env.default_action.tolist() == [0.0]
    assert env.time_step_s is None


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Box(1.0, 2.0, (2,), np.float32), [1.0, 1.0]),
        (spaces.Discrete(4, start=2), 2),
        (spaces.MultiDiscrete([3, 4]), [0, 0]),
        (spaces.MultiBinary(2), [0, 0]),
    ],
)
def test_neutral_actions_lie_in_their_space(space, expected):
    action = neutral_action(space)
    assert np.array(action).tolist() == expected
    assert action in space


class Doubles(gymnasium.Env):
    """Its observations are float64, whatever its space says; those of resets are `of_reset`."""

    observation_space = spaces.Tuple((spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(3)))
    action_space = spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, of_reset):
        self.of_reset = of_reset

    def reset(self, *, seed=None, options=None):
        return (np.zeros(2, self.of_reset), np.int64(1)), {}

    def step(self, action):
        return (np.ones(2), np.int64(2)), 1.0, False, False, {}


@pytest.mark.parametrize("of_reset", [np.float64, np.float32])
def test_float64_becomes_float32_even_where_the_space_says_float32(of_reset, monkeypatch):
    monkeypatch.setitem(gymnasium.registry, "Doubles-v0", EnvSpec("Doubles-v0", Doubles))
    env = GenericGymEnv("Doubles-v0", {"of_reset": of_reset})
    observations = env.reset()[0], env.step(np.zeros(1, np.float32))[0]
    assert [[part.dtype for part in obs] for obs in observations] == [[np.float32, np.int64]] * 2


def test_an_unknown_environment_is_named():
    with pytest.raises(ConfigError, match="Nothing-v0"):
        GenericGymEnv("Nothing-v0")


@pytest.mark.parametrize("id", ["real-time-gym-ts-v1", "Buggy-v0"])
def test_a_type_error_of_an_environment_is_said_with_its_place(id, monkeypatch):
    class Buggy(Interface):
        def __init__(self):
            self.size = None + 1

    monkeypatch.setitem(gymnasium.registry, "Buggy-v0", EnvSpec("Buggy-v0", Buggy))
    arguments = {"config": {"interface": Buggy}} if id != "Buggy-v0" else {}
    told = rf"environment '{id}' .*unsupported operand.*test_generic\.py:\d+\)$"
    with pytest.raises(ConfigError, match=told):
        GenericGymEnv(id, arguments)


def test_arguments_that_an_environment_does_not_take_are_named():
    for id in ("Pendulum-v1", "real-time-gym-ts-v1"):
        with pytest.raises(ConfigError, match=rf"'{id}'.*'gravity'") as refused:
            GenericGymEnv(id, {"gravity": 3})
        assert ".py:" not in str(refused.value)  # no place in somebody else's code
