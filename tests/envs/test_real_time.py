"""An rtgym interface as an environment with a clock, and the constructor that passes arguments to
it.
"""

from functools import partial
from typing import Literal

import numpy as np
import pytest
from house import alone
from kit.interfaces import Interface
from kit.refusals import one_line

from tmrl_like.agents import SquashedGaussianActor
from tmrl_like.base.factories import signature_of
from tmrl_like.envs.clock import Clock
from tmrl_like.envs.racing import RacingEnv, RacingInterface
from tmrl_like.envs.real_time import ClockedGym, RealTimeEnv

ZERO = np.zeros(1, np.float32)


def test_it_spins_for_a_quarter_of_a_time_step_at_most():
    clock = Clock(1.0)
    for duration, spins_for in ((0.02, 0.005), (0.04, 0.006)):
        config = {"time_step_duration": duration, "start_obs_capture": 0.0, "spin_s": 0.006}
        ClockedGym({"interface": Interface} | config, clock)
        assert clock.max_spin_s == spins_for


@pytest.mark.parametrize("method", ["send_control", "get_obs_rew_terminated_info", "reset", "wait"])
def test_what_an_interface_raises_passes_through_and_the_next_reset_begins_an_episode(
    method,
):
    env = RealTimeEnv(Interface, 0.001, ep_max_length=2)
    env.reset()
    env.unwrapped.interface.fails = method
    with pytest.raises(ConnectionError, match="no answer"):
        [env.step(ZERO), env.step(ZERO), env.reset()]
    env.unwrapped.interface.fails = ""
    with pytest.raises(RuntimeError, match="Call reset before step"):
        env.step(ZERO)
    env.reset()
    assert env.step(ZERO)[0][0] == 1


@pytest.mark.parametrize(
    ("method", "returned", "said"),
    [
        ("get_default_action", [0.0, 0.0], r"the default action is .*; expected an action of Box"),
        ("get_observation_space", Interface.action_space, "observation space is Box.* a Tuple"),
        ("reset", (None, {}), r"interface's reset\(\) returned \(None, \{\}\); expected"),
        ("get_obs_rew_terminated_info", ([], 0.0, {}), r"returned .*; expected \(list, reward, "),
    ],
)
def test_what_an_interface_returns_by_mistake_is_one_line_and_no_fault(method, returned, said):
    cls = type("Mistaken", (Interface,), {method: lambda self, **options: returned})
    with one_line(said), alone(partial(RealTimeEnv, cls, 0.001), SquashedGaussianActor) as worker:
        worker.run_episode(max_samples=2)


def test_a_space_that_takes_no_actions_may_be_of_any_kind():
    cls = type("Flat", (Interface,), {"get_observation_space": lambda self: Interface.action_space})
    env = ClockedGym({"interface": cls, "act_in_obs": False})
    assert env.observation_space == Interface.action_space


@pytest.mark.parametrize("wait_on_done", [True, False])
def test_after_a_long_pause_a_reset_takes_no_observation_of_the_episode_before_and_a_step_does(
    wait_on_done, manual_time
):
    """The reset's would show the pause, in which a game may have stood still."""
    env = RealTimeEnv(Interface, 0.05, wait_on_done=wait_on_done)
    env.reset()
    env.step(ZERO)
    manual_time.now += 60.0
    env.unwrapped.wait()
    assert env.step(ZERO)[0][0] == 2
    calls = env.unwrapped.interface.calls
    assert calls.count("wait") == 1
    calls.clear()
    manual_time.now += 60.0
    env.reset()
    assert calls == [*["wait"] * wait_on_done, "reset", "send_control"]
    assert env.step(ZERO)[0][0] == 1


def test_a_constructor_shows_the_arguments_that_it_passes_to_its_interface():
    known, passed_on = signature_of(RacingEnv), signature_of(RacingInterface).parameters
    assert not known.open_ended
    assert [*known.parameters][-len(passed_on) :] == [*passed_on]
    assert known.parameters["observation"].annotation == Literal["lidar", "image"]
    assert known.parameters["track"].default == 1


def test_past_actions_stay_what_they_were_if_one_array_holds_each_action_in_turn():
    env = RealTimeEnv(Interface, 0.001, act_buf_len=3)
    env.reset()
    action = ZERO.copy()
    for _ in range(3):
        action += 0.25
        obs, *_ = env.step(action)
    assert np.concatenate(obs[1:]).tolist() == [0.25, 0.5, 0.75]


def test_a_length_of_the_buffer_that_is_no_int_is_taken_if_it_is_whole():
    assert len(RealTimeEnv(Interface, 0.001, act_buf_len=2.0).reset()[0]) == 3
