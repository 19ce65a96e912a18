"""Spaces as text, so that worker and trainer can be compared before a sample is misread."""

from __future__ import annotations

import hashlib
from typing import Any

import gymnasium
from gymnasium import spaces

from tmrl_like.wire.messages import Spaces

_MAX_CHARACTERS = 3000


def describe_spaces(observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> Spaces:
    """Structure, shapes, dtypes and bounds of both spaces; a long description ends with its hash."""
    return Spaces(_short(_describe(observation_space)), _short(_describe(action_space)))


def _describe(space: gymnasium.Space[Any]) -> str:
    if isinstance(space, spaces.Tuple):
        return f"({', '.join(map(_describe, space.spaces))})"
    if isinstance(space, spaces.Dict):
        return "{" + ", ".join(f"{key}: {_describe(s)}" for key, s in space.spaces.items()) + "}"
    if isinstance(space, spaces.Box):
        return f"Box({_bound(space.low)}, {_bound(space.high)}, {space.shape}, {space.dtype})"
    return str(space)


def _bound(values: Any) -> str:
    first = values.flat[0] if values.size else 0
    if (values == first).all():
        return f"{first:g}"
    return "#" + hashlib.blake2b(values.tobytes(), digest_size=4).hexdigest()


def _short(text: str) -> str:
    if len(text) <= _MAX_CHARACTERS:
        return text
    return f"{text[:_MAX_CHARACTERS]}… #{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"
