"""What an environment says of itself in optional attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def parts_of(env: Any) -> Sequence[Any]:
    """Return the objects whose attributes count as an environment's: itself, the environment that
    it wraps, and that one's interface.
    """
    inner = getattr(env, "unwrapped", env)
    return env, inner, getattr(inner, "interface", None)


def attribute_of(env: Any, name: str) -> Any:
    """Return an attribute of the first of an environment's parts that has it, or None."""
    found = (getattr(part, name, None) for part in parts_of(env))
    return next((value for value in found if value is not None), None)
