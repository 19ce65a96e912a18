"""Encoding of observations for networks: numbers scaled by their bounds or normalised, categorical
values as one-hot, images by convolutions.

Shape names: B batch, R numbers of an observation as the environment gives them, U of these without
useful bounds, V entries that encode the numbers, F features.
"""

# Capital suffixes name a tensor's dimensions.
# ruff: noqa: N806
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from tmrl_like.agents.agent import Averaging
from tmrl_like.agents.images import PictureEncoder
from tmrl_like.agents.space_layout import Space, read_observations
from tmrl_like.base import tree
from tmrl_like.policies.layers import Floats
from tmrl_like.policies.network import OBS_RANGE, Numbers
from tmrl_like.types import Observation


class Encoder(nn.Module):
    """Encodes observations as features [B, F]: all vectors and one-hot values side by side, then
    the features of each image.

    Attributes:
        form: encoders of one space whose form is equal give the same features of numbers.
        images: the encoder of each image.
        image_paths: the place of each image in an observation.
    """

    def __init__(
        self,
        space: Space,
        obs_range: float = OBS_RANGE,
        normalize_obs: bool = False,
        picture_encoder: Callable[[spaces.Box], nn.Module] = PictureEncoder,
    ) -> None:
        """Read the layout of `space`.

        Args:
            space: Box, Discrete, MultiDiscrete or MultiBinary, or a Tuple or Dict of these. A Box
                of three or four dimensions, or a uint8 Box of two, with sides of at least 8, is an
                image: channels first or last, and a history of images along the first dimension.
                Each value of a Discrete or MultiDiscrete becomes one-hot.
            obs_range: bounded vectors are scaled to [-obs_range, obs_range]; 0 leaves them as they
                are.
            normalize_obs: if a number has no useful bounds, the scaling of vectors is part of the
                weights, so that an agent can normalise such numbers (`RunningNorm`). Until it does,
                they stay as they are.
            picture_encoder: called with the Box of each image. Makes a module with `size`, and with
                a `forward` that maps images [B, ...] of the Box's dtype to float32 [B, size].

        Raises:
            ConfigError: a leaf is none of these (the message gives its place), or the space is
                empty.
        """
        super().__init__()
        self.space = space
        self.layout = read_observations(space)
        self._paths, self.numbers, images = self.layout
        scale, shift, is_unbounded = self.numbers.scaling(obs_range)
        self.unbounded = np.flatnonzero(is_unbounded)  # [U], places in a flat observation
        self.normalizes = normalize_obs and len(self.unbounded) > 0
        self.form = obs_range, self.normalizes
        self.rescale = Rescale(scale, shift, in_weights=self.normalizes)
        self.one_hot = OneHot(self.numbers) if any(self.numbers.num_categories) else None
        self.image_paths = [path for path, _ in images]
        pictures: list[Any] = [picture_encoder(box) for _, box in images]
        self.images = nn.ModuleList(pictures)
        self.size: int = (self.one_hot or self.rescale).size + sum(
            picture.size for picture in pictures
        )

    def forward(self, obs: Observation) -> Tensor:
        """Map a structure of [B, ...], or what `see` made of it, to [B, F] float32."""
        x = self.see(obs)
        if not self.images:
            return self._features(x)
        numbers, features = x.tensor_split((self.rescale.size,), dim=1)
        return torch.cat((self._features(numbers), features), dim=1)

    @property
    def sees_pictures(self) -> bool:
        """Whether there are images, and the encoder of each is a `PictureEncoder`."""
        are_pictures = [isinstance(image, PictureEncoder) for image in self.images]
        return bool(are_pictures) and all(are_pictures)

    def see(self, obs: Observation, shift: bool = False) -> Tensor:
        """Map a structure of [B, ...] to the numbers as they are, then the features of each image,
        [B, R + …] float32.

        An input that has this form already passes through. `shift` augments the images; their
        encoders must support this, as `PictureEncoder` does.
        """
        if not self.images or _is_flat(obs):
            return self.flatten(obs)
        parts = [self.flatten(obs)] if self.rescale.size else []
        how = {"shift": True} if shift else {}
        for image, path in zip(self.images, self.image_paths, strict=True):
            parts.append(image(tree.part_at(obs, path), **how))
        return torch.cat(parts, dim=1)

    def flatten(self, obs: Observation) -> Tensor:
        """Map a structure of [B, ...] to its numbers, [B, R] float32, in the order of the space. An
        input that is flat already passes through.
        """
        if _is_flat(obs):
            return obs.float()  # type: ignore[no-any-return]
        leaves = [tree.part_at(obs, path) for path in self._paths]
        return torch.cat([leaf.unsqueeze(-1).flatten(1).float() for leaf in leaves], dim=1)

    def _features(self, x: Tensor) -> Tensor:
        """Map [..., R] to [..., V]. Calling `forward` skips the modules' hooks."""
        scaled = self.rescale.forward(x)
        return scaled if self.one_hot is None else self.one_hot.forward(x, scaled)


def encoders_of(networks: Iterable[nn.Module]) -> list[Encoder]:
    """Return the encoders of those networks that have one."""
    found = [getattr(network, "encoder", None) for network in networks]
    return [encoder for encoder in found if isinstance(encoder, Encoder)]


def share_pictures(networks: Sequence[nn.Module]) -> nn.ModuleList | None:
    """Let networks of one space share the first one's encoders of images, if there are any, and
    return these. What the first one's `see` returns is then an input of all.

    Return None, and change nothing, if a network has no `Encoder` of this space, one that sees
    images without a `PictureEncoder`, or a `forward` or `sample` of the user's, which gets raw
    observations.
    """
    encoders = [
        encoder
        for encoder in encoders_of(filter(_takes_features, networks))
        if encoder.sees_pictures or not encoder.images
    ]
    if len(encoders) < len(networks) or any(
        encoder.space != encoders[0].space for encoder in encoders
    ):
        return None
    for encoder in encoders:
        encoder.images = encoders[0].images
    return encoders[0].images


