"""Decides what drives: a driver that has taken over, the policy (or an expert that ignores new
ones), or the safe action.
"""

from __future__ import annotations

import copy
import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path

from tmrl_like.base import tree
from tmrl_like.base.text import one_line
from tmrl_like.envs.supervision import SupervisedEnv
from tmrl_like.errors import EnvironmentFaultError, PolicyError
from tmrl_like.policies.acting import Actor
from tmrl_like.policies.action_check import finite_check
from tmrl_like.policies.policy_file import read_policy
from tmrl_like.policies.weight_file import Weights
from tmrl_like.types import Action, ActionSource, Observation, ObsPreprocessor
from tmrl_like.wire.condition import Condition
from tmrl_like.worker.intake import PolicyIntake
from tmrl_like.worker.returned import observation_problem
from tmrl_like.worker.takeover import Takeover

_CALM_S = 1.0


@dataclass(eq=False)
class Arbiter:
    """Chooses each action, and reports its source.

    The safe action drives if the policy is too old or missing, and replaces an action that is not
    finite. Such an incident begins with the first step that the safe action drives, and ends when
    the policy has driven for a second. The beginning and the end of each are logged once.

    Attributes:
        env: the environment that is driven; its log takes the lines of the control thread.
        actor: the instance that acts now; `intake` has the others.
        intake: provides policies.
        is_pinned: whether one policy drives, regardless of what is published.
        max_policy_age_s: how long after it was received a policy may drive; `math.inf`: forever,
            and the actor may drive before any policy was received.
        safe_action: an action of the space; None: the environment's default action.
        takeover: what may drive in place of the policy; None: nothing may.
        obs_preprocessor: applied to what the actor sees; None: nothing is.
        source: source of the actor's actions: the policy or, if new policies are ignored, an
            expert.
        holds: whether to keep the current policy, until it is too old, even if others arrive: one
            policy drives a whole test.
        counts: the control loop's counts. The arbiter writes the policy's version, whether policies
            are ignored, the steps of the safe action and, as alarm, the reason for an incident.
        received_at: `time.perf_counter()` when the current policy was received, or read from its
            file; 0: there is none.
        expires_at: `time.perf_counter()` after which the current policy is too old; -inf: there is
            none.
        steps_of_others: number of steps that neither policy nor expert drove.
    """

    env: SupervisedEnv
    actor: Actor
    intake: PolicyIntake
    is_pinned: bool = False
    max_policy_age_s: float = math.inf
    safe_action: Action = None
    takeover: Takeover | None = None
    obs_preprocessor: ObsPreprocessor | None = None

    def __post_init__(self) -> None:
        self.source = ActionSource.POLICY
        self.counts = Condition(expert=self.is_pinned)
        self.received_at = 0.0
        self.expires_at = math.inf if self.max_policy_age_s == math.inf else -math.inf
        self.holds = False
        self.steps_of_others = 0
        self._waiting: tuple[Weights, int] | None = None  # until the policy is no longer held
        self._is_finite = finite_check(self.env.env.action_space)
        self._safe_at = 0.0  # of the newest step that the safe action drove
        self._safe_steps_before = 0  # before the incident

    def choose(self, obs: Observation, test: bool, now: float) -> tuple[Action, ActionSource]:
        """Return the action to send, and its source; `now` is `time.perf_counter()`. The control
        loop calls this at each step.
        """
        if self.takeover is not None and (act := self.takeover.choose(obs, test, now)) is not None:
            self.steps_of_others += 1
            return act, self.takeover.source
        if now > self.expires_at and not self.is_expert:
            return self._safe(now), ActionSource.SAFE
        try:
            act = self.act(obs, test)
        except Exception as error:
            self._blame_environment(error, obs)
            raise
        if not self._is_finite(act):
            why = f"the policy's action is not finite: {one_line(repr(act), 80)}"
            return self._safe(now, why), ActionSource.SAFE
        if self.counts.alarm and now - self._safe_at > _CALM_S:
            self.counts.alarm, steps = "", self.counts.safe_steps - self._safe_steps_before
            line = "the policy drives again; the safe action drove %d steps"
            self.env.log.add(logging.INFO, line, steps)
        return act, self.source

    def act(self, obs: Observation, test: bool) -> Action:
        """Return the actor's action for a raw observation."""
        if self.obs_preprocessor is not None:
            obs = self.obs_preprocessor(obs)
        self.intake.probe.newest = obs
        return self.actor.act_(obs, test)

    def _blame_environment(self, error: Exception, obs: Observation) -> None:
        """Raise EnvironmentFaultError if the actor raised on an observation that is not in the
        space.
        """
        space = self.env.env.observation_space
        # a list is in a Box for gymnasium
        if observation_problem(obs, space) or not space.contains(obs):
            raise EnvironmentFaultError(
                "the policy raised on an observation that is not in the environment's observation "
                f"space: expected {space}, got {tree.outline(obs)} ({one_line(error)})"
            ) from error

    def _safe(self, now: float, why: str = "") -> Action:
        counts = self.counts
        if not counts.alarm:
            if not why:
                is_old = f"no new policy has been received for {self.max_policy_age_s:g} s"
                why = is_old if self.received_at else "no policy has been received yet"
            counts.alarm = f"the safe action drives: {why}"
            self._safe_steps_before = counts.safe_steps
            self.env.log.add(logging.ERROR, "%s", counts.alarm)
        counts.safe_steps += 1
        self.steps_of_others += 1
        self._safe_at = now
        return copy.deepcopy(
            self.env.default_action if self.safe_action is None else self.safe_action
        )

    # -- policies ----------------------------------------------------------------------------------

    @property
    def is_expert(self) -> bool:
        """Whether policies that arrive are ignored."""
        return self.source is ActionSource.EXPERT

    def be_expert(self, expert: bool) -> None:
        """Ignore policies from now on, or accept them again."""
        self.source = ActionSource.EXPERT if expert else ActionSource.POLICY
        self.counts.expert = expert or self.is_pinned

    def refresh(self) -> bool:
        """Switch to the newest policy; return False if there is no newer one, or the current one is
        held.
        """
        if self._keeps_policy() or not self.intake.has_new:
            return False
        policy, self.actor = self.intake.take(self.actor)
        self._renew(policy.version, policy.received_at)
        return True

    def use_weights(self, weights: Weights, version: int) -> None:
        """Act with these weights from now on, without the checks of those that arrive.
        Environment's thread.

        While a policy is held, they wait until it is released.
        """
        if self._keeps_policy():
            self._waiting = weights, version
            return
        self._waiting = None
        self.actor.load_weights(weights)
        self._renew(version, time.perf_counter())

    def release(self) -> None:
        """Stop holding a policy, and act with the newest one."""
        self.holds = False
        if self._waiting is not None:
            self.use_weights(*self._waiting)
        elif not self.is_expert:
            self.refresh()

    def _keeps_policy(self) -> bool:
        return self.holds and self.received_at > 0 and time.perf_counter() <= self.expires_at

    def load_file(self, path: Path) -> None:
        """Act with weights from the disk; they must pass the same checks as those from the network.

        Raises:
            DamagedPolicyError: the file has changed since it was written.
            PolicyError: the weights are not fit to act; the message names the file.
            OSError: the file cannot be read.
        """
        card, weights = read_policy(path)
        try:
            self.intake.probe.load(self.actor, weights)
        except PolicyError as error:
            advice = (
                "give both their values of then, or choose another policy or another --run_name"
            )
            raise PolicyError(f"{path}: {error}; {advice}") from None
        self._renew(0 if card is None else card.version, time.perf_counter())

    def _renew(self, version: int, since: float) -> None:
        self.counts.policy_version = version
        self.received_at = since
        self.expires_at = since + self.max_policy_age_s
