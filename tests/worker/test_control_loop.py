"""Measurements and samples of the control loop, on a clock that only the environment and the actor
move.
"""

import threading
import warnings
from typing import ClassVar

import numpy as np
import pytest
from house import alone, buffers_of
from kit.clocks import LoopTime
from kit.environments import acting, calling, returning
from kit.fakes import CountingEnv, LinearActor
from kit.samples import appended_by
from kit.waiting import until

from tmrl_like.agents import SquashedGaussianActor
from tmrl_like.base import clocks
from tmrl_like.base.functional import partial
from tmrl_like.cli.check import taken
from tmrl_like.envs.drone import DroneEnv
from tmrl_like.errors import ConfigError
from tmrl_like.replay import DropHistory
from tmrl_like.types import StepTiming
from tmrl_like.wire.rows import RESET
from tmrl_like.worker import control_loop

STEP_S = 0.05


def test_samples_carry_the_number_of_their_episode_and_whether_they_are_of_its_reset():
    """Each episode is cut after its first step."""
    with alone() as worker:
        appended = appended_by(worker)
        worker.run_episode(3, train=False)
        for _ in range(101):
            worker.collect_train_episode(1)
    marks = [arguments[6] for arguments in appended]
    assert marks == [mark for n in (*range(100), 0) for mark in (RESET + n, n)]
    ends = [(terminated, truncated) for (*_, terminated, truncated, _), *_ in appended]
    assert ends == [(False, False), (False, True)] * 101


def test_the_actor_hears_of_each_episode_before_the_environment_is_reset():
    calls = []

    class Actor(LinearActor):
        def reset(self):
            calls.append("actor")

    env_cls = returning(lambda *found: calls.append("environment") or found, method="reset")
    with alone(env_cls, Actor) as worker:
        calls.clear()
        worker.run(nb_episodes=2, verbose=False)
    assert calls == ["actor", "environment"] * 2


def test_crc_debugging_takes_an_environment_that_returns_one_array_again_and_again():
    seen = np.zeros(2, np.float32)

    def again(obs, *others):
        seen[:] = obs
        return seen, *others

    with alone(returning(again, returning(again), "reset"), crc_debug=True) as worker:
        appended = appended_by(worker)
        worker.collect_train_episode(3)
    pairs = [(original[0], original[3].copy()) for (*_, original), *_ in appended]
    assert [one.tolist() for one, _ in pairs[1:]] == [[1, 0], [1, 1], [1, 2]]


def test_crc_debugging_takes_what_the_environment_gave_before_a_compressor_changes_it():
    def halve(act, obs, *others):
        obs /= 2
        return act, obs, *others

    with alone(sample_compressor=halve, crc_debug=True) as worker:
        appended = appended_by(worker)
        worker.collect_train_episode(1)
    (*_, original), *_ = appended[-1]
    assert original[3].tolist() == [1, 1]


PERIODS_S = (0.05, 0.0625, 0.04)
INFERENCE_S = (0.003, 0.001, 0.002)


def test_timing_of_a_sample_is_that_of_the_decision_and_what_the_period_missed_the_time_step_by(
    monkeypatch,
):
    clock = LoopTime()

    def act(obs):
        clock.now += INFERENCE_S[int(obs[0, 1])]
        return np.zeros(1, np.float32)

    def step(env):
        clock.now += PERIODS_S[env.total_steps] - INFERENCE_S[env.total_steps]

    env_cls = calling(step)
    env_cls.time_step_s = STEP_S
    monkeypatch.setattr(control_loop, "time", clock)
    monkeypatch.setattr(clocks, "unix_s", clock.time)
    with alone(env_cls, acting(act), max_samples_per_episode=3) as worker:
        appended = appended_by(worker)
        stats = worker.collect_train_episode()
    timings = [StepTiming(*arguments[1:6]) for arguments in appended]
    assert [t.inference_s for t in timings] == pytest.approx([0.0, *INFERENCE_S])
    assert [t.period_error_s for t in timings] == pytest.approx([0.0, 0.0, 0.0125, -0.01], abs=1e-9)
    ends = 1e9 + 1000.0 + np.cumsum([0.0, *PERIODS_S])
    assert [t.observed_at_s for t in timings] == pytest.approx(ends, abs=1e-6)
    said = worker.condition()
    assert said.overruns == 0
    assert said.action_delay_s == pytest.approx(INFERENCE_S[-1])
    assert said.returns == (stats.return_,)
    assert stats.duration_s == pytest.approx(sum(PERIODS_S))


