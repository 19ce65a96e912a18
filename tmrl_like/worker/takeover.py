"""Takeover: a person or a program drives in place of the policy for a while."""

from __future__ import annotations

import copy
import inspect
import logging
import math
import threading
import time
from collections.abc import Callable

from tmrl_like.base.factories import completed
from tmrl_like.base.text import name_of, one_line
from tmrl_like.base.threads import start_thread
from tmrl_like.envs.actions import typed_action
from tmrl_like.envs.supervision import SupervisedEnv
from tmrl_like.errors import ConfigError, ShortageError, expect
from tmrl_like.policies.action_check import action_problem
from tmrl_like.types import Action, ActionSource, Driver, Observation
from tmrl_like.wire.spaces import Space

log = logging.getLogger("tmrl_like.worker")

_EVERY_S = 0.01
_SILENT_S = 0.5  # if a driver does not answer for this long, the policy drives


class Takeover:
    """Calls a driver in its own thread, and keeps its newest action for the control loop, which
    never waits.

    Attributes:
        source: the source of its actions: a person or a program.
    """

    def __init__(self, make: Callable[..., Driver], env: SupervisedEnv, in_tests: bool) -> None:
        """Make the driver, and begin to call it. Raises what making it raises, and ConfigError if
        it takes other arguments.

        Args:
            make: called with `action_space`, `default_action` and, if it takes that and does not
                have it yet, `observation_space`.
            env: the environment that is driven; its log takes the lines of the control loop.
            in_tests: allow takeovers in test episodes as well.
        """
        self._env = env
        self._in_tests = in_tests
        self._steps = 0  # since the driver took over; 0: the policy drives
        self._obs: Observation = None  # the newest
        self._action: Action | None = None  # the driver's newest; None: it does not drive
        self._asked_at = math.inf  # `time.perf_counter()` of the call that is under way
        self._is_silent = False
        self._closing = threading.Event()
        known = {"action_space": env.env.action_space, "default_action": env.default_action}
        seeing = completed(make, observation_space=env.env.observation_space)
        try:
            inspect.signature(seeing).bind(**known)
        except TypeError as error:
            expected = f"a class that takes {' and '.join(known)} ({error})"
            expect(False, "what may take over", name_of(make), expected)
        except ValueError:  # a built-in without a signature
            pass
        self._driver = seeing(**known)
        is_program = getattr(self._driver, "is_program", False)
        self.source = ActionSource.PROGRAM if is_program else ActionSource.HUMAN
        try:
            self._thread = start_thread(self._run, "tmrl-takeover")
        except ShortageError:
            self._driver.close()
            raise

    def choose(self, obs: Observation, test: bool, now: float) -> Action | None:
        """Return the driver's action, or None if the policy drives. The control loop calls this at
        each step.
        """
        self._obs = obs
        is_silent = now - self._asked_at > _SILENT_S
        if is_silent and not self._is_silent:
            line = "takeover: %s has not answered for %g s: the policy drives"
            self._env.log.add(logging.ERROR, line, type(self._driver).__name__, _SILENT_S)
        self._is_silent = is_silent
        action = None if is_silent or (test and not self._in_tests) else self._action
        who = self.source.name.lower()
        if action is None:
            if self._steps:
                self._env.log.add(
                    logging.INFO, "takeover: %s gives back after %d steps", who, self._steps
                )
            self._steps = 0
            return None
        if not self._steps:
            self._env.log.add(logging.INFO, "takeover: %s drives", who)
        self._steps += 1
        return copy.deepcopy(action)  # an environment may keep what it gets

    def _run(self) -> None:
        driver, space = self._driver, self._env.env.action_space
        failure = ""
        while not self._closing.wait(_EVERY_S):
            if self._obs is None:
                continue
            self._asked_at = time.perf_counter()
            try:
                answer = driver(self._obs)
                self._action = None if answer is None else to_action(answer, space, "its action")
                failure = ""
            except Exception as error:
                self._action = None
                if failure != (failure := one_line(error)):
                    log.error(
                        "takeover: %s failed, the policy drives: %s", type(driver).__name__, failure
                    )
            self._asked_at = math.inf

    def close(self) -> None:
        """Stop calling the driver, and close it. Calling it twice is fine."""
        self._closing.set()
        self._thread.join(_SILENT_S)
        try:
            self._driver.close()
        except Exception as error:
            name = type(self._driver).__name__
            log.warning("takeover: closing %s failed: %s", name, one_line(error))


def to_action(value: object, space: Space, name: str = "safe_action") -> Action:
    """Convert a value (numbers, lists) to an action of the space. Raises ConfigError if it is not
    one.
    """
    action = typed_action(value, space)
    problem = action_problem(action, space)
    if problem:
        raise ConfigError(f"{name} is {value!r:.80}, which is not an action of {space}: {problem}")
    return action
