"""Numpy layers that networks of vectors and of pictures have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

EPS = 1e-5  # of torch's layer normalisation

Floats: TypeAlias = NDArray[np.float32]


class WeightAndBias(NamedTuple):
    """The parameters of a linear layer, a convolution or a normalisation."""

    # [width, width before]; convolution: [channels, channels before, kernel, kernel];
    # normalisation: [width]
    weight: Floats
    bias: Floats  # [width]


def layer_of(parameters: Mapping[str, Floats], name: str) -> WeightAndBias:
    """Return the parameters of the layer of this name, without a copy."""
    return WeightAndBias(parameters[f"{name}.weight"], parameters[f"{name}.bias"])


def normalise(x: Floats, norm: WeightAndBias) -> None:
    """Apply layer normalisation to x, [width], in place: Ba, Kiros and Hinton 2016
    (arXiv:1607.06450), eq. 4.
    """
    x -= np.add.reduce(x) / len(x)
    x *= norm.weight / math.sqrt(x.dot(x) / len(x) + EPS)
    x += norm.bias
