"""The layout of spaces for networks: the numbers and images of an observation, and the actions.

Shape names: R numbers of an observation as the environment gives them, A numbers of a flat action,
K categorical variables.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias, TypeGuard

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tmrl_like.base import tree
from tmrl_like.base.text import one_line
from tmrl_like.errors import ConfigError
from tmrl_like.policies.layers import Floats
from tmrl_like.policies.network import (
    CategoricalSpec,
    GaussianOptions,
    GaussianSpec,
    NetworkOptions,
    NetworkSpec,
    Numbers,
)
from tmrl_like.policies.pictures import PictureSpec

_MAX_DIMS = 2  # vectors and short histories of vectors; more is an image
_MAX_IMAGE_DIMS = 4  # a history of colour images
_SMALLEST_SIDE = 8
MAX_CATEGORIES = 10_000  # entries of a one-hot vector
_HALF = np.float32(0.5)
_EXACT = 1 << 24  # whole numbers up to here are exact in float32

Space: TypeAlias = gymnasium.Space[Any]
Integers: TypeAlias = NDArray[np.int64]


class ObservationLayout(NamedTuple):
    """The leaves of an observation space, in its order."""

    paths: list[tree.Path]  # of the leaves that hold numbers
    numbers: Numbers  # of all these leaves, side by side
    images: list[tuple[tree.Path, spaces.Box]]


def read_observations(space: Space) -> ObservationLayout:
    """Return the layout of an observation space.

    Raises:
        ConfigError: the built-in networks do not take a leaf (the message gives its place), or the
            space is empty.
    """
    images: list[tuple[tree.Path, spaces.Box]] = []
    paths: list[tree.Path] = []
    rows: list[tuple[float, float, int]] = []
    for path, leaf in tree.walk(space):
        if is_image(leaf):
            images.append((path, leaf))
        else:
            paths.append(path)
            rows += _numbers_of(path, leaf)
    if not (images or rows):
        raise ConfigError(
            f"the observation space {one_line(space)} is empty; a policy needs something to see"
        )
    low, high, num_categories = zip(*rows, strict=True) if rows else ((), (), ())
    return ObservationLayout(paths, Numbers(low, high, num_categories), images)


def _numbers_of(path: tree.Path, space: Space) -> list[tuple[float, float, int]]:
    """Return low, high and the number of categories (0 if it is not categorical) of each number in
    a leaf.
    """
    if is_categorical(space):
        sizes, first = categories_of(space)
        return list(zip(first.tolist(), (first + sizes - 1).tolist(), sizes.tolist(), strict=True))
    if isinstance(space, spaces.MultiBinary):
        return [(0.0, 1.0, 0)] * math.prod(space.shape)
    if isinstance(space, spaces.Box) and len(space.shape) <= _MAX_DIMS:
        return [
            (low, high, 0)
            for low, high in zip(*(bound.tolist() for bound in _bounds(space)), strict=True)
        ]
    raise ConfigError(
        f"the observation space{tree.name_of(path)} is {one_line(space)}; this network takes "
        f"vectors (a Box of at most {_MAX_DIMS} dimensions, "
        f"MultiBinary), categories (Discrete, MultiDiscrete; at most {MAX_CATEGORIES:,}), images "
        f"(a Box of at most {_MAX_IMAGE_DIMS} dimensions, sides of {_SMALLEST_SIDE} or more), and "
        "Tuples and Dicts of these: convert it in the environment "
        "(gymnasium.wrappers.TransformObservation), or give the agent your own actor and critic "
        "classes"
    )


def _bounds(space: spaces.Box) -> tuple[Floats, Floats]:
    """Return low and high as flat arrays."""
    return space.low.astype(np.float32).ravel(), space.high.astype(np.float32).ravel()


def is_categorical(space: Space) -> TypeGuard[spaces.Discrete | spaces.MultiDiscrete]:
    """Whether a space is Discrete or MultiDiscrete, with at most `MAX_CATEGORIES` categories, which
    are exact in float32.
    """
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return False
    sizes, first = categories_of(space)
    return bool(
        sizes.sum() <= MAX_CATEGORIES and abs(first).max(initial=0) < _EXACT - MAX_CATEGORIES
    )


def categories_of(space: spaces.Discrete | spaces.MultiDiscrete) -> tuple[Integers, Integers]:
    """Return the number of categories of each of K values, and its smallest category, [K] each."""
    sizes = space.n if isinstance(space, spaces.Discrete) else space.nvec
    return np.array(sizes, np.int64).ravel(), np.array(space.start, np.int64).ravel()


def is_image(space: Space) -> TypeGuard[spaces.Box]:
    """Whether a leaf is an image, for convolutions. Other Boxes are vectors and short histories of
    vectors.
    """
    if not isinstance(space, spaces.Box) or not 2 <= len(space.shape) <= _MAX_IMAGE_DIMS:
        return False
    if len(space.shape) == 2:
        return space.dtype == np.uint8 and min(space.shape) >= _SMALLEST_SIDE
    return (
        min(space.shape[-3:-1] if channels_are_last(space.shape) else space.shape[-2:])
        >= _SMALLEST_SIDE
    )


def channels_are_last(shape: tuple[int, ...]) -> bool:
    """Whether an image's channels come last."""
    return shape[-1] < _SMALLEST_SIDE <= min(shape[-3:-1])


