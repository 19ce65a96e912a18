"""The control loop: act, step, append. Nothing in it waits for the network, a disk or the learner.

After the environment's clock has slept, the processor's caches hold little of the loop, and each
line takes several times as long. So `step` contains only what must happen in each step; the rest is
in functions that it rarely calls.
"""

from __future__ import annotations

import copy
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tmrl_like.base import clocks
from tmrl_like.delivery.sample_log import SampleLog
from tmrl_like.envs.actions import actions_of_reset
from tmrl_like.envs.float32 import REWARD_TYPES
from tmrl_like.envs.supervision import StoppedError
from tmrl_like.policies.action_check import finite_check
from tmrl_like.rollouts.hooks import Rollouts
from tmrl_like.rollouts.rollout import Step
from tmrl_like.types import Action, ActionSource, EpisodeStats, Observation
from tmrl_like.wire.condition import TEST, Condition, with_alarms
from tmrl_like.wire.rows import EPISODES, RESET
from tmrl_like.worker.action_chain import ActionChain
from tmrl_like.worker.arbiter import Arbiter
from tmrl_like.worker.realtime import collect_garbage
from tmrl_like.worker.returned import check_reward, not_finite, observation_problem
from tmrl_like.worker.sampling import Made

_LOOKED_AFTER_EVERY = 16  # steps

Info: TypeAlias = dict[str, Any]
"""What an environment returns beside an observation."""

Stepped: TypeAlias = tuple[Observation, float, bool, bool, Info]
"""What `gymnasium.Env.step` returns."""


@dataclass(slots=True)
class _Episode:
    """The current episode, with the counts from before it began."""

    test: bool
    started_at: float  # time.monotonic()
    before: Condition
    others_before: int  # steps of others
    return_: float = 0.0
    rollout: deque[Step] | None = None  # None: nobody asked for it


