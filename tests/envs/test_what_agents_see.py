"""Observations of the drone and the arm as agents see them: the way to the target, and augmented
transitions.
"""

import numpy as np
import pytest
import torch

from tmrl_like.envs.drone import MirroredFlights, TargetInView
from tmrl_like.envs.robot import robot_env as robot
from tmrl_like.envs.robot.driver import RobotState, SimulatedArm

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
    """Reward and end are as the interface judges them. Half of the targets come from other
    transitions, the others are close.
    """
    rng, interface = np.random.default_rng(0), robot.RobotInterface(SimulatedArm())
    goals_m, states, seen = rng.uniform(-0.3, 0.3, (200, 2)), [], []
    for interface.target_m in goals_m:
        place, velocity = rng.uniform(*np.transpose(robot.TARGETS_RAD)), rng.choice((0.0, 0.5))
        states.append(RobotState(0, 0.0, tuple(place), (velocity, 0.0), False))
        seen.append(interface.observe(states[-1]))
    view, flags, actions = robot.TargetUpClose(), torch.ones(200), torch.zeros(200, 2)
    seen = view(tuple(torch.from_numpy(np.stack(parts)) for parts in zip(*seen, strict=True)))
    transitions = seen, actions, flags, seen, flags, flags
    last_obs, _, rew, obs, terminated, _ = robot.OtherTargets(0, share=1.0)(*transitions)
    targets_m = []
    for state, way, *judged in zip(states, obs[3].tolist(), rew, terminated, strict=True):
        way = complex(*way) * np.exp(1j * sum(state.position_rad))
        interface.target_m = np.add(robot.tip_m(state.position_rad), (way.real, way.imag))
        assert interface.judge(state) == pytest.approx([*map(float, judged)], abs=1e-5)
        targets_m.append(interface.target_m)
    away_m = np.linalg.norm(np.array(targets_m)[:, None] - goals_m, axis=-1)
    is_given = away_m.min(axis=1) < 1e-5
    assert np.diag(away_m).min() > 1e-5
    assert is_given.sum() == pytest.approx(100, abs=20)
    assert obs[3][~is_given].norm(dim=-1).max() < 0.15  # within five standard deviations
    assert torch.equal(obs[2], view(obs)[2])
    assert all(map(torch.equal, last_obs, obs))
    _, _, rew, _, terminated, _ = robot.OtherTargets(0, share=0.0)(*transitions)
    assert torch.equal(rew, flags)
    assert torch.equal(terminated, flags)
