"""How far training may run ahead of the environment. No clock, no thread."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass
class Pacer:
    """Caps training steps per environment step, once there is a worker.

    Recorded samples count as environment steps, but there will be no more of them: until a worker has sent a sample,
    training goes on without a limit, and its steps beyond the ratio are not held against the worker.

    Attributes:
        max_training_steps_per_env_step: training pauses when one more step would exceed this ratio.
        start_training: samples needed before the first step.
        recorded_samples: samples that were in the memory before training began: a data set's, or those of a memory
            that was taken over without its agent.
        unpaced_steps: training steps beyond the ratio, made before the first sample of a worker.
    """

    max_training_steps_per_env_step: float
    start_training: int = 0
    recorded_samples: int = 0
    unpaced_steps: int = 0

    def may_train(self, training_steps: int, samples: int) -> bool:
        """Whether one more training step is allowed after `training_steps`, with `samples` recorded or received."""
        if samples < max(1, self.start_training):
            return False
        if samples == self.recorded_samples:
            return True
        return training_steps - self.unpaced_steps + 1 <= self.max_training_steps_per_env_step * samples

    def before_samples(self, training_steps: int, samples: int) -> None:
        """A worker's samples are about to be added to `samples`, after `training_steps`."""
        if samples == self.recorded_samples > 0:
            allowed = self.max_training_steps_per_env_step * samples
            self.unpaced_steps = max(0, training_steps - math.floor(min(allowed, training_steps)))
