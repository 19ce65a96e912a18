import numpy as np
import pytest
from simulated_drone import SimulatedDroneEnv


def proportional(gain):
    def act(obs):
        error = np.concatenate((obs[2] - obs[0], obs[3] - obs[1]))
        return np.clip(error * gain, -2.0, 2.0).astype(np.float32)

    return act


def fly(env, act, episodes):
    returns, steps, reached = [], [], 0
    for _ in range(episodes):
        obs, _ = env.reset()
        rewards, terminated, truncated = [], False, False
        while not (terminated or truncated):
            obs, reward, terminated, truncated, _ = env.step(act(obs))
            rewards.append(float(reward))
        returns.append(sum(rewards))
        steps.append(len(rewards))
        reached += terminated
    return np.mean(returns), np.mean(steps), reached


@pytest.mark.parametrize(("gain", "expected"), [(2, -4.8), (4, -3.2)])
def test_a_proportional_controller_scores_what_it_scores_on_the_real_drone(gain, expected):
    mean_return, mean_steps, reached = fly(SimulatedDroneEnv(seed=1), proportional(gain), 100)
    assert mean_return == pytest.approx(expected, abs=0.4)
    assert reached == 100
    if gain == 4:
        assert mean_steps == pytest.approx(16, abs=3)


def test_an_action_is_applied_one_step_after_it_was_chosen():
    """It is chosen before step 1 and sent at its end, and moves the drone 20 to 50 ms (and a tick)
    into step 2.
    """
    for seed in range(20):
        env = SimulatedDroneEnv(seed=seed)
        env.reset()
        env.step(np.array([2.0, 0.0], np.float32))
        assert env.drone.now_s == pytest.approx(0.1)
        assert 0.0 <= env.drone.position[0] <= 0.08
        env.step(np.array([0.0, 0.0], np.float32))
        assert env.drone.position[0] >= 0.04 - 1e-9
