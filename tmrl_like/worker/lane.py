"""A lane of a worker: one environment with its control loop and episodes. Lanes share the worker's
policy and connection.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from tmrl_like.envs.supervision import StoppedError
from tmrl_like.errors import EnvironmentFaultError
from tmrl_like.types import EpisodeStats
from tmrl_like.wire.condition import Condition, of_worker
from tmrl_like.worker.control_loop import ControlLoop
from tmrl_like.worker.rehearsal import rehearsal_of
from tmrl_like.worker.retests import Retests

_NO_TRAINING = "in lockstep, and nothing trains for %g s: is there a trainer?"
_NO_ROOM = (
    "in lockstep, and there has been no room for samples for %g s: is there a trainer, and space "
    "on the disk?"
)


@dataclass(eq=False)
class Plan:
    """What lanes do together, until it is done or they are stopped.

    Attributes:
        lanes: the lanes that take part; only the first one runs tests in between.
        test: whether the episodes are tests: `act(test=True)`.
        collect: whether steps become samples.
        verbose: whether every episode is logged, not only tests in between.
        max_samples: number of steps after which an episode is cut; None: as in the worker's
            options.
        nb_episodes: number of episodes of all lanes together; tests in between do not count.
        nb_steps: number of steps that all lanes together collect after the initial ones; episodes
            under way are finished.
        test_episode_interval: run a test before every k-th episode; 0: none.
        waits: when a lane waits for training: "never", between "episodes", or after "steps".
        initial_steps: number of steps that all lanes together collect before the first wait.
        on_episode: called with each episode's statistics, in a thread of the lane.
        after_step: called after each step, in the environment's thread.
    """

    lanes: Sequence[Lane]
    test: bool = False
    collect: bool = True
    verbose: bool = False
    max_samples: float | None = None
    nb_episodes: float = math.inf
    nb_steps: float = math.inf
    test_episode_interval: int = 0
    waits: Literal["never", "episodes", "steps"] = "never"
    initial_steps: int = 0
    on_episode: Callable[[EpisodeStats], None] | None = None
    after_step: Callable[[], None] | None = None
    _begun: Iterator[int] = field(default_factory=itertools.count)
    _collected_before: int = 0

    def __post_init__(self) -> None:
        self._collected_before = self.collected_steps

    @property
    def collected_steps(self) -> int:
        """Number of steps since the plan was made that became samples."""
        return sum(lane.loop.collected_steps for lane in self.lanes) - self._collected_before

    def begins_another(self) -> bool:
        """Whether a lane should begin another episode; if so, it counts as begun."""
        return (
            self.collected_steps < self.nb_steps + self.initial_steps
            and next(self._begun) < self.nb_episodes
        )


class Lane:
    """One environment of a worker. Its faults do not affect the other lanes.

    Attributes:
        loop: the control loop.
        env: the loop's supervised environment.
        intake: provides policies.
    """

    def __init__(
        self,
        loop: ControlLoop,
        max_samples_per_episode: float,
        remind_after_s: float = 10.0,
    ) -> None:
        """Take over a control loop; longer episodes are cut unless a plan says otherwise. A wait
        in lockstep that takes longer than `remind_after_s` is logged.
        """
        self.loop = loop
        self._max_samples = max_samples_per_episode
        self._remind_after_s = remind_after_s
        self.env = loop.env
        self.env.while_waiting(rehearsal_of(loop))
        self.intake = loop.driver.intake
        # whether the next episode is a test of the same policy
        self._retests, self._repeats = Retests(), False
        self._episode_steps = 0  # of the newest episode
        self._trained = 0  # the training steps that entries up to this one allow are done
        self._changed = threading.Condition()
        self._before, self._newest = 0, 0  # entries after the step before the newest, and after it

    # -- in the environment's thread ---------------------------------------------------------------

    def _steps(self, plan: Plan, tests: Iterator[bool]) -> Iterator[None]:
        """Run an episode for each of `tests`; yield after each step.

        Raises:
            EnvironmentFaultError: the environment raised.
            StoppedError: a stop was requested.
        """
        loop, stopping, after_step = self.loop, self.env.stopping, plan.after_step
        for is_test in tests:
            collects = plan.collect and not is_test
            waits = plan.waits == "steps" and not is_test
            fills = loop.samples if collects and plan.waits != "never" else None
            limit = self._max_samples if plan.max_samples is None else plan.max_samples
            if not self._repeats:
                loop.driver.release()
            loop.driver.holds = is_test
            obs = loop.begin_episode(is_test, collects)
            terminated = truncated = False
            for number in itertools.count(1):
                if fills is not None:
                    self._await(fills.has_room_ahead, _NO_ROOM)
                obs, _, terminated, truncated, _ = loop.step(
                    obs, is_test, collects, number >= limit
                )
                if stopping.is_set():
                    raise StoppedError
                if waits:
                    self._await_training(plan)
                if after_step is not None:
                    after_step()
                yield
                if terminated or truncated:
                    break
            self.env.episode_ended_well()
            self._end_episode(plan, loop.end_episode(bool(terminated), bool(truncated)))
            loop.check_running()

    def _tests(self, plan: Plan) -> Iterator[bool]:
        """Yield, for each episode, whether it is a test. After a fault, it continues where it was.

        Later tests are left out until that has saved as many steps as repeated ones have taken.
        """
        interval = plan.test_episode_interval if self is plan.lanes[0] else 0
        self._repeats, owed_steps = False, 0
        for number in itertools.count():
            if number and plan.waits == "episodes":
                self._await_training(plan, all_of_it=True)
            if not plan.begins_another():
                break
            if interval and number % interval == 0:
                if not owed_steps:
                    yield True
                owed_steps = max(0, owed_steps - self._episode_steps)
                while self._repeats:
                    yield True
                    owed_steps += self._episode_steps
            yield plan.test
        if plan.waits != "never":
            self._await_training(plan, all_of_it=True)

    def _await_training(self, plan: Plan, all_of_it: bool = False) -> None:
        """After a step, wait until the training steps that the step before it allows are done or,
        with `all_of_it`, all of them.

        So in each lane the training for one step may be pending while the next step is under way,
        but no more.

        Raises as `_await`.
        """
        if self.loop.samples is None or plan.collected_steps < plan.initial_steps:
            return
        self._before, self._newest = self._newest, self.loop.samples.entries
        wanted = self._newest if all_of_it else self._before
        self._await(lambda: self._trained >= wanted, _NO_TRAINING)

    def _await(self, is_there: Callable[[], bool], line: str) -> None:
        """In lockstep, wait until `is_there` returns True; after a while, log the line.

        Raises:
            StoppedError: a stop was requested.
            RefusedError, CredentialsError: the connection ended for good.
        """
        remind_at = time.monotonic() + self._remind_after_s
        with self._changed:
            while not is_there():
                self.loop.check_running()
                if time.monotonic() >= remind_at:
                    self.env.log.add(logging.WARNING, line, self._remind_after_s)
                    remind_at = math.inf
                self._changed.wait(0.2)

    # -- who drives it -----------------------------------------------------------------------------

    def drive(
        self, plan: Plan, tuned: Callable[[int], contextlib.AbstractContextManager[None]]
    ) -> None:
        """Run the episodes of a plan, and rebuild the environment after each fault.

        `tuned` makes a context from the native id of the environment's thread; it is entered anew
        for each such thread.

        Raises:
            StoppedError: a stop was requested.
            EnvironmentFaultError: the environment keeps failing.
        """
        tests = self._tests(plan)
        self.env.revive()
        with self._letting_go():
            while True:
                try:
                    with tuned(self.env.thread_id):
                        return self.env.run(partial(self._run_through, plan, tests))
                except EnvironmentFaultError as error:
                    self._go_on_after(error, plan)

    def _run_through(self, plan: Plan, tests: Iterator[bool]) -> None:
        deque(self._steps(plan, tests), maxlen=0)  # without a line of Python between two steps
        self.env.brake.pull()

    def steps(self, plan: Plan) -> Iterator[None]:
        """Run the episodes of a plan without end: yield after each step, and make the next one when
        it is requested.
        """
        tests = self._tests(plan)
        with self._letting_go():
            while True:
                steps = self._steps(plan, tests)
                try:
                    while True:
                        self.env.run(partial(next, steps))
                        yield
                except EnvironmentFaultError as error:
                    self._go_on_after(error, plan)

    @contextlib.contextmanager
    def _letting_go(self) -> Iterator[None]:
        """Hold no policy for a test any more when the context is left.

        The environment's thread does not do that: one that was left behind may come back in the
        middle of a later test.
        """
        try:
            yield
        finally:
            self.loop.driver.holds = False

    def _go_on_after(self, error: EnvironmentFaultError, plan: Plan) -> None:
        self._end_episode(plan, self.loop.end_episode(False, True, str(error)))
        self.env.rebuild(error)

    def _end_episode(self, plan: Plan, stats: EpisodeStats) -> None:
        self._episode_steps = stats.steps
        if plan.verbose or stats.test is not plan.test:
            kind = "test" if stats.test else "training"
            how = ", terminated" if stats.terminated else ", fault" if stats.fault else ""
            line = "%s episode: return %.2f in %d steps%s (policy %d)"
            self.env.log.add(
                logging.INFO, line, kind, stats.return_, stats.steps, how, stats.policy_version
            )
        if stats.test is not plan.test and (stats.policy_version or self._repeats):
            counts = stats.policy_version and not stats.fault
            trained = self.loop.collected_steps
            tested = self.loop.counts.env_steps - trained
            return_ = stats.return_ if counts else -math.inf
            self._repeats = self._retests.wants_another(return_, trained, tested)
        if plan.on_episode is not None:
            plan.on_episode(stats)

    # -- any thread --------------------------------------------------------------------------------

    def note_trained(self, incarnation: int, entry: int) -> None:
        """Record that the training steps allowed by an incarnation's entries up to `entry` are
        done.
        """
        if self.loop.samples is not None and self.loop.samples.incarnation == incarnation:
            with self._changed:
                self._trained = max(self._trained, entry)
                self._changed.notify_all()

    def refill(self) -> None:
        """Prepare files for samples."""
        if self.loop.samples is not None:
            self.loop.samples.refill()


def condition_of(lanes: Sequence[Lane]) -> Condition:
    """Return a worker's condition, merged over its lanes. Any thread."""
    return of_worker([lane.loop.condition() for lane in lanes])
