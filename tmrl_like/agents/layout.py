"""What networks read of spaces: which numbers an observation has, what bounds and categories, and the actions alike.

Shape names: R numbers of an observation as the environment gives them, A flat action, K categorical variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import gymnasium
import numpy as np
from gymnasium import spaces

from tmrl_like.base import tree
from tmrl_like.base.text import one_line
from tmrl_like.errors import ConfigError

OBS_RANGE = 3.0  # torch initialises layers small: inputs of this size give a first layer that resolves them
_MAX_DIMS = 2  # vectors and short histories of vectors; more is an image
_MAX_IMAGE_DIMS = 4  # a history of colour images
_SMALLEST_SIDE = 8
_COLOURS = (1, 3, 4)  # a last dimension of this size is an image's channels
MAX_CATEGORIES = 10_000  # entries of a one-hot vector
_EXACT = 1 << 24  # whole numbers up to here are exact in float32

IntArray = np.ndarray[Any, np.dtype[np.int64]]
Leaf = tuple[tree.Path, gymnasium.Space[Any]]


def read_leaves(space: gymnasium.Space[Any]) -> tuple[list[Leaf], list[tuple[tree.Path, spaces.Box]]]:
    """The leaves of an observation space, those that are images apart.

    Raises:
        ConfigError: a leaf that the networks that ship do not take; its place in the space is named. Or there is none.
    """
    leaves: list[Leaf] = list(tree.walk(space))
    for leaf in leaves:
        _check_leaf(*leaf)
    images = [(path, leaf) for path, leaf in leaves if is_image(leaf)]
    vectors = [leaf for leaf in leaves if not is_image(leaf[1])]
    if not images and not any(np.prod(leaf.shape or ()) for _, leaf in vectors):
        raise ConfigError(f"the observation space {one_line(space)} is empty; a policy needs something to see")
    return vectors, images


def numbers_of(leaves: Sequence[Leaf]) -> tuple[np.ndarray[Any, Any], ...]:
    """Of each number in leaves that are no images: low, high, and how many categories it has (0: none); each [R]."""
    nothing = np.zeros(0), np.zeros(0), np.zeros(0, np.int64)
    numbers = [nothing, *(_numbers_of(space) for _, space in leaves)]
    return tuple(np.concatenate(n) for n in zip(*numbers, strict=True))


def _check_leaf(path: tree.Path, space: gymnasium.Space[Any]) -> None:
    is_vector = isinstance(space, spaces.Box) and len(space.shape) <= _MAX_DIMS
    if not (is_vector or isinstance(space, spaces.MultiBinary) or is_image(space) or is_categorical(space)):
        raise ConfigError(
            f"the observation space{tree.name_of(path)} is {one_line(space)}; this network takes vectors (a Box "
            f"of at most {_MAX_DIMS} dimensions, "
            f"MultiBinary), categories (Discrete, MultiDiscrete; at most {MAX_CATEGORIES:,}), images (a Box of at "
            f"most {_MAX_IMAGE_DIMS} dimensions, sides of {_SMALLEST_SIDE} or more), and Tuples and Dicts of these: "
            "convert it in the environment (gymnasium.wrappers.TransformObservation), or give the agent your own actor "
            "and critic classes"
        )


def is_categorical(space: gymnasium.Space[Any]) -> TypeGuard[spaces.Discrete | spaces.MultiDiscrete]:
    """Whether a space is Discrete or MultiDiscrete, with not too many categories and none too large."""
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return False
    values, first = categories_of(space)
    return bool(values.sum() <= MAX_CATEGORIES and abs(first).max(initial=0) < _EXACT - MAX_CATEGORIES)


def categories_of(space: spaces.Discrete | spaces.MultiDiscrete) -> tuple[IntArray, IntArray]:
    """How many categories each of K values has, and the smallest of them; int64 [K] each."""
    values = space.n if isinstance(space, spaces.Discrete) else space.nvec
    return np.array(values, np.int64).ravel(), np.array(space.start, np.int64).ravel()


def _numbers_of(space: gymnasium.Space[Any]) -> tuple[np.ndarray[Any, Any], ...]:
    """Of each number in a leaf: low, high, and how many categories it has (0: it is not categorical); each [R]."""
    if isinstance(space, spaces.Box):
        low, high = box_bounds(space)
        return low, high, np.zeros(low.shape, np.int64)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        values, first = categories_of(space)
        return first, first + values - 1, values
    size = int(np.prod(space.shape or ()))  # a MultiBinary
    return np.zeros(size), np.ones(size), np.zeros(size, np.int64)


def box_bounds(space: spaces.Box) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Low and high, each float32, flat."""
    return space.low.astype(np.float32).ravel(), space.high.astype(np.float32).ravel()


def is_image(box: gymnasium.Space[Any]) -> TypeGuard[spaces.Box]:
    """Whether a leaf goes through convolutions: the other Boxes are vectors and short histories of vectors."""
    if not isinstance(box, spaces.Box):
        return False
    dims = len(box.shape)
    if dims == 2:
        return box.dtype == np.uint8 and min(box.shape) >= _SMALLEST_SIDE
    if not 2 < dims <= _MAX_IMAGE_DIMS:
        return False
    return min(box.shape[-3:-1] if channels_are_last(box.shape) else box.shape[-2:]) >= _SMALLEST_SIDE


def channels_are_last(shape: tuple[int, ...]) -> bool:
    """Whether an image's channels come last."""
    return shape[-1] in _COLOURS and min(shape[-3:-1]) > max(_COLOURS)


def action_bounds(space: gymnasium.Space[Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Center and half width, float32 [A] each, of a float Box with finite bounds; raises ConfigError for others."""
    if not isinstance(space, spaces.Box) or space.dtype not in (np.float32, np.float64):
        raise ConfigError(
            f"the action space is {one_line(space)}; this agent needs a Box of floats with finite bounds (float32 "
            "or float64): for Discrete and MultiDiscrete take DiscreteSACAgent with CategoricalActor, convert another "
            "one with gymnasium.wrappers.TransformAction"
        )
    low, high = box_bounds(space)
    if not (len(low) and np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise ConfigError(
            f"the action space {one_line(space)} has no finite bounds; give it entries, and each a low and a "
            "higher high"
        )
    center, half = (low + high) / 2, (high - low) / 2
    outside = (center + half > high) | (center - half < low)  # by rounding
    return center, np.where(outside, half - np.spacing(np.maximum(abs(low), abs(high))), half)


def action_categories(space: gymnasium.Space[Any]) -> tuple[IntArray, IntArray]:
    """How many categories each variable of a Discrete or MultiDiscrete action has, and the smallest; int64 [K] each.

    Raises:
        ConfigError: another space, or too many categories.
    """
    if not is_categorical(space):
        raise ConfigError(
            f"the action space is {one_line(space)}; this agent needs Discrete or MultiDiscrete, of at most "
            f"{MAX_CATEGORIES:,} values: for a Box of floats take SACAgent with SquashedGaussianActor, convert another "
            "one with gymnasium.wrappers.TransformAction"
        )
    return categories_of(space)
