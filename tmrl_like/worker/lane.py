"""A lane of a worker: one environment, and all that drives it; several share a worker's policy and connection."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tmrl_like.envs.supervision import StoppedError, SupervisedEnv
from tmrl_like.errors import EnvironmentFaultError
from tmrl_like.types import EpisodeStats
from tmrl_like.wire.condition import RETURNS_KEPT

if TYPE_CHECKING:
    from tmrl_like.delivery.sample_log import SampleLog
    from tmrl_like.policies.intake import PolicyIntake
    from tmrl_like.worker.control_loop import ControlLoop


@dataclass(frozen=True, kw_only=True)
class Order:
    """An episode to run."""

    test: bool
    collect: bool
    verbose: bool = False
    max_samples: float | None = None
    after_step: Callable[[], None] | None = None


def orders(order: Order, goes_on: Callable[[int], bool], test_episode_interval: int = 0) -> Iterator[Order]:
    """The same order while `goes_on(episodes so far)`, and a test before every k-th of them; 0: none."""
    for episode in itertools.takewhile(goes_on, itertools.count()):
        if test_episode_interval and episode % test_episode_interval == 0:
            yield Order(test=True, collect=False, verbose=True)
        yield order


class Lane:
    """One environment of a worker. A fault in it is its own: the others go on.

    Attributes:
        env: the environment, supervised.
        loop: drives it.
        intake: where policies come from.
        returns: of the last episodes, tests among them, with the time at which each ended.
    """

    def __init__(self, env: SupervisedEnv, loop: ControlLoop, intake: PolicyIntake) -> None:
        self.env = env
        self.loop = loop
        self.intake = intake
        self.returns: deque[tuple[float, float]] = deque(maxlen=RETURNS_KEPT)
        self._trained = 0  # the training steps that entries up to this one allow are made
        self._changed = threading.Condition()
        self._before, self._newest = 0, 0  # the entries of the step before the newest, and of that

    @property
    def samples(self) -> SampleLog | None:
        """Where samples go; None: nowhere."""
        return self.loop.samples

    def note_trained(self, entry: int) -> None:
        """The training steps are made that the entries up to this one allow. Any thread."""
        with self._changed:
            self._trained = max(self._trained, entry)
            self._changed.notify_all()

    def await_training(self, all_of_it: bool = False) -> None:
        """After a step, hold still until the training steps of the one before it are made; or `all_of_it`.

        So one task of each lane may wait while its next step is under way, and no more.

        Raises:
            StoppedError: a stop was requested.
            RefusedError, CredentialsError: the connection ended for good.
        """
        if self.samples is None:
            return
        self._before, self._newest = self._newest, self.samples.entries
        wanted = self._newest if all_of_it else self._before
        with self._changed:
            while self._trained < wanted:
                self.loop.check()
                if self.env.stopping.is_set():
                    raise StoppedError
                self._changed.wait(0.2)

    def drive(
        self,
        orders: Iterator[Order],
        on_episode: Callable[[EpisodeStats], None] | None,
        tuned: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        """Run episodes, whatever the environment does; within `tuned`, as often as the environment is made.

        Raises:
            StoppedError: a stop was requested.
            EnvironmentFaultError: the environment fails again and again.
        """
        order = Order(test=False, collect=False)

        def run_episodes() -> None:
            nonlocal order
            for order in orders:
                stats = self.loop.run_episode(order.max_samples, order.test, order.collect, order.after_step)
                self._end(order, stats, on_episode)
                if self.env.stopping.is_set():
                    raise StoppedError

        self.env.revive()
        while True:
            try:
                with tuned():
                    return self.env.run(run_episodes)
            except EnvironmentFaultError as error:
                self._end(order, self.loop.end_in_fault(str(error)), on_episode)
                self.env.rebuild(error)

    def steps(self, orders: Iterator[Order]) -> Iterator[None]:
        """The same in the caller's thread: yields after each step, and goes on when the next one is asked for."""
        for order in orders:
            try:
                self._end(order, (yield from self.loop.episode(order.max_samples, order.test, order.collect)))
            except EnvironmentFaultError as error:
                self._end(order, self.loop.end_in_fault(str(error)))
                self.env.rebuild(error)

    def _end(self, order: Order, stats: EpisodeStats, on_episode: Callable[[EpisodeStats], None] | None = None) -> None:
        self.returns.append((stats.finished_at_s, stats.return_))
        if order.verbose:
            kind = "test" if stats.test else "training"
            how = ", terminated" if stats.terminated else ", fault" if stats.fault else ""
            line = "%s episode: return %.2f in %d steps%s (policy %d)"
            self.env.log.add(logging.INFO, line, kind, stats.return_, stats.steps, how, stats.policy_version)
        if on_episode is not None:
            on_episode(stats)
