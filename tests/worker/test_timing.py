"""How well a loop keeps its time-step: what is kept of it."""

import numpy as np
import pytest

from tmrl_like.base.functional import partial
from tmrl_like.networking import RolloutWorker
from tmrl_like.testing.fakes import CountingEnv, LinearActor
from tmrl_like.worker.timing import StepTimes, percentiles


def test_the_times_of_steps_are_kept_with_the_overruns():
    times = StepTimes(4, overrun_after_s=0.02)
    for period_s in (0.009, 0.011, 0.02):
        times.add(period_s, inference_s=0.001, env_s=0.007)
    assert times.steps == 3
    assert times.period_s.tolist() == [0.009, 0.011, 0.02]
    assert times.inference_s.tolist() == [0.001] * 3
    assert times.env_s.tolist() == [0.007] * 3
    assert times.overruns == 1


def test_the_memory_for_times_is_there_from_the_start():
    times = StepTimes(1000)
    before = [getattr(times, name).__array_interface__["data"][0] for name in ("period_s", "inference_s", "env_s")]
    while not times.is_full:
        times.add(0.01, 0.001, 0.002)
    after = [getattr(times, name).__array_interface__["data"][0] for name in ("period_s", "inference_s", "env_s")]
    assert after == before
    with pytest.raises(IndexError):
        times.add(0.01, 0.001, 0.002)


def test_percentiles_are_of_the_values():
    assert percentiles(np.arange(101) / 1e3, (50, 99, 100)) == pytest.approx([0.05, 0.099, 0.1])


def test_a_measurement_that_is_stopped_keeps_what_there_is():
    class Env(CountingEnv):
        stop = None

        def step(self, action):
            if self.total_steps == 12:
                Env.stop()
            return super().step(action)

    with RolloutWorker(partial(Env), LinearActor, standalone=True) as worker:
        Env.stop = worker.stop
        times = StepTimes(25)
        worker.measure(times)
    assert times.steps == 13
    assert (times.env_s <= times.period_s).all()
