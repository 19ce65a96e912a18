"""How well a control loop keeps its time-step.

Times are kept in memory that is there from the start: nothing grows while they are measured.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from tmrl_like.worker.control_loop import ControlLoop

Seconds = np.ndarray[Any, np.dtype[np.float64]]


class StepTimes:
    """The times of a loop's steps.

    Attributes:
        overrun_after_s: a period that long is an overrun.
        steps: how many were added.
    """

    def __init__(self, max_steps: int, overrun_after_s: float = math.inf) -> None:
        """Set up for at most `max_steps` steps."""
        self.overrun_after_s = overrun_after_s
        self.steps = 0
        self._max_steps = max_steps
        self._period_s, self._inference_s, self._env_s = (array("d", bytes(8 * max_steps)) for _ in range(3))

    @property
    def is_full(self) -> bool:
        return self.steps >= self._max_steps

    def add(self, period_s: float, inference_s: float, env_s: float) -> None:
        """Add a step: from observation to observation, of the decision, of `env.step`."""
        step = self.steps
        self._period_s[step] = period_s
        self._inference_s[step] = inference_s
        self._env_s[step] = env_s
        self.steps = step + 1

    @property
    def period_s(self) -> Seconds:
        """From observation to observation, [steps]."""
        return np.frombuffer(self._period_s)[: self.steps]

    @property
    def inference_s(self) -> Seconds:
        """The policy's decision, [steps]."""
        return np.frombuffer(self._inference_s)[: self.steps]

    @property
    def env_s(self) -> Seconds:
        """`env.step`, [steps]."""
        return np.frombuffer(self._env_s)[: self.steps]

    @property
    def overruns(self) -> int:
        """Periods that were overruns."""
        return int(np.count_nonzero(self.period_s >= self.overrun_after_s))


def percentiles(values_s: Seconds, percents: Sequence[float]) -> list[float]:
    """Of at least one value, in seconds."""
    return [float(value) for value in np.percentile(values_s, percents)]


def measure(loop: ControlLoop, times: StepTimes, test: bool = False) -> None:
    """Step a control loop until `times` is full or the environment is to stop; no samples are collected.

    To be called in the thread that steps the environment. `test`: the actor acts as in a test.
    """
    ended = True
    while not times.is_full and not loop.env.stopping.is_set():
        if ended:
            obs, _ = loop.reset(collect_samples=False)
        before = loop.observed_at
        obs, _, terminated, truncated, _ = loop.step(obs, test, collect_samples=False)
        times.add(loop.observed_at - before, loop.inference_s, loop.env_s)
        ended = terminated or truncated
