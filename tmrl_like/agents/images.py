"""Images and histories of images -> features. Shape names: B batch, C channels."""

from __future__ import annotations

import itertools
from typing import Any, TypeGuard

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

IMAGE_FEATURES = 64
MAX_IMAGE_DIMS = 4  # a history of colour images
SMALLEST_SIDE = 8
MAX_SCALE = 1e6  # wider bounds say nothing about the size of the values
_COLOURS = (1, 3, 4)  # a last dimension of this size is an image's channels
_LARGE_SIDE = 36
_LARGE = ((32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0))  # channels, kernel, stride, padding
_SMALL = ((32, 3, 2, 1), (64, 3, 2, 1), (64, 3, 1, 1))


class ImageEncoder(nn.Module):
    """An image, or a history of images, -> features in [-1, 1].

    Convolutions as in Mnih et al., "Human-level control through deep reinforcement learning", 2015 (smaller kernels
    for images below 36 pixels); then a linear layer, layer normalisation and tanh as in Yarats et al., "Image
    Augmentation Is All You Need", 2021.
    """

    def __init__(self, box: spaces.Box) -> None:
        """Build the layers for images of this Box, whose bounds are scaled to [-1/2, 1/2]."""
        super().__init__()
        self._shape = box.shape
        low, high = float(box.low.min()), float(box.high.max())
        useful = 0.0 < high - low < MAX_SCALE
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
        self.project = nn.Sequential(nn.Linear(n, IMAGE_FEATURES), nn.LayerNorm(IMAGE_FEATURES), nn.Tanh())

    def forward(self, image: Tensor) -> Tensor:
        """[B, ...] of the Box's dtype -> [B, features] float32."""
        x = self._channels_first(image).float() * self._scale + self._shift
        features: Tensor = self.project(self.convolutions(x).flatten(1))
        return features

    def _channels_first(self, x: Tensor) -> Tensor:
        """[B, ...] -> [B, C, height, width]; a history's images become channels."""
        if len(self._shape) == 2:
            return x.unsqueeze(1)
        if _channels_are_last(self._shape):
            x = x.movedim(-1, -3)
        return x if len(self._shape) == 3 else x.flatten(1, 2)


def is_image(box: gymnasium.Space[Any]) -> TypeGuard[spaces.Box]:
    """Whether a leaf goes through convolutions: the other Boxes are vectors and short histories of vectors."""
    if not isinstance(box, spaces.Box):
        return False
    dims = len(box.shape)
    if dims == 2:
        return box.dtype == np.uint8 and min(box.shape) >= SMALLEST_SIDE
    if not 2 < dims <= MAX_IMAGE_DIMS:
        return False
    return min(box.shape[-3:-1] if _channels_are_last(box.shape) else box.shape[-2:]) >= SMALLEST_SIDE


def _channels_are_last(shape: tuple[int, ...]) -> bool:
    return shape[-1] in _COLOURS and min(shape[-3:-1]) > max(_COLOURS)
