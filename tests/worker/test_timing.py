"""The statistics of how well a loop keeps its time-step."""

import numpy as np
import pytest
from house import alone
from kit.environments import calling

from tmrl_like.errors import ConfigError
from tmrl_like.worker.timing import StepTimes


def test_a_summary_is_in_milliseconds():
    """The steps take 0 to 100 ms, and their policy 1 ms."""
    at = 1.0 + np.cumsum(np.arange(102) / 1e3)
    times = StepTimes(np.stack((at[:-1], at[:-1], at[:-1] + 0.001, at[1:]), axis=1), 0.0905)
    said = times.summary()
    assert (said["steps"], said["overruns"]) == (101, 11)
    assert [said[f"period_p{percent}_ms"] for percent in (50, 99, 99.9)] == pytest.approx(
        [51.0, 100.0, 100.9]
    )
    assert (said["inference_p99_ms"], said["env_step_p50_ms"]) == pytest.approx((1.0, 50.0))


def test_a_measurement_that_is_stopped_keeps_what_there_is():
    with alone(calling(lambda env: env.total_steps == 12 and worker.stop())) as worker:
        times = worker.measure(25)
        assert len(worker.measure(25)) == 25  # the stop was for the first measurement only
    assert len(times) == 13
    assert (times.env_s <= times.period_s).all()


def test_a_benchmark_that_is_stopped_before_its_first_step_has_no_percentiles():
    with alone() as worker:
        worker.stop()
        assert worker.run_env_benchmark(5) == {"steps": 0, "overruns": 0}


def test_a_benchmark_has_a_whole_number_of_steps():
    with alone() as worker:
        assert worker.run_env_benchmark(1e1, verbose=False)["steps"] == 10
        for steps in (0, 2.5):
            with pytest.raises(ConfigError, match=r"nb_steps is .*; expected"):
                worker.run_env_benchmark(steps)
