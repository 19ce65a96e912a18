"""Measures how well a control loop keeps its time-step."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tmrl_like.worker.control_loop import ControlLoop, Info

Seconds: TypeAlias = NDArray[np.float64]

_PERCENTS = (50, 99, 99.9)


class StepTimes:
    """The times of N steps.

    Attributes:
        period_s: from one observation to the next, [N].
        inference_s: the policy's decision, [N].
        env_s: `env.step`, [N].
        overruns: number of periods that missed their deadline.
    """

    def __init__(self, times: Seconds, overrun_after_s: float) -> None:
        """Take the `times` of each step, [N, 4], as in `ControlLoop.times`; a period of
        `overrun_after_s` or more is an overrun.
        """
        before, started, acted, observed = times.T
        self.period_s, self.inference_s, self.env_s = (
            observed - before,
            acted - started,
            observed - acted,
        )
        self.overruns = int(np.count_nonzero(self.period_s >= overrun_after_s))

    def __len__(self) -> int:
        """Return N."""
        return len(self.period_s)

    def summary(self) -> Info:
        """Return the number of steps, overruns and, if there were steps, percentiles in
        milliseconds.
        """
        result: Info = {"steps": len(self), "overruns": self.overruns}
        columns = {"period": self.period_s, "inference": self.inference_s, "env_step": self.env_s}
        for name, values_s in columns.items() if len(self) else ():
            for percent, value_s in zip(_PERCENTS, np.percentile(values_s, _PERCENTS), strict=True):
                result[f"{name}_p{percent:g}_ms"] = round(1e3 * float(value_s), 3)
        return result


def measure(loop: ControlLoop, max_steps: int, test: bool) -> StepTimes:
    """Perform `max_steps` steps of a control loop, or fewer if the environment is stopped. No
    samples are collected.

    To be called in the thread that steps the environment. With `test` the actor acts as in a test.
    The memory for the times is allocated before the first step.
    """
    times = np.zeros((max_steps, 4))
    steps, ended = 0, True
    while steps < max_steps and not loop.env.stopping.is_set():
        if ended:
            obs = loop.reset(collect_samples=False)
        obs, _, terminated, truncated, _ = loop.step(obs, test, collect_samples=False)
        times[steps] = loop.times
        steps += 1
        ended = terminated or truncated
    loop.env.brake.pull()
    return StepTimes(times[:steps], loop.env.overrun_after_s)
