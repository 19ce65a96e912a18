"""Spaces as plain data from which they can be made again, without pickle."""

from __future__ import annotations

import math
from typing import Annotated, Any, TypeAlias

import gymnasium
import msgspec
import numpy as np
from gymnasium import spaces

from tmrl_like.base.text import one_line
from tmrl_like.errors import PolicyError

_MOST_NUMBERS = 1 << 24  # in a space that is made from a file

_Number: TypeAlias = int | float | str  # text: inf or -inf, which JSON cannot say
_Size = Annotated[int, msgspec.Meta(ge=0, le=_MOST_NUMBERS)]
_Dtype = Annotated[str, msgspec.Meta(pattern="^(bool|u?int(8|16|32|64)|float(16|32|64))$")]


class _Spec(msgspec.Struct, tag=str.lower, tag_field="space", forbid_unknown_fields=True):
    """Base of what stands for a space."""


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
    nvec: tuple[int, ...]
    start: tuple[int, ...]


class MultiBinary(_Spec):
    """`gymnasium.spaces.MultiBinary`."""

    n: _Size | tuple[_Size, ...]


class Tuple(_Spec):
    """`gymnasium.spaces.Tuple`."""

    spaces: tuple[SpaceSpec, ...]


class Dict(_Spec):
    """`gymnasium.spaces.Dict`, in its order."""

    spaces: tuple[tuple[str | int, SpaceSpec], ...]


SpaceSpec: TypeAlias = Box | Discrete | MultiDiscrete | MultiBinary | Tuple | Dict


def spec_of(space: gymnasium.Space[Any]) -> SpaceSpec:
    """What stands for a space; raises PolicyError for a kind that no policy file says."""
    match space:
        case spaces.Box():
            return Box(space.shape, str(space.dtype), _bound(space.low), _bound(space.high))
        case spaces.Discrete():
            return Discrete(int(space.n), int(space.start))
        case spaces.MultiDiscrete():
            nvec, start = (tuple(values.ravel().tolist()) for values in (space.nvec, space.start))
            return MultiDiscrete(space.nvec.shape, str(space.dtype), nvec, start)
        case spaces.MultiBinary():
            return MultiBinary(space.n if isinstance(space.n, int) else space.shape)
        case spaces.Tuple():
            return Tuple(tuple(map(spec_of, space.spaces)))
        case spaces.Dict():
            return Dict(tuple((key, spec_of(part)) for key, part in space.spaces.items()))
    raise PolicyError(f"the space {one_line(space, 80)} is of a kind that a policy file does not know")


def _bound(values: np.ndarray[Any, Any]) -> tuple[_Number, ...]:
    numbers = values.ravel().tolist()
    if len(set(numbers)) == 1:
        del numbers[1:]
    return tuple(number if math.isfinite(number) else str(number) for number in numbers)


def make_space(spec: SpaceSpec) -> gymnasium.Space[Any]:
    """The space again; ValueError: there is none like that."""
    match spec:
        case Box(shape, dtype, low, high):
            least, most = (_numbers(list(map(_number, bound)), shape, dtype) for bound in (low, high))
            return spaces.Box(least, most, dtype=np.dtype(dtype).type)
        case Discrete(n, start):
            return spaces.Discrete(n, start=start)
        case MultiDiscrete(shape, dtype, nvec, start):
            numbers = [_numbers(values, shape, dtype) for values in (nvec, start)]
            return spaces.MultiDiscrete(numbers[0], np.dtype(dtype).type, start=numbers[1])
        case MultiBinary(n):
            _refuse_size(n if isinstance(n, tuple) else (n,))
            return spaces.MultiBinary(n)
        case Tuple(parts):
            return spaces.Tuple(list(map(make_space, parts)))
        case Dict(items):
            parts_of_dict: Any = [(key, make_space(part)) for key, part in items]
            return spaces.Dict(parts_of_dict)


def _number(number: _Number) -> float:
    return float(number) if isinstance(number, str) else number


def _numbers(values: Any, shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    _refuse_size(shape)
    return np.full(shape, values[0], dtype) if len(values) == 1 else np.array(values, dtype).reshape(shape)


def _refuse_size(shape: tuple[int, ...]) -> None:
    if (count := math.prod(shape)) > _MOST_NUMBERS:
        raise ValueError(f"a space of {count:,} numbers, where at most {_MOST_NUMBERS:,} are expected")
