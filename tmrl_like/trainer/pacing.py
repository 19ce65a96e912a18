"""How far training may run ahead of the environment. Pure arithmetic: no clock, thread or
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

# training steps for this many samples may be made up after the ratio has changed
_KEPT_SAMPLES = 50


@dataclass
class Pacer:
    """Caps training steps per environment step, as soon as there is a worker.

    Recorded samples count as environment steps, but no more of them will come. So until a worker
    has sent a sample, training is not limited, and its steps beyond the ratio are not held against
    the worker.

    Lockstep begins with the first samples whose worker waits for training. From then on, a training
    step is made only if a task allows it. Each environment step allows `limit` training steps
    (summed: with 0.5, every second step allows one). Steps before `start_training`, steps before
    the memory can give a batch, resets and the steps of a data set allow none.

    Attributes:
        schedule: has `start_training`, and the limit at the beginning.
        limit: most training steps per sample: the schedule's ratio, or less because of
            `sample_uses`.
        recorded_samples: samples that were in the memory before training began: a data set's, or
            those of a memory that was taken over without its agent.
        unpaced_steps: training steps allowed beyond the ratio: those made before a worker's first
            sample, or those that an earlier, higher ratio allowed. Negative if an earlier ratio was
            lower.
        in_lockstep: whether training is in lockstep.
        tasked_steps: in lockstep, the environment steps so far that allow training.
        untasked_training: training steps that were made before lockstep; adjusted when the ratio
            changes.
    """

    schedule: Schedule
    recorded_samples: int = 0
    unpaced_steps: float = 0
    in_lockstep: bool = False
    tasked_steps: int = 0
    untasked_training: float = 0
    limit: float = field(default=0.0, init=False)
    # (tasked steps up to this entry, its receipt)
    _awaited: deque[tuple[int, Receipt]] = field(default_factory=deque, init=False)

    def __post_init__(self) -> None:
        self.limit = self.schedule.max_training_steps_per_env_step

    def may_train(self, training_steps: int, samples: int) -> bool:
        """Whether one more training step is allowed after `training_steps`, with `samples` recorded
        or received so far.
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
        """Prepare for a worker's samples, which are about to be added to `samples`, after
        `training_steps`.
        """
        if samples == self.recorded_samples > 0:
            paced_steps = math.floor(min(self.limit * samples, training_steps))
            self.unpaced_steps = training_steps - paced_steps

    def expect_no_worker(self, samples: int) -> None:
        """Train from the `samples` in the memory without a limit, until a worker sends one."""
        self.recorded_samples = samples
        self.leave_lockstep()

    # -- in lockstep

    def enter_lockstep(self, training_steps: int) -> None:
        """Enter lockstep, because samples have come whose worker waits for training.

        Raises:
            ConfigError: the limit is infinite, so that the worker would wait for ever.
        """
        if not self.in_lockstep:
            self.in_lockstep = True
            self.untasked_training = training_steps
            self.check(self.limit)

    def leave_lockstep(self) -> None:
        """Leave lockstep, as no worker waits for training."""
        self.in_lockstep = False
        self.tasked_steps = 0

    def add_tasks(self, steps: int) -> None:
        """Allow training for so many more tasked environment steps."""
        self.tasked_steps += steps

    def recount(self, before: int, samples: int) -> None:
        """In lockstep, correct the tasks after a kill, as `samples` count now in place of `before`.

        Each of them counts as an environment step, also a reset.
        """
        if self.in_lockstep:
            begin = self.schedule.start_training
            self.add_tasks(max(samples, begin) - max(before, begin))

    def is_done(self, training_steps: int, tasked_steps: int) -> bool:
        """Whether the training for this many tasked environment steps is done after
        `training_steps`.
        """
        return training_steps - self.untasked_training + 1 > self.limit * tasked_steps

    def wait_for(self, receipt: Receipt, new_tasks: int) -> None:
        """Note that a worker holds still until all tasks so far are done, including `new_tasks`
        that are not counted yet.
        """
        self._awaited.append((self.tasked_steps + new_tasks, receipt))

    def done(self, training_steps: int) -> Iterator[Receipt]:
        """Yield each receipt that was waited for and whose tasks are done, once."""
        while (
            self._awaited and self.in_lockstep and self.is_done(training_steps, self._awaited[0][0])
        ):
            yield self._awaited.popleft()[1]

    # -- changes of the limit

    def follow(self, limit: float, training_steps: int, samples: int) -> None:
        """Change the limit.

        Training that was allowed so far stays allowed, but at most 50 samples' worth of what has
        not been done yet is made up later.

        Raises:
            ConfigError: training is in lockstep, and the limit is infinite.
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
        """Raise ConfigError if training is in lockstep and the limit is infinite."""
        if self.in_lockstep and limit == math.inf:
            raise ConfigError(
                f"max_training_steps_per_env_step is {limit}, and a worker gathers in lockstep "
                "(synchronous): expected a finite number"
            )

    # -- checkpoints

    def state_dict(self) -> dict[str, float]:
        """Return the state as plain values, for a checkpoint. Waiting workers are left out: they
        announce themselves again.
        """
        return {name: value for name, value in vars(self).items() if isinstance(value, int | float)}

    def load_state_dict(self, state: dict[str, float]) -> None:
        vars(self).update(state)
