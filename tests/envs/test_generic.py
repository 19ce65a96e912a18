"""Environments: the generic wrapper."""

import time
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from rtgym import DEFAULT_CONFIG_DICT, RealTimeGymInterface

from tmrl_like.base.functional import partial
from tmrl_like.envs import GenericGymEnv
from tmrl_like.envs.actions import actions_of_reset, neutral_action
from tmrl_like.errors import ConfigError, EnvironmentFaultError
from tmrl_like.networking import RolloutWorker
from tmrl_like.testing.fakes import LinearActor

STEP_S = 0.01


class Interface(RealTimeGymInterface):
    """Raises where it is told to."""

    def __init__(self, raise_in: str = "", after: int = 0) -> None:
        self._raise_in, self._after, self._calls = raise_in, after, 0
        self._maybe_raise("__init__")

    def _maybe_raise(self, where: str) -> None:
        if where == self._raise_in:
            self._calls += 1
            if self._calls > self._after:
                raise ConnectionError(f"no answer in {where}")

    def get_observation_space(self) -> Any:
        return spaces.Tuple((spaces.Box(-1.0, 1.0, (2,), np.float32),))

    def get_action_space(self) -> Any:
        return spaces.Box(-1.0, 1.0, (1,), np.float32)

    def get_default_action(self) -> Any:
        return np.zeros(1, np.float32)

    def send_control(self, control: Any) -> None:
        self._maybe_raise("send_control")

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self._maybe_raise("reset")
        return [np.zeros(2, np.float32)], {}

    def get_obs_rew_terminated_info(self) -> Any:
        self._maybe_raise("get_obs_rew_terminated_info")
        return [np.ones(2, np.float32)], 1.0, False, {}


def rtgym_env(
    version: str = "real-time-gym-ts-v1",
    interface: type[Interface] = Interface,
    timeout_factor: float = 1e6,
    **interface_kwargs: Any,
) -> GenericGymEnv:
    config = {
        **DEFAULT_CONFIG_DICT,
        "interface": interface,
        "interface_kwargs": interface_kwargs,
        "time_step_duration": STEP_S,
        "start_obs_capture": STEP_S,
        "time_step_timeout_factor": timeout_factor,
        "ep_max_length": 5,
        "act_buf_len": 2,
    }
    return GenericGymEnv(version, {"config": config})


@pytest.mark.parametrize("method", ["reset", "get_obs_rew_terminated_info"])
@pytest.mark.parametrize("result", [None, (1, 2, 3), ([np.zeros(2, np.float32)], 0.0, False, False, {})])
def test_an_interface_that_returns_something_else_raises(
    method: str, result: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = rtgym_env()
    if method != "reset":
        env.reset()
    monkeypatch.setattr(Interface, method, lambda self, seed=None, options=None: result)
    with pytest.raises((TypeError, ValueError), match="unpack"):
        for _ in range(3):
            env.step(np.zeros(1, np.float32)) if method != "reset" else env.reset()


def test_an_interface_that_raises_in_its_constructor_is_reported_at_once() -> None:
    told = r"raised while it was made: ConnectionError: no answer in __init__ \(.*:\d+\)"
    with pytest.raises(EnvironmentFaultError, match=told):
        rtgym_env(raise_in="__init__")


def test_an_interface_whose_environment_cannot_be_made_is_closed() -> None:
    closed = []

    class Broken(Interface):
        def get_observation_space(self) -> Any:
            return 1 / 0

        def close(self) -> None:
            closed.append(self)

    with pytest.raises(EnvironmentFaultError, match="while it was made: ZeroDivisionError"):
        rtgym_env(interface=Broken)
    assert len(closed) == 1


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"interface": None}, "interface is None; expected the interface's class"),
        ({"time_step_duration": -1}, "time_step_duration is -1; it must be finite and not negative"),
        ({"time_step_duration": float("nan")}, "time_step_duration is nan"),
        ({"start_obs_capture": float("inf")}, "start_obs_capture is inf"),
        ({"spin_s": float("inf")}, "spin_s is inf"),
        ({"act_buf_len": 0}, "act_buf_len is 0; rtgym needs 1 or more"),
        ({"ep_max_length": 0}, "ep_max_length is 0; rtgym needs 1 or more"),
    ],
)
def test_numbers_that_rtgym_cannot_work_with_are_refused_by_name(changed: dict[str, Any], told: str) -> None:
    config = {**DEFAULT_CONFIG_DICT, "interface": Interface} | changed
    with pytest.raises(ConfigError, match=told):
        GenericGymEnv("real-time-gym-ts-v1", {"config": config})


