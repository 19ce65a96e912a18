"""How well a control loop keeps its time-step.

Times are kept in memory that is there from the start: nothing grows while they are measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tmrl_like.worker.control_loop import ControlLoop

Seconds = np.ndarray[Any, np.dtype[np.float64]]

_PERCENTS = (50, 99, 99.9)


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
        self._times_s = np.full((3, max_steps), 0.0)  # of periods, decisions, and `env.step`

    @property
    def is_full(self) -> bool:
        return self.steps >= self._max_steps

    def add(self, period_s: float, inference_s: float, env_s: float) -> None:
        """Add a step: from observation to observation, of the decision, of `env.step`."""
        self._times_s[:, self.steps] = period_s, inference_s, env_s
        self.steps += 1

    @property
    def period_s(self) -> Seconds:
        """From observation to observation, [steps]."""
        return self._times_s[0, : self.steps]

    @property
    def inference_s(self) -> Seconds:
        """The policy's decision, [steps]."""
        return self._times_s[1, : self.steps]

    @property
    def env_s(self) -> Seconds:
        """`env.step`, [steps]."""
        return self._times_s[2, : self.steps]

    @property
    def overruns(self) -> int:
        """Periods that were overruns."""
        return int(np.count_nonzero(self.period_s >= self.overrun_after_s))

    def summary(self) -> dict[str, Any]:
        """Steps, overruns, and percentiles in milliseconds."""
        result: dict[str, Any] = {"steps": self.steps, "overruns": self.overruns}
        for name, values_s in zip(("period", "inference", "env_step"), self._times_s[:, : self.steps], strict=True):
            for percent, value_s in zip(_PERCENTS, percentiles(values_s, _PERCENTS), strict=True):
                result[f"{name}_p{percent:g}_ms"] = round(value_s * 1e3, 3)
        return result


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
        obs, _, terminated, truncated, _ = loop.step(obs, test, collect_samples=False)
        before, started, acted, observed = loop.times
        times.add(observed - before, acted - started, observed - acted)
        ended = terminated or truncated
