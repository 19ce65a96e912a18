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


def test_an_action_is_applied_one_step_after_it_was_chosen_and_a_seed_determines_the_history():
    """It is chosen before step 1 and sent at its end, and moves the drone 20 to 50 ms (and a tick)
    into step 2.
    """
    env, ends = SimulatedDroneEnv(), set()
    for seed in (*range(20), *range(20)):
        env.reset(seed=seed)
        moved = []
        for speed in (2.0, 0.0, 0.0):
            env.step(np.array([speed, 0.0], np.float32))
            moved.append(env.drone.position[0])
        assert moved[0] == 0.0 <= moved[1] <= 0.08
        assert moved[2] >= 0.04 - 1e-9
        ends.add((*moved, env.drone.now_s))
    assert len(ends) <= 20
