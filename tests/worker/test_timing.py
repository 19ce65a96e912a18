"""How well loops keep their time-step: what is kept of them, and who steps when."""

import numpy as np
import pytest

from tmrl_like.base.functional import partial
from tmrl_like.envs.clock import Clock
from tmrl_like.networking import RolloutWorker
from tmrl_like.testing.fakes import CountingEnv, LinearActor
from tmrl_like.worker import timing
from tmrl_like.worker.timing import EDGES_S, StepTimes, histogram, percentiles, run_bare


def test_the_times_of_steps_become_errors_overruns_and_what_the_loop_took():
    times = StepTimes(4, time_step_s=0.01, overrun_after_s=0.02)
    for period_s in (0.009, 0.011, 0.02):
        times.add(period_s, inference_s=0.001, env_s=0.007)
    assert times.steps == 3
    assert times.period_s.tolist() == [0.009, 0.011, 0.02]
    assert times.period_error_s == pytest.approx([0.001, 0.001, 0.01])
    assert times.inference_s.tolist() == [0.001] * 3
    assert times.env_s.tolist() == [0.007] * 3
    assert times.step_s == pytest.approx([0.002, 0.004, 0.013])
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


def test_a_value_is_in_the_bin_that_begins_with_it():
    assert EDGES_S[:4] == pytest.approx([1e-6, 2e-6, 5e-6, 1e-5])
    counts = histogram(np.array([0.0, 0.9e-6, 1e-6, 1.9e-6, EDGES_S[1], EDGES_S[-1], 100.0]))
    assert counts[:3] == [2, 2, 1]
    assert counts[-1] == 2
    assert (sum(counts), len(counts)) == (7, len(EDGES_S) + 1)


def test_percentiles_are_of_the_values():
    assert percentiles(np.arange(101) / 1e3, (50, 99, 100)) == pytest.approx([0.05, 0.099, 0.1])


class Time:
    """A clock that moves when somebody sleeps; sleeps come back late by what is listed."""

    def __init__(self, late_s):
        self.s = 1000.0
        self._late_s = iter(late_s)

    def now(self):
        return self.s

    def sleep(self, s):
        self.s += s + next(self._late_s)


def test_a_bare_loop_counts_from_the_deadline_and_not_from_when_it_woke():
    time = Time([0.0, 0.003, 0.0, 0.025, 0.0])
    times = StepTimes(5, time_step_s=0.01, overrun_after_s=0.02)
    run_bare(Clock(0.0, time.now, time.sleep), times, 5, lambda: False)
    assert times.period_s == pytest.approx([0.01, 0.013, 0.007, 0.035, 0.01])
    assert times.env_s == pytest.approx(times.period_s)
    assert times.overruns == 1


def test_a_bare_loop_ends_when_it_is_to():
    time = Time([0.0] * 3)
    times = StepTimes(3, time_step_s=0.01)
    run_bare(Clock(0.0, time.now, time.sleep), times, 3, lambda: times.steps == 2)
    assert times.steps == 2


class InRealTime(CountingEnv):
    time_step_s = 1e-4


@pytest.fixture
def turns(monkeypatch):
    """How many steps a bare loop does each time that it is its turn."""
    turns = []

    def note(clock, times, steps, is_stopped):
        turns.append(steps)
        run_bare(clock, times, steps, is_stopped)

    monkeypatch.setattr(timing, "run_bare", note)
    return turns


@pytest.mark.parametrize(
    ("slice_s", "longest_s", "expected"), [(0.0, 100.0, [10, 10, 5]), (0.0, 0.0, [1] * 25), (100.0, 100.0, [25])]
)
def test_worker_and_bare_loop_take_turns_at_the_end_of_an_episode_or_when_it_is_too_long(
    slice_s, longest_s, expected, turns, monkeypatch
):
    monkeypatch.setattr(timing, "_SLICE_S", slice_s)
    monkeypatch.setattr(timing, "_LONGEST_SLICE_S", longest_s)
    with RolloutWorker(InRealTime, LinearActor, standalone=True) as worker:
        times, floor = StepTimes(25, 1e-4), StepTimes(25, 1e-4)
        worker.measure(times, floor)
    assert turns == expected
    assert times.steps == floor.steps == 25
    assert (times.env_s <= times.period_s).all()


def test_a_measurement_that_is_stopped_keeps_what_there_is():
    class Env(InRealTime):
        stop = None

        def step(self, action):
            if self.total_steps == 12:
                Env.stop()
            return super().step(action)

    with RolloutWorker(partial(Env), LinearActor, standalone=True) as worker:
        Env.stop = worker.stop
        times, floor = StepTimes(25, 1e-4), StepTimes(25, 1e-4)
        worker.measure(times, floor)
    assert (times.steps, floor.steps) == (13, 0)
