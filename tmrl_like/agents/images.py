"""Images and histories of images -> features. Shape names: B batch, C channels."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from gymnasium import spaces
from torch import Tensor, nn

from tmrl_like.agents.space_layout import channels_are_last
from tmrl_like.errors import expect
from tmrl_like.policies.network import Numbers

IMAGE_FEATURES = 64  # of `ImageEncoder`
_LARGE_SIDE = 36
_LARGE = ((8, 4, 0), (4, 2, 0), (3, 1, 0))  # kernel, stride, padding
_SMALL = ((3, 2, 1), (3, 2, 1), (3, 1, 1))


class ConvolutionEncoder(nn.Module):
    """An image, or a history of images, -> what three layers of convolutions say of it.

    As in Mnih et al., "Human-level control through deep reinforcement learning", 2015; smaller kernels for images below
    36 pixels. With `pooled` the last layer is averaged over that many rows and columns of regions (Trumpp et al.,
    "Impoola: The Power of Average Pooling for Image-Based Deep Reinforcement Learning", 2025, arXiv:2503.05546).

    Attributes:
        size: number of features.
    """

    def __init__(self, box: spaces.Box, channels: Sequence[int] = (32, 64, 64), pooled: int = 2) -> None:
        """Build the layers, of so many channels each, for images of this Box, whose bounds are scaled to [-1/2, 1/2].

        `pooled`: 0 leaves the last layer as it is.

        Raises:
            ConfigError: not three layers, or one without channels; `pooled` is negative.
        """
        super().__init__()
        expect(len(channels) == 3 and min(channels) >= 1, "channels", channels, "three numbers, 1 or more each")
        expect(pooled >= 0, "pooled", pooled, "a whole number, 0 or more")
        self._shape = box.shape
        scale, shift, _ = Numbers((float(box.low.min()),), (float(box.high.max()),), (0,)).scaling(0.5)
        self._scale, self._shift = scale.item(), shift.item()
        colours, height, width = self._channels_first(torch.zeros(1, *box.shape)).shape[1:]
        plan = _LARGE if min(height, width) >= _LARGE_SIDE else _SMALL
        sizes = itertools.pairwise((colours, *channels))
        layers = [nn.Conv2d(*size, *form) for size, form in zip(sizes, plan, strict=True)]
        pool = [nn.AdaptiveAvgPool2d(pooled)] if pooled else []
        self.convolutions = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU(inplace=True))), *pool)
        with torch.no_grad():
            self.size: int = self.convolutions(torch.zeros(1, colours, height, width)).numel()

    def forward(self, image: Tensor) -> Tensor:
        """[B, ...] of the Box's dtype -> [B, size] float32."""
        last = torch.channels_last  # in memory: convolutions on a processor are faster so
        x = self._channels_first(image).to(torch.float32, copy=True, memory_format=last)
        features: Tensor = self.convolutions(x.mul_(self._scale).add_(self._shift))
        return features.flatten(1)

    def _channels_first(self, x: Tensor) -> Tensor:
        """[B, ...] -> [B, C, height, width]; a history's images become channels."""
        if len(self._shape) == 2:
            return x.unsqueeze(1)
        if channels_are_last(self._shape):
            x = x.movedim(-1, -3)
        return x if len(self._shape) == 3 else x.flatten(1, 2)


class ImageEncoder(ConvolutionEncoder):
    """Convolutions, then a linear layer, layer normalisation and tanh: features in [-1, 1].

    As in Yarats et al., "Image Augmentation Is All You Need", 2021.
    """

    def __init__(self, box: spaces.Box) -> None:
        """Build the layers for images of this Box."""
        super().__init__(box, pooled=0)
        self.project = nn.Sequential(nn.Linear(self.size, IMAGE_FEATURES), nn.LayerNorm(IMAGE_FEATURES), nn.Tanh())
        self.size = IMAGE_FEATURES

    def forward(self, image: Tensor) -> Tensor:
        """[B, ...] of the Box's dtype -> [B, size] float32."""
        features: Tensor = self.project(super().forward(image))
        return features