@dataclass(eq=False)
class ControlLoop:
    """Steps one environment, in the thread that calls it.

    Attributes:
        driver: chooses the actions.
        env: the supervised environment that it drives.
        worker: the worker's name.
        returns: collects the returns of the last episodes; shared by the lanes of a worker.
        sample_of: makes a sample from the result of a step; None: the result is the sample.
        rollouts: takes finished episodes as a whole; None: they are not collected.
        samples: the log to which samples are appended; None: they are not kept.
        chain: filters and limits between the driver and the environment; None: actions are not
            changed.
        counts: what was counted since the start, also by the driver; `condition` completes it.
        collected_steps: number of steps since the start that became samples.
        times: `time.perf_counter()` in the newest step: when its observation arrived, when the loop
            began to act on it, when the action was chosen, and when the next observation arrived.
    """

    driver: Arbiter
    worker: str
    returns: deque[float]
    sample_of: Callable[[Made], Made] | None = None
    rollouts: Rollouts | None = None
    samples: SampleLog | None = None
    chain: ActionChain | None = None

    def __post_init__(self) -> None:
        self.env = self.driver.env
        self.collected_steps = 0
        self.times = (0.0, 0.0, 0.0, 0.0)
        self.counts = self.driver.counts
        self._no_extras = {
            name: _zeros_like(value) for name, value in self.driver.actor.extras.items()
        }
        self._action: Action = None  # the newest
        self._source = ActionSource.POLICY  # what chose it
        self._episode = _Episode(False, 0.0, Condition(), 0)
        # number of the newest episode whose samples are collected; sent with them
        self._number = -1
        self._reward = 0.0  # the newest
        self._epoch_s = 0.0  # the Unix time at which `time.perf_counter()` was 0
        self._failure: BaseException | None = None
        self._problem = ""  # with the form of the first observations
        self._is_finite_obs = finite_check(self.env.env.observation_space)
        if self.driver.obs_preprocessor is not None:  # it may replace values that are not finite
            self._is_finite_obs = lambda obs: True

    # -- any thread --------------------------------------------------------------------------------

    def condition(self) -> Condition:
        """Return the current condition."""
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
            sensor_age_s=max((sensor.age_s for sensor in env.sensors), default=0.0),
            time_step_s=env.time_step_s,
            returns=tuple(self.returns),
            driver=TEST
            if driver.holds and self._source is ActionSource.POLICY
            else self._source.name.lower(),
        )

    def fail(self, failure: BaseException) -> None:
        """Have the next step raise this error, which ended the connection; an earlier one takes
        precedence.
        """
        self._failure = self._failure or failure

    def check(self) -> None:
        """Raise the error that ended the connection, if there is one."""
        if self._failure is not None:
            raise self._failure

    def check_running(self) -> None:
        """Raise as `check`, and StoppedError if a stop was requested."""
        self.check()
        if self.env.stopping.is_set():
            raise StoppedError

    # -- the control thread ------------------------------------------------------------------------

    def be_expert(self, expert: bool) -> None:
        """Ignore policies from now on, or accept them again. A break separates an expert's samples
        from the others.
        """
        if expert != self.driver.is_expert and self.counts.env_steps and self.samples is not None:
            self.samples.add_break()
        self.driver.be_expert(expert)

    def begin_episode(self, test: bool, collect_samples: bool) -> Observation:
        """Reset, and return the observation. Raises as `step` does."""
        self.check()
        before, others = copy.copy(self.counts), self.driver.steps_of_others
        self._episode = _Episode(test, time.monotonic(), before, others)
        obs = self.reset(collect_samples)
        if self.rollouts is not None:
            self._episode.rollout = self.rollouts.begin(obs, self.times[3])
        return obs

    def reset(self, collect_samples: bool) -> Observation:
        """Reset the environment; return the observation.

        With `collect_samples` the first observation becomes samples: one for each action of its
        action buffer, oldest first. Code that rebuilds action buffers from samples then need not
        know what a reset does to them.
        """
        self.release()
        collect_garbage(is_between_episodes=True)
        self.driver.actor.reset()
        if self.chain is not None:
            self.chain.begin()
        obs, info = self.env.reset()
        if not self._is_finite_obs(obs):
            raise not_finite("observation after a reset", obs)
        if not self.counts.env_steps:
            self._look(obs)
        now = time.perf_counter()
        self.times = now, now, now, now
        self._epoch_s = clocks.unix_s() - now
        if collect_samples:
            self._collect_reset(obs, {**info, **self._no_extras})
        return obs

    def _collect_reset(self, obs: Observation, info: Info) -> None:
        kind = type(self._reward)
        # in the type of the environment's rewards
        no_reward = kind(0) if kind in REWARD_TYPES else 0.0
        self._number = (self._number + 1) % EPISODES
        timing = (
            self._epoch_s + self.times[3],
            0.0,
            0.0,
            self.counts.policy_version,
            self.driver.source,
        )
        for act in actions_of_reset(self.env.env, obs):
            self._append((act, obs, no_reward, False, False, info), *timing, self._number + RESET)

    def _append(self, made: Made, *timing: Any) -> None:
        """Append a sample. `step` does the same inline, to save a call."""
        sample = made if self.sample_of is None else self.sample_of(made)
        if self.samples is not None:
            self.samples.append(sample, *timing)

    def step(
        self, obs: Observation, test: bool, collect_samples: bool, last_step: bool = False
    ) -> Stepped:
        """Act on `obs` and perform one environment step. Return what `gymnasium.Env.step` returns,
        with the actor's `extras` added to `info`.

        Args:
            obs: the newest observation.
            test: passed to the actor.
            collect_samples: whether the result becomes a sample.
            last_step: cut the episode here (`truncated=True`) if it does not terminate by itself.

        Raises:
            EnvironmentFaultError: the environment raised, or returned values that are not finite or
                a reward that is not a number.
            RefusedError, CredentialsError: the connection ended for good.
        """
        env, driver, counts, clock = self.env, self.driver, self.counts, time.perf_counter
        if driver.intake.ready[0] != driver.intake.taken or self._failure is not None:
            self._hear()
        before, started = self.times[3], clock()
        act, source = driver.choose(obs, test, started)
        if self.chain is not None:
            act = self.chain(act)
        acted = clock()
        new_obs, rew, terminated, truncated, info = env.step(act)
        observed = clock()
        self.times = before, started, acted, observed
        self._action, self._source, self._reward = act, source, rew
        if last_step and not terminated:
            truncated = True
        if not self._is_finite_obs(new_obs):
            raise not_finite("observation", new_obs)
        if type(rew) not in REWARD_TYPES or not math.isfinite(rew):
            check_reward(rew)
        steps = counts.env_steps = counts.env_steps + 1
        episode = self._episode
        episode.return_ += float(rew)
        period_s = observed - before
        if period_s >= env.overrun_after_s:
            self._on_overrun(period_s)
        if self._no_extras:
            info = {**info, **(driver.actor.extras if source is driver.source else self._no_extras)}
        if episode.rollout is not None and self.rollouts is not None:
            step = act, rew, info, counts.policy_version, source, observed, new_obs
            self.rollouts.add(episode.rollout, step)
        if collect_samples:
            self.collected_steps += 1
            sample: Made = (act, new_obs, rew, terminated, truncated, info)
            if self.sample_of is not None:
                sample = self.sample_of(sample)
            if self.samples is not None:
                at_s, error_s = self._epoch_s + observed, period_s - env.time_step_s
                self.samples.append(
                    sample,
                    at_s,
                    acted - started,
                    error_s,
                    counts.policy_version,
                    source,
                    self._number,
                )
        if steps % _LOOKED_AFTER_EVERY == 1:
            self._look_after(new_obs)
        return new_obs, rew, terminated, truncated, info

    def _hear(self) -> None:
        self.check()
        if not self.driver.is_expert:
            self.driver.refresh()

    def _look_after(self, obs: Observation) -> None:
        """Do what is not needed in each step."""
        if self.counts.env_steps == 1:
            self._look(obs)
        self._epoch_s = clocks.unix_s() - time.perf_counter()
        collect_garbage(is_between_episodes=False)

    def _look(self, obs: Observation) -> None:
        """Warn if one of the first observations does not have the form of its space."""
        problem = observation_problem(obs, self.env.env.observation_space)
        if problem and problem != self._problem:
            self._problem = problem
            self.env.log.add(
                logging.WARNING, "%s; correct the environment or its observation_space", problem
            )

    def _on_overrun(self, period_s: float) -> None:
        env, counts = self.env, self.counts
        counts.overruns += 1
        if counts.overruns < 10 or counts.overruns % 100 == 0:
            line = "time-step overrun: %.1f ms instead of %.1f ms (%d so far)"
            env.log.add(
                logging.WARNING, line, period_s * 1e3, env.time_step_s * 1e3, counts.overruns
            )

    def release(self) -> None:
        """Append the steps that are held back; only a loop that a person judges holds any."""

    def end_episode(
        self, terminated: bool, truncated: bool, fault: str | None = None
    ) -> EpisodeStats:
        """Report the episode and return its statistics. If a `fault` of the environment ended it, a
        break follows.
        """
        self.release()
        episode, counts, before = self._episode, self.counts, self._episode.before
        drove_alone = (self.driver.steps_of_others, counts.policy_version) == (
            episode.others_before,
            before.policy_version,
        )
        # a pinned policy may be another training's, with a number that the trainer gave as well
        counts_for_it = drove_alone and not self.driver.is_pinned
        stats = EpisodeStats(
            worker=self.worker,
            test=episode.test,
            return_=episode.return_,
            steps=counts.env_steps - before.env_steps,
            terminated=terminated,
            truncated=truncated,
            finished_at_s=time.time(),
            policy_version=counts.policy_version if counts_for_it or not episode.test else 0,
            duration_s=time.monotonic() - episode.started_at,
            overruns=counts.overruns - before.overruns,
            fault=fault or "",
        )
        if fault is None:
            self.returns.append(episode.return_)
        if self.chain is not None:
            self.chain.end(stats)
        if self.samples is not None:
            self.samples.end_episode(stats)
            if fault is not None:
                self.samples.add_break()
        if self.rollouts is not None and episode.rollout is not None:
            self.rollouts.end(episode.rollout, stats, self.env.time_step_s)
            episode.rollout = None
        return stats


def _zeros_like(value: Any) -> Any:
    """Return zeros of the form of an array or a number."""
    return (
        np.zeros_like(value)[()] if isinstance(value, np.ndarray | np.generic) else type(value)(0)
    )
