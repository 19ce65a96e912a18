"""Spaces as text, so that worker and trainer can be compared before a sample is misread."""

from __future__ import annotations

import hashlib
from typing import Any

import gymnasium
from gymnasium import spaces

from tmrl_like.base import tree
from tmrl_like.wire.messages import BETWEEN_LEAVES, Spaces

_MAX_CHARACTERS = 3000
_LISTED = 12  # bounds


def describe_spaces(observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> Spaces:
    """Each leaf of both spaces: place, shape, dtype and bounds; a long description ends with its hash."""
    return Spaces(_describe(observation_space), _describe(action_space))


def _describe(space: gymnasium.Space[Any]) -> str:
    text = BETWEEN_LEAVES.join(f"{tree.name_of(path)} {_leaf(leaf)}".lstrip() for path, leaf in tree.walk(space))
    if len(text) <= _MAX_CHARACTERS:
        return text
    return f"{text[:_MAX_CHARACTERS]}… #{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


def _leaf(space: Any) -> str:
    if isinstance(space, spaces.Box):
        return f"Box({_bound(space.low)}, {_bound(space.high)}, {space.shape}, {space.dtype})"
    return str(space)


def _bound(values: Any) -> str:
    first = values.flat[0] if values.size else 0
    if (values == first).all():
        return str(first)
    if values.size <= _LISTED:
        return f"[{', '.join(map(str, values.flat))}]"
    return f"{values.min()} to {values.max()} #{hashlib.blake2b(values.tobytes(), digest_size=4).hexdigest()}"
