"""What networks see of an observation: numbers scaled by their bounds, categorical values as one-hot, images by
convolutions.

Shape names: B batch, R numbers of an observation as the environment gives them, V entries that stand for them, F
features.
"""

# Capital suffixes name a tensor's dimensions.
from __future__ import annotations

from typing import Any, TypeGuard

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from tmrl_like.agents.images import IMAGE_FEATURES, MAX_IMAGE_DIMS, MAX_SCALE, SMALLEST_SIDE, ImageEncoder, is_image
from tmrl_like.base import tree
from tmrl_like.base.text import one_line
from tmrl_like.errors import ConfigError

OBS_RANGE = 3.0  # torch initialises layers small: inputs of this size give a first layer that resolves them
_MAX_DIMS = 2  # vectors and short histories of vectors; more is an image
MAX_CATEGORIES = 10_000  # entries of a one-hot vector
_EXACT = 1 << 24  # whole numbers up to here are exact in float32


class Encoder(nn.Module):
    """Observation -> features [B, F]: all vectors and one-hot values side by side, then the features of each image."""

    def __init__(self, space: gymnasium.Space[Any], obs_range: float = OBS_RANGE) -> None:
        """Read the layout of `space`.

        Args:
            space: Box, Discrete, MultiDiscrete and MultiBinary, or Tuples and Dicts of these. A Box of three or four
                dimensions, or of two dimensions and uint8, with sides of at least 8, is an image: channels first or
                last, a history of images in front. Each value of a Discrete or MultiDiscrete becomes one-hot here.
            obs_range: bounded vectors are scaled to [-obs_range, obs_range]; 0 leaves them as they are.

        Raises:
            ConfigError: a leaf is none of this; its place in the space is named. Or there is nothing in the space.
        """
        super().__init__()
        leaves: list[Leaf] = list(tree.walk(space))
        for leaf in leaves:
            _check_leaf(*leaf)
        self.flatten = Flatten([leaf for leaf in leaves if not is_image(leaf[1])])
        self.rescale = self.flatten.rescale(obs_range)
        seen = [(path, box) for path, box in leaves if is_image(box)]
        self._image_paths = [path for path, _ in seen]
        self.images = nn.ModuleList(ImageEncoder(box) for _, box in seen)
        self.size = self.rescale.size + IMAGE_FEATURES * len(self.images)
        if not self.size:
            raise ConfigError(f"the observation space {one_line(space)} is empty; a policy needs something to see")

    def forward(self, obs: Any) -> Tensor:
        """Structure of [B, ...] -> [B, F] float32; without images also [B, R] -> [B, F]."""
        if not self.images:
            return self.rescale(self.flatten(obs))  # type: ignore[no-any-return]
        parts = [image(tree.part_at(obs, path)) for image, path in zip(self.images, self._image_paths, strict=True)]
        if self.rescale.size:
            parts.insert(0, self.rescale(self.flatten(obs)))
        return torch.cat(parts, dim=1)

    def one(self, obs: Any) -> Tensor:
        """One raw observation of numpy arrays, without images -> [F] float32."""
        return self.rescale.forward(self.flatten.one(obs))  # skips the module's hooks


class Flatten:
    """Structure of vectors and categorical values -> one float32 tensor [B, R], leaves in the order of the space.

    A Dict's keys follow the space, not the observation. What is flat already passes through.
    """

    def __init__(self, leaves: list[Leaf]) -> None:
        """Read the layout of some leaves of a space."""
        self._paths = [path for path, _ in leaves]
        nothing = np.zeros(0), np.zeros(0), np.zeros(0, np.int64)
        numbers = [nothing, *(_numbers_of(space) for _, space in leaves)]
        self.low, self.high, self.num_categories = (np.concatenate(n) for n in zip(*numbers, strict=True))

    def __call__(self, obs: Any) -> Tensor:
        """Structure of [B, ...] (or [B, R]) -> [B, R] float32."""
        if isinstance(obs, Tensor) and obs.ndim == 2:
            return obs.float()
        leaves = [tree.part_at(obs, path) for path in self._paths]
        rows = [leaf if leaf.ndim == 2 else leaf.reshape(len(leaf), -1) for leaf in leaves]  # each [B, the rest]
        return torch.cat([leaf.float() for leaf in rows], dim=1)

    def one(self, obs: Any) -> Tensor:
        """One raw observation of numpy arrays and numbers -> [R] float32, without a tensor per leaf."""
        leaves = [tree.part_at(obs, path) for path in self._paths]
        return torch.from_numpy(np.concatenate(leaves, axis=None, dtype=np.float32, casting="unsafe"))

    def rescale(self, obs_range: float) -> Rescale | OneHot:
        """Makes a network's input of it: numbers to [-obs_range, obs_range] (0: as they are), categories one-hot."""
        limit = np.where(self.num_categories > 0, np.nan, obs_range or np.nan)
        rescale = Rescale(self.low, self.high, limit)
        return OneHot(rescale, self.low, self.num_categories) if self.num_categories.any() else rescale


