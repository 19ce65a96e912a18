"""A reward from pictures: an episode ends with a reward once a model recognises success."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from msgspec import Meta

from tmrl_like.base.factories import instance_or_function, known_from_env
from tmrl_like.base.options import Positive, Reward, in_ranges
from tmrl_like.envs.float32 import Float32Env, closed_by_errors
from tmrl_like.errors import EnvironmentFaultError


class SuccessEnv(Float32Env):
    """An environment whose episodes terminate, with a reward, once a model recognises success.

    The reward is added to the environment's own. Several observations in a row must show success,
    since a single one may mislead the model.
    """

    @staticmethod
    def memory_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a memory must know; see `RealTimeEnv.memory_arguments`."""
        return known_from_env(arguments["env"])

    @in_ranges
    def __init__(
        self,
        env: Callable[[], Any],
        model: Callable[..., Any],
        reward: Reward = 1.0,
        threshold: Annotated[float, Meta(gt=0, lt=1)] = 0.5,
        frames: Positive = 3,
    ) -> None:
        """Make the environment and the model.

        Args:
            env: makes the environment.
            model: a function of the environment's observation that returns a probability of
                success; or a class to instantiate, with `observation_space` if it takes that, such
                as `tmrl_like.policies.success_model.SuccessModel`. It is called in the control
                loop, once a step, so it must be fast.
            reward: added to the reward of the step that succeeds.
            threshold: an observation shows success if its probability is at least this.
            frames: number of observations in a row that must show success.

        Raises:
            ConfigError: a number is out of its range, or the model raised this.
        """
        super().__init__(env())
        with closed_by_errors(self):
            self._model = instance_or_function(model, observation_space=self.observation_space)
        self._reward, self._threshold, self._frames = reward, threshold, frames
        self._in_a_row = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode, and count successes from 0."""
        self._in_a_row = 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take one step, and ask the model about the observation that it returns.

        Raises:
            EnvironmentFaultError: the model returned NaN, which would never be success.
        """
        obs, rew, terminated, truncated, info = super().step(action)
        probability = self._model(obs)
        if probability != probability:
            raise EnvironmentFaultError(
                f"the model of success returned {probability}; expected a probability"
            )
        self._in_a_row = self._in_a_row + 1 if probability >= self._threshold else 0
        if self._in_a_row < self._frames:
            return obs, rew, terminated, truncated, info
        return obs, rew + self._reward, True, truncated, info
