"""What an environment says of itself in optional attributes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium


def values_of(env: Any, name: str) -> Iterator[Any]:
    """Yield an attribute of each part of an environment that has it and not None.

    The parts are its layers from the outside in, and the innermost one's interface.
    """
    layers = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    inner = getattr(layers[-1], "unwrapped", layers[-1])
    parts = (*layers, inner, getattr(inner, "interface", None))
    found = (getattr(part, name, None) for part in parts)
    return (value for value in found if value is not None)


def attribute_of(env: Any, name: str) -> Any:
    """Return an attribute of the first of an environment's parts that has it, or None."""
    return next(values_of(env, name), None)


def time_step_of(env: Any) -> float:
    """Return the nominal duration of a time-step in seconds; 0 if the environment does not run in
    real time.
    """
    return float(attribute_of(env, "time_step_s") or attribute_of(env, "time_step_duration") or 0.0)
