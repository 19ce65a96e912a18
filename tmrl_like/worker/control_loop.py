"""The control loop: act, step, append. Nothing in it waits for the network, a disk or the learner."""

from __future__ import annotations

import inspect
import logging
import time
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from tmrl_like.base import clocks
from tmrl_like.delivery.sample_log import SampleLog
from tmrl_like.envs.actions import actions_of_reset
from tmrl_like.envs.supervision import SupervisedEnv
from tmrl_like.errors import MemoryContractError
from tmrl_like.policies.action_check import finite_check
from tmrl_like.rollouts.hooks import Rollouts
from tmrl_like.rollouts.rollout import Step
from tmrl_like.types import LATENESS_EDGES_S, ActionSource, EpisodeStats, SampleCompressor
from tmrl_like.wire.condition import Condition, with_alarms
from tmrl_like.wire.rows import EPISODES, RESET
from tmrl_like.worker.arbiter import Arbiter
from tmrl_like.worker.realtime import collect_garbage
from tmrl_like.worker.returned import check_reward, not_finite, observation_problem

_REWARD_TYPES = (float, np.float32, np.float64, np.float16)
_LOOKED_AFTER_EVERY = 16  # steps


@dataclass(slots=True)
class _Episode:
    test: bool
    started_at: float  # time.monotonic()
    return_: float = 0.0
    steps: int = 0
    overruns: int = 0
    rollout: deque[Step] | None = None  # where somebody asked for it


