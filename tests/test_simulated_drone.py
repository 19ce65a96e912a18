import numpy as np
import pytest
from simulated_drone import SimulatedDroneEnv


def test_a_proportional_controller_scores_what_it_scores_on_the_real_drone():
    env, rewards, reached = SimulatedDroneEnv(seed=1), [], 0
    for _ in range(300):
        obs, _ = env.reset()
        terminated = truncated = False
        while not (terminated or truncated):
            way = np.concatenate(obs[2:4]) - np.concatenate(obs[:2])
            obs, reward, terminated, truncated, _ = env.step(np.clip(4 * way, -2.0, 2.0))
            rewards.append(reward)
        reached += terminated
    assert reached == 300
    assert sum(rewards) / 300 == pytest.approx(-3.2, abs=0.4)
    assert len(rewards) / 300 == pytest.approx(16, abs=3)
