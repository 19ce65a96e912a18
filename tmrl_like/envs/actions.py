"""Actions that an environment is given without a policy."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tmrl_like.errors import ConfigError


def neutral_action(space: gymnasium.Space[Any]) -> Any:
    """An action for the reset of an environment that has no default: zeros, clipped into the bounds."""
    if isinstance(space, spaces.Box):
        return np.asarray(np.clip(np.zeros(space.shape, space.dtype), space.low, space.high))
    if isinstance(space, spaces.Discrete):
        return np.int64(space.start)
    if isinstance(space, spaces.MultiDiscrete):
        return space.start.copy()
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape, space.dtype)
    if isinstance(space, spaces.Tuple):
        return tuple(neutral_action(s) for s in space.spaces)
    if isinstance(space, spaces.Dict):
        return {key: neutral_action(s) for key, s in space.spaces.items()}
    raise ConfigError(
        f"the action space {space} has no neutral action; give the environment a `default_action` attribute"
    )


def typed_action(action: Any, space: gymnasium.Space[Any]) -> Any:
    """An action as policies give it: of a Discrete space numpy's number, not Python's. All samples have one type."""
    return space.dtype.type(action) if isinstance(space, spaces.Discrete) and type(action) is int else action
