"""The reward along a recorded trajectory: how many points were passed, and what ends an episode."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.refusals import one_line

from tmrl_like.envs.trajectory import (
    Lap,
    RewardOptions,
    TrajectoryReward,
    load_trajectory,
    resample,
    save_trajectory,
)


def line(points):
    return np.stack([np.arange(points), np.zeros(points)], axis=1).astype(np.float32)


def circle(angle):
    """Return points a metre apart on a part of a circle of 6 m, from angle 0."""
    turn = np.linspace(0.0, angle, 200)
    return resample(6.0 * np.stack([np.cos(turn), np.sin(turn)], axis=1), 1.0)


def judge(points, **options):
    options = {
        "reward_per_point": 1.0,
        "end_of_track_reward": 0.0,
        "failure_countdown": 10**9,
    } | options
    return TrajectoryReward(points, RewardOptions(**options))


ways = st.integers(0, 2**32 - 1).map(
    lambda seed: np.cumsum(np.random.default_rng(seed).normal(0.3, 1.0, (60, 2 + seed % 2)), axis=0)
)


# -- the reward ------------------------------------------------------------------------------------


def earns_all_its_points(points, **options):
    reward = judge(points, **options)
    rewards, ends = zip(*map(reward, points), strict=True)
    assert sum(rewards) == len(points) - 1
    assert ends.index(True) == len(points) - 1
    assert reward.progress == 1.0


@given(ways)
def test_the_demonstration_itself_earns_all_its_points(way):
    earns_all_its_points(resample(way, 0.5), forward_limit=3, backward_limit=1)


@given(ways, st.integers(1, 8), st.integers(0, 8), st.integers(0, 2**32 - 1))
def test_wherever_it_goes_a_step_passes_no_more_points_than_the_limits_and_their_sum_is_the_place(
    way, forward, backward, seed
):
    points = resample(way, 0.5)
    reward = judge(points, forward_limit=forward, backward_limit=backward)
    total = 0.0
    for position in np.random.default_rng(seed).choice(points, 60):
        gained, terminated = reward(position)
        total += gained
        assert -backward <= gained <= forward
        assert total == reward.index <= reward.furthest
        if terminated:
            break


def test_far_from_the_way_nothing_is_passed():
    reward = judge(line(50), max_distance=2.0)
    assert reward([3.0, 1.9])[0] == 3.0
    assert reward([9.0, 2.1])[0] == 0.0


def test_a_lap_whose_end_one_step_can_reach_from_its_start_is_refused():
    lap = circle(2 * np.pi + 0.1)  # until just past the start
    for limit in (37, 38, 100):  # with 37 from the second point
        with one_line(f"forward_limit is {limit}; expected less than 19, half of the points"):
            judge(lap, forward_limit=limit)
    earns_all_its_points(lap, forward_limit=28)


@pytest.mark.parametrize("points", [circle(2 * np.pi - 0.3), line(2), line(5)])
def test_a_way_whose_end_is_apart_from_its_start_may_be_passed_in_one_step(points):
    earns_all_its_points(points, forward_limit=50)


def test_info_says_where_on_the_way_one_is():
    reward = TrajectoryReward(2 * line(31), half_width=6.65)
    for x, y, progress, potential in ((12, 6.65, 0.2, -1), (60, 0, 1, 0), (58, 0, 1, 0)):
        reward((x, y))
        info = reward.info((x, y))
        assert info.pop("position").tolist() == pytest.approx([x, y])
        told = {"progress": progress, "distance": x, "potential": potential}
        assert info == pytest.approx(told)


# -- the end of an episode -------------------------------------------------------------------------


def test_only_new_points_stop_the_countdown_and_a_reset_starts_over():
    reward = judge(line(50), failure_countdown=3, min_steps=2)
    for _ in range(2):
        ends = [reward([x, 0.0])[1] for x in [0, 0, 0, 0, 5, 1, 4, 6, 2, 3, np.nan]]
        assert ends == [False] * 10 + [True]
        reward.reset()
        assert reward.progress == 0.0


def test_the_last_point_ends_the_episode_and_is_rewarded():
    reward = judge(line(5), reward_per_point=0.5, end_of_track_reward=7.0, constant_penalty=-0.1)
    assert reward([2.0, 0.0]) == (pytest.approx(0.9), False)
    assert reward([4.0, 0.0]) == (pytest.approx(7.9), True)


def test_a_failure_is_rewarded_once_the_countdown_ends_the_episode():
    reward = judge(line(5), failure_countdown=2, min_steps=0, failure_reward=-3.0)
    assert [reward([0.0, 0.0]) for _ in range(2)] == [(0.0, False), (-3.0, True)]


# -- the demonstration -----------------------------------------------------------------------------


def steps_of(points):
    return np.linalg.norm(np.diff(points, axis=0), axis=1)


@given(ways, st.floats(0.2, 2.0))
def test_points_lie_on_the_way_at_equal_spaces(way, spacing):
    """This holds however long the recorded car stood still."""
    way = way.astype(np.float32)
    points = resample(np.repeat(way, 2, axis=0), spacing)
    length, steps = steps_of(way).sum(), steps_of(points)
    assert points.dtype == np.float32
    assert len(steps) == pytest.approx(length / spacing, abs=0.51)
    assert steps.max() <= length / len(steps) * 1.001
    assert np.array_equal(points[[0, -1]], way[[0, -1]])


@given(ways)
def test_a_trajectory_comes_back_from_its_file(tmp_path_factory, way):
    file = tmp_path_factory.mktemp("trajectory") / "way.npz"
    save_trajectory(file, points := resample(way, 0.5))
    assert np.array_equal(load_trajectory(file), points)


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        (np.zeros((5, 2)), "0 long"),
        (np.zeros((1, 2)), r"\[N, 2\]"),
        (np.zeros((5, 4)), r"\[N, 2\]"),
        ([["a", "b"]] * 5, r"\[N, 2\]"),
        ([[0.0, 0.0], [np.inf, 1.0]], "finite numbers"),
    ],
)
def test_positions_that_are_not_a_path_are_refused(positions, message):
    with one_line(message):
        resample(positions, 1.0)


@pytest.mark.parametrize(
    "write",
    [
        lambda file: np.savez(file, points=np.array([{}], object)),  # pickled
        lambda file: file.write_bytes(b"nothing of the kind"),
    ],
)
def test_a_file_that_holds_no_trajectory_is_one_line(write, tmp_path):
    write(tmp_path / "way.npz")
    with one_line("record"):
        load_trajectory(tmp_path / "way.npz")


def test_a_lap_begins_and_ends_at_positions_that_are_known():
    lap, unknown = Lap(away=5.0, back=1.0), [np.nan, 0.0]
    path = [unknown, [0.0, 0.0], [9.0, 0.0], unknown, [0.5, 0.0]]
    assert [lap(position)[1] for position in path] == [False] * 4 + [True]
