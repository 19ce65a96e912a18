"""Exploration noise that is correlated over time, for robots that independent draws would shake."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1024  # numbers that are made at a time; more if the filter has more terms


class ColouredNoise:
    """Standard normal numbers whose power spectral density over time is proportional to 1 / f^beta,
    down to f = 1 / K.

    Eberhard et al., "Pink Noise Is All You Need: Colored Noise Exploration in Deep Reinforcement
    Learning", 2023. They draw the numbers of a whole episode at once from their spectrum (Timmer
    and König, 1995). Here white noise w goes through the filter of Kasdin, "Discrete Simulation of
    Colored Noise and Stochastic Processes and 1/f^alpha Power Law Noise Generation", 1995, cut off
    after K terms, so that a sequence has no end:

        x[t] = sum_k h[k] w[t - k] / |h|,  k < K
        h[0] = 1,  h[k] = h[k - 1] (k - 1 + beta / 2) / k
    """

    def __init__(self, beta: float, steps: int, size: int, random: np.random.Generator) -> None:
        """Make `size` independent sequences from the draws of `random`; `steps` is K. A `beta` of 0
        gives white noise, 1 pink noise, 2 red noise.
        """
        k = np.arange(1, steps)
        h = np.cumprod(np.append(1.0, (k - 1 + beta / 2) / k))
        self._random, self._form = random, (size, max(steps, _BLOCK))
        self._filter = np.fft.rfft(h / np.sqrt(h @ h), 2 * self._form[1])
        self.reset()

    def reset(self) -> None:
        """Begin new sequences, and make their numbers for 1024 steps, or for K if that is more."""
        self._white = self._random.standard_normal(self._form)
        self._go_on()

    def standard_normal(
        self, size: int | None = None, dtype: type = np.float32
    ) -> NDArray[np.float32]:
        """Return the next number of each sequence, float32 [size]. The arguments, those of the
        method of `numpy.random.Generator`, are ignored.
        """
        for row in self._rows:
            return row
        self._go_on()
        return next(self._rows)

    def _go_on(self) -> None:
        before, self._white = self._white, self._random.standard_normal(self._form)
        spectrum = np.fft.rfft(np.concatenate((before, self._white), axis=1))
        numbers = np.fft.irfft(spectrum * self._filter)[:, before.shape[1] :]
        self._rows: Iterator[NDArray[np.float32]] = iter(numbers.T.astype(np.float32, order="C"))
