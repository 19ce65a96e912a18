"""Noise correlated over time."""

import numpy as np
import pytest

from tmrl_like.errors import ConfigError
from tmrl_like.policies.network import GaussianOptions
from tmrl_like.policies.noise import ColouredNoise


def drawn(beta, size, count, steps=1024):
    noise = ColouredNoise(beta, steps, size, np.random.default_rng(0))
    return np.array([noise.standard_normal() for _ in range(count)])


@pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
def test_it_has_unit_variance_and_a_spectrum_of_the_slope_asked_for(beta):
    numbers = drawn(beta, 200, 4096)
    assert numbers.dtype == np.float32
    assert (numbers**2).mean() == pytest.approx(1.0, abs=0.1)
    frequency = np.fft.rfftfreq(4096)
    power = (np.abs(np.fft.rfft(numbers * np.hanning(4096)[:, None], axis=0)) ** 2).mean(1)
    within = (frequency > 1 / 256) & (frequency < 0.1)
    slope, _ = np.polyfit(np.log(frequency[within]), np.log(power[within]), 1)
    assert slope == pytest.approx(-beta, abs=0.06)


def test_sequences_are_independent():
    newest = drawn(2.0, 400, 1020)[-1]
    assert abs(np.corrcoef(newest[:200], newest[200:])[0, 1]) < 0.2


def test_it_remembers_as_many_steps_as_asked_for_also_where_more_numbers_are_made():
    """That is after 1024 steps."""
    numbers = drawn(2.0, 2000, 1600, steps=50)
    for lag in (25, 60):
        correlation = (numbers[1000] * numbers[1000 + lag]).mean()
        assert correlation == pytest.approx(max(0.0, 1 - lag / 50), abs=0.08)


@pytest.mark.parametrize(("beta", "steps"), [(2.1, 9), (1.0, 0)])
def test_what_is_out_of_range_is_refused(beta, steps):
    with pytest.raises(ConfigError, match=r"noise_(beta|steps) is .*; expected "):
        GaussianOptions(noise_beta=beta, noise_steps=steps)
