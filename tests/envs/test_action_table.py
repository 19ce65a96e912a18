"""A table of inputs lets an integer action drive an environment that takes numbers or keys."""

import numpy as np
import pytest
from gymnasium import spaces
from kit.boxes import box
from kit.interfaces import Interface
from kit.refusals import one_line

from tmrl_like.envs.action_table import ActionTable
from tmrl_like.envs.real_time import ClockedGym, RealTimeEnv


class Two(Interface):
    """An interface driven by two numbers."""

    action_space = box(1.0, 2)


FEW = [(1, 0), (0, 0), (0, 1)]


def test_the_action_buffer_holds_integers_and_the_interface_sees_rows():
    env = RealTimeEnv(Two, 0.001, act_buf_len=2, inputs=FEW)
    obs, _ = env.reset()
    assert env.observation_space.contains(obs)
    assert obs[1:] == (1, 1)
    assert env.step(np.int64(2))[0][1:] == (1, 2)
    interface = env.unwrapped.interface
    interface.sent[-1][:] = 7.0  # it may change what it was sent
    env.step(np.int64(2))
    env.step(np.int64(0))
    sent = np.stack(interface.sent[-2:])
    assert (sent.dtype, sent.tolist()) == (np.float32, [[0.0, 1.0], [1.0, 0.0]])


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
