"""Discrete observations: Discrete, MultiDiscrete and MultiBinary, alone and in structures."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from kit.boxes import MIXED, box
from kit.learners import rows_of
from torch.testing import assert_close

from tmrl_like.agents import SACAgent
from tmrl_like.agents.observations import Encoder, RunningNorm
from tmrl_like.policies.actor import to_batch_of_one


def features(space, obs, obs_range=3.0):
    encoder = Encoder(space, obs_range)
    batched = encoder(to_batch_of_one(obs))
    assert batched.dtype == torch.float32
    assert batched.shape == (1, encoder.size)
    return batched[0].tolist()


@pytest.mark.parametrize(
    ("space", "obs", "expected"),
    [
        (spaces.Discrete(3, start=(1 << 24) - 10_001), (1 << 24) - 10_000, [0, 1, 0]),
        (spaces.MultiDiscrete([[2], [2]]), np.array([[0], [1]]), [1, 0, 0, 1]),
        # as of Blackjack-v1
        (spaces.Tuple((spaces.Discrete(3), spaces.Discrete(2))), (2, 1), [0, 0, 1, 0, 1]),
    ],
)
def test_choices_become_one_hot(space, obs, expected):
    assert features(space, obs) == expected


def test_choices_bits_and_numbers_mix_in_a_structure():
    obs = {
        "gear": np.int64(-1),
        "speed": np.array([10.0], np.float32),
        "pair": (np.array([6, 2]), np.array([0, 1], np.int8)),
    }
    expected = {"gear": [1, 0, 0], "speed": [3], "pair": [0, 1, 0, 0, 1, -3, 3]}
    assert features(MIXED, obs) == pytest.approx([x for key in MIXED.spaces for x in expected[key]])


def test_numbers_stay_as_they_are_where_the_range_is_zero_or_their_bounds_are_useless():
    space = spaces.Box(np.float32([0.0, -np.inf, -3.4e38]), np.float32([10.0, np.inf, 3.4e38]))
    obs = np.float32([10.0, 7.0, 7.0])
    assert features(space, obs) == pytest.approx([3.0, 7.0, 7.0])
    assert features(space, obs, obs_range=0.0) == [10.0, 7.0, 7.0]


@pytest.mark.parametrize("dtype", [np.uint32, np.float16])
def test_numbers_of_any_dtype_are_read(dtype):
    space = spaces.Tuple((spaces.Box(0, 10, (2,), dtype), spaces.Box(0, 20, (1,), np.uint8)))
    obs = np.array([0, 10], dtype), np.array([10], np.uint8)
    assert features(space, obs) == pytest.approx([-3, 3, 0], abs=1e-6)


PARTLY_BOUNDED = spaces.Box(
    np.float32([-1, -np.inf, 1e4, 0, -2e6]), np.float32([1, np.inf, 1e4 + 1, np.inf, 2e6])
)
WITHOUT_BOUNDS = [1, 3, 4]


def test_numbers_without_useful_bounds_are_standardised_over_all_batches_and_others_stay():
    space = spaces.Tuple((MIXED, PARTLY_BOUNDED))
    encoder, plain = Encoder(space, normalize_obs=True), Encoder(space)
    norm = RunningNorm([encoder])
    raw = [encoder.flatten(rows_of(space, 8, seed)) for seed in range(5)]
    assert_close(encoder(raw[0]), plain(raw[0]))  # before the first batch
    for batch in raw:
        norm.update(batch)
    raw = torch.cat(raw)
    free, expected = raw[:, -5:][:, WITHOUT_BOUNDS].double(), plain(raw)
    standardised = (free - free.mean(0)) / free.std(0, correction=0)
    expected[:, -5:][:, WITHOUT_BOUNDS] = standardised.float()
    assert_close(encoder(raw), expected, rtol=1e-3, atol=5e-3)


def test_a_number_that_hardly_changes_is_divided_by_no_less_than_the_floor():
    encoder = Encoder(PARTLY_BOUNDED, normalize_obs=True)
    norm = RunningNorm([encoder])
    for _ in range(3):
        norm.update(torch.full((4, 5), 7.0))
    assert encoder(torch.full((1, 5), 8.0))[0, WITHOUT_BOUNDS].tolist() == [100.0] * 3


def test_beyond_the_horizon_old_batches_fade(monkeypatch):
    monkeypatch.setattr(RunningNorm, "HORIZON", 2)
    norm = RunningNorm([Encoder(spaces.Box(-np.inf, 1.0, (1,)), normalize_obs=True)])
    for value in (8.0, 4.0, 0.0, 0.0):
        norm.update(torch.full((1, 1), value))
    assert norm.mean.item() == 1.5  # ((8 + 4) / 2 / 2) / 2
    assert norm.count.item() == 4.0


def test_where_all_is_bounded_nothing_is_normalised_nor_part_of_the_weights():
    agent = SACAgent(MIXED, box(2, 2), acceleration="off")
    assert agent.obs_norm is None
    assert not any("rescale" in name for name in agent.actor.state_dict())
