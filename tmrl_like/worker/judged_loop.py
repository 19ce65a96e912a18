"""A control loop whose episodes a person judges."""

from __future__ import annotations

import copy
import logging
import math
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tmrl_like.envs.supervision import StoppedError
from tmrl_like.types import Observation
from tmrl_like.worker.control_loop import ControlLoop, Info, Stepped
from tmrl_like.worker.person import Person
from tmrl_like.worker.returned import REWARD_TYPES

log = logging.getLogger("tmrl_like.worker")

_HEARD_WITHIN_S = 0.05  # for so long what was pressed may be on its way here
_LOOK_S = 0.1


@dataclass(slots=True, eq=False)
class _Held:
    """A step about which a person may still say something."""

    observed: float  # `time.perf_counter()`
    last_obs: Observation
    made: list[Any]  # act, obs, rew, terminated, truncated, info
    timing: tuple[float, float, float, int, int]
    collects: bool


@dataclass(eq=False)
class JudgedLoop(ControlLoop):
    """Holds back the newest steps for a person's reaction time, and changes them by what the person
    says meanwhile.

    What is said counts for the step in which it was seen: whose observation was the next to come. A
    step that was a success or a failure is its episode's last one: those after it are left out.

    Attributes:
        person: who judges.
    """

    person: Person = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._held: deque[_Held] = deque()
        self._holds_s = self.person.options.reaction_s + _HEARD_WITHIN_S

    def reset(self, collect_samples: bool) -> tuple[Observation, Info]:
        """As the control loop's; where that is asked for, a person resets first, while nothing
        moves.
        """
        if self.person.options.reset_prompt:
            self._await_reset()
        obs, info = super().reset(collect_samples)
        self.person.said.clear()
        return obs, info

    def _await_reset(self) -> None:
        self.env.brake.pull()
        self.counts.alarm = f"waits for a person: {self.person.options.reset_prompt}"
        log.warning("%s", self.counts.alarm)
        print("\a", end="", file=sys.stderr, flush=True)
        self.person.has_reset.clear()
        while not self.person.has_reset.wait(_LOOK_S):
            self.check()
            if self.env.stopping.is_set():
                raise StoppedError
        self.counts.alarm = ""

    def step(
        self, obs: Observation, test: bool, collect_samples: bool, last_step: bool = False
    ) -> Stepped:
        """As the control loop's; `terminated` as well where a person has said so."""
        last_obs = copy.deepcopy(obs)  # an environment may use its arrays again
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
        made = copy.deepcopy([self._action, *stepped])
        self._held.append(_Held(observed, last_obs, made, timing, collect_samples))
        new_obs, rew, terminated, truncated, info = stepped
        if terminated or truncated:  # and a person may be about to say something
            time.sleep(self._holds_s)
        said = self.person.said
        while said and said[0][2] <= observed:
            if self._judge(*said.popleft()):
                return new_obs, rew, True, False, info
        self.release(observed - self._holds_s)
        return new_obs, rew, terminated, truncated, info

    def _judge(self, reward: float, ends: bool, seen_at: float) -> bool:
        """Change the step in which something was seen; True: it is the last one."""
        episode, held = self._episode, self._held
        place = next(place for place, step in enumerate(held) if step.observed >= seen_at)
        while ends and len(held) > place + 1:
            episode.return_ -= float(held.pop().made[2])
            episode.steps_before += 1
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
        """Append the steps that were observed up to then: nobody says anything about them any
        more.
        """
        while self._held and self._held[0].observed <= until:
            step = self._held.popleft()
            if step.collects:
                self.collected_steps += 1
                self._append(tuple(step.made), step.last_obs, *step.timing, self._number)
