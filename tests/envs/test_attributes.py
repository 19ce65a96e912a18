"""What an environment in wrappers says of itself."""

import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from kit.interfaces import Interface

from tmrl_like.base.functional import partial
from tmrl_like.envs import ResidualEnv
from tmrl_like.envs.actions import default_action
from tmrl_like.envs.attributes import time_step_of
from tmrl_like.envs.real_time import RealTimeEnv


class Moved(Interface):
    """An interface whose default action is not 0."""

    action_space = spaces.Box(5.0, 7.0, (1,))

    def get_default_action(self):
        return np.float32([6.0])


make_env = partial(RealTimeEnv, Moved, time_step_duration=0.001)


def test_a_layer_speaks_for_all_that_it_wraps():
    env = ResidualEnv(make_env, lambda obs: [6.0])
    assert default_action(TimeLimit(env, 10)) == default_action(env) == 0.0
    assert default_action(TimeLimit(env.env, 10)) == 6.0


def test_the_time_step_of_what_is_wrapped_is_known():
    assert time_step_of(TimeLimit(make_env(), 10)) == 0.001
