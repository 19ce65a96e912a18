from statistics import fmean

import numpy as np
import pytest
from kit.solo import episode, return_of
from simulated_drone import SimulatedDroneEnv


def towards_the_target(obs):
    way = np.concatenate(obs[2:4]) - np.concatenate(obs[:2])
    return np.clip(4 * way, -2.0, 2.0)


def test_a_proportional_controller_scores_what_it_scores_on_the_real_drone():
    env = SimulatedDroneEnv(seed=1)
    flights = [list(episode(env, towards_the_target)) for _ in range(300)]
    assert all(flight[-1].terminated for flight in flights)
    assert fmean(map(return_of, flights)) == pytest.approx(-3.2, abs=0.4)
    assert fmean(map(len, flights)) == pytest.approx(4 + 16, abs=3)  # four samples are the reset's
