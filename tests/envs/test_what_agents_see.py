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
    ("view", "obs", "changed"),
    [
        (TargetInView(), OF_DRONE, [[0.3055], [0.5378], [0.1], [0.3]]),
        (robot.TargetUpClose(), OF_ARM, [*OF_ARM[:2], [0.3772, -0.0237]]),
    ],
)
def test_the_way_to_the_target_is_seen_close_up_of_one_observation_and_of_a_batch(
    view, obs, changed
):
    parts = tuple(np.array(part, np.float32) for part in obs)
    alone, batch = view(parts), view(tuple(torch.from_numpy(part)[None] for part in parts))
    expected = [*changed, *obs[len(changed) :]]
    for one, many, right in zip(alone, batch, expected, strict=True):
        assert one.dtype == np.float32
        assert one == pytest.approx(right, abs=1e-4)
        assert many[0].numpy() == pytest.approx(right, abs=1e-4)


def test_each_transition_of_a_batch_is_mirrored_by_itself():
    """A batch of many flights along (1, 2) shows all eight directions."""
    one, two = torch.ones(100, 1), torch.full((100, 1), 2.0)
    vector, flags = torch.cat((one, two), -1), torch.zeros(100)
    obs = (one, two, one, two, vector)
    last_obs, act, rew, next_obs, *_ = MirroredFlights(0)(obs, vector, flags, obs, flags, flags)
    corners = {(x, y) for x in (-1.0, 1.0) for y in (-2.0, 2.0)}
    assert {tuple(row) for row in act.tolist()} == corners | {(y, x) for x, y in corners}
    assert rew is flags
    for seen in (last_obs, next_obs):
        assert all(torch.equal(torch.cat(pair, -1), act) for pair in (seen[:2], seen[2:4]))
        assert torch.equal(seen[4], act)


def test_another_target_comes_with_the_reward_and_the_end_that_belong_to_it():
    """Reward and end are as the interface judges them. Half of the targets come from other
    transitions, the others are close.
    """
    size, rng, interface = 200, np.random.default_rng(0), robot.RobotInterface(SimulatedArm())
    places, targets = rng.uniform(*np.transpose(robot.TARGETS_RAD), (2, size, 2))
    targets_m = [robot.tip_m(target) for target in targets]
    states, seen = [], []
    for place, interface.target_m in zip(places, targets_m, strict=True):
        states.append(RobotState(0, 0.0, tuple(place), (rng.choice((0.0, 0.5)), 0.0), False))
        seen.append(interface.observe(states[-1]))
    batch = tuple(torch.from_numpy(np.stack(parts)) for parts in zip(*seen, strict=True))
    view, flags, actions = robot.TargetUpClose(), torch.zeros(size), torch.zeros(size, 2)
    transitions = view(batch), actions, flags, view(batch), flags, flags
    last_obs, _, rew, obs, terminated, _ = robot.OtherTargets(0, share=1.0)(*transitions)
    is_given = []
    for i, state in enumerate(states):
        angle = sum(state.position_rad)
        axes = np.array(((np.cos(angle), -np.sin(angle)), (np.sin(angle), np.cos(angle))))
        way_m = axes @ obs[3][i].numpy()
        interface.target_m = robot.tip_m(state.position_rad) + way_m
        reward, is_over = interface.judge(state)
        assert rew[i] == pytest.approx(reward, abs=1e-5)
        assert terminated[i] == float(is_over)
        is_given.append(any(np.allclose(interface.target_m, m, atol=1e-5) for m in targets_m))
        assert is_given[-1] or np.linalg.norm(way_m) < 0.15  # within five standard deviations
    assert np.mean(is_given) == pytest.approx(0.5, abs=0.1)
    assert torch.equal(obs[2], view(obs)[2])
    assert all(map(torch.equal, last_obs, obs))
    assert robot.OtherTargets(0, share=0.0)(*transitions)[2].eq(0.0).all()
