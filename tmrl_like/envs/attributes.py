"""What an environment says of itself in optional attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium


def parts_of(env: Any) -> Sequence[Any]:
    """Return the objects whose attributes count as an environment's: itself, the innermost
    environment that it wraps, that one's interface, and the layers in between.
    """
    layers = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    inner = getattr(layers[-1], "unwrapped", layers[-1])
    return env, inner, getattr(inner, "interface", None), *layers[1:]


def attribute_of(env: Any, name: str) -> Any:
    """Return an attribute of the first of an environment's parts that has it, or None."""
    found = (getattr(part, name, None) for part in parts_of(env))
    return next((value for value in found if value is not None), None)
