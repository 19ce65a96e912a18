"""What hands rollouts to whoever asked for them: a worker's from its control loops, a trainer's from its samples."""

from __future__ import annotations

import logging
import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from tmrl_like.base.text import name_of, one_line
from tmrl_like.base.threads import start_thread
from tmrl_like.rollouts.rollout import Rollout, Step, rollout_of
from tmrl_like.types import Buffer, EpisodeStats

log = logging.getLogger("tmrl_like.rollouts")

MAX_STEPS = 100_000
"""A longer episode makes no rollout."""

_MAX_PROCESSES = 1024

Hook: TypeAlias = Callable[[Rollout], object]


class Rollouts:
    """Calls hooks with rollouts, in a thread of its own, `tmrl-rollouts`; who hands them over never waits.

    What a hook raises is one line in the log.

    Attributes:
        observations: whether they are asked for.
        dropped: what was not taken because the hooks are too slow: episodes of a worker, packets of a trainer.
    """

    def __init__(self, hooks: Hook | Sequence[Hook], observations: bool = False, max_waiting: int = 4) -> None:
        """Start the thread; so many may wait."""
        self.observations = observations
        self.dropped = 0
        self._hooks = (hooks,) if callable(hooks) else tuple(hooks)
        self._max_waiting = max_waiting
        self._queue: queue.SimpleQueue[Callable[[], Iterable[Rollout]] | None] = queue.SimpleQueue()
        self._thread = start_thread(self._run, "tmrl-rollouts")

    def begin(self, obs: Any, at_s: float) -> deque[Step]:
        """The steps of an episode, to be appended to: there is its reset."""
        return deque([(None, 0.0, {}, 0, 0, at_s, obs if self.observations else None)], maxlen=MAX_STEPS + 2)

    def end(self, steps: deque[Step], stats: EpisodeStats, time_step_s: float) -> None:
        """Hand over an episode; does not wait."""
        names = ("worker", "test", "terminated", "truncated", "fault")
        more = {name: getattr(stats, name) for name in names} | {"time_step_s": time_step_s}
        if is_whole(steps):
            self.put(lambda: [rollout_of(steps, **more)])

    def put(self, make: Callable[[], Iterable[Rollout]]) -> bool:
        """Have rollouts made, in the thread, and handed over; False, and counted: too many wait."""
        fits = self._queue.qsize() < self._max_waiting
        if fits:
            self._queue.put(make)
        else:
            self.dropped += 1
        return fits

    def _run(self) -> None:
        said = 0
        while (make := self._queue.get()) is not None:
            try:
                for rollout in make():
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
            except Exception as error:
                log.error("on_rollout (%s) raised %s", name_of(hook), one_line(error))

    def close(self, within_s: float = 5.0) -> None:
        """Hand over what waits, and end the thread; waits for so long at most. Twice is fine."""
        self._queue.put(None)
        self._thread.join(within_s)


class Assembler:
    """Puts the samples that a trainer gets back together to episodes, of each worker process. For one thread."""

    def __init__(self, rollouts: Rollouts) -> None:
        """Begin where episodes begin."""
        self._rollouts = rollouts
        self._open: dict[tuple[str, int], tuple[str, deque[Step] | None]] = {}

    def take(self, process: tuple[str, int], buffer: Buffer, is_gap: bool) -> Iterator[Rollout]:
        """The rollouts that end in these samples; `is_gap`: others were left out before them."""
        if is_gap:
            self._open.clear()
        stream, steps = self._open.pop(process, ("", None))
        if stream != buffer.stream:
            steps = None
        for block in buffer.blocks:
            for act, obs, rew, terminated, truncated, info in block.samples():
                at_s, _, _, version, source = info.timing  # type: ignore[attr-defined]
                if info.is_reset:  # type: ignore[attr-defined]
                    steps = self._rollouts.begin(obs, at_s)
                elif steps is not None:
                    steps.append((act, rew, info, version, source, at_s, obs if self._rollouts.observations else None))
                    if terminated or truncated:
                        if is_whole(steps):
                            ends = {"terminated": bool(terminated), "truncated": bool(truncated)}
                            yield rollout_of(steps, worker=process[0], **ends)
                        steps = None
        self._open[process] = buffer.stream, steps
        if len(self._open) > _MAX_PROCESSES:
            del self._open[next(iter(self._open))]


def is_whole(steps: deque[Step]) -> bool:
    """Whether there is a step, and none is left out because there are too many."""
    return 1 < len(steps) <= MAX_STEPS + 1
