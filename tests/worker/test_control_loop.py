"""What the control loop measures, on a clock that only the environment and the actor move."""

from types import SimpleNamespace

import pytest

from tmrl_like.networking import RolloutWorker
from tmrl_like.testing.fakes import CountingEnv, LinearActor
from tmrl_like.worker import control_loop

STEP_S = 0.05
PERIODS_S = (0.05, 0.0625, 0.04)
INFERENCE_S = (0.003, 0.001, 0.002)


def test_timing_of_each_sample_is_the_duration_of_the_decision_and_what_the_period_missed_the_time_step_by(monkeypatch):
    now = 1000.0
    clock = SimpleNamespace(perf_counter=lambda: now, monotonic=lambda: now, time=lambda: 1e9 + now)
    taken = []

    class Env(CountingEnv):
        time_step_s = STEP_S

        def step(self, action):
            nonlocal now
            now += PERIODS_S[self.total_steps] - INFERENCE_S[self.total_steps]
            return super().step(action)

    class Actor(LinearActor):
        def act(self, obs, test=False):
            nonlocal now
            now += INFERENCE_S[int(obs[0, 1])]
            return super().act(obs, test)

    monkeypatch.setattr(control_loop, "time", clock)
    with RolloutWorker(Env, Actor, standalone=True, max_samples_per_episode=3) as worker:
        worker._outbox.append = lambda sample, timing, is_reset: taken.append(timing)
        worker.collect_train_episode()
    reset, *steps = taken
    assert (reset.inference_s, reset.period_error_s) == (0.0, 0.0)
    assert [t.inference_s for t in steps] == pytest.approx(INFERENCE_S)
    assert [t.period_error_s for t in steps] == pytest.approx([0.0, 0.0125, -0.01], abs=1e-9)
    ends = [1e9 + 1000.0 + sum(PERIODS_S[:k]) for k in range(4)]
    assert [t.observed_at_s for t in taken] == pytest.approx(ends, abs=1e-6)
    assert worker.overruns == 0
