"""What networks see of an observation: numbers scaled by their bounds, choices as one-hot, pictures by convolutions.

Shape names: B batch, R numbers of an observation as the environment gives them, V entries that stand for them, F
features.
"""

# Capital suffixes name a tensor's dimensions.
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeGuard

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from tmrl_like.agents.pictures import MAX_PICTURE_DIMS, PICTURE_FEATURES, SMALLEST_SIDE, PictureEncoder, is_picture
from tmrl_like.errors import ConfigError

OBS_RANGE = 3.0  # torch initialises layers small: inputs of this size give a first layer that resolves them
_MAX_SCALE = 1e6  # wider bounds say nothing about the size of the values
_MAX_DIMS = 2  # vectors and short histories of vectors; more is a picture
MOST_CHOICES = 10_000  # entries of a one-hot vector
_EXACT = 1 << 24  # whole numbers up to here are exact in float32


class Encoder(nn.Module):
    """Observation -> features [B, F]: all vectors and choices side by side, then what each picture shows."""

    def __init__(self, space: gymnasium.Space[Any], obs_range: float = OBS_RANGE) -> None:
        """Read the layout of `space`.

        Args:
            space: Box, Discrete, MultiDiscrete and MultiBinary, or Tuples and Dicts of these. A Box of three or four
                dimensions, or of two dimensions and uint8, with sides of at least 8, is a picture: channels first or
                last, a history of pictures in front. Each choice of a Discrete or MultiDiscrete becomes one-hot here.
            obs_range: bounded vectors are scaled to [-obs_range, obs_range]; 0 leaves them as they are.

        Raises:
            ConfigError: a leaf is none of this; its place in the space is named. Or there is nothing in the space.
        """
        super().__init__()
        leaves = list(_leaves(space))
        self.flatten = Flatten([leaf for leaf in leaves if not is_picture(leaf[1])])
        self.rescale = self.flatten.rescale(obs_range)
        seen = [(path, box) for path, box in leaves if is_picture(box)]
        self._getters = [_getter(path) for path, _ in seen]
        self.pictures = nn.ModuleList(PictureEncoder(box) for _, box in seen)
        self.size = self.rescale.size + PICTURE_FEATURES * len(self.pictures)
        if not self.size:
            raise ConfigError(f"the observation space {on_one_line(space)} is empty; a policy needs something to see")

    def forward(self, obs: Any) -> Tensor:
        """Structure of [B, ...] -> [B, F] float32; without pictures also [B, R] -> [B, F]."""
        if not self.pictures:
            return self.rescale(self.flatten(obs))  # type: ignore[no-any-return]
        parts = [picture(get(obs)) for picture, get in zip(self.pictures, self._getters, strict=True)]
        if self.rescale.size:
            parts.insert(0, self.rescale(self.flatten(obs)))
        return torch.cat(parts, dim=1)

    def one(self, obs: Any) -> Tensor:
        """One raw observation of numpy arrays, without pictures -> [F] float32."""
        return self.rescale.forward(self.flatten.one(obs))  # skips the module's hooks


class Flatten:
    """Structure of vectors and choices -> one float32 tensor [B, R], leaves in the order of the space.

    A Dict's keys follow the space, not the observation. What is flat already passes through.
    """

    def __init__(self, leaves: list[Leaf]) -> None:
        """Read the layout of some leaves of a space."""
        self._getters = [_getter(path) for path, _ in leaves]
        nothing = np.zeros(0), np.zeros(0), np.zeros(0, np.int64)
        numbers = [nothing, *(_numbers_of(space) for _, space in leaves)]
        self.low, self.high, self.choices = (np.concatenate(n) for n in zip(*numbers, strict=True))

    def __call__(self, obs: Any) -> Tensor:
        """Structure of [B, ...] (or [B, R]) -> [B, R] float32."""
        if isinstance(obs, Tensor) and obs.ndim == 2:
            return obs.float()
        return torch.cat([_rows(get(obs)).float() for get in self._getters], dim=1)

    def one(self, obs: Any) -> Tensor:
        """One raw observation of numpy arrays and numbers -> [R] float32, without a tensor per leaf."""
        leaves = [get(obs) for get in self._getters]
        return torch.from_numpy(np.concatenate(leaves, axis=None, dtype=np.float32, casting="unsafe"))

    def rescale(self, obs_range: float) -> Rescale | OneHot:
        """What makes a network's input of it: numbers to [-obs_range, obs_range] (0 leaves them), choices one-hot."""
        limit = np.where(self.choices > 0, np.nan, obs_range or np.nan)
        rescale = Rescale(self.low, self.high, limit)
        return OneHot(rescale, self.low, self.choices) if self.choices.any() else rescale


