"""Checks what an environment returns."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from tmrl_like.base import tree
from tmrl_like.envs.float32 import refuse_no_number
from tmrl_like.errors import EnvironmentFaultError
from tmrl_like.policies.action_check import is_finite
from tmrl_like.types import Observation
from tmrl_like.wire.spaces import Space


def not_finite(name: str, value: object) -> EnvironmentFaultError:
    """Return the error for an observation or a reward that holds NaN or infinity."""
    shown = " ".join(repr(value).split())[:200]
    return EnvironmentFaultError(
        f"the environment's {name} is not finite: {shown}; nothing can be learnt from it"
    )


def check_reward(rew: object) -> None:
    """Raise EnvironmentFaultError for a reward that is not a number, or not finite."""
    refuse_no_number(rew)
    if not is_finite(rew):
        raise not_finite("reward", rew)


def observation_problem(obs: Observation, space: Space) -> str:
    """Return why an observation does not have the form of its space; empty: there is no problem.
    Bounds are not checked.
    """
    parts = tree.walk(space, obs)
    problems = (
        _leaf_problem(part, of, f"the observation{tree.name_of(path)}") for path, of, part in parts
    )
    return next(filter(None, problems), "")


def _leaf_problem(obs: Observation, space: Space, name: str) -> str:
    if isinstance(space, spaces.Box):
        is_array = isinstance(obs, np.ndarray | np.generic)
        is_right = is_array and obs.shape == space.shape and np.can_cast(obs.dtype, space.dtype)
    else:
        is_right = space.contains(obs)
    if not is_right:
        return f"{name} is {tree.outline(obs)}; the space says {' '.join(str(space).split())}"
    return ""
