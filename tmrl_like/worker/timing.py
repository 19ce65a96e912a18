"""How well a control loop keeps its time-step, and what this machine can do at all: a bare loop that sleeps and spins.

Times are kept in memory that is there from the start: nothing grows while they are measured.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tmrl_like.envs.clock import Clock, bounded_spin_s
from tmrl_like.worker.control_loop import ControlLoop

Seconds = np.ndarray[Any, np.dtype[np.float64]]

EDGES_S = [mantissa * 10.0**exponent for exponent in range(-6, 1) for mantissa in (1, 2, 5)]
"""Borders of a histogram's bins, in seconds: below the first, between two, and from the last on."""

_SLICE_S = 1.0  # the two loops take turns as often, at the end of an episode …
_LONGEST_SLICE_S = 30.0  # … or in the middle of one that is longer


class StepTimes:
    """The times of a loop's steps.

    Attributes:
        time_step_s: nominal duration of a time-step; 0: there is none.
        overrun_after_s: a period that long is an overrun.
        steps: how many were added.
    """

    def __init__(self, max_steps: int, time_step_s: float = 0.0, overrun_after_s: float = math.inf) -> None:
        """Set up for at most `max_steps` steps."""
        self.time_step_s = time_step_s
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
    def period_error_s(self) -> Seconds:
        """How far each period was from the time-step, either way, [steps]."""
        return np.abs(self.period_s - self.time_step_s)

    @property
    def step_s(self) -> Seconds:
        """From an observation to the call of `env.step`: the decision, and what the loop does, [steps]."""
        return self.period_s - self.env_s

    @property
    def overruns(self) -> int:
        """Periods that were overruns."""
        return int(np.count_nonzero(self.period_s >= self.overrun_after_s))


def histogram(values_s: Seconds) -> list[int]:
    """How many values are in each bin of `EDGES_S`, one more than it has borders."""
    bins = np.searchsorted(EDGES_S, values_s, side="right")
    return [int(count) for count in np.bincount(bins, minlength=len(EDGES_S) + 1)]


def percentiles(values_s: Seconds, percents: Sequence[float]) -> list[float]:
    """Of at least one value, in seconds."""
    return [float(value) for value in np.percentile(values_s, percents)]


def measure(loop: ControlLoop, times: StepTimes, floor: StepTimes | None = None, test: bool = False) -> None:
    """Fill `times` with steps of a control loop and, in turns, `floor` (if any) with as many of a bare one.

    To be called in the thread that steps the environment. Ends sooner where the environment is to stop. No samples are
    collected. `test`: the actor acts as in a test.
    """
    is_stopped = loop.env.stopping.is_set
    clock = Clock(bounded_spin_s(times.time_step_s))
    while not times.is_full and not is_stopped():
        before = times.steps
        _step(loop, times, test, math.inf if floor is None else _SLICE_S)
        if floor is not None:
            run_bare(clock, floor, times.steps - before, is_stopped)


def _step(loop: ControlLoop, times: StepTimes, test: bool, slice_s: float) -> None:
    """Step until `times` is full or, after a while, an episode ends."""
    obs, _ = loop.reset(collect_samples=False)
    begun_at = loop.observed_at
    while not times.is_full and not loop.env.stopping.is_set():
        before = loop.observed_at
        obs, _, terminated, truncated, _ = loop.step(obs, test, collect_samples=False)
        times.add(loop.observed_at - before, loop.inference_s, loop.env_s)
        passed_s = loop.observed_at - begun_at
        if passed_s >= (slice_s if terminated or truncated else slice_s + _LONGEST_SLICE_S):
            return
        if terminated or truncated:
            obs, _ = loop.reset(collect_samples=False)


def run_bare(clock: Clock, times: StepTimes, steps: int, is_stopped: Callable[[], bool]) -> None:
    """A loop that does nothing but wait for its deadlines, which are `times.time_step_s` apart; adds its steps.

    Behind a deadline that it missed by a whole time-step it begins to count again, as real-time environments do.
    """
    due = observed = clock.now()
    for _ in range(steps):
        if is_stopped():
            return
        due += times.time_step_s
        called = clock.now()
        clock.wait_until(due)
        before, observed = observed, clock.now()
        times.add(observed - before, 0.0, observed - called)
        if observed >= due + times.time_step_s:
            due = observed