def test_a_missed_deadline_is_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    class Slow(LinearActor):
        calls = 0

        def act(self, obs: Any, test: bool = False) -> Any:
            Slow.calls += 1
            if Slow.calls == 3:
                time.sleep(0.5)
            return np.zeros(1, np.float32)

    worker = RolloutWorker(partial(rtgym_env, timeout_factor=20.0), Slow, standalone=True)
    with warnings.catch_warnings(record=True) as by_rtgym:
        warnings.simplefilter("always")
        stats = worker.run_episode()
    assert stats.overruns == worker.condition().overruns == len(by_rtgym) > 0
    assert any("time-step overrun" in r.message for r in caplog.records)


def test_float64_observations_become_float32_in_space_and_value() -> None:
    class Doubles(gymnasium.Env[Any, Any]):
        observation_space = spaces.Dict({"a": spaces.Box(-1.0, 1.0, (2,), np.float64), "b": spaces.Discrete(3)})
        action_space = spaces.Discrete(2)

        def reset(self, **_: Any) -> Any:
            return {"a": np.array([0.1, 0.2]), "b": np.int64(1)}, {}

        def step(self, action: Any) -> Any:
            return {"a": np.array([0.3, 0.4]), "b": np.int64(2)}, 1.0, True, False, {}

    gymnasium.register("Doubles-v0", lambda: Doubles())
    env = GenericGymEnv("Doubles-v0")
    assert env.observation_space["a"].dtype == np.float32
    obs, _ = env.reset()
    assert obs["a"].dtype == np.float32
    assert obs["b"].dtype == np.int64
    assert env.step(0)[0]["a"].tolist() == pytest.approx([0.3, 0.4])


@pytest.mark.parametrize(
    ("attributes", "obs", "actions"),
    [
        ({"act_buf_len": 2}, (7.0, 1, 2), [1, 2]),
        ({"act_buf_len": 2, "act_in_obs": False}, (7.0, 1, 2), [9]),
        ({"act_buf_len": 0}, (7.0, 1, 2), [9]),
        ({}, (7.0, 1, 2), [9]),
        ({"act_buf_len": 2}, np.ones(3), [9]),
    ],
    ids=["in the observation", "kept out of it", "none", "no attribute", "flattened"],
)
def test_the_actions_of_a_reset_are_those_of_the_action_buffer(attributes: Any, obs: Any, actions: Any) -> None:
    env = type("Env", (), {"default_action": 9} | attributes)()
    assert list(actions_of_reset(env, obs)) == actions


def test_an_environment_without_default_action_gets_a_neutral_one() -> None:
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
def test_neutral_actions_lie_in_their_space(space: Any, expected: Any) -> None:
    action = neutral_action(space)
    assert np.array(action).tolist() == expected
    assert action in space


def test_an_unknown_environment_is_named() -> None:
    with pytest.raises(ConfigError, match="Nothing-v0"):
        GenericGymEnv("Nothing-v0")


def test_arguments_that_an_environment_does_not_take_are_named() -> None:
    with pytest.raises(ConfigError, match=r"Pendulum-v1.*gravity"):
        GenericGymEnv("Pendulum-v1", {"gravity": 3})