def test_the_return_of_an_episode_that_a_fault_cut_short_is_not_reported():
    with alone(partial(CountingEnv, raise_at=5), max_samples_per_episode=3) as worker:
        whole, broken = worker.collect_train_episode(), worker.collect_train_episode()
        assert (whole.fault, broken.steps, worker.condition().returns) == ("", 1, (whole.return_,))


@pytest.mark.parametrize(("type_", "of_reset"), [(np.float32, np.float32), (int, float)])
def test_the_reward_of_a_reset_is_zero_in_the_type_of_the_float_rewards_before_it(type_, of_reset):
    with alone(returning(lambda obs, rew, *rest: (obs, type_(rew), *rest))) as worker:
        appended = appended_by(worker)
        worker.collect_train_episode()
        worker.collect_train_episode()
    rewards = [sample[2] for sample, *timing in appended if timing[5] >= RESET]
    assert rewards == [0.0, 0.0]
    assert [type(rew) for rew in rewards] == [float, of_reset]


def test_an_observation_of_another_dtype_than_its_space_is_reported_once(caplog):
    wide = returning(lambda obs, *others: (obs.astype(np.float64), *others))
    with alone(wide, acting(lambda obs: np.zeros(1, np.float32))) as worker:
        worker.run(nb_episodes=2, verbose=False)
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line.startswith("the observation is float64 (2,); the space says Box(")


def test_the_control_threads_lines_are_written_by_who_waits_for_it(caplog):
    """Each deadline is missed, of which rtgym would warn; the fourth step waits for log lines."""

    def late(env):
        warnings.warn("Time-step timed out. Elapsed since last time-step: 0.07", stacklevel=1)
        if env.total_steps == 3:
            until(lambda: caplog.records)

    written_by, env_cls = [], calling(late)
    env_cls.time_step_s = 1e-9
    caplog.handler.addFilter(lambda _: not written_by.append(threading.current_thread()))
    with alone(partial(env_cls, episode_steps=3)) as worker:
        assert [stats.overruns for stats in worker.run_episodes(nb_episodes=2)] == [3, 3]
        assert worker.condition().overruns == 6
        assert worker.run_env_benchmark(3, verbose=False)["overruns"] == 3
    assert set(written_by) == {threading.current_thread()}
    assert caplog.text.count("time-step overrun: ") == 9


class Telling(LinearActor):
    """An actor with extras about its choice, whose action is not finite in the fourth step."""

    extras: ClassVar = {"values": np.zeros(2), "step": 0}

    def act(self, obs, test=False):
        n = int(obs[0, 1])
        self.extras = {"values": np.full(2, float(n)), "step": n}
        return np.array([np.nan if n == 3 else 0.0], np.float32)


def test_what_an_actor_says_is_in_the_info_of_each_sample_in_one_form():
    with alone(partial(CountingEnv, 5), Telling) as worker, taken(worker) as take:
        worker.collect_train_episode()
        (buffer,) = buffers_of(take())
    assert [len(block.segments) for block in buffer.blocks] == [1]
    infos = [sample.info for sample in buffer]
    # 0 at the reset, and where the action was not finite
    assert [info["step"] for info in infos] == [0, 0, 1, 2, 0, 4]
    assert [info["values"].tolist() for info in infos] == [[info["step"]] * 2 for info in infos]


def test_a_compressor_that_would_drop_more_than_the_action_buffer_is_refused():
    with pytest.raises(ConfigError, match="drops 5 actions of each observation, which ends in 4"):
        alone(DroneEnv, SquashedGaussianActor, sample_compressor=DropHistory(5))
