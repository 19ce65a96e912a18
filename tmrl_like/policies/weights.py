"""A policy's parameters as torch tensors, with as few copies as possible."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tmrl_like.errors import DivergedError, PolicyError
from tmrl_like.policies.weight_file import DTYPES, Manifest, Weights, size_of

_DTYPES = {name: getattr(torch, usual) for name, usual in DTYPES.items()}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def manifest_of(tensors: Mapping[str, torch.Tensor]) -> Manifest:
    """Return the manifest of tensors; raise PolicyError for a dtype that weights cannot have."""
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise PolicyError(f"{name} has dtype {tensor.dtype}, which weights cannot have")
    return {name: (_NAMES[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors.items()}


def tensors_of(weights: Weights) -> dict[str, torch.Tensor]:
    """Return the parameters as tensors by name: views of the memory if it can be written to, else
    of a copy.
    """
    manifest, data = weights
    writable = memoryview(bytearray(data) if memoryview(data).readonly else data)
    arrays = Weights(manifest, writable).arrays()
    return {
        name: torch.from_numpy(array).view(_DTYPES[manifest[name][0]])
        for name, array in arrays.items()
    }


class WeightsCopy:
    """Memory on the CPU for a copy of tensors, to be filled often, since allocating memory takes
    longer than copying.

    Attributes:
        content: the copy.
        tensors: views of it, by name.
    """

    def __init__(self, like: Mapping[str, torch.Tensor]) -> None:
        """Allocate memory for tensors like these, page-locked if a GPU writes to it.

        Raises:
            PolicyError: a tensor has a dtype that weights cannot have.
        """
        self._filled: list[torch.cuda.Event] = []
        manifest = manifest_of(like)
        self._gpus = _gpus_of(like)
        memory = torch.empty(size_of(manifest), dtype=torch.uint8, pin_memory=bool(self._gpus))
        self.content = Weights(manifest, memory.numpy().data)
        self.tensors = tensors_of(self.content)

    def fits(self, tensors: Mapping[str, torch.Tensor]) -> bool:
        """Whether this memory can hold a copy of `tensors`."""
        own, other = self.content.manifest, manifest_of(tensors)
        return _gpus_of(tensors) == self._gpus and list(other.items()) == list(own.items())

    def fill(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy tensors that fit, without waiting for a GPU, which copies them before any later
        operation changes them.
        """
        if tensors:
            own, others = list(self.tensors.values()), list(tensors.values())
            torch._foreach_copy_(own, others, non_blocking=bool(self._gpus))
        self._filled = [torch.cuda.current_stream(gpu).record_event() for gpu in self._gpus]

    def wait(self) -> None:
        """Wait until the copy is complete. Any thread."""
        for filled in self._filled:
            filled.synchronize()

    def __del__(self) -> None:
        # torch does not know that a GPU still writes to these views, and may reuse the memory
        self.wait()


def _gpus_of(tensors: Mapping[str, torch.Tensor]) -> set[torch.device]:
    return {tensor.device for tensor in tensors.values() if tensor.device.type == "cuda"}


def copied(tensors: Mapping[str, torch.Tensor]) -> WeightsCopy:
    """Return a copy of tensors as they are now."""
    copy = WeightsCopy(tensors)
    copy.fill(tensors)
    copy.wait()
    return copy


def refuse_diverged(tensors: Mapping[str, torch.Tensor]) -> None:
    """Check that all weights are finite before they leave the trainer, in one pass with one result
    to wait for.

    Raises:
        DivergedError: a tensor holds NaN or infinity.
    """
    floats = {name: t for name, t in tensors.items() if t.is_floating_point() and t.numel()}
    if not floats or bool(
        torch.isfinite(torch.stack(torch._foreach_norm(list(floats.values())))).all()
    ):
        return  # nan and inf survive a norm
    for name, tensor in floats.items():
        if not bool(torch.isfinite(tensor).all()):
            raise DivergedError(
                f"training has diverged: {name} holds values that are not finite; the last "
                "checkpoint and the policy published last are kept: look for a learning rate that "
                "is too high, extreme rewards, and a memory or a preprocessor that returns NaN"
            )
