"""Actions that an environment is given without a policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tmrl_like.base import tree
from tmrl_like.errors import ConfigError


def neutral_action(space: gymnasium.Space[Any]) -> Any:
    """An action for the reset of an environment that has no default: zeros, clipped into the
    bounds.
    """
    return tree.map_leaves(_neutral, space)


def _neutral(space: gymnasium.Space[Any]) -> Any:
    if isinstance(space, spaces.Box):
        return np.asarray(np.clip(np.zeros(space.shape, space.dtype), space.low, space.high))
    if isinstance(space, spaces.Discrete):
        return np.int64(space.start)
    if isinstance(space, spaces.MultiDiscrete):
        return space.start.copy()
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape, space.dtype)
    raise ConfigError(
        f"the action space {space} has no neutral action; give the environment a `default_action` "
        "attribute"
    )


def held_actions(env: Any) -> int | None:
    """How many past actions an observation ends in, as rtgym's or its own `act_buf_len` says; None:
    none says.
    """
    inner = getattr(env, "unwrapped", env)
    return getattr(inner, "act_buf_len", None) if getattr(inner, "act_in_obs", True) else 0


def actions_of_reset(env: Any, obs: Any) -> Sequence[Any]:
    """The actions that led to `obs`, the first observation of an episode, oldest first.

    That is the action buffer at its end, as the environment filled it: `env.act_buf_len` says how
    long, as in rtgym's environments. Where there is none, one action: the environment's own default
    action, or a neutral one of its space.
    """
    length = held_actions(env) or 0
    if isinstance(obs, tuple | list) and 0 < length < len(obs):
        return obs[-length:]
    return (default_action(env),)


def default_action(env: Any) -> Any:
    """An environment's own default action, or a neutral one of its space."""
    action = getattr(env, "default_action", None)
    if action is None:
        action = getattr(getattr(env, "unwrapped", None), "default_action", None)
    return neutral_action(env.action_space) if action is None else action


def typed_action(action: Any, space: gymnasium.Space[Any]) -> Any:
    """An action as policies give it: of a Discrete space numpy's number, not Python's. All samples
    have one type.
    """
    return (
        space.dtype.type(action)
        if isinstance(space, spaces.Discrete) and type(action) is int
        else action
    )
