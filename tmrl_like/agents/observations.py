"""What networks see of an observation: numbers scaled by their bounds, categorical values as one-hot, images by
convolutions.

Shape names: B batch, R numbers of an observation as the environment gives them, V entries that stand for them, F
features.
"""

# Capital suffixes name a tensor's dimensions.
from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from tmrl_like.agents.images import IMAGE_FEATURES, ImageEncoder
from tmrl_like.agents.layout import OBS_RANGE, IntArray, Leaf, numbers_of, read_leaves
from tmrl_like.base import tree
from tmrl_like.policies.network import one_hot_layout, scale_and_shift


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
        vectors, images = read_leaves(space)
        self.flatten = Flatten(vectors)
        self.rescale = self.flatten.rescale(obs_range)
        self._image_paths = [path for path, _ in images]
        self.images = nn.ModuleList(ImageEncoder(box) for _, box in images)
        self.size = self.rescale.size + IMAGE_FEATURES * len(self.images)

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
        self.low, self.high, self.num_categories = numbers_of(leaves)

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
        scale, shift = scale_and_shift(low, high, limit)
        self.size = len(low)
        self.changes = bool((scale != 1).any() or (shift != 0).any())
        self.register_buffer("scale", torch.from_numpy(scale), persistent=False)
        self.register_buffer("shift", torch.from_numpy(shift), persistent=False)

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
        source, value, is_categorical = one_hot_layout(first, num_categories)
        self.size = len(source)
        self.register_buffer("source", torch.from_numpy(source), persistent=False)
        self.register_buffer("value", torch.from_numpy(value), persistent=False)
        self.register_buffer("is_categorical", torch.from_numpy(is_categorical), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., R] -> [..., V]."""
        is_chosen = (x.index_select(-1, self.source) == self.value).float()
        return torch.where(self.is_categorical, is_chosen, self.rescale(x).index_select(-1, self.source))
