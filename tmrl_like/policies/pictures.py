"""The picture encoder as plain data, and its computation in numpy, from pixels to features.

Shape names: C channels of all pictures of a history, P pixels of all channels, F features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

from tmrl_like.policies.layers import Floats, layer_of, normalise

PICTURE_FEATURES = 50  # F
_SIDE = 16  # of the averaged picture, approximately
_KERNEL = 4
_LAYERS = ((32, 2), (64, 1))  # channels and stride

Shapes: TypeAlias = dict[str, tuple[int, ...]]


class Convolution(NamedTuple):
    """A convolutional layer without padding."""

    channels_in: int
    channels: int
    kernel: int
    stride: int


Kernel: TypeAlias = tuple[Convolution, Floats, Floats]
"""A layer, its weight [C', C * kernel * kernel] and its bias [C', 1]."""


class PictureSpec(msgspec.Struct, frozen=True):
    """The description of an encoder of a picture, or of a history of pictures: averaging to sides
    of about 16, two convolutional layers, each with a ReLU, a linear layer, layer normalisation and
    tanh.

    This is the encoder of Almuzairee and Christensen, "Squint: Fast Visual Reinforcement Learning",
    2026 (arXiv:2602.21203).

    Attributes:
        shape: shape of the Box.
        channels_are_last: whether a single picture's channels come last.
        low, high: the bounds, which are scaled to [-1/2, 1/2].
    """

    shape: tuple[int, ...]
    channels_are_last: bool
    low: float
    high: float

    @property
    def num_pixels(self) -> int:
        """Number of pixels of all channels, P."""
        return math.prod(self.shape)

    @property
    def form(self) -> tuple[int, int, int]:
        """Number of channels C, height and width."""
        *history, one, two, three = (1, *self.shape) if len(self.shape) == 2 else self.shape
        channels, height, width = (three, one, two) if self.channels_are_last else (one, two, three)
        return math.prod(history) * channels, height, width

    @property
    def factor(self) -> int:
        """Number of pixels in each direction that are averaged to one."""
        return max(1, (min(self.form[1:]) + _SIDE // 2) // _SIDE)

    @property
    def largest_shift(self) -> int:
        """Number of pixels by which a picture may be shifted each way in training: 4, or fewer with
        sides below 64.
        """
        return min(4, min(self.form[1:]) // _SIDE)

    def scaling(self) -> tuple[float, float]:
        """Return the scale and shift that bring a pixel to [-1/2, 1/2]; without finite bounds those
        that leave it as it is.
        """
        width = self.high - self.low
        if not 0.0 < width < math.inf:
            return 1.0, 0.0
        return 1.0 / width, -0.5 - self.low / width

    def averaged(self) -> tuple[int, int]:
        """Return height and width after averaging, which ignores rows and columns left over."""
        _, height, width = self.form
        return height // self.factor, width // self.factor

    @property
    def num_averaged(self) -> int:
        """Number of pixels of the averaged picture, over all channels."""
        return self.form[0] * math.prod(self.averaged())

    def convolutions(self) -> tuple[list[Convolution], int]:
        """Return the convolutional layers, and the number of outputs of the last one."""
        channels, (height, width) = self.form[0], self.averaged()
        layers: list[Convolution] = []
        for channels_out, stride in _LAYERS:
            kernel = min(_KERNEL, height, width)
            layers.append(Convolution(channels, channels_out, kernel, stride))
            channels, height, width = (
                channels_out,
                (height - kernel) // stride + 1,
                (width - kernel) // stride + 1,
            )
        return layers, channels * height * width

    def shapes(self) -> Shapes:
        """Return the shapes of the weights, by the names of the torch module's layers."""
        layers, num_convolved = self.convolutions()
        return shapes_of(layers) | {
            "project": (PICTURE_FEATURES, num_convolved),
            "norm": (PICTURE_FEATURES,),
        }


class PictureNetwork:
    """The encoder with its parameters, in numpy."""

    def __init__(self, spec: PictureSpec) -> None:
        """Build the encoder without parameters; `bind` sets them."""
        self._layers, _ = spec.convolutions()
        self._average = Downsampling(spec, spec.factor)

    def bind(self, parameters: Mapping[str, Floats], name: str) -> None:
        """Compute with these arrays from now on, without a copy. Their names begin with `name`."""
        self._kernels = kernels_of(parameters, self._layers, f"{name}.")
        self._project, self._norm = (
            layer_of(parameters, f"{name}.{part}") for part in ("project", "norm")
        )

    def __call__(self, pixels: Floats) -> Floats:
        """Encode pixels, float32 [P] as the environment gives them, to features [F]."""
        x = convolved(self._average(pixels), self._kernels)
        weight, bias = self._project
        x = weight.dot(x.reshape(-1)) + bias
        normalise(x, self._norm)
        features: Floats = np.tanh(x)
        return features


class Downsampling:
    """Averages blocks of pixels, and scales them to [-1/2, 1/2]."""

    def __init__(self, spec: PictureSpec, factor: int) -> None:
        """Rows and columns left over are ignored."""
        self._spec = spec
        _, height, width = spec.form
        scale, self._shift = (np.float32(value) for value in spec.scaling())
        self._rows = _averaging(height, factor)
        self._columns = _averaging(width, factor).T * scale

    def __call__(self, pixels: Floats) -> Floats:
        """Map float32 [P], as the environment gives them, to [C, height, width]."""
        x = pixels.reshape(self._spec.shape)
        if self._spec.channels_are_last:
            x = np.moveaxis(x, -1, -3)
        averages: Floats = self._rows @ (x.reshape(self._spec.form) @ self._columns) + self._shift
        return averages


def _averaging(side: int, factor: int) -> Floats:
    """Return the matrix [averaged, side] that averages `factor` neighbours."""
    averaged = side // factor
    matrix = np.repeat(np.eye(averaged, dtype=np.float32), factor, axis=1) / factor
    return np.pad(matrix, ((0, 0), (0, side - averaged * factor)))


def shapes_of(layers: Sequence[Convolution]) -> Shapes:
    """Return the shapes of the layers' weights, by the names of the torch module's layers."""
    return {
        f"convolutions.{i}": (layer.channels, layer.channels_in, layer.kernel, layer.kernel)
        for i, layer in enumerate(layers)
    }


def kernels_of(
    parameters: Mapping[str, Floats], layers: Sequence[Convolution], prefix: str = ""
) -> list[Kernel]:
    """Return the layers with their parameters, without a copy. Names begin with `prefix`."""
    kernels: list[Kernel] = []
    for i, layer in enumerate(layers):
        weight, bias = layer_of(parameters, f"{prefix}convolutions.{i}")
        kernels.append((layer, weight.reshape(len(weight), -1), bias[:, None]))
    return kernels


def convolved(x: Floats, kernels: Sequence[Kernel]) -> Floats:
    """Apply convolutional layers, each with a ReLU: [C, height, width] -> [C', height', width']."""
    for kernel in kernels:
        x = np.maximum(_convolved(x, *kernel), np.float32(0.0))
    return x


def _convolved(x: Floats, layer: Convolution, weight: Floats, bias: Floats) -> Floats:
    """Apply one layer, as one matrix product with all patches side by side."""
    sides = layer.kernel, layer.kernel
    patches = np.lib.stride_tricks.sliding_window_view(x, sides, axis=(1, 2))[
        :, :: layer.stride, :: layer.stride
    ]
    _, height, width, *_ = patches.shape
    columns = patches.transpose(0, 3, 4, 1, 2).reshape(-1, height * width)
    answers: Floats = weight.dot(columns) + bias
    return answers.reshape(-1, height, width)
