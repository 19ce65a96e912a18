"""What drives when the policy must not: one safe action."""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tmrl_like.base import tree
from tmrl_like.errors import ConfigError
from tmrl_like.policies.actions import action_problem

log = logging.getLogger("tmrl_like.worker")

_CALM_S = 1.0


class DeadMan:
    """Has the safe action drive where the policy is too old, missing, or gives an action that is not finite.

    An incident begins with the first step that the safe action drives, and is over when the policy has driven
    for a second. Each is logged once, and so is its end.

    Attributes:
        has_policy: whether one was received or read from a file.
        expires_at: `time.perf_counter()` after which the policy in use is too old; -inf: there is none.
        is_driving: whether an incident is under way.
        safe_steps: steps that the safe action drove since the start.
        alarm: what the incident under way is about; empty: there is none.
    """

    def __init__(
        self, max_policy_age_s: float, safe_action: Callable[[], Any], write: Callable[..., None] = log.log
    ) -> None:
        """Set up.

        Args:
            max_policy_age_s: for how long after it was received a policy may drive; `math.inf`: for ever, and
                the actor may drive before any policy was received.
            safe_action: returns the safe action.
            write: logs a line, called as `Logger.log` is.
        """
        self._max_policy_age_s = max_policy_age_s
        self._safe_action = safe_action
        self._write = write
        self._last_at = 0.0
        self._steps_before = 0
        self.has_policy = False
        self.expires_at = math.inf if max_policy_age_s == math.inf else -math.inf
        self.is_driving = False
        self.safe_steps = 0
        self.alarm = ""

    def renew(self, received_at: float) -> None:
        """A policy begins to drive that was received at `received_at` (`time.perf_counter()`)."""
        self.has_policy = True
        self.expires_at = received_at + self._max_policy_age_s

    def take_over(self, why: str = "") -> Any:
        """The action to send instead of the policy's, which is not finite (`why`), or too old or missing."""
        if not self.is_driving:
            self.is_driving = True
            self._steps_before = self.safe_steps
            if not why:
                why = f"no new policy has been received for {self._max_policy_age_s:g} s"
                if not self.has_policy:
                    why = "no policy has been received yet"
            self.alarm = f"the safe action drives: {why}"
            self._write(logging.ERROR, "%s", self.alarm)
        self.safe_steps += 1
        self._last_at = time.perf_counter()
        return copy.deepcopy(self._safe_action())

    def hand_back(self) -> None:
        """The policy drives this step; ends an incident that is a second old."""
        if time.perf_counter() - self._last_at > _CALM_S:
            steps = self.safe_steps - self._steps_before
            self._write(logging.INFO, "the policy drives again; the safe action drove %d steps", steps)
            self.is_driving = False
            self.alarm = ""


def to_action(value: Any, space: gymnasium.Space[Any], name: str = "safe_action") -> Any:
    """A value (numbers, lists) -> an action of the space; raises ConfigError where it is not one."""
    action = tree.map_leaves(_converted, space, value)
    problem = action_problem(action, space)
    if problem:
        raise ConfigError(f"{name} is {value!r:.80}, which is not an action of {space}: {problem}")
    return action


def _converted(space: gymnasium.Space[Any], value: Any) -> Any:
    if isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        try:
            action = np.array(value, space.dtype)
            if action.dtype.kind != "f" and (action != np.asarray(value)).any():
                return value  # a fraction where whole numbers are wanted
            return action[()] if isinstance(space, spaces.Discrete) else action
        except (ValueError, TypeError, OverflowError):
            return value
    return value
