"""The control loop: act, step, append. Nothing in it waits for the network, a disk or the learner."""

from __future__ import annotations

import bisect
import inspect
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tmrl_like.base import clocks
from tmrl_like.delivery.sample_log import SampleLog
from tmrl_like.envs.actions import actions_of_reset
from tmrl_like.envs.supervision import StoppedError, SupervisedEnv
from tmrl_like.errors import EnvironmentFaultError, MemoryContractError
from tmrl_like.policies.actions import finite_check, is_finite
from tmrl_like.policies.intake import PolicyIntake
from tmrl_like.types import LATENESS_EDGES_S, ActionSource, EpisodeStats, ObsPreprocessor, SampleCompressor
from tmrl_like.wire.rows import EPISODES, RESET
from tmrl_like.worker.dead_man import DeadMan
from tmrl_like.worker.realtime import collect_garbage
from tmrl_like.worker.returned import is_number, not_finite, observation_problem, outline
from tmrl_like.worker.takeover import Takeover

if TYPE_CHECKING:
    from tmrl_like.policies.actor import ActorModule
    from tmrl_like.rollouts.hooks import Rollouts
    from tmrl_like.rollouts.rollout import Step

_REWARD_TYPES = (float, np.float32, np.float64, np.float16)
_COLLECT_EVERY = 16  # steps


@dataclass(slots=True)
class _Episode:
    test: bool
    started_at: float  # time.monotonic()
    return_: float = 0.0
    steps: int = 0
    overruns: int = 0
    rollout: deque[Step] | None = None  # where somebody asked for it
    keeps_observations: bool = False


