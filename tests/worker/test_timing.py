"""How well a loop keeps its time-step: what is kept of it."""

import numpy as np
import pytest
from house import alone

from tmrl_like.base.functional import partial
from tmrl_like.testing.fakes import CountingEnv
from tmrl_like.worker.timing import StepTimes


def test_the_times_of_steps_are_kept_with_the_overruns():
    rows = [
        (at, at + 0.001, at + 0.002, at + period_s)
        for at, period_s in ((0.0, 0.009), (1.0, 0.011), (2.0, 0.02))
    ]
    times = StepTimes(np.array(rows), overrun_after_s=0.0199)
    assert len(times) == 3
    assert times.period_s == pytest.approx([0.009, 0.011, 0.02])
    assert times.inference_s == pytest.approx([0.001] * 3)
    assert times.env_s == pytest.approx([0.007, 0.009, 0.018])
    assert times.overruns == 1


def test_a_summary_is_in_milliseconds():
    at = np.cumsum(np.arange(102) / 1e3)
    times = StepTimes(np.stack((at[:-1], at[:-1], at[:-1], at[1:]), axis=1), 0.0905)
    said = times.summary()
    assert (said["steps"], said["overruns"]) == (101, 11)
    assert [said[f"period_p{percent}_ms"] for percent in (50, 99, 99.9)] == pytest.approx(
        [51.0, 100.0, 100.9]
    )
    assert said["env_step_p50_ms"] == said["period_p50_ms"]
    assert said["inference_p99_ms"] == 0.0


def test_a_measurement_that_is_stopped_keeps_what_there_is():
    class Env(CountingEnv):
        stop = None

        def step(self, action):
            if self.total_steps == 12:
                Env.stop()
            return super().step(action)

    with alone(partial(Env)) as worker:
        Env.stop = worker.stop
        times = worker.measure(25)
    assert len(times) == 13
    assert (times.env_s <= times.period_s).all()
