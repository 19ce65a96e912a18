"""An agent that corrects a base controller: what the environment receives, and what samples
contain.
"""

import re
from unittest.mock import Mock, call

import numpy as np
import pytest
from gymnasium import spaces
from kit.boxes import box
from kit.fakes import CountingEnv
from kit.interfaces import Interface
from kit.refusals import one_line

from tmrl_like.base.functional import partial
from tmrl_like.envs import GenericGymEnv, ResidualEnv
from tmrl_like.envs.real_time import RealTimeEnv
from tmrl_like.errors import EnvironmentFaultError


class Counting(Interface):
    """An interface driven by two numbers with different bounds."""

    action_space = spaces.Box(np.float32([-1.0, 0.0]), np.float32([1.0, 4.0]))

    def get_default_action(self):
        return np.float32([0.0, 1.0])


def a_tenth_more(obs):
    """Return a controller's action: 0.1 for each observation so far, and 3."""
    return [0.1 * obs[0][0], 3.0]


make_counting = partial(RealTimeEnv, Counting, time_step_duration=0.001, act_buf_len=2)


def as_lists(parts):
    return [np.asarray(part).tolist() for part in parts]


def test_the_environment_gets_the_sum_that_belongs_to_the_observation_which_the_policy_saw():
    env = ResidualEnv(make_counting, a_tenth_more, scale=[0.5, 1.0])
    assert env.action_space == spaces.Box(np.float32([-0.5, -2.0]), np.float32([0.5, 2.0]))
    assert env.default_action.tolist() == [0.0, 0.0]
    rest, none, one, other = [0.0, 1.0], [0.0, 0.0], [0.5, -2.0], [-0.5, 2.0]
    first, second = [0.5, 1.0], pytest.approx([-0.4, 4.0])  # the sums, within the bounds
    begins = [[0.0], rest, rest, [0.0, 3.0], none, none]
    assert as_lists(env.reset()[0]) == begins
    obs, *_ = env.step(np.array(one, np.float32))
    assert as_lists(obs) == [[1.0], rest, first, pytest.approx([0.1, 3.0]), none, one]
    obs, *_ = env.step(np.array(other, np.float32))
    assert as_lists(obs) == [[2.0], first, second, pytest.approx([0.2, 3.0]), one, other]
    assert env.observation_space.contains(obs)
    assert as_lists(env.unwrapped.interface.sent) == [rest, first, second]
    assert as_lists(env.reset()[0]) == begins


class Plain:
    observation_space = action_space = box(1.0, 2)


def test_frames_of_a_whole_observation_are_those_of_its_part():
    stacked = type("Stacked", (CountingEnv,), {"memory_arguments": lambda _: {"frame_stack": 4}})
    assert ResidualEnv.memory_arguments({"env": stacked}) == {"frame_stack": {0: 4}}


def test_an_observation_that_is_no_tuple_is_one_part():
    env = ResidualEnv(CountingEnv, lambda obs: [obs[0] / 4])
    obs, _ = env.reset()
    assert as_lists(obs) == [[1.0, 0.0], [0.25]]
    assert env.observation_space.contains(obs)


def test_a_driver_is_a_base_that_is_made_asked_reset_and_closed():
    asked = Mock()

    class Person:
        """A driver that does not drive at first."""

        reset, close = asked.reset, asked.close

        def __init__(self, action_space, default_action, force):
            assert action_space.contains(default_action)
            self.force = force

        def __call__(self, obs):
            return [self.force, 0.0] if obs[0][0] else None

    env = ResidualEnv(make_counting, partial(Person, force=0.5))
    obs, _ = env.reset()
    assert obs[3].tolist() == [0.0, 1.0]  # without a driver it is the environment's default action
    obs, *_ = env.step(env.default_action)
    assert obs[3].tolist() == [0.5, 0.0]
    env.close()
    assert asked.mock_calls == [call.reset(), call.close()]


@pytest.mark.parametrize(
    ("env", "scale", "said"),
    [
        (
            partial(GenericGymEnv, "CartPole-v1"),
            0.3,
            "for a ResidualEnv a Box of floats with bounds",
        ),
        (Plain, 0.3, "expected one whose class derives from gymnasium.Env"),
        (make_counting, 0.0, "scale is 0.0; expected more than 0, at most 2"),
        (make_counting, [0.1, 0.2, 0.3], "scale is [0.1, 0.2, 0.3]; expected"),
    ],
)
def test_what_cannot_be_is_one_line(env, scale, said):
    with one_line(re.escape(said)):
        ResidualEnv(env, a_tenth_more, scale)


@pytest.mark.parametrize("answer", [[0.0], [float("nan"), 0.0]])
def test_a_base_that_gives_no_action_is_a_fault_before_anything_moves(answer):
    env = ResidualEnv(make_counting, lambda obs: answer)
    with one_line(r"the base gave \[.*\]; expected an action of Box", EnvironmentFaultError):
        env.reset()
