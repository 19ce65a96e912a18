"""Noise that is correlated over time."""

import numpy as np
import pytest

from tmrl_like.errors import ConfigError
from tmrl_like.policies.noise import ColouredNoise


def drawn(beta: float, size: int, steps: int, seed: int = 0) -> np.ndarray:
    noise = ColouredNoise(beta, size, np.random.default_rng(seed))
    return np.array([noise.standard_normal() for _ in range(steps)])


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0, 1.5, 2.0])
def test_it_has_unit_variance_and_a_spectrum_of_the_slope_asked_for(beta: float) -> None:
    numbers = drawn(beta, 200, 4096)
    assert numbers.dtype == np.float32
    assert (numbers**2).mean() == pytest.approx(1.0, abs=0.1)
    frequency = np.fft.rfftfreq(4096)
    power = (np.abs(np.fft.rfft(numbers * np.hanning(4096)[:, None], axis=0)) ** 2).mean(1)
    within = (frequency > 1 / 256) & (frequency < 0.1)
    slope, _ = np.polyfit(np.log(frequency[within]), np.log(power[within]), 1)
    assert slope == pytest.approx(-beta, abs=0.06)


def test_it_goes_on_without_a_break_where_more_numbers_are_made() -> None:
    change = np.abs(np.diff(drawn(1.5, 500, 2100), axis=0)).mean(1)
    assert change[[1023, 2047]] == pytest.approx(change.mean(), rel=0.15)


def test_sequences_are_independent_and_begin_afresh_with_each_episode() -> None:
    noise = ColouredNoise(2.0, 400, np.random.default_rng(0))
    *_, last, newest = (noise.standard_normal() for _ in range(1020))
    assert abs(np.corrcoef(newest[:200], newest[200:])[0, 1]) < 0.2
    assert np.corrcoef(last, newest)[0, 1] > 0.99
    noise.reset()
    assert abs(np.corrcoef(newest, noise.standard_normal())[0, 1]) < 0.2


def test_a_seed_gives_the_same_numbers_again() -> None:
    assert (drawn(1.0, 2, 1100) == drawn(1.0, 2, 1100)).all()
    assert (drawn(1.0, 2, 8) != drawn(1.0, 2, 8, seed=1)).all()


@pytest.mark.parametrize("beta", [-0.1, 2.1, float("nan")])
def test_a_slope_out_of_range_is_refused(beta: float) -> None:
    with pytest.raises(ConfigError, match=r"noise_beta is .*; expected 0"):
        ColouredNoise(beta, 2, np.random.default_rng(0))
