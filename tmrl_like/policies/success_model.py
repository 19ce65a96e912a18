"""A model that recognises success in pictures: its file, and its computation without torch."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import msgspec
import numpy as np
from gymnasium import spaces

from tmrl_like.base import tree
from tmrl_like.base.files import writing
from tmrl_like.base.text import one_line
from tmrl_like.errors import ConfigError, PolicyError
from tmrl_like.policies.layers import layer_of
from tmrl_like.policies.pictures import (
    Convolution,
    Downsampling,
    PictureSpec,
    convolved,
    kernels_of,
    shapes_of,
)
from tmrl_like.policies.weight_file import (
    Manifest,
    Weights,
    read_weights,
    refuse_misfit,
    write_weights,
)
from tmrl_like.types import Observation
from tmrl_like.wire.spaces import Space

_SIDE = 64  # larger pictures are averaged down to sides of 64 to 127
_CHANNELS = (16, 32)
log = logging.getLogger("tmrl_like.policies")


class SuccessSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The description of a network that recognises success in a picture: two convolutional layers,
    each with a ReLU, the maximum of each channel over all places, and a linear layer.

    Attributes:
        picture: the pictures that it takes.
        path: where in an observation they are.
        note: how often it was right, in words.
    """

    picture: PictureSpec
    path: tuple[str | int, ...]
    note: str = ""

    @property
    def factor(self) -> int:
        """Number of pixels in each direction that are averaged to one."""
        return max(1, min(self.picture.form[1:]) // _SIDE)

    @property
    def layers(self) -> tuple[Convolution, Convolution]:
        """The convolutional layers."""
        one, two = _CHANNELS
        return Convolution(self.picture.form[0], one, 4, 2), Convolution(one, two, 3, 1)

    def manifest(self) -> Manifest:
        """Return the dtypes and shapes of the parameters, named by the torch module's layers."""
        manifest: Manifest = {}
        for name, shape in (shapes_of(self.layers) | {"head": (1, _CHANNELS[-1])}).items():
            manifest[f"{name}.weight"] = ("F32", shape)
            manifest[f"{name}.bias"] = ("F32", shape[:1])
        return manifest


def write_success_model(file: Path, spec: SuccessSpec, weights: Weights) -> None:
    """Write a model to a file. Raise ConfigError if it cannot be written."""
    with writing("the model", file):
        write_weights(file, weights, msgspec.json.encode(spec).decode())


class SuccessModel:
    """A model of success for a `SuccessEnv`, from a file of `tmrl-like success-model`.

    Attributes:
        spec: the description of the network: everything but its parameters.
    """

    def __init__(self, file: str, observation_space: Space) -> None:
        """Load the model, and log how often it was right.

        Args:
            file: path of the file.
            observation_space: observation space of the environment. Where the model has learnt
                from pictures, it must hold such pictures, or a history of them.

        Raises:
            ConfigError: the file cannot be read, or the environment has no such pictures there.
            PolicyError: the file is damaged, or holds something else.
        """
        try:
            text, weights = read_weights(Path(file))
            self.spec = msgspec.json.decode(text, type=SuccessSpec)
        except OSError as error:
            raise ConfigError(f"the model of success {file} cannot be read: {error}") from None
        except msgspec.DecodeError:
            raise PolicyError(
                f"{file} is no model of success, or an earlier version's: learn it again with "
                "`tmrl-like success-model`"
            ) from None
        # before anything is made in the size of the pictures that the file says
        shape, path = self.spec.picture.shape, self.spec.path
        box = dict(tree.walk(observation_space)).get(path)
        if not (
            isinstance(box, spaces.Box)
            and box.dtype == np.uint8
            and shape in (box.shape, box.shape[1:])
        ):
            raise ConfigError(
                f"the observation space is {one_line(observation_space)}; {file} looks at "
                f"pictures, uint8 {list(shape)}, in obs{tree.name_of(path)}"
            )
        refuse_misfit("this model of success", self.spec.manifest(), weights.manifest)
        self._average = Downsampling(self.spec.picture, self.spec.factor)
        arrays = weights.arrays()
        self._kernels = kernels_of(arrays, self.spec.layers)
        self._head = layer_of(arrays, "head")
        log.info("%s: %s", file, self.spec.note)

    def __call__(self, obs: Observation) -> float:
        """Return the probability that an observation shows success, 0 to 1. In a history of
        pictures, only the newest counts.
        """
        picture = np.asarray(tree.part_at(obs, self.spec.path))
        if picture.shape != self.spec.picture.shape:
            picture = picture[-1]
        x = convolved(self._average(picture.astype(np.float32)), self._kernels)
        weight, bias = self._head
        logit = float(weight[0].dot(x.max(axis=(1, 2))) + bias[0])
        return 0.5 + 0.5 * math.tanh(0.5 * logit)
