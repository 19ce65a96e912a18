"""What sees success in a picture: its file, and what it computes, without torch."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import msgspec
import numpy as np
from gymnasium import spaces

from tmrl_like.base import tree
from tmrl_like.base.text import one_line
from tmrl_like.errors import ConfigError, PolicyError
from tmrl_like.policies.layers import Floats, layer_of
from tmrl_like.policies.pictures import (
    Convolution,
    PictureSpec,
    channels_first,
    convolved,
    kernels_of,
    shapes_of,
)
from tmrl_like.policies.weight_file import (
    Manifest,
    Weights,
    read_weights,
    refuse_misfit,
    refuse_not_finite,
    write_weights,
)
from tmrl_like.types import Observation
from tmrl_like.wire.spaces import Space

_SIDE = 64  # larger pictures are averaged down to sides of 64 to 127
_CHANNELS = (16, 32)
log = logging.getLogger("tmrl_like.policies")


class SuccessSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A network that looks for success in a picture: two layers of convolutions, each with a ReLU,
    the largest answer of each channel, wherever it is, and a linear layer.

    Attributes:
        picture: what it looks at.
        note: how often it was right, in words.
    """

    picture: PictureSpec
    note: str = ""

    @property
    def factor(self) -> int:
        """So many pixels each way are averaged to one."""
        return max(1, min(self.picture.form[1:]) // _SIDE)

    @property
    def layers(self) -> tuple[Convolution, Convolution]:
        """Those of convolutions."""
        one, two = _CHANNELS
        return Convolution(self.picture.form[0], one, 4, 2), Convolution(one, two, 3, 1)

    def manifest(self) -> Manifest:
        """Of the parameters, by the names of the torch module's layers."""
        manifest: Manifest = {}
        for name, shape in (shapes_of(self.layers) | {"head": (1, _CHANNELS[-1])}).items():
            manifest[f"{name}.weight"] = ("F32", shape)
            manifest[f"{name}.bias"] = ("F32", shape[:1])
        return manifest


def write_success_model(file: Path, spec: SuccessSpec, weights: Weights) -> None:
    """Write it; ConfigError: it cannot be written."""
    try:
        write_weights(file, weights, msgspec.json.encode(spec).decode())
    except OSError as error:
        raise ConfigError(f"cannot write the model to {file}: {error}") from None


class SuccessModel:
    """A model of success for a `SuccessEnv`, from a file of `tmrl-like success-model`.

    Attributes:
        spec: all of it but the parameters.
    """

    def __init__(self, file: str, observation_space: Space) -> None:
        """Load it, and say in the log how often it was right.

        Args:
            file: its path.
            observation_space: of the environment. The first pictures in it that are as those it has
                learnt from, or a history of such, are what it looks at.

        Raises:
            ConfigError: there is no such file, or the environment has no such pictures.
            PolicyError: the file is damaged, or of something else.
        """
        try:
            text, weights = read_weights(Path(file))
            self.spec = msgspec.json.decode(text, type=SuccessSpec)
        except OSError as error:
            raise ConfigError(f"the model of success {file} cannot be read: {error}") from None
        except msgspec.DecodeError:
            raise PolicyError(
                f"{file} is no model of success: `tmrl-like success-model` makes one"
            ) from None
        refuse_misfit("this model of success", self.spec.manifest(), weights.manifest)
        refuse_not_finite(weights)
        self._place = _place_of(self.spec.picture.shape, observation_space, file)
        arrays = weights.arrays()
        self._kernels = kernels_of(arrays, self.spec.layers)
        self._head = layer_of(arrays, "head")
        log.info("%s: %s", file, self.spec.note)

    def __call__(self, obs: Observation) -> float:
        """How likely this observation shows success, 0 to 1; of a history of pictures the
        newest.
        """
        picture = np.asarray(tree.part_at(obs, self._place))
        if picture.shape != self.spec.picture.shape:
            picture = picture[-1]
        x = convolved(self._averaged(picture), self._kernels)
        weight, bias = self._head
        logit = float(weight[0].dot(x.max(axis=(1, 2))) + bias[0])
        return 0.5 + 0.5 * math.tanh(0.5 * logit)

    def _averaged(self, picture: Floats) -> Floats:
        """uint8, as the environment gives it -> float32 [C, height, width] in [-1/2, 1/2]."""
        x, size = channels_first(picture.astype(np.float32), self.spec.picture), self.spec.factor
        channels, height, width = x.shape[0], x.shape[1] // size, x.shape[2] // size
        cells = x[:, : height * size, : width * size].reshape(channels, height, size, width, size)
        averages: Floats = cells.mean(axis=(2, 4)) / np.float32(255.0) - np.float32(0.5)
        return averages


def _place_of(shape: tuple[int, ...], space: Space, file: str) -> tree.Path:
    for path, leaf in tree.walk(space):
        if (
            isinstance(leaf, spaces.Box)
            and leaf.dtype == np.uint8
            and shape in (leaf.shape, leaf.shape[1:])
        ):
            return tuple(path)
    raise ConfigError(
        f"the observation space is {one_line(space)}; {file} looks at pictures, uint8 {list(shape)}"
    )
