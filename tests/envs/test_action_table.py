"""A table of inputs lets an integer action drive an environment that takes numbers or keys, with a
clock or without.
"""

from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from kit.interfaces import Interface
from kit.refusals import one_line

from tmrl_like.envs import GenericGymEnv
from tmrl_like.envs.action_table import ActionTable
from tmrl_like.envs.real_time import ClockedGym, RealTimeEnv


class Writing(gymnasium.Env):
    """An environment that records its actions, and then changes them in place."""

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)

    def __init__(self, action_space):
        self.action_space = action_space
        self.written = []

    def step(self, action):
        self.written.append(np.array(action).tolist())
        if np.ndim(action):
            action *= 0
        return None, 0.0, False, False, {}


class Two(Interface):
    """An interface driven by two numbers."""

    action_space = spaces.Box(-1.0, 1.0, (2,))
    input_tables: ClassVar[dict[str, Any]] = {"few": [(1, 0), (0, 0), (0, 1)]}


@pytest.mark.parametrize(
    ("space", "inputs"),
    [
        (spaces.Box(-1.0, 1.0, (2,), np.float32), [[-1, 0.5], [0, 0], [1, -0.5]]),
        (spaces.Discrete(9), [0, 8, 3]),
    ],
)
def test_an_integer_drives_any_space(space, inputs):
    env = ActionTable(inputs).wrap(Writing(space))
    assert env.action_space == spaces.Discrete(len(inputs))
    for number in [*range(len(inputs))] * 2:
        env.step(np.int64(number))
    assert env.unwrapped.written == inputs * 2


def test_a_registered_environment_is_driven_by_its_table_whose_nearest_row_stands_for_a_reset():
    env = GenericGymEnv("Pendulum-v1", inputs=[[-2.0], [0.5], [2.0]])
    plain = GenericGymEnv("Pendulum-v1")
    assert env.default_action == 1
    env.reset(seed=1)
    plain.reset(seed=1)
    assert env.step(np.int64(2))[1] == plain.step(np.array([2.0], np.float32))[1]


def test_in_real_time_the_action_buffer_holds_integers_and_the_interface_sees_rows():
    env = RealTimeEnv(Two, 0.001, act_buf_len=2, inputs="few")
    obs, _ = env.reset()
    assert env.observation_space.contains(obs)
    assert obs[1:] == (1, 1)
    assert env.step(np.int64(2))[0][1:] == (1, 2)
    sent = np.stack(env.unwrapped.interface.sent)
    assert (sent.dtype, sent.tolist()) == (np.float32, [[0.0, 0.0], [0.0, 1.0]])


def test_rtgyms_function_of_actions_gets_the_row():
    config = {"interface": Two, "inputs": "few", "act_prepro_func": np.negative}
    env = ClockedGym(config | {"start_obs_capture": 0.0})
    env.reset()
    env.step(np.int64(0))
    assert env.interface.sent[-1].tolist() == [-1.0, 0.0]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], r"inputs is \[\]; expected a table of one row or more"),
        ("fex", "no table of inputs 'fex'; did you mean few"),
        ([[0, 0], [[1], [0, 1]]], "row 1 of the table of inputs is .*; expected an action of Box"),
        (
            [[0, 0.25], [1, 1]],
            r"lacks the default action \[0.0, 0.0\], .* nearest row is 0, \[0.0, 0.25\]",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_one_line(inputs, message):
    with one_line(message):
        RealTimeEnv(Two, 0.001, inputs=inputs)


@pytest.mark.parametrize(
    ("row", "env", "told"),
    [
        (["a"], Writing(spaces.Text(3)), "no table of inputs fits Text"),
        ([0.5, 0], Writing(spaces.MultiDiscrete([3, 2])), "row 0 of the table of inputs"),
        ([0, 0], ClockedGym({"interface": Two}), "give the table to the environment itself, as"),
    ],
)
def test_what_a_table_cannot_drive_is_named(row, env, told):
    with one_line(told):
        ActionTable([row]).wrap(env)