class ControlLoop:
    """Drives one environment with one actor, in the thread that calls it.

    Attributes:
        env: the environment, supervised.
        actor: the instance that acts now; `PolicyIntake` has the other one.
        dead_man: what drives when the policy must not.
        takeover: who may drive in place of the policy; None: nobody.
        drove: what chose the newest action.
        samples: where samples are appended to; None: nobody takes them.
        rollouts: where episodes go as a whole; None: nobody takes them.
        policy_version: of the weights that act now; 0: never updated.
        policy_received_at: `time.perf_counter()` when they were here; 0: never updated.
        env_steps: steps since the start.
        collected_steps: those of them that became samples.
        overruns: time-steps that missed their deadline since the start.
        late_steps: steps since the start by how late they were, in the bins of `LATENESS_EDGES_S`; only in real time.
        inference_s: duration of the newest decision.
        action_delay_s: from the newest observation to the action that was chosen on it.
        env_s: duration of the newest `env.step`.
        observed_at: `time.perf_counter()` of the newest observation.
        ended: why it no longer drives; empty: it does, or will.
        check: raises what ended the connection, if anything did.
    """

    def __init__(
        self,
        env: SupervisedEnv,
        actor: ActorModule,
        intake: PolicyIntake,
        worker: str,
        dead_man: DeadMan,
        sample_compressor: SampleCompressor | None,
        obs_preprocessor: ObsPreprocessor | None,
        max_samples_per_episode: float,
        crc_debug: bool,
        check: Callable[[], None],
    ) -> None:
        """Put the parts together; the options are those of `RolloutWorker`, which says what is raised.

        `check` is called before each step, and raises what ended the connection, if anything did.
        """
        if sample_compressor is not None:
            _check_compressor(sample_compressor)
        self.env = env
        self.actor = actor
        self._no_extras = {name: _zeros_like(value) for name, value in actor.extras.items()}
        self.sample_compressor = sample_compressor
        self.obs_preprocessor = obs_preprocessor
        self.max_samples_per_episode = max_samples_per_episode
        self.crc_debug = crc_debug
        self.policy_version = 0
        self.policy_published_at_s = self.policy_received_at = 0.0
        self._source = ActionSource.POLICY
        self.env_steps = self.collected_steps = 0
        self._number = -1  # of the newest episode whose samples are collected, as it travels with them
        self.overruns = 0
        self.late_steps = [0] * (len(LATENESS_EDGES_S) + 1)
        self.inference_s = self.action_delay_s = self.env_s = self.observed_at = 0.0
        self.ended = ""
        self._intake = intake
        self._worker = worker
        self.samples: SampleLog | None = None
        self.rollouts: Rollouts | None = None
        self.dead_man = dead_man
        self.takeover: Takeover | None = None
        self.drove = ActionSource.POLICY
        self.check = check
        self._episode = _Episode(False, 0.0)
        self._reward: Any = 0.0  # the newest
        self._problem = ""  # of the first observations
        self._is_finite_action = finite_check(env.env.action_space)
        self._is_finite_obs = finite_check(env.env.observation_space)
        if obs_preprocessor is not None:  # which may be there to replace what is not
            self._is_finite_obs = lambda obs: True

    @property
    def expert(self) -> bool:
        """Whether weights that arrive are ignored. Samples of an expert do not continue those of others."""
        return self._source is ActionSource.EXPERT

    @expert.setter
    def expert(self, expert: bool) -> None:
        if expert != self.expert and self.env_steps and self.samples is not None:
            self.samples.add_break()
        self._source = ActionSource.EXPERT if expert else ActionSource.POLICY

    def act(self, obs: Any, test: bool) -> Any:
        """Choose an action for a raw observation."""
        if self.obs_preprocessor is not None:
            obs = self.obs_preprocessor(obs)
        self._intake.probe.newest = obs
        return self.actor.act_(obs, test)

    def _choose(self, obs: Any, test: bool, now: float) -> tuple[Any, ActionSource]:
        """The action to send: that of whoever took over, the policy's, or the safe one."""
        if self.takeover is not None and (act := self.takeover.choose(obs, test, now)) is not None:
            return act, self.takeover.source
        dead_man = self.dead_man
        if now > dead_man.expires_at and not self.expert:
            return dead_man.take_over(), ActionSource.SAFE
        try:
            act = self.act(obs, test)
        except Exception as error:
            space = self.env.env.observation_space
            if space.contains(obs):
                raise
            raise EnvironmentFaultError(
                "the policy raised on an observation that is not in the environment's observation space: expected "
                f"{space}, got {outline(obs)} ({type(error).__name__}: {error})"
            ) from error
        if not self._is_finite_action(act):
            return dead_man.take_over(f"the policy's action is not finite: {act!r:.80}"), ActionSource.SAFE
        if dead_man.is_driving:
            dead_man.hand_back()
        return act, self._source

    def reset(self, collect_samples: bool) -> tuple[Any, dict[str, Any]]:
        """Start an episode; returns observation and info.

        With `collect_samples` its first observation becomes samples: one for each action of its action buffer, oldest
        first, so that who rebuilds action buffers from samples need not know what a reset does to them.
        """
        collect_garbage(is_between_episodes=True)
        self.actor.reset()
        obs, info = self.env.reset()
        if not self._is_finite_obs(obs):
            raise not_finite("observation after a reset", obs)
        if not self.env_steps:
            self._look(obs)
        self.observed_at = time.perf_counter()
        if collect_samples:
            kind = type(self._reward)
            self._number = (self._number + 1) % EPISODES
            info = {**info, **self._no_extras}
            no_reward = kind(0) if kind in _REWARD_TYPES else 0.0  # in the type of the environment's rewards
            for act in actions_of_reset(self.env.env, obs):
                sample = self._compressed((act, obs, no_reward, False, False, info), None)
                if self.samples is not None:
                    timing = clocks.unix_s(), 0.0, 0.0, self.policy_version, self._source
                    self.samples.append(sample, *timing, self._number + RESET)
        return obs, info

    def step(
        self, obs: Any, test: bool, collect_samples: bool, last_step: bool = False
    ) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """See `RolloutWorker.step`; `info` holds the actor's `extras`.

        Raises:
            EnvironmentFaultError: the environment raised, gave what is not finite, or no reward.
        """
        self.check()
        if self._intake.has_new and not self.expert:
            self.refresh_policy()
        env, clock = self.env, time.perf_counter
        started = clock()
        act, source = self._choose(obs, test, started)
        self.drove = source
        acted = clock()
        new_obs, rew, terminated, truncated, info = env.step(act)
        observed = clock()
        if last_step and not terminated:
            truncated = True
        self.action_delay_s = acted - self.observed_at
        period_s, self.observed_at = observed - self.observed_at, observed
        self.inference_s, self.env_s = acted - started, observed - acted
        if env.time_step_s:
            self.late_steps[bisect.bisect_left(LATENESS_EDGES_S, period_s - env.time_step_s)] += 1
        if not self._is_finite_obs(new_obs):
            raise not_finite("observation", new_obs)
        is_float = type(rew) in _REWARD_TYPES
        if not is_float and not is_number(rew):
            raise EnvironmentFaultError(f"the environment's reward is {rew!r:.80}; expected a number")
        if not (math.isfinite(rew) if is_float else is_finite(rew)):
            raise not_finite("reward", rew)
        if self._no_extras:
            info = {**info, **(self.actor.extras if source is self._source else self._no_extras)}
        self._reward = rew
        self.env_steps += 1
        if self.env_steps == 1:
            self._look(new_obs)
        if period_s >= env.overrun_after_s:
            self._on_overrun(period_s)
        if (rollout := self._episode.rollout) is not None:
            seen = new_obs if self._episode.keeps_observations else None
            rollout.append((act, rew, info, self.policy_version, source, observed, seen))
        if collect_samples:
            self.collected_steps += 1
            sample: tuple[Any, ...] = (act, new_obs, rew, terminated, truncated, info)
            if self.sample_compressor is not None or self.crc_debug:
                sample = self._compressed(sample, obs)
            error_s = period_s - env.time_step_s
            if self.samples is not None:
                timing = clocks.unix_s(), acted - started, error_s, self.policy_version, source
                self.samples.append(sample, *timing, self._number)
        if self.env_steps % _COLLECT_EVERY == 0:
            collect_garbage(is_between_episodes=False)
        return new_obs, rew, terminated, truncated, info

    def _look(self, obs: Any) -> None:
        """Say where the first observations have not the form of their space."""
        problem = observation_problem(obs, self.env.env.observation_space, finite=False)
        if problem and problem != self._problem:
            self._problem = problem
            self.env.log.add(logging.WARNING, "%s; correct the environment or its observation_space", problem)

    def _compressed(self, made: tuple[Any, ...], last_obs: Any) -> tuple[Any, ...]:
        """What is sent of a sample; with `crc_debug`, the original behind it."""
        sample = made if self.sample_compressor is None else _checked_sample(self.sample_compressor(*made))
        if self.crc_debug:
            act, obs, rew, terminated, truncated, _ = made
            sample = (*sample, (last_obs, act, rew, obs, terminated, truncated))
        return sample

    def run_episode(
        self,
        max_samples: float | None,
        test: bool,
        collect_samples: bool,
        after_step: Callable[[], None] | None = None,
    ) -> EpisodeStats:
        """Run one `episode`, with a call after each step."""
        steps = self.episode(max_samples, test, collect_samples)
        while True:
            try:
                next(steps)
            except StopIteration as ended:
                stats: EpisodeStats = ended.value
                return stats
            if after_step is not None:
                after_step()

    def episode(
        self, max_samples: float | None, test: bool, collect_samples: bool
    ) -> Generator[None, None, EpisodeStats]:
        """The one loop behind every way to run: reset, then step to the end; yields after each step.

        Raises:
            EnvironmentFaultError: the environment raised. What to do then: `end_in_fault`.
            StoppedError: a stop was requested.
        """
        self.check()
        limit = self.max_samples_per_episode if max_samples is None else max_samples
        episode = self._episode = _Episode(test, time.monotonic())
        terminated = truncated = False
        obs, _ = self.reset(collect_samples)
        if self.rollouts is not None:
            episode.rollout = self.rollouts.begin(obs, self.observed_at)
            episode.keeps_observations = self.rollouts.observations
        while not (terminated or truncated):
            obs, rew, terminated, truncated, _ = self.step(obs, test, collect_samples, episode.steps + 1 >= limit)
            episode.return_ += float(rew)
            episode.steps += 1
            if self.env.stopping.is_set():
                raise StoppedError
            yield
        self.env.episode_ended_well()
        return self._end_episode(bool(terminated), bool(truncated))

    def end_in_fault(self, fault: str) -> EpisodeStats:
        """End the episode that the environment broke off; what follows does not continue it."""
        stats = self._end_episode(False, True, fault)
        if self.samples is not None:
            self.samples.add_break()
        return stats

    def _end_episode(self, terminated: bool, truncated: bool, fault: str = "") -> EpisodeStats:
        episode = self._episode
        stats = EpisodeStats(
            worker=self._worker,
            test=episode.test,
            return_=episode.return_,
            steps=episode.steps,
            terminated=terminated,
            truncated=truncated,
            finished_at_s=time.time(),
            policy_version=self.policy_version,
            duration_s=time.monotonic() - episode.started_at,
            overruns=episode.overruns,
            fault=fault,
        )
        if self.samples is not None:
            self.samples.end_episode(stats)
        if self.rollouts is not None and episode.rollout is not None:
            self.rollouts.end(episode.rollout, stats, self.env.time_step_s)
            episode.rollout = None
        return stats

    def _on_overrun(self, period_s: float) -> None:
        self.overruns += 1
        self._episode.overruns += 1
        if self.overruns < 10 or self.overruns % 100 == 0:
            line = "time-step overrun: %.1f ms instead of %.1f ms (%d so far)"
            self.env.log.add(logging.WARNING, line, period_s * 1e3, self.env.time_step_s * 1e3, self.overruns)

    def use_weights(self, weights: bytes, version: int) -> None:
        """Act with these from now on, in the thread of the environment, without the checks of those that arrive."""
        self.actor.load_weights(weights)
        self.policy_version, self.policy_received_at = version, time.perf_counter()
        self.dead_man.renew(self.policy_received_at)

    def refresh_policy(self) -> bool:
        """Act with the newest weights from now on; False: there are none."""
        policy = self._intake.take(self.actor)
        if policy is None:
            return False
        self.actor = policy.actor
        if (policy.version, policy.published_at_s) != (self.policy_version, self.policy_published_at_s):
            self.policy_received_at = policy.received_at  # a server repeats what it has to whoever comes back
            self.dead_man.renew(policy.received_at)
        self.policy_version = policy.version
        self.policy_published_at_s = policy.published_at_s
        return True


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
