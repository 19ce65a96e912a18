"""A reward from pictures: an episode ends well where a model sees success."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from msgspec import Meta

from tmrl_like.base.factories import instance_or_function, known_from_env
from tmrl_like.base.options import Positive, in_ranges
from tmrl_like.envs.float32 import Float32Env


class SuccessEnv(Float32Env):
    """An environment whose episodes terminate, with a reward, where a model sees success.

    The reward is added to the environment's own. Success is seen where several observations in a
    row show it, since a single one may mislead the model.
    """

    @staticmethod
    def memory_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
        """As `RealTimeEnv.memory_arguments`."""
        return known_from_env(arguments["env"])

    @in_ranges
    def __init__(
        self,
        env: Callable[[], Any],
        model: Callable[..., Any],
        reward: float = 1.0,
        threshold: Annotated[float, Meta(gt=0, lt=1)] = 0.9,
        frames: Positive = 2,
    ) -> None:
        """Make the environment and the model.

        Args:
            env: makes the environment.
            model: a function of the environment's observation that gives a probability of success;
                or a class, of which one is made, with `observation_space` if it takes that:
                `tmrl_like.policies.success_model.SuccessModel`. It is asked in the control loop,
                once a step: let it be fast.
            reward: what success adds to the reward of its step.
            threshold: an observation shows success where its probability is at least this.
            frames: success is seen where so many observations in a row show it.

        Raises:
            ConfigError: a number is out of its range, or what the model raises.
        """
        super().__init__(env())
        self._model = instance_or_function(model, observation_space=self.observation_space)
        self._reward, self._threshold, self._frames = reward, threshold, frames
        self._in_a_row = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode, in which nothing was seen so far."""
        self._in_a_row = 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Do one step, and look at what came of it."""
        obs, rew, terminated, truncated, info = super().step(action)
        self._in_a_row = self._in_a_row + 1 if self._model(obs) >= self._threshold else 0
        if self._in_a_row < self._frames:
            return obs, rew, terminated, truncated, info
        return obs, rew + self._reward, True, truncated, info
