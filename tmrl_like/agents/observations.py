"""What networks see of an observation: vectors scaled by their bounds, pictures through convolutions.

Shape names: B batch, O entries of all vectors, F features.
"""

# Capital suffixes name a tensor's dimensions.
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from tmrl_like.errors import ConfigError

OBS_RANGE = 3.0  # torch initialises layers small: inputs of this size give a first layer that resolves them
PICTURE_FEATURES = 64
_MAX_SCALE = 1e6  # wider bounds say nothing about the size of the values
_MAX_DIMS = 2  # vectors and short histories of vectors; more is a picture
_MAX_PICTURE_DIMS = 4  # a history of colour pictures
_SMALLEST_SIDE = 8
_COLOURS = (1, 3, 4)  # a last dimension of this size is a picture's channels
_LARGE_SIDE = 36
_LARGE = ((32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0))  # channels, kernel, stride, padding
_SMALL = ((32, 3, 2, 1), (64, 3, 2, 1), (64, 3, 1, 1))


class Encoder(nn.Module):
    """Observation -> features [B, F]: all vectors side by side, then what each picture shows."""

    def __init__(self, space: gymnasium.Space[Any], obs_range: float = OBS_RANGE) -> None:
        """Read the layout of `space`.

        Args:
            space: Boxes, or Tuples and Dicts of these. A Box of three or four dimensions, or of two dimensions and
                uint8, with sides of at least 8, is a picture: channels first or last, a history of pictures in front.
            obs_range: bounded vectors are scaled to [-obs_range, obs_range]; 0 leaves them as they are.

        Raises:
            ConfigError: a leaf is none of this; its place in the space is named.
        """
        super().__init__()
        leaves = list(_leaves(space))
        self.flatten = Flatten([leaf for leaf in leaves if not is_picture(leaf[1])])
        self.rescale = self.flatten.rescale(obs_range)
        seen = [leaf for leaf in leaves if is_picture(leaf[1])]
        self._getters = [_getter(path) for path, _ in seen]
        self.pictures = nn.ModuleList(PictureEncoder(box) for _, box in seen)
        self.size = self.flatten.size + PICTURE_FEATURES * len(self.pictures)

    def forward(self, obs: Any) -> Tensor:
        """Structure of [B, ...] -> [B, F] float32; without pictures also [B, O] -> [B, F]."""
        if not self.pictures:
            return self.rescale(self.flatten(obs))  # type: ignore[no-any-return]
        parts = [picture(get(obs)) for picture, get in zip(self.pictures, self._getters, strict=True)]
        if self.flatten.size:
            parts.insert(0, self.rescale(self.flatten(obs)))
        return torch.cat(parts, dim=1)

    def one(self, obs: Any) -> Tensor:
        """One raw observation of numpy arrays, without pictures -> [F] float32."""
        return self.rescale.forward(self.flatten.one(obs))  # skips the module's hooks


class PictureEncoder(nn.Module):
    """A picture, or a history of pictures, -> features in [-1, 1].

    Convolutions as in Mnih et al., "Human-level control through deep reinforcement learning", 2015 (smaller kernels
    for pictures below 36 pixels); then a linear layer, layer normalisation and tanh as in Yarats et al., "Image
    Augmentation Is All You Need", 2021.
    """

    def __init__(self, box: spaces.Box) -> None:
        """Build the layers for pictures of this Box, whose bounds are scaled to [-1/2, 1/2]."""
        super().__init__()
        self._shape = box.shape
        low, high = float(box.low.min()), float(box.high.max())
        useful = 0.0 < high - low < _MAX_SCALE
        self._scale = 1.0 / (high - low) if useful else 1.0
        self._shift = -0.5 - low * self._scale if useful else 0.0
        channels, height, width = self._channels_first(torch.zeros(1, *box.shape)).shape[1:]
        plan = _LARGE if min(height, width) >= _LARGE_SIDE else _SMALL
        sizes = [channels, *(layer[0] for layer in plan)]
        layers = [
            nn.Conv2d(size_in, size_out, kernel, stride, padding)
            for (size_in, size_out), (_, kernel, stride, padding) in zip(itertools.pairwise(sizes), plan, strict=True)
        ]
        self.convolutions = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU(inplace=True))))
        with torch.no_grad():
            n = self.convolutions(torch.zeros(1, channels, height, width)).numel()
        self.project = nn.Sequential(nn.Linear(n, PICTURE_FEATURES), nn.LayerNorm(PICTURE_FEATURES), nn.Tanh())

    def forward(self, picture: Tensor) -> Tensor:
        """[B, ...] of the Box's dtype -> [B, features] float32."""
        x = self._channels_first(picture).float() * self._scale + self._shift
        features: Tensor = self.project(self.convolutions(x).flatten(1))
        return features

    def _channels_first(self, x: Tensor) -> Tensor:
        """[B, ...] -> [B, C, height, width]; a history's pictures become channels."""
        if len(self._shape) == 2:
            return x.unsqueeze(1)
        if _channels_are_last(self._shape):
            x = x.movedim(-1, -3)
        return x if len(self._shape) == 3 else x.flatten(1, 2)


