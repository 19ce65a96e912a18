"""A policy's parameters as bytes and back, without copying a tensor more often than needed.

The library safetensors copies every tensor in `save` and `load` while it holds the interpreter lock. With 50 MB that is
tens of milliseconds in which no other thread runs, the control loop among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import torch

from tmrl_like.errors import DivergedError, PolicyError
from tmrl_like.policies.weight_file import DTYPES, Manifest, layout_of, read_file

_DTYPES = {name: getattr(torch, usual) for name, usual in DTYPES.items()}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

Form: TypeAlias = list[tuple[str, torch.Size, torch.dtype, torch.device]]
"""Name, shape, dtype and device of each tensor."""


def manifest_of_tensors(tensors: Mapping[str, torch.Tensor]) -> Manifest:
    """What their file would hold; raises as `manifest_of_form`."""
    return manifest_of_form(form_of(tensors))


def form_of(tensors: Mapping[str, torch.Tensor]) -> Form:
    """What a copy of them needs memory for."""
    return [(name, t.shape, t.dtype, t.device) for name, t in tensors.items()]


def manifest_of_form(form: Form) -> Manifest:
    """What a file of such tensors would hold.

    Raises:
        PolicyError: a dtype that weights cannot have.
    """
    for name, _, dtype, _ in form:
        if dtype not in _NAMES:
            raise PolicyError(f"{name} has dtype {dtype}, which weights cannot have")
    return {name: (_NAMES[dtype], tuple(shape)) for name, shape, dtype, _ in form}


class WeightsCopy:
    """Memory on the CPU for a copy of tensors, to be filled often: to make new memory takes longer than to copy.

    Attributes:
        form: of the tensors that it takes.
        file: the copy, as a safetensors file.
        tensors: views of what is in it, by name.
    """

    def __init__(self, form: Form) -> None:
        """Make the memory; page-locked where a GPU is to write to it.

        Raises:
            PolicyError: a dtype that weights cannot have.
        """
        self.form = form
        self._gpus = {device for *_, device in form if device.type == "cuda"}
        self._filled: list[torch.cuda.Event] = []
        header, size_bytes = layout_of(manifest_of_form(form))
        memory = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=bool(self._gpus))
        self.file = memory.numpy().data
        self.file[: len(header)] = header
        self.tensors = parse_weights(self.file)

    def fill(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy tensors of this form, without waiting for a GPU: it does so in its turn, before it changes them."""
        if tensors:
            own, others = list(self.tensors.values()), list(tensors.values())
            torch._foreach_copy_(own, others, non_blocking=bool(self._gpus))
        self._filled = [torch.cuda.current_stream(gpu).record_event() for gpu in self._gpus]

    def wait(self) -> None:
        """Wait until it is filled; any thread may."""
        for filled in self._filled:
            filled.synchronize()

    def __del__(self) -> None:
        self.wait()  # torch, which sees only views of the memory filled, may give it to somebody else


def first_not_finite(tensors: Mapping[str, torch.Tensor]) -> str:
    """The name of a tensor that holds NaN or infinity; empty: none does. One pass, and one answer to wait for."""
    floats = {name: t for name, t in tensors.items() if t.is_floating_point() and t.numel()}
    if not floats or bool(torch.isfinite(torch.stack(torch._foreach_norm(list(floats.values())))).all()):
        return ""  # nan and inf survive a norm
    return next((name for name, t in floats.items() if not bool(torch.isfinite(t).all())), "")


def refuse_diverged(tensors: Mapping[str, torch.Tensor]) -> None:
    """See that weights may leave the training.

    Raises:
        DivergedError: one of them holds NaN or infinity.
    """
    if name := first_not_finite(tensors):
        raise DivergedError(
            f"training has diverged: {name} holds values that are not finite; the last checkpoint and the policy "
            "published last are kept: look for a learning rate that is too high, and for extreme rewards"
        )


def parse_weights(weights: bytes | bytearray | memoryview) -> dict[str, torch.Tensor]:
    """The bytes of a safetensors file -> its tensors, by name.

    Args:
        weights: the whole file. Tensors are views of it where it can be written to, else of a copy.

    Raises:
        PolicyError: not a safetensors file, or its tensors do not lie in it one after the other.
    """
    data = memoryview(weights)
    tensors = {}
    for name, (dtype, shape, part) in read_file(bytearray(data) if data.readonly else data).items():
        flat = torch.frombuffer(part, dtype=_DTYPES[dtype]) if part else torch.empty(0, dtype=_DTYPES[dtype])
        tensors[name] = flat.reshape(shape)
    return tensors
