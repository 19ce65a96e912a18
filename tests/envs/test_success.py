"""A model that recognises success ends episodes and adds a reward."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from tmrl_like.base.functional import partial
from tmrl_like.envs import SuccessEnv
from tmrl_like.errors import ConfigError


class Shown(gymnasium.Env):
    """An environment whose observations are given numbers, one after the other."""

    observation_space = spaces.Box(0.0, 1.0, (1,))
    action_space = spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, shows):
        self.shows = shows

    def reset(self, **options):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.float32([self.shows[self.steps - 1]]), 0.25, False, False, {}


def itself(obs):
    return float(obs[0])


def run(env):
    env.reset()
    results = []
    while len(results) < 5 and not (results and results[-1][1]):
        _, rew, terminated, _, _ = env.step(np.zeros(1, np.float32))
        results.append((rew, terminated))
    return results


def test_an_episode_ends_with_a_reward_where_several_observations_in_a_row_show_success():
    env = SuccessEnv(
        partial(Shown, [0.95, 0.1, 0.92, 0.95, 0.95]), itself, reward=2.0, threshold=0.9
    )
    assert run(env) == [(0.25, False)] * 4 + [(2.25, True)]
    at_once = SuccessEnv(partial(Shown, [0.1, 0.95] * 3), itself, frames=1)
    assert run(at_once) == [(0.25, False), (1.25, True)]
    at_both_ends = SuccessEnv(partial(Shown, [0.9, 0.1, 0.1, 0.1, 0.9]), itself)
    assert run(at_both_ends) == run(at_both_ends) == [(0.25, False)] * 5


def test_a_class_is_made_and_told_the_observation_space():
    class Model:
        def __init__(self, observation_space, sure):
            assert observation_space == Shown.observation_space
            self.sure = sure

        def __call__(self, obs):
            return self.sure

    assert run(SuccessEnv(partial(Shown, [0.0] * 5), partial(Model, sure=0.96)))[-1] == (1.25, True)


@pytest.mark.parametrize("wrong", [{"threshold": 0.0}, {"threshold": 1.0}, {"frames": 0}])
def test_a_number_out_of_its_range_is_named(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        SuccessEnv(partial(Shown, []), itself, **wrong)
