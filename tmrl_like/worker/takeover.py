"""Takeover: somebody drives in place of the policy, for as long as he wants to."""

from __future__ import annotations

import copy
import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from tmrl_like.base.budgets import Buckets
from tmrl_like.base.text import one_line
from tmrl_like.base.threads import start_thread
from tmrl_like.envs.drivers import Keys
from tmrl_like.envs.supervision import SupervisedEnv
from tmrl_like.errors import ShortageError
from tmrl_like.types import ActionSource, Driver
from tmrl_like.worker.dead_man import to_action
from tmrl_like.worker.link_messages import Driven

log = logging.getLogger("tmrl_like.worker")

_EVERY_S = 0.01
_SILENT_S = 0.5  # for a driver that does not answer, the policy drives
_STALE_S = 1.5  # signs of life come twice a second, a page looks three times a second, and then there is the network
_SAYS_AGAIN_S = 60.0


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
        self._wheel = "", 0  # who drives from the page until then: operator, hand
        self._refusals = Buckets(1, 1 / _SAYS_AGAIN_S)  # by what is said: one line each
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
        try:
            self._thread = start_thread(self._run, "tmrl-takeover")
        except ShortageError:
            self._driver.close()
            raise

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

    @property
    def hand(self) -> int:
        """`wire.messages.Drive.hand` of the operator who has taken over from the page; 0: nobody has."""
        return self._wheel[1] if time.perf_counter() < self._page_until else 0

    def on_page(self, said: Driven, now: float, up_s: float) -> None:
        """Let an operator drive for half a second, by the keys that are held, unless the driver does; or give back.

        He does not while another one drives, nor by keys from before the newest 1.5 s. `now` is as for `choose`, `up_s`
        as in `base.clocks`.
        """
        who = said.operator, said.hand
        if self._keys is None:
            why = "worker.takeover_from_page is false"
        elif who != self._wheel and now < self._page_until:
            why = f"operator {self._wheel[0]} has not given back"
        elif said.gives_back:
            self._page_until = -math.inf
            return
        elif not 0.0 <= up_s - said.heard_s <= _STALE_S:
            why = f"his keys are older than {_STALE_S:g} s: the link is slow, or was cut for a moment"
        else:
            action = to_action(self._keys.action_of(said.keys), self._env.env.action_space, "its action")
            self._page = _Hand(action, ActionSource.REMOTE, f"operator {said.operator}")
            self._wheel, self._page_until = who, now + _SILENT_S
            return
        if self._refusals.take(f"{said.operator}: {why}", 1, now):
            log.warning("takeover: operator %s does not drive: %s", said.operator, why)

    def close(self) -> None:
        """Ask no more, and close the driver. Twice is fine."""
        self._closing.set()
        self._thread.join(_SILENT_S)
        self._driver.close()
