"""Turns a list of transitions into tensors: equal structures are stacked leaf by leaf.

torch is imported only where tensors are made: a worker, which needs a memory's compressor, makes
none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tmrl_like.base import tree
from tmrl_like.errors import MemoryContractError
from tmrl_like.replay.row_set import Array
from tmrl_like.types import Batch, Observation

if TYPE_CHECKING:
    import torch

Six: TypeAlias = tuple[Any, ...]
"""The items of a transition without its info: last_obs, act, rew, obs, terminated, truncated."""


def collate_batch(transitions: Sequence[Six], device: str) -> Batch:
    """Stack (last_obs, act, rew, obs, terminated, truncated) tuples. Raises as `stack` does.

    Observations and actions keep structure and dtypes; reward and flags become float32 [B].
    """
    if set(map(len, transitions)) != {len(Batch._fields)}:
        raise MemoryContractError(
            f"a transition to collate has {len(Batch._fields)} items: (last_obs, act, rew, obs, …)"
        )
    last_obs, act, rew, obs, terminated, truncated = zip(*transitions, strict=True)
    return Batch(
        stack(last_obs, device, "last_obs"),
        stack(act, device, "act"),
        float_vector(rew, device, "rew"),
        stack(obs, device, "obs"),
        float_vector(terminated, device, "terminated"),
        float_vector(truncated, device, "truncated"),
    )


def stack(values: Sequence[Observation], device: str, name: str = "value") -> Observation:
    """Stack B values of one structure: return the structure with tensors [B, ...] on `device` as
    leaves.

    Numbers become tensors [B] of numpy's dtype for them (float64 for a Python float, as on the
    worker).

    Raises:
        MemoryContractError: the values do not share one structure; the message names the leaf.
    """
    tensors = (
        _stacked(parts, device, f"{name}{tree.name_of(path)}")
        for path, *parts in tree.walk(*values)
    )
    return tree.fill(values[0], tensors)


def _stacked(values: Sequence[Observation], device: str, name: str) -> torch.Tensor:
    if not tree.is_leaf(values[0]):
        raise MemoryContractError(
            f"{name} has not the same structure in all transitions of a batch"
        )
    import torch

    try:
        if isinstance(values[0], torch.Tensor):
            return torch.stack(list(values)).to(device)
        return to_tensor(
            _stack_arrays(values) if isinstance(values[0], np.ndarray) else np.asarray(values),
            device,
        )
    except (ValueError, TypeError, RuntimeError, AttributeError) as error:
        raise MemoryContractError(f"{name} cannot be stacked into a tensor: {error}") from None


def _stack_arrays(values: Sequence[Array]) -> Array:
    """Do what `np.stack` does, in a third of its time if the arrays have dimensions."""
    shapes = {value.shape for value in values}
    if len(shapes) > 1 or () in shapes:
        return np.stack(values)
    return np.concatenate(values).reshape(len(values), *values[0].shape)


def float_vector(values: Sequence[object], device: str, name: str) -> torch.Tensor:
    """Turn B numbers (Python's, numpy's, arrays or tensors of one element) into float32 [B]. Raises
    MemoryContractError for anything else.
    """
    try:
        return to_tensor(np.array(values, np.float32).reshape(len(values)), device)
    except (ValueError, TypeError):
        raise MemoryContractError(
            f"{name} is not one number per transition: {values[0]!r:.80}"
        ) from None


def to_tensor(array: Array, device: str) -> torch.Tensor:
    """Turn an array into a tensor on `device`, sharing memory if possible (on the CPU). Raises
    TypeError if torch has no such dtype.
    """
    import torch

    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    tensor = torch.from_numpy(array)
    return tensor if device == "cpu" else tensor.to(device)
