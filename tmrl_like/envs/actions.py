"""Actions that do not come from a policy: neutral ones, default ones, and those of a reset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tmrl_like.base import tree
from tmrl_like.envs.attributes import attribute_of
from tmrl_like.errors import ConfigError

NUMBERS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
"""The spaces of numbers; others are made of these, or hold something else."""


def neutral_action(space: gymnasium.Space[Any]) -> Any:
    """Return an action for the resets of an environment that has no default action: zeros, clipped
    to the bounds, or the first value of a discrete space.

    Raises:
        ConfigError: the space has no neutral action.
    """
    return tree.map_leaves(_neutral, space)


def _neutral(space: gymnasium.Space[Any]) -> Any:
    if not isinstance(space, NUMBERS):
        raise ConfigError(
            f"the action space {space} has no neutral action; give the environment a "
            "`default_action` attribute"
        )
    zeros: Any = np.zeros(space.shape or (), space.dtype)
    if isinstance(space, spaces.Box):
        return np.asarray(zeros.clip(space.low, space.high))
    return typed_action(zeros + getattr(space, "start", 0), space)


def held_actions(env: Any) -> int | None:
    """Return how many past actions end an observation, or None if the environment does not say.

    Its attribute `act_buf_len` says so, as in rtgym's environments.
    """
    length: int | None = attribute_of(env, "act_buf_len")
    in_obs = attribute_of(env, "act_in_obs")
    return length if in_obs is None or in_obs else 0


def actions_of_reset(env: Any, obs: Any) -> Sequence[Any]:
    """Return the actions that led to `obs`, the first observation of an episode, oldest first.

    These are the action buffer at the end of `obs`, as the environment filled it; its length is
    `env.act_buf_len`, as in rtgym's environments. Without a buffer it is one action: the
    environment's own default action, or a neutral one of its space.
    """
    length = held_actions(env) or 0
    if isinstance(obs, tuple | list) and 0 < length < len(obs):
        return obs[-length:]
    return (default_action(env),)


def default_action(env: Any) -> Any:
    """Return an environment's own default action, or a neutral one of its space."""
    action, space = attribute_of(env, "default_action"), env.action_space
    return neutral_action(space) if action is None else typed_action(action, space)


def typed_action(value: Any, space: gymnasium.Space[Any]) -> Any:
    """Return an action in the types that policies give it, arrays and NumPy integers in place of
    lists and numbers, so that all samples have the same types. What cannot be converted becomes an
    array of objects, which is in no space.
    """
    return tree.map_leaves(_typed, space, value)


def _typed(space: gymnasium.Space[Any], value: Any) -> Any:
    if not isinstance(space, NUMBERS):
        return value
    try:
        action = np.array(value, space.dtype)
        is_same = action.dtype.kind == "f" or bool((action == np.asarray(value)).all())
    except (ValueError, TypeError, OverflowError):
        is_same = False
    if not is_same:  # also a fraction, if the space holds whole numbers
        return np.asarray(value, object)
    return action[()] if isinstance(space, spaces.Discrete) else action