@dataclass(eq=False)
class ControlLoop:
    """Steps one environment, in the thread that calls it.

    Attributes:
        env: the environment, supervised.
        driver: chooses the actions.
        worker: the worker's name.
        returns: takes those of the last episodes; the lanes of a worker share it.
        samples: where samples are appended to; None: nobody takes them.
        rollouts: where episodes go as a whole; None: nobody takes them.
        sample_compressor: as `RolloutWorker`'s.
        crc_debug: send the original with every sample.
        counts: what is counted since the start, by the driver, too; `condition` has the rest as well.
        collected_steps: steps since the start that became samples.
        times: `time.perf_counter()` of the newest step: when its observation came, when it was looked at, when the
            action was there, and when the next observation came.

    Raises:
        MemoryContractError: the compressor does not take the six items of a sample.
    """

    env: SupervisedEnv
    driver: Arbiter
    worker: str
    returns: deque[float]
    samples: SampleLog | None = None
    rollouts: Rollouts | None = None
    sample_compressor: SampleCompressor | None = None
    crc_debug: bool = False

    def __post_init__(self) -> None:
        if self.sample_compressor is not None:
            _check_compressor(self.sample_compressor)
        self.collected_steps = 0
        self.times = (0.0, 0.0, 0.0, 0.0)
        self.counts = self.driver.counts
        self._late_steps = [0] * (len(LATENESS_EDGES_S) + 1)
        self._no_extras = {name: _zeros_like(value) for name, value in self.driver.actor.extras.items()}
        self._source = ActionSource.POLICY  # of the newest action
        self._episode = _Episode(False, 0.0)
        self._number = -1  # of the newest episode whose samples are collected, as it travels with them
        self._reward: Any = 0.0  # the newest
        self._epoch_s = 0.0  # the Unix time at which `time.perf_counter()` was 0
        self._failure: BaseException | None = None
        self._problem = ""  # of the first observations
        self._is_finite_obs = finite_check(self.env.env.observation_space)
        if self.driver.obs_preprocessor is not None:  # which may be there to replace what is not
            self._is_finite_obs = lambda obs: True

    # -- any thread ----------------------------------------------------------------------------------

    def condition(self) -> Condition:
        """How it is now."""
        env, driver, counts = self.env, self.driver, self.counts
        observed_at, _, acted_at, _ = self.times
        return with_alarms(
            counts,
            driver.intake.verdicts.alarm,
            "" if self.samples is None else self.samples.alarm,
            policy_age_s=time.perf_counter() - driver.received_at if driver.received_at else 0.0,
            env_faults=env.faults,
            env_rebuilds=env.rebuilds,
            action_delay_s=acted_at - observed_at,
            time_step_s=env.time_step_s,
            late_steps=tuple(self._late_steps),
            returns=tuple(self.returns),
            driver=self._source.name.lower(),
        )

    def fail(self, failure: BaseException) -> None:
        """The next step raises this, which ended the connection, or what was said first."""
        self._failure = self._failure or failure

    def note(self, ended: str = "", awaits: bool = False) -> None:
        """Why the last run ended, where it did, and whether one is in lockstep with training."""
        self.counts.ended, self.counts.awaits = ended, awaits

    def check(self) -> None:
        """Raise what ended the connection, if anything did."""
        if self._failure is not None:
            raise self._failure

    # -- the control thread --------------------------------------------------------------------------

    def be_expert(self, expert: bool) -> None:
        """Ignore policies from now on, or no more. Samples of an expert do not continue those of others."""
        if expert != self.driver.is_expert and self.counts.env_steps and self.samples is not None:
            self.samples.add_break()
        self.driver.be_expert(expert)

    def append_to(self, samples: SampleLog | None) -> None:
        """Samples go there from now on; None: nowhere."""
        self.samples = samples

    def begin_episode(self, test: bool, collect_samples: bool) -> Any:
        """Reset; returns the observation. Raises as `step`."""
        self.check()
        self._episode = _Episode(test, time.monotonic())
        obs, _ = self.reset(collect_samples)
        if self.rollouts is not None:
            self._episode.rollout = self.rollouts.begin(obs, self.times[3])
        return obs

    def reset(self, collect_samples: bool) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; returns observation and info.

        With `collect_samples` its first observation becomes samples: one for each action of its action buffer, oldest
        first, so that who rebuilds action buffers from samples need not know what a reset does to them.
        """
        collect_garbage(is_between_episodes=True)
        self.driver.actor.reset()
        obs, info = self.env.reset()
        if not self._is_finite_obs(obs):
            raise not_finite("observation after a reset", obs)
        if not self.counts.env_steps:
            self._look(obs)
        now = time.perf_counter()
        self.times = now, now, now, now
        self._epoch_s = clocks.unix_s() - now
        if collect_samples:
            kind = type(self._reward)
            no_reward = kind(0) if kind in _REWARD_TYPES else 0.0  # in the type of the environment's rewards
            info = {**info, **self._no_extras}
            self._number = (self._number + 1) % EPISODES
            for act in actions_of_reset(self.env.env, obs):
                sample = self._compressed((act, obs, no_reward, False, False, info), None)
                if self.samples is not None:
                    timing = self._epoch_s + now, 0.0, 0.0, self.counts.policy_version, self.driver.source
                    self.samples.append(sample, *timing, self._number + RESET)
        return obs, info

    def step(
        self, obs: Any, test: bool, collect_samples: bool, last_step: bool = False
    ) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """See `RolloutWorker.step`; `info` holds the actor's `extras`.

        Raises:
            EnvironmentFaultError: the environment raised, gave what is not finite, or no reward.
            RefusedError, CredentialsError: the connection ended for good.
        """
        env, driver, counts, clock = self.env, self.driver, self.counts, time.perf_counter
        if driver.intake.ready[0] != driver.intake.taken or self._failure is not None:
            self._hear()
        before, started = self.times[3], clock()
        act, source = driver.choose(obs, test, started)
        # What filters or limits actions stands here: the environment, the sample and the rollout get the same one.
        self._source = source
        acted = clock()
        new_obs, rew, terminated, truncated, info = env.step(act)
        observed = clock()
        self.times = before, started, acted, observed
        if last_step and not terminated:
            truncated = True
        if not self._is_finite_obs(new_obs):
            raise not_finite("observation", new_obs)
        if type(rew) not in _REWARD_TYPES or not isfinite(rew):
            check_reward(rew)
        if self._no_extras:
            info = {**info, **(driver.actor.extras if source is driver.source else self._no_extras)}
        self._reward = rew
        episode = self._episode
        episode.steps += 1
        episode.return_ += float(rew)
        counts.env_steps += 1
        period_s = observed - before
        error_s = period_s - env.time_step_s
        if env.time_step_s:
            self._late_steps[bisect_left(LATENESS_EDGES_S, error_s)] += 1
        if period_s >= env.overrun_after_s:
            self._on_overrun(period_s)
        if episode.rollout is not None and self.rollouts is not None:
            seen = new_obs if self.rollouts.observations else None
            episode.rollout.append((act, rew, info, counts.policy_version, source, observed, seen))
        if collect_samples:
            self.collected_steps += 1
            sample: tuple[Any, ...] = (act, new_obs, rew, terminated, truncated, info)
            if self.sample_compressor is not None or self.crc_debug:
                sample = self._compressed(sample, obs)
            if self.samples is not None:
                at_s, inference_s = self._epoch_s + observed, acted - started
                self.samples.append(sample, at_s, inference_s, error_s, counts.policy_version, source, self._number)
        if counts.env_steps % _LOOKED_AFTER_EVERY == 1:
            self._look_after(new_obs)
        return new_obs, rew, terminated, truncated, info

    def _hear(self) -> None:
        self.check()
        if not self.driver.is_expert:
            self.driver.refresh()

    def _look_after(self, obs: Any) -> None:
        """What need not be done in each step."""
        if self.counts.env_steps == 1:
            self._look(obs)
        self._epoch_s = clocks.unix_s() - time.perf_counter()
        collect_garbage(is_between_episodes=False)

    def _look(self, obs: Any) -> None:
        """Say where the first observations have not the form of their space."""
        problem = observation_problem(obs, self.env.env.observation_space, finite=False)
        if problem and problem != self._problem:
            self._problem = problem
            self.env.log.add(logging.WARNING, "%s; correct the environment or its observation_space", problem)

    def _compressed(self, made: tuple[Any, ...], last_obs: Any) -> tuple[Any, ...]:
        """What is sent of a sample; with `crc_debug`, the original behind it."""
        sample = made if self.sample_compressor is None else self.sample_compressor(*made)
        if type(sample) is not tuple or len(sample) != len(made):
            sample = _checked_sample(sample)
        if self.crc_debug:
            act, obs, rew, terminated, truncated, _ = made
            sample = (*sample, (last_obs, act, rew, obs, terminated, truncated))
        return sample

    def _on_overrun(self, period_s: float) -> None:
        overruns = self.counts.overruns = self.counts.overruns + 1
        self._episode.overruns += 1
        if overruns < 10 or overruns % 100 == 0:
            line = "time-step overrun: %.1f ms instead of %.1f ms (%d so far)"
            self.env.log.add(logging.WARNING, line, period_s * 1e3, self.env.time_step_s * 1e3, overruns)

    def end_episode(self, terminated: bool, truncated: bool, fault: str | None = None) -> EpisodeStats:
        """Report the episode. What follows a `fault`, with which the environment broke it off, does not continue it."""
        episode = self._episode
        stats = EpisodeStats(
            worker=self.worker,
            test=episode.test,
            return_=episode.return_,
            steps=episode.steps,
            terminated=terminated,
            truncated=truncated,
            finished_at_s=time.time(),
            policy_version=self.counts.policy_version,
            duration_s=time.monotonic() - episode.started_at,
            overruns=episode.overruns,
            fault=fault or "",
        )
        self.returns.append(episode.return_)
        if self.samples is not None:
            self.samples.end_episode(stats)
            if fault is not None:
                self.samples.add_break()
        if self.rollouts is not None and episode.rollout is not None:
            self.rollouts.end(episode.rollout, stats, self.env.time_step_s)
            episode.rollout = None
        return stats


_DONE = "; `done` is now two, `terminated` and `truncated`"


def _check_compressor(compressor: SampleCompressor) -> None:
    """Raise MemoryContractError for one that does not take the six items of a sample."""
    try:
        signature = inspect.signature(compressor)
    except (TypeError, ValueError):  # built-ins without a signature
        return
    try:
        signature.bind(*range(6))
    except TypeError:
        number = len(signature.parameters)
        raise MemoryContractError(
            f"sample_compressor takes {number} arguments; expected (act, obs, rew, terminated, truncated, info)"
            f"{_DONE if number == 5 else ''}"
        ) from None


def _zeros_like(value: Any) -> Any:
    """Zeros of an array's or a number's form."""
    return np.zeros_like(value)[()] if isinstance(value, np.ndarray | np.generic) else type(value)(0)


def _checked_sample(sample: Any) -> tuple[Any, ...]:
    if isinstance(sample, tuple | list) and len(sample) == 6:
        return tuple(sample)
    found = f"{len(sample)} items" if isinstance(sample, tuple | list) else f"a {type(sample).__name__}"
    raise MemoryContractError(
        "sample_compressor must return (act, obs, rew, terminated, truncated, info); it returned "
        f"{found}{_DONE if found == '5 items' else ''}"
    )
