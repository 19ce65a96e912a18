"""An rtgym interface as an environment with a clock, and the constructor that hands arguments on to it."""

import inspect
import threading
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest
from gymnasium import spaces
from rtgym import RealTimeGymInterface

from tmrl_like.base.factories import signature_of
from tmrl_like.envs.clock import Clock
from tmrl_like.envs.real_time import ClockedGym, RealTimeEnv, also_takes

pytestmark = pytest.mark.filterwarnings("ignore:Time-step timed out")  # on a busy machine


class Counting(RealTimeGymInterface):
    """Counts its steps, and notes what it is asked for."""

    def __init__(self) -> None:
        self.steps, self.calls, self.threads = 0, [], {threading.get_ident()}

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
        self.threads.add(threading.get_ident())
        return self._obs(), 1.0, False, {}

    def wait(self) -> None:
        self.calls.append("wait")

    def _obs(self) -> list[Any]:
        return [np.array([self.steps], np.float32)]


@pytest.mark.parametrize("wait_on_done", [True, False])
def test_an_interface_has_a_clock_actions_in_its_observation_and_episodes_of_a_length(wait_on_done: bool) -> None:
    interface = Counting()
    env = RealTimeEnv(lambda: interface, 0.02, ep_max_length=3, act_buf_len=2, wait_on_done=wait_on_done)
    assert env.time_step_s == 0.02
    obs, _ = env.reset()
    assert env.observation_space.contains(obs)
    assert len(obs) == 3
    steps = [env.step(np.array([value], np.float32)) for value in (0.1, 0.2, 0.3)]
    assert [truncated for *_, truncated, _ in steps] == [False, False, True]
    assert [round(float(action[0]), 3) for action in steps[-1][0][1:]] == [0.2, 0.3]
    env.close()
    assert ("wait" in interface.calls) == wait_on_done


def test_it_starts_no_thread_and_an_interface_lives_in_the_callers() -> None:
    before = set(threading.enumerate())
    interface = Counting()
    env = RealTimeEnv(lambda: interface, 0.001)
    env.reset()
    env.step(np.zeros(1, np.float32))
    env.close()
    assert set(threading.enumerate()) <= before
    assert interface.threads == {threading.get_ident()}


class Manual:
    """A clock that only waits move."""

    max_spin_s = 0.0

    def __init__(self) -> None:
        self.time = 1024.0

    def now(self) -> float:
        return self.time

    def wait_until(self, deadline: float) -> None:
        self.time = max(self.time, deadline)


def test_ten_thousand_steps_at_1_khz_take_ten_seconds() -> None:
    """However late each of them is within the elasticity."""
    clock, lateness = Manual(), np.random.default_rng(0).uniform(0.0, 0.9e-3, 10_000)
    env = ClockedGym({"interface": Counting, "time_step_duration": 1e-3, "start_obs_capture": 1e-3}, clock)
    env.reset()
    began = clock.time
    for late_s in lateness:
        clock.time += late_s
        env.step(np.zeros(1, np.float32))
    assert clock.time - began == pytest.approx(10.0, abs=1e-6)


def test_it_spins_for_a_quarter_of_a_time_step_at_most() -> None:
    clock = Clock(1.0)
    env = ClockedGym({"interface": Counting, "time_step_duration": 0.02, "spin_s": 0.006}, clock)
    assert clock.max_spin_s == 0.005
    env.set_time_step_duration(0.04)
    assert clock.max_spin_s == 0.006


@pytest.mark.parametrize("method", ["send_control", "get_obs_rew_terminated_info", "reset", "wait"])
def test_what_an_interface_raises_passes_through_and_the_next_reset_begins_an_episode(method: str) -> None:
    class Raising(Counting):
        def fail(self, *_: Any, **__: Any) -> Any:
            raise ConnectionError("no answer")

    interface = Raising()
    env = RealTimeEnv(lambda: interface, 0.001, ep_max_length=2)
    env.reset()
    setattr(interface, method, interface.fail)
    with pytest.raises(ConnectionError, match="no answer"):
        env.reset() if method == "reset" else [env.step(np.zeros(1, np.float32)) for _ in range(2)]
    delattr(interface, method)
    with pytest.raises(RuntimeError, match="Call reset before step"):
        env.step(np.zeros(1, np.float32))
    env.reset()
    assert env.step(np.zeros(1, np.float32))[0][0] == 1


def test_an_interface_whose_spaces_cannot_be_had_is_closed() -> None:
    closed = []

    class Broken(Counting):
        def get_observation_space(self) -> Any:
            return 1 / 0

        def close(self) -> None:
            closed.append(self)

    with pytest.raises(ZeroDivisionError):
        RealTimeEnv(Broken)
    assert len(closed) == 1


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
