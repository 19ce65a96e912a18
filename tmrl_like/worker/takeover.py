"""Takeover: somebody drives in place of the policy, for as long as he wants to."""

from __future__ import annotations

import copy
import logging
import math
import threading
import time
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from tmrl_like.base.text import one_line
from tmrl_like.envs.drivers import Keys
from tmrl_like.envs.supervision import SupervisedEnv
from tmrl_like.types import ActionSource, Driver
from tmrl_like.worker.dead_man import to_action

log = logging.getLogger("tmrl_like.worker")

_EVERY_S = 0.01
_SILENT_S = 0.5  # for a driver that does not answer, the policy drives


class _Hand(NamedTuple):
    """An action to send until there is a newer one, and whose it is."""

    action: Any
    source: ActionSource
    name: str


class Takeover:
    """Asks a driver in a thread of its own, and has its newest action ready for the control loop, which never waits.

    Attributes:
        name: who drives; empty: nobody has taken over.
        steps: that were driven by those who took over, since the start.
        from_page: whether an operator may take over from the page.
    """

    def __init__(
        self, make: Callable[..., Driver], env: SupervisedEnv, from_page: bool = False, in_tests: bool = False
    ) -> None:
        """Make the driver, and begin to ask it; raises what making it raises.

        Args:
            make: called with `action_space` and `default_action`.
            env: the environment that is driven; its log takes the lines of the control loop.
            from_page: let operators take over from the page.
            in_tests: let test episodes be taken over as well.
        """
        self.name = ""
        self.steps = 0
        self.from_page = from_page
        self._env = env
        self._in_tests = in_tests
        self._steps_before = 0
        self._obs: Any = None  # the newest
        self._hand: _Hand | None = None
        self._page: _Hand | None = None
        self._page_until = -math.inf
        self._refused: set[str] = set()
        self._asked_at = math.inf  # `time.perf_counter()` of the call that is under way
        self._is_silent = False
        self._closing = threading.Event()
        spaces = {"action_space": env.env.action_space, "default_action": env.default_action}
        self._driver = make(**spaces)
        self._keys: Keys | None = None
        if from_page:
            self._keys = keys = self._driver if isinstance(self._driver, Keys) else Keys(**spaces)
            for name in keys.names:
                to_action(keys.action_of([name]), env.env.action_space, f"what the key {name} does")
        self._thread = threading.Thread(target=self._run, name="tmrl-takeover", daemon=True)
        self._thread.start()

    def choose(self, obs: Any, test: bool, now: float) -> tuple[Any, ActionSource] | None:
        """The action of whoever has taken over; None: the policy drives. For the control loop, at each step."""
        self._obs = obs
        if (now - self._asked_at > _SILENT_S) is not self._is_silent:
            self._is_silent = not self._is_silent
            if self._is_silent:
                line = "takeover: %s has not answered for %g s: the policy drives"
                self._env.log.add(logging.ERROR, line, type(self._driver).__name__, _SILENT_S)
        hand = None if self._is_silent else self._hand
        if hand is None and now < self._page_until:
            hand = self._page
        if test and not self._in_tests:
            hand = None
        name = "" if hand is None else hand.name
        if name != self.name:
            if self.name:
                line = "takeover: %s gives back after %d steps"
                self._env.log.add(logging.INFO, line, self.name, self.steps - self._steps_before)
            if name:
                self._env.log.add(logging.INFO, "takeover: %s drives", name)
            self.name, self._steps_before = name, self.steps
        if hand is None:
            return None
        self.steps += 1
        return copy.deepcopy(hand.action), hand.source  # an environment may keep what it gets

    def _run(self) -> None:
        driver, space = self._driver, self._env.env.action_space
        source = ActionSource.PROGRAM if getattr(driver, "is_program", False) else ActionSource.HUMAN
        failure = ""
        while not self._closing.wait(_EVERY_S):
            if self._obs is None:
                continue
            self._asked_at = time.perf_counter()
            try:
                answer = driver(self._obs)
                action = None if answer is None else to_action(answer, space, "its action")
                failure = ""
            except Exception as error:
                action = None
                if failure != (failure := one_line(error)):
                    log.error("takeover: %s failed, the policy drives: %s", type(driver).__name__, failure)
            self._hand = None if action is None else _Hand(action, source, source.name.lower())
            self._asked_at = math.inf

    def on_page(self, operator: str, keys: Collection[str], gives_back: bool) -> None:
        """Let an operator drive for half a second, by the keys that are held, unless the driver does; or give back."""
        if self._keys is None:
            if operator not in self._refused:
                self._refused.add(operator)
                log.warning("takeover: operator %s may not drive: worker.takeover_from_page is false", operator)
            return
        action = to_action(self._keys.action_of(keys), self._env.env.action_space, "its action")
        self._page = _Hand(action, ActionSource.REMOTE, f"operator {operator}")
        self._page_until = -math.inf if gives_back else time.perf_counter() + _SILENT_S

    def close(self) -> None:
        """Ask no more, and close the driver. Twice is fine."""
        self._closing.set()
        self._thread.join(_SILENT_S)
        self._driver.close()