class Rescale(nn.Module):
    """Bounded entries of a flat vector to [-limit, limit]; entries without useful bounds pass as they are."""

    scale: Tensor  # [R] float32
    shift: Tensor  # [R] float32

    def __init__(self, low: np.ndarray[Any, Any], high: np.ndarray[Any, Any], limit: np.ndarray[Any, Any]) -> None:
        """All arrays float [R]."""
        super().__init__()
        half = high.astype(np.float64) / 2 - low.astype(np.float64) / 2
        useful = (half > 0) & (half < MAX_SCALE) & np.isfinite(limit)
        scale = np.where(useful, limit / np.where(useful, half, 1.0), 1.0)
        shift = np.where(useful, -limit - np.where(useful, low, 0.0) * scale, 0.0)  # low goes to -limit
        self.size = len(low)
        self.changes = bool(useful.any())
        self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.float32), persistent=False)
        self.register_buffer("shift", torch.as_tensor(shift, dtype=torch.float32), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., R] -> [..., R]."""
        return torch.addcmul(self.shift, x, self.scale) if self.changes else x


class OneHot(nn.Module):
    """A flat vector with categorical values in it: each becomes as many entries as it has categories, one of them 1."""

    source: Tensor  # [V] int64, which number an entry is made of
    value: Tensor  # [V] float32, which value an entry stands for
    is_categorical: Tensor  # [V] bool

    def __init__(self, rescale: Rescale, first: np.ndarray[Any, Any], num_categories: IntArray) -> None:
        """`rescale` scales the other numbers; `first`, float [R], is the smallest category; `num_categories` int64 [R],
        0 where it is not categorical.
        """
        super().__init__()
        self.rescale = rescale
        sizes = np.maximum(num_categories, 1)
        source = np.repeat(np.arange(len(sizes)), sizes)
        self.size = len(source)
        count = np.arange(self.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        self.register_buffer("source", torch.from_numpy(source), persistent=False)
        self.register_buffer("value", torch.from_numpy((first[source] + count).astype(np.float32)), persistent=False)
        self.register_buffer("is_categorical", torch.from_numpy(num_categories[source] > 0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., R] -> [..., V]."""
        is_chosen = (x.index_select(-1, self.source) == self.value).float()
        return torch.where(self.is_categorical, is_chosen, self.rescale(x).index_select(-1, self.source))


IntArray = np.ndarray[Any, np.dtype[np.int64]]
Leaf = tuple[tree.Path, gymnasium.Space[Any]]


def _check_leaf(path: tree.Path, space: gymnasium.Space[Any]) -> None:
    is_vector = isinstance(space, spaces.Box) and len(space.shape) <= _MAX_DIMS
    if not (is_vector or isinstance(space, spaces.MultiBinary) or is_image(space) or is_categorical(space)):
        raise ConfigError(
            f"the observation space{tree.name_of(path)} is {one_line(space)}; this network takes vectors (a Box "
            f"of at most {_MAX_DIMS} dimensions, "
            f"MultiBinary), categories (Discrete, MultiDiscrete; at most {MAX_CATEGORIES:,}), images (a Box of at "
            f"most {MAX_IMAGE_DIMS} dimensions, sides of {SMALLEST_SIDE} or more), and Tuples and Dicts of these: "
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