def is_picture(box: spaces.Box) -> bool:
    """Whether a Box goes through convolutions: the rest are vectors and short histories of vectors."""
    dims = len(box.shape)
    if dims == 2:
        return box.dtype == np.uint8 and min(box.shape) >= _SMALLEST_SIDE
    return _MAX_DIMS < dims <= _MAX_PICTURE_DIMS and min(_sides(box.shape)) >= _SMALLEST_SIDE


def _channels_are_last(shape: tuple[int, ...]) -> bool:
    return shape[-1] in _COLOURS and min(shape[-3:-1]) > max(_COLOURS)


def _sides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[-3:-1] if _channels_are_last(shape) else shape[-2:]


class Flatten:
    """Structure of vectors -> one float32 tensor [B, O], leaves in the order of the space.

    A Dict's keys follow the space, not the observation. What is flat already passes through.
    """

    def __init__(self, leaves: list[Leaf]) -> None:
        """Read the layout of some leaves of a space."""
        self._getters = [_getter(path) for path, _ in leaves]
        nothing = np.zeros(0, np.float32)
        bounds = [(nothing, nothing), *(box_bounds(box) for _, box in leaves)]
        self.low, self.high = (np.concatenate(b) for b in zip(*bounds, strict=True))
        self.size = len(self.low)

    def __call__(self, obs: Any) -> Tensor:
        """Structure of [B, ...] (or [B, O]) -> [B, O] float32."""
        if isinstance(obs, Tensor) and obs.ndim == 2:
            return obs.float()
        return torch.cat([_rows(get(obs)) for get in self._getters], dim=1).float()

    def one(self, obs: Any) -> Tensor:
        """One raw observation of numpy arrays -> [O] float32, without a tensor per leaf."""
        leaves = [get(obs) for get in self._getters]
        return torch.from_numpy(np.concatenate(leaves, axis=None, dtype=np.float32, casting="unsafe"))

    def rescale(self, obs_range: float) -> Rescale:
        """The scaling of a network's input: observations to [-obs_range, obs_range]; 0 leaves them."""
        return Rescale(self.low, self.high, np.full(self.size, obs_range or np.nan))


class Rescale(nn.Module):
    """Bounded entries of a flat vector to [-limit, limit]; entries without useful bounds pass as they are."""

    scale: Tensor  # [O] float32
    shift: Tensor  # [O] float32

    def __init__(self, low: np.ndarray[Any, Any], high: np.ndarray[Any, Any], limit: np.ndarray[Any, Any]) -> None:
        """All arrays float [O]."""
        super().__init__()
        half = high.astype(np.float64) / 2 - low.astype(np.float64) / 2
        useful = (half > 0) & (half < _MAX_SCALE) & np.isfinite(limit)
        scale = np.where(useful, limit / np.where(useful, half, 1.0), 1.0)
        shift = np.where(useful, -limit - np.where(useful, low, 0.0) * scale, 0.0)  # low goes to -limit
        self.changes = bool(useful.any())
        self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.float32), persistent=False)
        self.register_buffer("shift", torch.as_tensor(shift, dtype=torch.float32), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., O] -> [..., O]."""
        return torch.addcmul(self.shift, x, self.scale) if self.changes else x


Path = tuple[int | str, ...]
Leaf = tuple[Path, spaces.Box]


def _leaves(space: gymnasium.Space[Any], path: Path = ()) -> Iterator[Leaf]:
    if isinstance(space, spaces.Tuple):
        for i, part in enumerate(space.spaces):
            yield from _leaves(part, (*path, i))
    elif isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _leaves(part, (*path, key))
    elif isinstance(space, spaces.Box) and (len(space.shape) <= _MAX_DIMS or is_picture(space)):
        yield path, space
    else:
        name = "the observation space" + "".join(f"[{key!r}]" for key in path)
        raise ConfigError(
            f"{name} is {space}; this network takes vectors (a Box of at most {_MAX_DIMS} dimensions), pictures (at "
            f"most {_MAX_PICTURE_DIMS} dimensions, sides of {_SMALLEST_SIDE} or more), and Tuples and Dicts of these: "
            "reduce it in obs_preprocessor, or give the agent your own actor and critic classes"
        )


def _getter(path: Path) -> Callable[[Any], Any]:
    def get(obs: Any) -> Any:
        for key in path:
            obs = obs[key]
        return obs

    return get


def _rows(leaf: Tensor) -> Tensor:
    """[B, ...] -> [B, the rest]; [B] -> [B, 1]."""
    return leaf if leaf.ndim == 2 else leaf.reshape(leaf.shape[0], -1)


def box_bounds(space: spaces.Box) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Low and high, each float32, flat."""
    return space.low.astype(np.float32).ravel(), space.high.astype(np.float32).ravel()
