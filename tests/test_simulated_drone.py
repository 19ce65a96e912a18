import random

import numpy as np
import pytest
from gymnasium.spaces import Box, Tuple
from rtgym import DummyRCDrone
from simulated_drone import Link, SimulatedDrone, SimulatedDroneEnv


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


def test_the_tutorial_s_gain_of_twenty_oscillates_and_fails():
    assert fly(SimulatedDroneEnv(seed=1), proportional(20), 20)[2] <= 2


def test_spaces_and_values_are_those_of_the_real_time_environment():
    env = SimulatedDroneEnv(seed=0)
    boxes = [Box(-1.0, 1.0, (1,))] * 2 + [Box(-0.5, 0.5, (1,))] * 2 + [Box(-2.0, 2.0, (2,))] * 4
    assert env.observation_space == Tuple(boxes)
    assert env.action_space == Box(-2.0, 2.0, (2,))
    obs, info = env.reset()
    assert info == {}
    assert env.observation_space.contains(obs)
    obs, reward, terminated, truncated, _ = env.step(np.ones(2, np.float32))
    assert env.observation_space.contains(obs)
    assert isinstance(reward, np.float32)
    assert (terminated, truncated) == (False, False)


def test_the_velocity_limit_is_rtgym_s():
    real = DummyRCDrone.__init__.__defaults__
    assert real == (1.0, 1.0, 0.02, 0.05, 2.0, 1.0, 0.01)
    drone = SimulatedDrone(random.Random(0))
    drone.send_control(30.0, 40.0)
    drone.advance(0.25)
    before = drone.position
    drone.advance(0.05)
    moved = np.subtract(drone.position, before)
    np.testing.assert_allclose(moved, [0.06, 0.08], atol=1e-9)


def test_the_drone_stays_in_its_world():
    drone = SimulatedDrone(random.Random(0))
    drone.send_control(2.0, 0.0)
    drone.advance(5.0)
    assert drone.position == (1.0, 0.0)


def test_one_seed_gives_one_history_and_another_seed_another():
    def history(seed):
        env = SimulatedDroneEnv(seed=seed)
        obs, _ = env.reset()
        rows = [np.concatenate(obs)]
        for _ in range(50):
            obs, *_ = env.step(np.array([0.5, -0.25], np.float32))
            rows.append(np.concatenate(obs))
        return np.stack(rows)

    np.testing.assert_array_equal(history(3), history(3))
    assert not np.array_equal(history(3), history(4))


def test_reset_with_a_seed_starts_over_from_the_origin():
    env = SimulatedDroneEnv(seed=0)
    env.reset()
    for _ in range(20):
        env.step(np.full(2, 2.0, np.float32))
    first, _ = env.reset(seed=7)
    again, _ = env.reset(seed=7)
    np.testing.assert_array_equal(np.concatenate(first), np.concatenate(again))
    np.testing.assert_array_equal(np.concatenate(first[:2]), [0.0, 0.0])


def test_the_drone_s_position_continues_across_episodes():
    env = SimulatedDroneEnv(seed=0, ep_max_length=10)
    obs, _ = env.reset()
    truncated = False
    while not truncated:
        obs, _, _, truncated, _ = env.step(np.full(2, -1.0, np.float32))
    obs, _ = env.reset()
    assert obs[0][0] < -0.1


def test_an_episode_of_the_maximal_length_is_truncated_and_must_be_reset():
    env = SimulatedDroneEnv(seed=0)
    with pytest.raises(RuntimeError, match="Call reset"):
        env.step(np.zeros(2, np.float32))
    env.reset()
    flags = [env.step(np.full(2, 2.0, np.float32))[2:4] for _ in range(100)]
    assert flags[:-1] == [(False, False)] * 99
    assert flags[-1] == (False, True)
    with pytest.raises(RuntimeError, match="Call reset"):
        env.step(np.zeros(2, np.float32))


def test_the_action_buffer_keeps_the_last_actions_and_a_reset_replaces_only_the_newest():
    env = SimulatedDroneEnv(seed=0, ep_max_length=6)
    env.reset()
    for i in range(6):
        obs, _, _, truncated, _ = env.step(np.full(2, i / 10, np.float32))
    assert truncated
    np.testing.assert_allclose(np.stack(obs[4:])[:, 0], [0.2, 0.3, 0.4, 0.5])
    obs, _ = env.reset()
    np.testing.assert_allclose(np.stack(obs[4:])[:, 0], [0.2, 0.3, 0.4, 0.0])


def test_an_action_is_applied_one_step_after_it_was_chosen():
    """Chosen before step 1, sent at its end: it moves the drone 20 to 50 ms (and a tick) into step 2."""
    for seed in range(20):
        env = SimulatedDroneEnv(seed=seed)
        env.reset()
        env.step(np.array([2.0, 0.0], np.float32))
        assert env.drone.now_s == pytest.approx(0.1)
        assert 0.0 <= env.drone.position[0] <= 0.08
        env.step(np.array([0.0, 0.0], np.float32))
        assert env.drone.position[0] >= 0.04 - 1e-9


def test_a_newer_message_is_never_replaced_by_an_older_one_that_arrives_late():
    class Delays:
        def __init__(self, *delays):
            self.delays = list(delays)

        def uniform(self, low, high):
            assert (low, high) == (0.02, 0.05)
            return self.delays.pop(0)

    link = Link(Delays(0.05, 0.02))
    link.send(0.00, 1.0, 1.0)
    link.send(0.01, 2.0, 2.0)
    assert link.read(0.029) == (0.0, 0.0)
    assert link.read(0.031) == (2.0, 2.0)
    assert link.read(0.060) == (2.0, 2.0)


def test_messages_in_order_arrive_after_their_delay():
    link = Link(random.Random(0))
    link.send(0.0, 1.0, 0.0)
    assert link.read(0.0199) == (0.0, 0.0)
    assert link.read(0.0501) == (1.0, 0.0)
