"""What an agent sees of the drone and the arm: the way to the target, and more of each step."""

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
        (
            TargetInView(),
            OF_DRONE,
            ([0.7 * 0.2 / 0.21**0.5], [0.7 * 0.6 / 0.61**0.5], [0.1], [0.3], OF_DRONE[4]),
        ),
        (
            robot.TargetUpClose(),
            OF_ARM,
            (*OF_ARM[:2], [0.7 * 0.3 / 0.31**0.5, -0.7 * 0.004 / 0.014**0.5], *OF_ARM[3:]),
        ),
    ],
)
def test_the_way_to_the_target_is_seen_close_up_of_one_observation_and_of_a_batch(
    view, obs, expected
):
    obs = tuple(np.array(part, np.float32) for part in obs)
    alone, batch = view(obs), view(tuple(torch.from_numpy(part)[None] for part in obs))
    for one, many, right in zip(alone, batch, expected, strict=True):
        assert one.dtype == np.float32
        assert one.tolist() == pytest.approx(right)
        assert many.tolist() == [pytest.approx(right)]


def test_each_transition_of_a_batch_is_mirrored_by_itself():
    """Of many flights along (1, 2) all eight directions are seen in one batch."""
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


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_another_target_comes_with_the_reward_and_the_end_that_belong_to_it(share):
    """As the interface judges them; half of the others are those of other transitions, half are
    close.
    """
    size, rng, interface = 200, np.random.default_rng(0), robot.RobotInterface(SimulatedArm())
    places, targets = rng.uniform(*np.transpose(robot.TARGETS_RAD), (2, size, 2))
    speeds = rng.choice((0.0, 0.5), size)
    states = [
        RobotState(0, 0.0, tuple(place), (speed, 0.0), False)
        for place, speed in zip(places, speeds, strict=True)
    ]
    targets_m = [robot.tip_m(target) for target in targets]
    seen = []
    for state, interface.target_m in zip(states, targets_m, strict=True):
        seen.append(interface.observe(state))
    batch = robot.TargetUpClose()(
        tuple(torch.from_numpy(np.stack(parts)) for parts in zip(*seen, strict=True))
    )
    rewards, flags, actions = torch.full((size,), -9.0), torch.zeros(size), torch.zeros(size, 2)
    last_obs, _, rew, obs, terminated, _ = robot.OtherTargets(0, share)(
        batch, actions, rewards, batch, flags, flags
    )
    is_given, is_close = [], []
    for i, state in enumerate(states):
        angle = sum(state.position_rad)
        axes = np.array(((np.cos(angle), -np.sin(angle)), (np.sin(angle), np.cos(angle))))
        way_m = axes @ obs[3][i].numpy()
        interface.target_m = robot.tip_m(state.position_rad) + way_m
        expected = interface.judge(state) if share else (-9.0, False)
        assert (rew[i].item(), bool(terminated[i])) == pytest.approx(expected, abs=1e-5)
        is_given.append(any(np.allclose(interface.target_m, m, atol=1e-5) for m in targets_m))
        is_close.append(np.linalg.norm(way_m) < 0.15)  # five standard deviations
    assert np.all(np.logical_or(is_given, is_close))
    assert np.mean(is_given) == pytest.approx(1.0 - 0.5 * share, abs=0.1)
    assert torch.equal(obs[2], robot.TargetUpClose()(obs)[2])
    assert all(map(torch.equal, last_obs, obs))
