"""A model that recognises success ends episodes and adds a reward."""

import numpy as np
import pytest
from kit.fakes import CountingEnv
from kit.refusals import one_line

from tmrl_like.envs import SuccessEnv
from tmrl_like.errors import EnvironmentFaultError


def showing(*probabilities):
    """Return a model that sees success in each step with these probabilities."""
    return lambda obs: probabilities[int(obs[1]) - 1]


def run(env):
    env.reset()
    results, terminated = [], False
    while len(results) < 5 and not terminated:
        _, rew, terminated, _, _ = env.step(np.zeros(1, np.float32))
        results.append((rew, terminated))
    return results


def test_an_episode_ends_with_a_reward_where_several_observations_in_a_row_show_success():
    late = showing(0.95, 0.1, 0.92, 0.95, 0.95)
    env = SuccessEnv(CountingEnv, late, reward=2.0, threshold=0.9)
    assert run(env) == [(1, False), (2, False), (3, False), (4, False), (7, True)]
    at_once = SuccessEnv(CountingEnv, showing(0.1, 0.95), frames=1)
    assert run(at_once) == [(1, False), (3, True)]
    at_both_ends = SuccessEnv(CountingEnv, showing(0.9, 0.1, 0.1, 0.1, 0.9))
    assert run(at_both_ends) == run(at_both_ends) == [(step, False) for step in range(1, 6)]


def test_a_model_that_returns_no_number_is_a_fault():
    with pytest.raises(EnvironmentFaultError, match="the model of success returned nan"):
        run(SuccessEnv(CountingEnv, showing(0.1, float("nan"), 0.9, 0.9, 0.9)))


@pytest.mark.parametrize("wrong", [{"threshold": 0.0}, {"frames": 0}, {"reward": float("nan")}])
def test_a_number_out_of_its_range_is_named(wrong):
    (name,) = wrong
    with one_line(name):
        SuccessEnv(CountingEnv, showing(), **wrong)