def _takes_features(network: nn.Module) -> bool:
    cls: Any = type(network)
    methods = cls.forward, getattr(cls, "sample", cls.forward)
    return all(method.__module__.startswith("tmrl_like.") for method in methods)


def _is_flat(obs: Observation) -> bool:
    return isinstance(obs, Tensor) and obs.ndim == 2


class RunningNorm(nn.Module):
    """Running mean and variance of the numbers without useful bounds, by which several encoders
    normalise them.

    Batch n counts with the weight w = 1 / min(n, HORIZON): an average over all batches that becomes
    an exponential one:

        mean <- mean + w (E[x] - mean),    mean_square <- mean_square + w (E[x^2] - mean_square)
        var = mean_square - mean^2

    For batches of one size this is the parallel variance of Chan, Golub and LeVeque, "Algorithms
    for Computing the Sample Variance", 1983, in fewer operations; squares of float32 are exact in
    float64. Then, in all encoders,

        scale = 1 / max(sqrt(var), FLOOR),    shift = -mean scale

    Attributes:
        mean, mean_square: float64 [U].
        count: float64 [], number of batches seen.
        which: int64 [U], places of the numbers in a flat observation.
        scale, shift: float32 [R], shared by the encoders.
    """

    HORIZON = 10_000
    FLOOR = 0.01
    mean: Tensor
    mean_square: Tensor
    count: Tensor
    which: Tensor

    def __init__(self, encoders: Sequence[Encoder]) -> None:
        """Let encoders, one or more of one space on one device, share the first one's scale and
        shift. Moving one of them to another device ends that.
        """
        super().__init__()
        first = encoders[0]
        self.flatten, self.scale, self.shift = (
            first.flatten,
            first.rescale.scale,
            first.rescale.shift,
        )
        for encoder in encoders:
            encoder.rescale.scale, encoder.rescale.shift = self.scale, self.shift
        which = torch.from_numpy(first.unbounded)
        for name, shape in (("mean", which.shape), ("mean_square", which.shape), ("count", ())):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("which", which, persistent=False)
        self.to(self.scale.device)

    @torch.no_grad()
    def go_on(self, batches: int) -> None:
        """Continue from the loaded scale and shift, as if they were made from `batches` batches. If
        that is 0, the number is not known: `HORIZON`, unless they are as at the start.
        """
        scale_U, shift_U = (
            values.index_select(0, self.which).double() for values in (self.scale, self.shift)
        )
        self.mean.copy_(-shift_U / scale_U)
        self.mean_square.copy_(scale_U**-2 + self.mean**2)
        is_made = bool((scale_U != 1.0).any() or (shift_U != 0.0).any())
        self.count.fill_(batches or is_made * self.HORIZON)

    @torch.no_grad()
    def update(self, obs: Observation, ranks: Averaging | None = None) -> None:
        """Add a batch of observations to the statistics, and write scale and shift in place. Reads
        nothing back from the device.

        The batches of all `ranks` count as one.
        """
        x_BU = self.flatten(obs).index_select(1, self.which).double()
        moments = torch.stack((x_BU.mean(0), x_BU.square_().mean(0)))
        if ranks is not None:
            ranks.mean(moments)
        weight = self.count.add_(1.0).clamp(max=self.HORIZON).reciprocal_()
        self.mean.lerp_(moments[0], weight)
        self.mean_square.lerp_(moments[1], weight)
        var_U = torch.addcmul(self.mean_square, self.mean, self.mean, value=-1.0)
        scale_U = var_U.clamp_(min=self.FLOOR**2).rsqrt_()
        self.scale.index_copy_(0, self.which, scale_U.float())
        self.shift.index_copy_(0, self.which, scale_U.mul_(self.mean).neg_().float())


class Rescale(nn.Module):
    """Multiplies each entry of a flat vector by a scale, and adds a shift."""

    scale: Tensor  # [R] float32
    shift: Tensor  # [R] float32

    def __init__(self, scale: Floats, shift: Floats, in_weights: bool = False) -> None:
        """Keep scale and shift, float32 [R] each. `in_weights` makes them part of the weights; they
        may change then.
        """
        super().__init__()
        self.size = len(scale)
        self.register_buffer("scale", torch.from_numpy(scale), persistent=in_weights)
        self.register_buffer("shift", torch.from_numpy(shift), persistent=in_weights)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., R] to [..., R]."""
        return torch.addcmul(self.shift, x, self.scale)


class OneHot(nn.Module):
    """Encodes the categorical values of a flat vector: each becomes as many entries as it has
    categories, one of them 1.
    """

    source: Tensor  # [V] int64, index of the number that an entry encodes
    value: Tensor  # [V] float32, the category that an entry stands for
    is_categorical: Tensor  # [V] bool

    def __init__(self, numbers: Numbers) -> None:
        """Prepare the entries of these numbers."""
        super().__init__()
        names = "source", "value", "is_categorical"
        for name, values in zip(names, numbers.entries(), strict=True):
            self.register_buffer(name, torch.from_numpy(values), persistent=False)
        self.size = len(self.source)

    def forward(self, x: Tensor, scaled: Tensor) -> Tensor:
        """Combine categories of `x` and other numbers of `scaled`, [..., R] each, to [..., V]."""
        is_chosen = (x.index_select(-1, self.source) == self.value).float()
        return torch.where(self.is_categorical, is_chosen, scaled.index_select(-1, self.source))
