"""What an environment says of itself in optional attributes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium


def values_of(env: Any, name: str) -> Iterator[Any]:
    """Yield an attribute of each part of an environment that has it and not None.

    The parts are the environment itself, the innermost environment that it wraps, that one's
    interface, and the layers in between, in this order.
    """
    layers = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    inner = getattr(layers[-1], "unwrapped", layers[-1])
    parts = (env, inner, getattr(inner, "interface", None), *layers[1:])
    found = (getattr(part, name, None) for part in parts)
    return (value for value in found if value is not None)


def attribute_of(env: Any, name: str) -> Any:
    """Return an attribute of the first of an environment's parts that has it, or None."""
    return next(values_of(env, name), None)
