"""A policy's parameters as bytes and back: the safetensors format, without copying a tensor more often than needed.

The library's `save` and `load` copy every tensor while they hold the interpreter lock. With 50 MB that is
tens of milliseconds in which no other thread runs, the control loop among them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import torch

from tmrl_like.errors import DivergedError, PolicyError

_MAX_HEADER_BYTES = 16 << 20
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_Size = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """How a file's header describes a tensor."""

    dtype: str
    shape: list[_Size]
    data_offsets: tuple[_Size, _Size]


def serialize_weights(snapshot: Mapping[str, torch.Tensor]) -> list[bytes | memoryview]:
    """Contiguous tensors on the CPU -> a safetensors file in pieces: its header, then each tensor's own memory."""
    header: dict[str, _Entry] = {}
    pieces: list[bytes | memoryview] = []
    start = 0
    for name, tensor in snapshot.items():
        if tensor.dtype not in _NAMES:
            raise PolicyError(f"{name} has dtype {tensor.dtype}, which weights cannot have")
        end = start + tensor.numel() * tensor.element_size()
        header[name] = _Entry(_NAMES[tensor.dtype], list(tensor.shape), (start, end))
        if end > start:
            pieces.append(tensor.reshape(-1).view(torch.uint8).numpy().data)
        start = end
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little") + text, *pieces]


def first_not_finite(tensors: Mapping[str, torch.Tensor]) -> str:
    """The name of a tensor that holds NaN or infinity; empty: none does. One pass, and one answer to wait for."""
    floats = {name: t for name, t in tensors.items() if t.is_floating_point() and t.numel()}
    if not floats or bool(torch.isfinite(torch.stack([t.sum().float() for t in floats.values()])).all()):
        return ""  # nan and inf survive a sum
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
    data = memoryview(weights).cast("B")
    if data.readonly:
        data = memoryview(bytearray(data))
    try:
        return _tensors(data)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:  # the last are ValueErrors from 0.21 on
        raise PolicyError(f"weights are not a safetensors file: {error}") from None


def _tensors(data: memoryview) -> dict[str, torch.Tensor]:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(_MAX_HEADER_BYTES, len(data) - 8):
        raise ValueError(f"a header of {length} bytes in a file of {len(data)}")
    header = msgspec.json.decode(data[8 : 8 + length], type=dict[str, Any])
    header.pop("__metadata__", None)
    entries = msgspec.convert(header, dict[str, _Entry])
    body = data[8 + length :]
    tensors, position = {}, 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        if entry.dtype not in _DTYPES:
            raise ValueError(f"{name} has the dtype {entry.dtype!r:.40}, which this tmrl_like does not know")
        dtype, (start, end) = _DTYPES[entry.dtype], entry.data_offsets
        if start != position or end > len(body) or end - start != math.prod(entry.shape) * dtype.itemsize:
            raise ValueError(f"{name} lies at {start} to {end}, which does not fit what comes before it or its shape")
        flat = torch.frombuffer(body[start:end], dtype=dtype) if end > start else torch.empty(0, dtype=dtype)
        tensors[name] = flat.reshape(entry.shape)
        position = end
    if position != len(body):
        raise ValueError(f"its tensors end after {position} of {len(body)} bytes")
    return tensors
