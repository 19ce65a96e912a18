"""Encoders of images and of histories of images. Shape names: B batch, C channels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

from tmrl_like.agents.space_layout import picture_spec
from tmrl_like.base.options import Natural, Positive, in_ranges
from tmrl_like.policies.pictures import PICTURE_FEATURES, PictureSpec

_LARGE_SIDE = 36
_LARGE = ((8, 4, 0), (4, 2, 0), (3, 1, 0))  # kernel, stride, padding
_SMALL = ((3, 2, 1), (3, 2, 1), (3, 1, 1))


class ConvolutionEncoder(nn.Module):
    """Encodes an image, or a history of images, by three convolutional layers.

    As in Mnih et al., "Human-level control through deep reinforcement learning", 2015, with smaller
    kernels for images below 36 pixels. With `pooled`, the last layer is averaged over that many
    rows and columns of regions (Trumpp et al., "Impoola: The Power of Average Pooling for
    Image-Based Deep Reinforcement Learning", 2025, arXiv:2503.05546).

    Attributes:
        size: number of features.
    """

    @in_ranges
    def __init__(
        self,
        box: spaces.Box,
        channels: tuple[Positive, Positive, Positive] = (32, 64, 64),
        pooled: Natural = 2,
    ) -> None:
        """Build layers with these numbers of channels, for images of this Box, whose bounds are
        scaled to [-1/2, 1/2].

        A `pooled` of 0 leaves the last layer as it is.

        Raises:
            ConfigError: `channels` are not three numbers above 0, or `pooled` is negative.
        """
        super().__init__()
        self._spec = picture_spec(box)
        size_in, height, width = self._spec.form
        parts: list[nn.Module] = []
        for size, form in zip(
            channels, _LARGE if min(height, width) >= _LARGE_SIDE else _SMALL, strict=True
        ):
            parts += [nn.Conv2d(size_in, size, *form), nn.ReLU(inplace=True)]
            size_in = size
        if pooled:
            parts.append(nn.AdaptiveAvgPool2d(pooled))
        self.convolutions = nn.Sequential(*parts)
        with torch.no_grad():
            self.size: int = self.convolutions(torch.zeros(1, *self._spec.form)).numel()

    def forward(self, image: Tensor) -> Tensor:
        """Map [B, ...] of the Box's dtype to [B, size] float32."""
        last = torch.channels_last  # convolutions on a CPU are faster with this memory layout
        x = channels_first(image, self._spec).to(torch.float32, copy=True, memory_format=last)
        scale, shift = self._spec.scaling()
        features: Tensor = self.convolutions(x.mul_(scale).add_(shift))
        return features.flatten(1)


class PictureEncoder(nn.Module):
    """`PictureSpec` in torch: encodes a picture, or a history of pictures, as features in [-1, 1].

    Attributes:
        spec: the description from which this encoder and its form in numpy are made.
        size: number of features.
    """

    size = PICTURE_FEATURES

    def __init__(self, box: spaces.Box) -> None:
        """Build the layers for pictures of this Box."""
        super().__init__()
        self.spec = picture_spec(box)
        layers, num_convolved = self.spec.convolutions()
        self.convolutions = nn.ModuleList(nn.Conv2d(*layer) for layer in layers)
        self.project = nn.Linear(num_convolved, PICTURE_FEATURES)
        self.norm = nn.LayerNorm(PICTURE_FEATURES)

    def forward(self, picture: Tensor, shift: bool = False) -> Tensor:
        """Map [B, ...] of the Box's dtype to [B, size] float32. `shift` moves each picture by a few
        pixels, see `shifted`.
        """
        return self.convolved(self.averaged(picture, shift))

    def averaged(self, picture: Tensor, shift: bool = False) -> Tensor:
        """Map [B, ...] of the Box's dtype to the input of the convolutions, [B, C, height, width]
        in [-1/2, 1/2].
        """
        x = channels_first(picture, self.spec)
        if shift:
            x = shifted(x, self.spec.largest_shift)
        scale, offset = self.spec.scaling()
        return F.avg_pool2d(x.float(), self.spec.factor).mul_(scale).add_(offset)

    def convolved(self, x: Tensor) -> Tensor:
        """Map what `averaged` returns to [B, size]."""
        for convolution in self.convolutions:
            x = F.relu(convolution(x), inplace=True)
        features: Tensor = self.norm(self.project(x.flatten(1))).tanh()
        return features


def channels_first(pictures: Tensor, spec: PictureSpec) -> Tensor:
    """Rearrange [B, ...] to [B, C, height, width]; the pictures of a history become channels."""
    x = pictures.movedim(-1, -3) if spec.channels_are_last else pictures
    return x.reshape(-1, *spec.form)


def shifted(pictures: Tensor, most: int) -> Tensor:
    """Shift each of the pictures [B, C, height, width] by up to `most` pixels, repeating its edge.

    The augmentation of Kostrikov, Yarats and Fergus, "Image Augmentation Is All You Need", 2020
    (arXiv:2004.13649).
    """
    batch, channels, height, width = pictures.shape
    device = pictures.device
    down, right = torch.randint(-most, most + 1, (2, batch, 1, 1), device=device)
    rows = (torch.arange(height, device=device) + down).clamp_(0, height - 1)  # [B, 1, height]
    planes = torch.arange(batch * channels, device=device).view(batch, channels, 1)
    left_edge, right_edge = pictures[..., :1], pictures[..., -1:]
    wide = torch.cat((*[left_edge] * most, pictures, *[right_edge] * most), dim=-1)
    # where each row to copy begins, [B, C, height]
    begins = (planes * height + rows) * wide.shape[-1] + most + right
    return wide.flatten().unfold(0, width, 1).index_select(0, begins.flatten()).view(pictures.shape)
