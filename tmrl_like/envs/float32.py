"""The wrapper of every environment: it unifies number types and gives the time-step's duration."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tmrl_like.base import tree
from tmrl_like.envs.actions import default_action
from tmrl_like.errors import ConfigError, EnvironmentFaultError, expect, unexpected

_FLOAT64 = np.dtype(np.float64)
_dtype_of = attrgetter("dtype")

REWARD_TYPES = (float, np.float32, np.float64, np.float16)
"""The types of nearly all rewards."""


class Float32Env(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wraps an environment: float64 observations become float32, rewards floats (NumPy's stay), and
    `terminated` and `truncated` bools.

    Attributes:
        default_action: the action of a reset: the environment's own, or a neutral one (zeros, if
            the space has them).
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        """Wrap the environment. Raises ConfigError if it does not derive from gymnasium.Env; any
        other error closes it.
        """
        is_env = isinstance(env, gymnasium.Env)
        expect(is_env, "the environment inside", env, "one whose class derives from gymnasium.Env")
        super().__init__(env)
        with closed_by_errors(env):
            self._converts = any(
                space.dtype == np.float64 for space in tree.leaves(env.observation_space)
            )
            if self._converts:
                self.observation_space = _space_to_float32(env.observation_space)
            self.default_action = default_action(env)

    @property
    def time_step_s(self) -> float | None:
        """Nominal duration of a time-step in seconds, or None if the environment does not run in
        real time.
        """
        duration = getattr(self.env.unwrapped, "time_step_duration", None)
        return float(duration) if duration else None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode; see `gymnasium.Env.reset`.

        Raises:
            ConfigError: the environment returned something else.
        """
        result = self.env.reset(seed=seed, options=options)
        try:
            obs, info = result
        except (TypeError, ValueError):
            raise no_reset(result) from None
        return self._convert(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take one step; see `gymnasium.Env.step`.

        Raises:
            EnvironmentFaultError: the reward is not a number.
            ConfigError: the environment returned something else.
        """
        result = self.env.step(action)
        try:
            obs, rew, terminated, truncated, info = result
            ends = bool(terminated), bool(truncated)
        except (TypeError, ValueError):
            raise no_step(result) from None
        if type(rew) not in REWARD_TYPES:
            refuse_no_number(rew)
            rew = float(rew)
        return self._convert(obs), rew, *ends, {} if info is None else info

    def _convert(self, obs: Any) -> Any:
        # many environments return float64 although their space says float32, some in a late step
        self._converts = self._converts or _has_float64(obs)
        return tree.map_leaves(_to_float32, obs) if self._converts else obs


@contextlib.contextmanager
def closed_by_errors(opened: Any) -> Iterator[None]:
    """Close an environment, or a part of one, if the block raises, so that its device is free for
    the next one. What `close` raises is left out, as the block's error came first.
    """
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception, SystemExit):
            opened.close()
        raise


def no_reset(result: object) -> ConfigError:
    """Return the error for what is no result of `gymnasium.Env.reset`."""
    expected = "(observation, info), with a dict as info"
    return unexpected("the environment's reset()", result, expected)


def no_step(result: object) -> ConfigError:
    """Return the error for what is no result of `gymnasium.Env.step`."""
    expected = (
        "(observation, reward, terminated, truncated, info), with bools as terminated and "
        "truncated, and a dict as info"
    )
    return unexpected("the environment's step()", result, expected)


def refuse_no_number(rew: Any) -> None:
    """Raise EnvironmentFaultError for a reward that is not a number."""
    try:
        number = np.asarray(rew)
    except (RuntimeError, TypeError, ValueError):  # of a tensor with a gradient, or lists in a list
        number = np.asarray(None)
    if number.ndim or number.dtype.kind not in "biuf":
        raise EnvironmentFaultError(f"the environment's reward is {rew!r:.80}; expected a number")


def _space_to_float32(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_space_to_float32(s) for s in space.spaces])
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _space_to_float32(s) for key, s in space.spaces.items()})
    if isinstance(space, spaces.Box) and space.dtype == np.float64:
        return spaces.Box(
            space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32
        )
    return space


def _has_float64(obs: Any) -> bool:
    """Whether an observation holds float64. Each step asks this, so it is no walk."""
    if isinstance(obs, np.ndarray):
        return bool(obs.dtype == _FLOAT64)
    if isinstance(obs, dict):
        obs = obs.values()
    elif not isinstance(obs, tuple | list):
        return np.asarray(obs).dtype == _FLOAT64
    try:
        return _FLOAT64 in map(_dtype_of, obs)
    except AttributeError:  # not all of them are arrays
        return any(map(_has_float64, obs))


def _to_float32(value: Any) -> Any:
    array = np.asarray(value)
    return array.astype(np.float32)[()] if array.dtype == np.float64 else value
