"""An rtgym interface as an environment with a clock, and the constructor that hands arguments on to it."""

import inspect
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest
from gymnasium import spaces
from rtgym import RealTimeGymInterface

from tmrl_like.base.factories import signature_of
from tmrl_like.envs.real_time import RealTimeEnv, also_takes
from tmrl_like.errors import EnvironmentFaultError


class Counting(RealTimeGymInterface):
    """Counts its steps, and notes what it is asked for."""

    def __init__(self) -> None:
        self.steps, self.calls = 0, []

    def get_observation_space(self) -> spaces.Tuple:
        return spaces.Tuple((spaces.Box(0.0, 100.0, (1,)),))

    def get_action_space(self) -> spaces.Box:
        return spaces.Box(-1.0, 1.0, (1,))

    def get_default_action(self) -> Any:
        return np.zeros(1, np.float32)

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.steps = 0
        return self._obs(), {}

    def send_control(self, control: Any) -> None:
        self.calls.append("control")

    def get_obs_rew_terminated_info(self) -> Any:
        self.steps += 1
        return self._obs(), 1.0, False, {}

    def wait(self) -> None:
        self.calls.append("wait")

    def _obs(self) -> list[Any]:
        return [np.array([self.steps], np.float32)]


@pytest.mark.filterwarnings("ignore:Time-step timed out")  # on a busy machine
@pytest.mark.parametrize("wait_on_done", [True, False])
def test_an_interface_has_a_clock_actions_in_its_observation_and_episodes_of_a_length(wait_on_done: bool) -> None:
    interface = Counting()
    env = RealTimeEnv(lambda: interface, 0.02, ep_max_length=3, act_buf_len=2, wait_on_done=wait_on_done)
    assert (env.time_step_s, env.overrun_after_s) == (0.02, 0.04)
    obs, _ = env.reset()
    assert env.observation_space.contains(obs)
    assert len(obs) == 3
    steps = [env.step(np.array([value], np.float32)) for value in (0.1, 0.2, 0.3)]
    assert [truncated for *_, truncated, _ in steps] == [False, False, True]
    assert [round(float(action[0]), 3) for action in steps[-1][0][1:]] == [0.2, 0.3]
    env.close()
    assert ("wait" in interface.calls) == wait_on_done


def test_an_interface_that_cannot_be_made_is_named() -> None:
    with pytest.raises(EnvironmentFaultError, match="ZeroDivisionError"):
        RealTimeEnv(lambda: 1 / 0)


class TwoArguments(Counting):
    def __init__(self, kind: Literal["a", "b"], size: int = 3) -> None:
        super().__init__()


class OfTwoArguments(RealTimeEnv):
    @also_takes(TwoArguments)
    def __init__(self, act_buf_len: int = 5, **arguments: Any) -> None:
        super().__init__(partial(TwoArguments, **arguments), act_buf_len=act_buf_len)


def test_a_constructor_shows_the_arguments_that_it_passes_to_its_interface() -> None:
    assert list(inspect.signature(OfTwoArguments).parameters) == ["act_buf_len", "kind", "size"]
    known = signature_of(OfTwoArguments)
    assert not known.open_ended
    assert known.parameters["kind"].annotation == Literal["a", "b"]
    assert known.parameters["size"].default == 3
    env = OfTwoArguments(kind="a")
    assert len(env.observation_space.spaces) == 1 + 5
    env.close()
