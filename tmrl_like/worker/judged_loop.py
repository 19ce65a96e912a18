"""A control loop whose episodes are judged by a person."""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tmrl_like.envs.float32 import REWARD_TYPES
from tmrl_like.types import Observation
from tmrl_like.worker.control_loop import ControlLoop, Stepped
from tmrl_like.worker.person import Person

log = logging.getLogger("tmrl_like.worker")

_HEARD_WITHIN_S = 0.05  # how long a key press may take to arrive here
_LOOK_S = 0.1


@dataclass(slots=True, eq=False)
class _Held:
    """A step that a person may still judge."""

    observed: float  # `time.perf_counter()`
    made: list[Any]  # act, obs, rew, terminated, truncated, info
    timing: tuple[float, float, float, int, int]
    collects: bool


@dataclass(eq=False)
class JudgedLoop(ControlLoop):
    """Holds back the newest steps for a person's reaction time, and changes them according to the
    person's signals.

    A signal applies to the step in which the person saw the event: the first one whose observation
    came after that moment. A step judged a success or a failure is the last one of its episode;
    later steps are dropped.

    Attributes:
        person: gives the signals.
    """

    person: Person = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._held: deque[_Held] = deque()
        self._holds_s = self.person.options.reaction_s + _HEARD_WITHIN_S

    def reset(self, collect_samples: bool) -> Observation:
        """Reset as the control loop does. With a `reset_prompt`, first wait for a person to reset,
        while nothing moves.
        """
        if self.person.options.reset_prompt:
            self._await_reset()
        obs = super().reset(collect_samples)
        self._began_at = self.times[3]
        return obs

    def _await_reset(self) -> None:
        self.env.brake.pull()
        incident = self.counts.alarm
        self.person.has_reset.clear()  # before the prompt: an answer to it may come at once
        self.counts.alarm = f"waits for a person: {self.person.options.reset_prompt}"
        with contextlib.suppress(OSError):  # nobody reads it any more
            # before the line and not after it, since `run` forwards whole lines
            print("\a", end="", file=sys.stderr, flush=True)
        log.warning("%s", self.counts.alarm)
        try:
            while not self.person.has_reset.wait(_LOOK_S):
                self.check_running()
        finally:
            self.counts.alarm = incident

    def step(
        self, obs: Observation, test: bool, collect_samples: bool, last_step: bool = False
    ) -> Stepped:
        """Step as the control loop does; `terminated` is also True if a person has ended the
        episode.
        """
        stepped = super().step(obs, test, False, last_step)
        before, started, acted, observed = self.times
        error_s = observed - before - self.env.time_step_s
        timing = (
            self._epoch_s + observed,
            acted - started,
            error_s,
            self.counts.policy_version,
            self._source,
        )
        # a copy: environments may use their arrays again
        made = copy.deepcopy([self._action, *stepped])
        self._held.append(_Held(observed, made, timing, collect_samples))
        new_obs, rew, terminated, truncated, info = stepped
        if terminated or truncated:  # a person may be about to judge it, and nobody drives
            self.env.brake.pull()
            time.sleep(self._holds_s)
            observed = time.perf_counter()  # until then, what was seen is about the last step
            self._held[-1].observed = observed
        said = self.person.said
        while said and said[0][2] <= observed:
            reward, ends, seen_at = said.popleft()
            if seen_at < self._began_at:  # it was about no step of this episode
                continue
            if self._judge(reward, ends, seen_at):
                self.env.brake.pull()
                return new_obs, rew, True, False, info
        self.release(observed - self._holds_s)
        return new_obs, rew, terminated, truncated, info

    def _judge(self, reward: float, ends: bool, seen_at: float) -> bool:
        """Change the step in which something was seen; return whether that step is the episode's
        last.
        """
        episode, held = self._episode, self._held
        place = next(place for place, step in enumerate(held) if step.observed >= seen_at)
        while ends and len(held) > place + 1:
            episode.return_ -= float(held.pop().made[2])
            episode.before.env_steps += 1
            if episode.rollout is not None:
                episode.rollout.pop()
        made = held[place].made
        kind = type(made[2]) if type(made[2]) in REWARD_TYPES else float
        made[2] = kind(float(made[2]) + reward)
        episode.return_ += reward
        if ends:
            made[3:5] = True, False
        if episode.rollout is not None:
            row = place - len(held)
            episode.rollout[row] = (made[0], made[2], *episode.rollout[row][2:])
        return ends

    def release(self, until: float = math.inf) -> None:
        """Append the steps observed up to `until`, which no signal can concern any more."""
        while self._held and self._held[0].observed <= until:
            step = self._held.popleft()
            if step.collects:
                self.collected_steps += 1
                self._append(tuple(step.made), *step.timing, self._number)
