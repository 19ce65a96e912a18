"""A table of inputs lets an integer action drive an environment that takes numbers or keys."""

import numpy as np
import pytest
from gymnasium import spaces
from kit.interfaces import Interface
from kit.refusals import one_line

from tmrl_like.envs.action_table import ActionTable
from tmrl_like.envs.real_time import ClockedGym, RealTimeEnv


class Two(Interface):
    """An interface driven by two numbers."""

    action_space = spaces.Box(-1.0, 1.0, (2,))


FEW = [(1, 0), (0, 0), (0, 1)]


@pytest.mark.parametrize(
    ("space", "inputs"),
    [
        (spaces.Box(-1.0, 1.0, (2,), np.float32), [[-1, 0.5], [0, 0], [1, -0.5]]),
        (spaces.Discrete(9), [0, 8, 3]),
    ],
)
def test_an_integer_stands_for_a_row_of_any_space_which_may_then_be_changed(space, inputs):
    table = ActionTable(inputs, space)
    assert table.space == spaces.Discrete(len(inputs))
    for number in [*range(len(inputs))] * 2:
        row = table(np.int64(number))
        assert space.contains(row)
        assert np.array(row).tolist() == inputs[number]
        if np.ndim(row):
            row *= 0


def test_in_real_time_the_action_buffer_holds_integers_and_the_interface_sees_rows():
    env = RealTimeEnv(Two, 0.001, act_buf_len=2, inputs=FEW)
    obs, _ = env.reset()
    assert env.observation_space.contains(obs)
    assert obs[1:] == (1, 1)
    assert env.step(np.int64(2))[0][1:] == (1, 2)
    sent = np.stack(env.unwrapped.interface.sent)
    assert (sent.dtype, sent.tolist()) == (np.float32, [[0.0, 0.0], [0.0, 1.0]])


def test_rtgyms_function_of_actions_gets_the_row():
    config = {"interface": Two, "inputs": FEW, "act_prepro_func": np.negative}
    env = ClockedGym(config | {"start_obs_capture": 0.0})
    env.reset()
    env.step(np.int64(0))
    assert env.interface.sent[-1].tolist() == [-1.0, 0.0]


BOX = Two.action_space


@pytest.mark.parametrize(
    ("space", "inputs", "told"),
    [
        (BOX, [], r"inputs is \[\]; expected a table of one row or more"),
        (BOX, "few", "inputs is 'few'; expected a table of one row or more"),
        (
            BOX,
            [[0, 0], [[1], [0, 1]]],
            "row 1 of the table of inputs is .*; expected an action",
        ),
        (spaces.MultiDiscrete([3, 2]), [[0.5, 0]], "row 0 of the table of inputs"),
        (spaces.Text(3), ["a"], "no table of inputs fits Text"),
    ],
)
def test_a_table_that_does_not_fit_is_one_line(space, inputs, told):
    with one_line(told):
        ActionTable(inputs, space)


def test_a_table_without_the_default_action_is_told_its_nearest_row():
    told = r"lacks the default action \[0.0, 0.0\], .* nearest row is 0, \[0.0, 0.25\]"
    with one_line(told):
        RealTimeEnv(Two, 0.001, inputs=[[0, 0.25], [1, 1]])
