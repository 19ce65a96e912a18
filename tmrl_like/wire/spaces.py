"""Spaces as plain data, from which they can be rebuilt without pickle, and as text for comparing
them.
"""

from __future__ import annotations

import hashlib
import math
from typing import Annotated, Any, TypeAlias

import gymnasium
import msgspec
import numpy as np
from gymnasium import spaces

from tmrl_like.base import tree
from tmrl_like.base.text import one_line
from tmrl_like.errors import PolicyError
from tmrl_like.wire.messages import BETWEEN_LEAVES, Spaces
from tmrl_like.wire.schema import Array

_MOST_NUMBERS = 1 << 24  # in a space that is made from a file
_MAX_CHARACTERS = 3000
_LISTED = 12  # maximum number of bounds that are listed

_Number: TypeAlias = int | float | str  # text: inf or -inf, which JSON cannot represent
_Size = Annotated[int, msgspec.Meta(ge=0, le=_MOST_NUMBERS)]
_Dtype = Annotated[str, msgspec.Meta(pattern=r"\A(bool|u?int(8|16|32|64)|float(16|32|64))\Z")]

Space: TypeAlias = gymnasium.Space[Any]


class _Spec(msgspec.Struct, tag=str.lower, tag_field="space", forbid_unknown_fields=True):
    """Base of the descriptions of spaces."""


class Box(_Spec):
    """`gymnasium.spaces.Box`; a bound is one number for all entries, or one for each."""

    shape: tuple[_Size, ...]
    dtype: _Dtype
    low: tuple[_Number, ...]
    high: tuple[_Number, ...]


class Discrete(_Spec):
    """`gymnasium.spaces.Discrete`."""

    n: int
    start: int


class MultiDiscrete(_Spec):
    """`gymnasium.spaces.MultiDiscrete`."""

    shape: tuple[_Size, ...]
    dtype: _Dtype
    nvec: tuple[_Number, ...]
    start: tuple[_Number, ...]


class MultiBinary(_Spec):
    """`gymnasium.spaces.MultiBinary`."""

    n: _Size | tuple[_Size, ...]


class Tuple(_Spec):
    """`gymnasium.spaces.Tuple`."""

    spaces: tuple[SpaceSpec, ...]


class Dict(_Spec):
    """`gymnasium.spaces.Dict`, with its items in order."""

    spaces: tuple[tuple[str | int, SpaceSpec], ...]


SpaceSpec: TypeAlias = Box | Discrete | MultiDiscrete | MultiBinary | Tuple | Dict


def spec_of(space: Space) -> SpaceSpec:
    """Return the description of a space; raise PolicyError for an unsupported kind of space."""
    match space:
        case spaces.Box():
            return Box(space.shape, str(space.dtype), _numbers(space.low), _numbers(space.high))
        case spaces.Discrete():
            return Discrete(int(space.n), int(space.start))
        case spaces.MultiDiscrete():
            return MultiDiscrete(
                space.nvec.shape, str(space.dtype), _numbers(space.nvec), _numbers(space.start)
            )
        case spaces.MultiBinary():
            return MultiBinary(space.n if isinstance(space.n, int) else space.shape)
        case spaces.Tuple():
            return Tuple(tuple(map(spec_of, space.spaces)))
        case spaces.Dict():
            return Dict(tuple((key, spec_of(part)) for key, part in space.spaces.items()))
    raise PolicyError(
        f"the space {one_line(space, 80)} is of a kind that a policy file does not know"
    )


def _numbers(bound: Array) -> tuple[_Number, ...]:
    numbers = (1 * bound).ravel().tolist()  # booleans as numbers
    if len(set(numbers)) == 1:
        del numbers[1:]
    return tuple(number if math.isfinite(number) else str(number) for number in numbers)


def make_space(spec: SpaceSpec) -> Space:
    """Return the space of a description; raise ValueError if there is no such space."""
    if (count := _numbers_in(spec)) > _MOST_NUMBERS:
        raise ValueError(
            f"a space of {count:,} numbers, where at most {_MOST_NUMBERS:,} are expected"
        )
    match spec:
        case Box(shape, dtype, low, high):
            least, most = _array(low, shape, dtype), _array(high, shape, dtype)
            return spaces.Box(least, most, dtype=least.dtype.type)
        case Discrete(n, start):
            return spaces.Discrete(n, start=start)
        case MultiDiscrete(shape, dtype, nvec, start):
            sizes, first = _array(nvec, shape, dtype), _array(start, shape, dtype)
            return spaces.MultiDiscrete(sizes, sizes.dtype.type, start=first)
        case MultiBinary(n):
            return spaces.MultiBinary(n)
        case Tuple(parts):
            return spaces.Tuple(list(map(make_space, parts)))
        case Dict(items):
            parts_of_dict: Any = [(key, make_space(part)) for key, part in items]
            return spaces.Dict(parts_of_dict)


def _numbers_in(spec: SpaceSpec) -> int:
    match spec:
        case Tuple(parts):
            return sum(map(_numbers_in, parts))
        case Dict(items):
            return sum(_numbers_in(part) for _, part in items)
        case Box(shape) | MultiDiscrete(shape):
            return math.prod(shape)
        case MultiBinary(n):
            return math.prod(n) if isinstance(n, tuple) else n
        case Discrete():
            return 1


def _array(numbers: tuple[_Number, ...], shape: tuple[int, ...], dtype: str) -> Array:
    values = np.array(numbers, dtype)
    return np.full(shape, values[0], dtype) if len(values) == 1 else values.reshape(shape)


def describe_spaces(observation_space: Space, action_space: Space) -> Spaces:
    """Describe each leaf of both spaces by its place, shape, dtype and bounds; a long description
    is cut and ends with its hash.
    """
    return Spaces(_describe(observation_space), _describe(action_space))


def _describe(space: Space) -> str:
    text = BETWEEN_LEAVES.join(
        f"{tree.name_of(path)} {_leaf(leaf)}".lstrip() for path, leaf in tree.walk(space)
    )
    return (
        text
        if len(text) <= _MAX_CHARACTERS
        else f"{text[:_MAX_CHARACTERS]}… #{_hash(text.encode(), 8)}"
    )


def _leaf(space: Space) -> str:
    if not isinstance(space, spaces.Box):
        return str(space)
    low, high = (
        _range(np.array(_numbers(bound), space.dtype)) for bound in (space.low, space.high)
    )
    return f"Box({low}, {high}, {space.shape}, {space.dtype})"


def _range(bound: Array) -> str:
    if len(bound) <= _LISTED:
        text = ", ".join(map(str, bound))
        return text if len(bound) == 1 else f"[{text}]"
    return f"{bound.min()} to {bound.max()} #{_hash(bound.tobytes(), 4)}"


def _hash(data: bytes, size: int) -> str:
    return hashlib.blake2b(data, digest_size=size).hexdigest()
