"""How far training may run ahead of the environment. Integers only: no clock, no thread."""

from __future__ import annotations

from dataclasses import dataclass

from tmrl_like.errors import ConfigError


@dataclass(frozen=True)
class Pacer:
    """Caps training steps per environment step.

    Attributes:
        max_training_steps_per_env_step: training pauses when one more step would exceed this ratio.
        start_training: samples needed before the first step.
    """

    max_training_steps_per_env_step: float
    start_training: int = 0

    def __post_init__(self) -> None:
        if not self.max_training_steps_per_env_step > 0:
            raise ConfigError(
                f"max_training_steps_per_env_step is {self.max_training_steps_per_env_step}; it must be above 0"
            )

    def may_train(self, training_steps: int, samples: int) -> bool:
        """Whether one more training step is allowed after `training_steps`, with `samples` received."""
        if samples < max(1, self.start_training):
            return False
        return training_steps + 1 <= self.max_training_steps_per_env_step * samples
