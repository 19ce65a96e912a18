"""How far training may run ahead of the environment. Numbers alone: no clock, no thread, no
network.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from tmrl_like.errors import ConfigError
from tmrl_like.trainer.options import Schedule
from tmrl_like.types import Receipt

_KEPT_SAMPLES = 50  # whose training steps may still be made after the ratio has changed
_STATE = (
    "recorded_samples",
    "unpaced_steps",
    "limit",
    "in_lockstep",
    "tasked_steps",
    "untasked_training",
)


@dataclass
class Pacer:
    """Caps training steps per environment step, once there is a worker.

    Recorded samples count as environment steps, but there will be no more of them: until a worker
    has sent a sample, training goes on without a limit, and its steps beyond the ratio are not held
    against the worker.

    In lockstep, once samples have come whose worker awaits training, a training step is made only
    on a task. Each environment step from here on allows `limit` of them (in sum: of 0.5, every
    second step allows one), but for those before `start_training` and before the memory can give a
    batch, a reset's and those of a data set.

    Attributes:
        schedule: has `start_training`, and the limit at the beginning.
        limit: training steps per sample at most: the schedule's ratio, or less for `sample_uses`.
        recorded_samples: samples that were in the memory before training began: a data set's, or
            those of a memory that was taken over without its agent.
        unpaced_steps: training steps that are allowed beyond the ratio: made before the first
            sample of a worker, or by what the ratio was before; below 0 it is the other way round.
        in_lockstep: whether training is.
        tasked_steps: in lockstep, environment steps so far that allow tasks.
        untasked_training: training steps that were made before; corrected where the ratio was
            another one.
    """

    schedule: Schedule
    recorded_samples: int = 0
    unpaced_steps: float = 0
    in_lockstep: bool = False
    tasked_steps: int = 0
    untasked_training: float = 0
    limit: float = field(default=0.0, init=False)
    # tasked steps, up to this entry
    _awaited: deque[tuple[int, Receipt]] = field(default_factory=deque, init=False)

    def __post_init__(self) -> None:
        self.limit = self.schedule.max_training_steps_per_env_step

    def may_train(self, training_steps: int, samples: int) -> bool:
        """Whether one more training step is allowed after `training_steps`, with `samples` recorded
        or received.
        """
        if samples < max(1, self.schedule.start_training):
            return False
        if self.in_lockstep:
            return not self.is_done(training_steps, self.tasked_steps)
        if samples == self.recorded_samples:
            return True
        return training_steps + 1 <= self._allowed(samples)

    def _allowed(self, samples: int) -> float:
        return self.limit * samples + self.unpaced_steps

    def before_samples(self, training_steps: int, samples: int) -> None:
        """Samples of a worker are about to be added to `samples`, after `training_steps`."""
        if samples == self.recorded_samples > 0:
            self.unpaced_steps = max(
                0, training_steps - math.floor(min(self.limit * samples, training_steps))
            )

    def expect_no_worker(self, samples: int) -> None:
        """Training goes by the samples that there are, without a limit, until a worker sends
        one.
        """
        self.recorded_samples, self.in_lockstep, self.tasked_steps = samples, False, 0

    # -- in lockstep

    def enter_lockstep(self, training_steps: int) -> None:
        """Samples come whose worker awaits training; ConfigError: the ratio is no number that it
        could await.
        """
        if not self.in_lockstep:
            self.in_lockstep, self.untasked_training = True, training_steps
            self.check(self.limit)

    def is_done(self, training_steps: int, tasked_steps: int) -> bool:
        """Whether the tasks of so many environment steps are done after `training_steps`."""
        return bool(training_steps - self.untasked_training + 1 > self.limit * tasked_steps)

    def wait_for(self, receipt: Receipt, new_tasks: int) -> None:
        """A worker holds still until the tasks so far are done, and those that are not counted
        yet.
        """
        self._awaited.append((self.tasked_steps + new_tasks, receipt))

    def done(self, training_steps: int) -> Iterator[Receipt]:
        """Those receipts that were waited for and whose tasks are done, once each."""
        while self._awaited and self.is_done(training_steps, self._awaited[0][0]):
            yield self._awaited.popleft()[1]

    # -- another limit

    def follow(self, limit: float, training_steps: int, samples: int) -> None:
        """Have another limit from here on.

        What was allowed until now stays so, and what was not made of it is forgiven but for that of
        50 samples.

        Raises:
            ConfigError: training is in lockstep, and the limit is no number that a worker could
                await.
        """
        self.check(limit)
        if limit == self.limit:
            return
        if self.in_lockstep:
            self.untasked_training += (self.limit - limit) * self.tasked_steps
        elif samples > self.recorded_samples:
            owed = min(self._allowed(samples) - training_steps, _KEPT_SAMPLES * limit)
            self.unpaced_steps = (
                0.0 if limit == math.inf else training_steps + owed - limit * samples
            )
        self.limit = limit

    def check(self, limit: float) -> None:
        """Raise ConfigError where training is in lockstep, and this is no limit for that."""
        if self.in_lockstep and limit == math.inf:
            raise ConfigError(
                f"max_training_steps_per_env_step is {limit}, and a worker gathers in lockstep "
                "(synchronous): expected a finite number"
            )

    # -- in checkpoints

    def state_dict(self) -> dict[str, float]:
        """What a checkpoint keeps, as plain values; who waits says so again."""
        return {name: value for name, value in vars(self).items() if name in _STATE}

    def load_state_dict(self, state: dict[str, float]) -> None:
        vars(self).update(state)
