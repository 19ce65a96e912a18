"""Helpers on torch modules, for writing your own agents."""

from __future__ import annotations

from copy import deepcopy
from typing import TypeVar

import torch

M = TypeVar("M", bound=torch.nn.Module)


def no_grad(model: M) -> M:
    """Turn gradients off for all parameters of `model` (in place) and return it."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model


def copy_shared(model: M) -> M:
    """Copy a module so that the copy shares the original's parameters and buffers.

    The copy sees an optimiser step on the original at once. Combined with `no_grad` this gives an
    inference view of a model that is being trained.
    """
    twin = deepcopy(model)
    for ours, theirs in zip(twin.modules(), model.modules(), strict=True):
        ours._buffers.update(theirs._buffers)
    for parameter, original in zip(twin.parameters(), model.parameters(), strict=True):
        parameter.data = original.data
    return twin