def picture_spec(box: spaces.Box) -> PictureSpec:
    """Return the description from which a picture's encoder is made, in torch and in numpy."""
    return PictureSpec(
        box.shape, channels_are_last(box.shape), float(box.low.min()), float(box.high.max())
    )


def actor_spec(
    layout: ObservationLayout, action_space: Space, options: NetworkOptions
) -> NetworkSpec:
    """Return the description from which an actor is made, in torch and in numpy.

    Raises:
        ConfigError: the action space is not of the kind that `options` are for.
    """
    common: dict[str, Any] = {
        "numbers": layout.numbers,
        "pictures": tuple(picture_spec(box) for _, box in layout.images),
        "options": options,
        "shape": action_space.shape or (),
        "dtype": str(action_space.dtype),
    }
    if isinstance(options, GaussianOptions):
        center, half = (tuple(values.tolist()) for values in action_bounds(action_space))
        return GaussianSpec(center=center, half=half, **common)
    sizes, first = (tuple(values.tolist()) for values in action_categories(action_space))
    return CategoricalSpec(sizes=sizes, first=first, **common)


@np.errstate(all="ignore")
def action_bounds(space: Space) -> tuple[Floats, Floats]:
    """Return centre and half width, [A] each, of a float Box with finite bounds; raise ConfigError
    for any other space.
    """
    if not isinstance(space, spaces.Box) or space.dtype not in (np.float32, np.float64):
        raise ConfigError(
            f"the action space is {one_line(space)}; this agent needs a Box of floats with finite "
            "bounds (float32 or float64): for Discrete and MultiDiscrete take DiscreteSACAgent "
            "with CategoricalActor, convert another one with gymnasium.wrappers.TransformAction"
        )
    low, high = _bounds(space)
    # float64 bounds are rounded inwards
    low = np.where(low < space.low.ravel(), np.nextafter(low, np.float32(np.inf)), low)
    high = np.where(high > space.high.ravel(), np.nextafter(high, -np.float32(np.inf)), high)
    if not (len(low) and np.isfinite(high - low).all() and (low < high).all()):
        raise ConfigError(
            f"the action space {one_line(space)} has no finite bounds; give it entries, each "
            "with a low and a higher high"
        )
    center, half = _HALF * (low + high), _HALF * (high - low)
    outside = (center + half > high) | (center - half < low)  # by rounding
    half[outside] -= np.spacing(np.maximum(abs(low), abs(high)))[outside]
    return center, half


def action_categories(space: Space) -> tuple[Integers, Integers]:
    """Return the number of categories of each variable of a Discrete or MultiDiscrete action, and
    its smallest category, [K] each.

    Raises:
        ConfigError: it is another space, or has too many categories.
    """
    if not is_categorical(space):
        raise ConfigError(
            f"the action space is {one_line(space)}; this agent needs Discrete or MultiDiscrete, "
            f"of at most {MAX_CATEGORIES:,} values: for a Box of floats take SACAgent with "
            "SquashedGaussianActor, convert another one with gymnasium.wrappers.TransformAction"
        )
    return categories_of(space)