class Rescale(nn.Module):
    """Bounded entries of a flat vector to [-limit, limit]; entries without useful bounds pass as they are."""

    scale: Tensor  # [R] float32
    shift: Tensor  # [R] float32

    def __init__(self, low: np.ndarray[Any, Any], high: np.ndarray[Any, Any], limit: np.ndarray[Any, Any]) -> None:
        """All arrays float [R]."""
        super().__init__()
        half = high.astype(np.float64) / 2 - low.astype(np.float64) / 2
        useful = (half > 0) & (half < _MAX_SCALE) & np.isfinite(limit)
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
    """A flat vector with choices in it: each choice becomes as many entries as it has values, one of them 1."""

    source: Tensor  # [V] int64, which number an entry is made of
    value: Tensor  # [V] float32, which value an entry stands for
    is_choice: Tensor  # [V] bool

    def __init__(self, rescale: Rescale, first: np.ndarray[Any, Any], choices: IntArray) -> None:
        """Lay out the entries.

        Args:
            rescale: scales the numbers that are no choices.
            first: float [R], a choice's smallest value.
            choices: int [R], how many values a choice has; 0: it is a number.
        """
        super().__init__()
        self.rescale = rescale
        sizes = np.maximum(choices, 1)
        source = np.repeat(np.arange(len(sizes)), sizes)
        self.size = len(source)
        count = np.arange(self.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        self.register_buffer("source", torch.from_numpy(source), persistent=False)
        self.register_buffer("value", torch.from_numpy((first[source] + count).astype(np.float32)), persistent=False)
        self.register_buffer("is_choice", torch.from_numpy(choices[source] > 0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., R] -> [..., V]."""
        is_chosen = (x.index_select(-1, self.source) == self.value).float()
        return torch.where(self.is_choice, is_chosen, self.rescale(x).index_select(-1, self.source))


IntArray = np.ndarray[Any, np.dtype[np.int64]]
Path = tuple[int | str, ...]
Leaf = tuple[Path, gymnasium.Space[Any]]


def _leaves(space: gymnasium.Space[Any], path: Path = ()) -> Iterator[Leaf]:
    if isinstance(space, spaces.Tuple):
        for i, part in enumerate(space.spaces):
            yield from _leaves(part, (*path, i))
    elif isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _leaves(part, (*path, key))
    elif _is_learnable(space):
        yield path, space
    else:
        name = "the observation space" + "".join(f"[{key!r}]" for key in path)
        raise ConfigError(
            f"{name} is {on_one_line(space)}; this network takes vectors (a Box of at most {_MAX_DIMS} dimensions, "
            f"MultiBinary), choices (Discrete, MultiDiscrete; at most {MOST_CHOICES:,} values), pictures (a Box of at "
            f"most {MAX_PICTURE_DIMS} dimensions, sides of {SMALLEST_SIDE} or more), and Tuples and Dicts of these: "
            "convert it in the environment (gymnasium.wrappers.TransformObservation), or give the agent your own actor "
            "and critic classes"
        )


def _is_learnable(space: gymnasium.Space[Any]) -> bool:
    if isinstance(space, spaces.Box):
        return len(space.shape) <= _MAX_DIMS or is_picture(space)
    return isinstance(space, spaces.MultiBinary) or are_choices(space)


def are_choices(space: gymnasium.Space[Any]) -> TypeGuard[spaces.Discrete | spaces.MultiDiscrete]:
    """Whether a space is one choice or several that a network can learn from: not too many values, none too large."""
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return False
    values, first = choices_of(space)
    return bool(values.sum() <= MOST_CHOICES and abs(first).max(initial=0) < _EXACT - MOST_CHOICES)


def choices_of(space: spaces.Discrete | spaces.MultiDiscrete) -> tuple[IntArray, IntArray]:
    """How many values each choice has, and its smallest one; int64 [K] each."""
    values = space.n if isinstance(space, spaces.Discrete) else space.nvec
    return np.array(values, np.int64).ravel(), np.array(space.start, np.int64).ravel()


def _numbers_of(space: gymnasium.Space[Any]) -> tuple[np.ndarray[Any, Any], ...]:
    """Of each number in a leaf: low, high, and how many values it chooses from (0: it is no choice); each [R]."""
    if isinstance(space, spaces.Box):
        low, high = box_bounds(space)
        return low, high, np.zeros(low.shape, np.int64)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        values, first = choices_of(space)
        return first, first + values - 1, values
    size = int(np.prod(space.shape or ()))  # a MultiBinary
    return np.zeros(size), np.ones(size), np.zeros(size, np.int64)


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


def on_one_line(space: gymnasium.Space[Any]) -> str:
    """A space as text, for an error."""
    return " ".join(str(space).split())
