"""Observations of the drone and the arm as agents see them: the way to the target, and augmented
transitions.
"""

import numpy as np
import pytest
import torch

from tmrl_like.envs.drone import MirroredFlights, TargetInView
from tmrl_like.envs.robot import robot_env as robot

OF_DRONE = [0.1], [-0.2], [0.3], [0.4], [1.0, 1.0]
OF_ARM = [0.1, -0.2], [1.0, -1.0], [0.5, 0.1], [0.3, -0.004], [2.0, 0.0]


@pytest.mark.parametrize(
    ("view", "obs", "expected"),
    [
        (TargetInView(), OF_DRONE, ([0.3055], [0.5378], [0.1], [0.3], *OF_DRONE[4:])),
        (robot.TargetUpClose(), OF_ARM, (*OF_ARM[:2], [0.3772, -0.0237], *OF_ARM[3:])),
    ],
)
def test_the_way_to_the_target_is_seen_close_up_of_one_observation_and_of_a_batch(
    view, obs, expected
):
    parts = tuple(map(np.float32, obs))
    alone, batch = view(parts), view(tuple(torch.from_numpy(part)[None] for part in parts))
    for one, many, right in zip(alone, batch, expected, strict=True):
        assert one.dtype == np.float32
        assert one == pytest.approx(right, abs=1e-4)
        assert many[0].numpy() == pytest.approx(right, abs=1e-4)


def test_each_transition_of_a_batch_is_mirrored_by_itself():
    """A batch of many flights along (1, 2) shows all eight directions."""
    vector, flags = torch.tensor([[1.0, 2.0]] * 100), torch.zeros(100)
    x, y = vector.split(1, -1)
    obs = (x, y, x, y, vector)
    last_obs, act, rew, next_obs, *_ = MirroredFlights(0)(obs, vector, flags, obs, flags, flags)
    directions = {(1, 2), (1, -2), (-1, 2), (-1, -2), (2, 1), (2, -1), (-2, 1), (-2, -1)}
    assert set(map(tuple, act.tolist())) == directions
    assert rew is flags
    for seen in (last_obs, next_obs):
        assert torch.equal(torch.cat(seen, -1), torch.cat((act, act, act), -1))


def test_another_target_comes_with_the_reward_and_the_end_that_belong_to_it():
    """Half of the targets come from other transitions, the others are close."""
    random, flags = np.random.default_rng(0), torch.ones(200)
    positions = random.uniform(*np.transpose(robot.TARGETS_RAD), (200, 2))
    speeds, goals = random.choice((0.0, 0.5), (200, 2)), random.uniform(-0.3, 0.3, (200, 2))
    tips = np.array([robot.tip_m(position) for position in positions])
    # places in the plane are complex numbers
    tips, goals, forearms = tips @ (1, 1j), goals @ (1, 1j), np.exp(1j * positions.sum(axis=1))
    ways = (goals - tips) / forearms
    parts = positions, speeds, positions, np.stack((ways.real, ways.imag), axis=1)
    view = robot.TargetUpClose()
    seen = view(tuple(map(torch.from_numpy, parts)))
    transitions = seen, torch.zeros(200, 2), flags, seen, flags, flags
    last_obs, _, rew, obs, terminated, _ = robot.OtherTargets(0, share=1.0)(*transitions)
    assert all(map(torch.equal, last_obs, obs))
    assert torch.equal(obs[2], view(obs)[2])
    targets = tips + forearms * (obs[3].numpy() @ (1, 1j))
    distances = abs(targets - tips)
    assert rew.numpy() == pytest.approx(-distances - 0.1, abs=1e-5)
    is_over = (distances < robot.REACHED_M) & (speeds.max(axis=1) < robot.AT_REST_RAD_S)
    assert terminated.tolist() == is_over.tolist()
    away = abs(targets[:, None] - goals)
    is_given = away.min(axis=1) < 1e-5
    assert away.diagonal().min() > 1e-5
    assert is_given.sum() == pytest.approx(100, abs=20)
    assert distances[~is_given].max() < 0.15  # within five standard deviations
    _, _, rew, _, terminated, _ = robot.OtherTargets(0, share=0.0)(*transitions)
    assert torch.equal(rew, flags)
    assert torch.equal(terminated, flags)
