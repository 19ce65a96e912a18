"""Passes rollouts to hooks."""

from __future__ import annotations

import copy
import logging
import queue
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from tmrl_like.base.text import name_of, one_line
from tmrl_like.base.threads import start_thread
from tmrl_like.rollouts.rollout import Rollout, Step, rollout_of
from tmrl_like.types import EpisodeStats

log = logging.getLogger("tmrl_like.rollouts")

_CONTAINERS = tuple, list, dict
_MAX_STEPS = 100_000  # longer episodes make no rollout

Hook: TypeAlias = Callable[[Rollout], object]


class Rollouts:
    """Calls hooks with rollouts, in a thread of its own, `tmrl-rollouts`; handing over an episode
    never waits.

    An error that a hook raises is one line in the log.

    Attributes:
        observations: whether rollouts include observations.
        dropped: number of episodes that were dropped because the hooks are too slow.
    """

    def __init__(
        self, hooks: Hook | Sequence[Hook], observations: bool = False, max_waiting: int = 4
    ) -> None:
        """Start the thread; up to `max_waiting` episodes may wait for it."""
        self.observations = observations
        self.dropped = 0
        self._hooks = (hooks,) if callable(hooks) else tuple(hooks)
        self._max_waiting = max_waiting
        self._queue: queue.SimpleQueue[tuple[deque[Step], EpisodeStats, float] | None] = (
            queue.SimpleQueue()
        )
        self._thread = start_thread(self._run, "tmrl-rollouts")

    def begin(self, obs: Any, at_s: float) -> deque[Step]:
        """Return the steps of a new episode, for `add`; the first is its reset."""
        steps: deque[Step] = deque(maxlen=_MAX_STEPS + 2)
        self.add(steps, (None, 0.0, {}, 0, 0, at_s, obs))
        return steps

    def add(self, steps: deque[Step], step: Step) -> None:
        """Add a step to those of an episode. Its arrays are copied: environments and actors may
        use theirs again.
        """
        act, rew, info, *when, obs = step
        info = {key: _own(value) for key, value in info.items()}
        steps.append((_own(act), rew, info, *when, _own(obs) if self.observations else None))

    def end(self, steps: deque[Step], stats: EpisodeStats, time_step_s: float) -> None:
        """Hand over an episode, without waiting."""
        # there is no step, or so many that the oldest were dropped
        if not 1 < len(steps) <= _MAX_STEPS + 1:
            return
        if self._queue.qsize() < self._max_waiting:
            self._queue.put((steps, stats, time_step_s))
        else:
            self.dropped += 1

    def _run(self) -> None:
        said = 0
        while (episode := self._queue.get()) is not None:
            steps, stats, time_step_s = episode
            try:
                rollout = rollout_of(
                    steps,
                    worker=stats.worker,
                    test=stats.test,
                    terminated=stats.terminated,
                    truncated=stats.truncated,
                    fault=stats.fault,
                    time_step_s=time_step_s,
                )
                self._call(rollout)
            except Exception as error:
                log.error("an episode makes no rollout: %s", one_line(error))
            if self.dropped > said:
                said = self.dropped
                log.warning("on_rollout is too slow: %d so far were not handed over", said)

    def _call(self, rollout: Rollout) -> None:
        for hook in self._hooks:
            try:
                hook(rollout)
            except (Exception, SystemExit) as error:  # the thread would end without a line
                log.error("on_rollout (%s) raised %s", name_of(hook), one_line(error))

    def close(self, within_s: float = 5.0) -> None:
        """Call the hooks with the episodes that wait, and end the thread; wait for that at most
        `within_s` seconds. Calling it twice is fine.
        """
        self._queue.put(None)
        self._thread.join(within_s)
        if self._thread.is_alive():
            log.warning(
                "on_rollout did not come back within %g s: episodes that wait for it may be lost",
                within_s,
            )


def _own(value: Any) -> Any:
    """Return a value with copies of all its arrays."""
    if isinstance(value, np.ndarray):
        return value.copy()
    return copy.deepcopy(value) if isinstance(value, _CONTAINERS) else value
