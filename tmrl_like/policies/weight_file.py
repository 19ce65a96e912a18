"""A policy's parameters as bytes: the safetensors format, read and checked without torch."""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, BinaryIO, NamedTuple, TypeAlias

import msgspec
import numpy as np

from tmrl_like.base.files import write_atomically
from tmrl_like.errors import DamagedPolicyError, PolicyError

_MAX_HEADER_BYTES = 16 << 20
_LISTED = 3
_METADATA = "__metadata__"
_CHECKSUMS = "crc32"  # of the header, with zeros in the place of this one, and of what follows
_OF_HEADER = b'"crc32":"%08x'
DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
"""The format's name of each dtype that a parameter may have, and the usual one."""

_NUMPY = {name: np.dtype(usual.replace("bfloat16", "uint16")) for name, usual in DTYPES.items()}
_EXPONENT = 0x7F80  # of a bfloat16: all ones in NaN and infinity
_Size = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]

Manifest: TypeAlias = dict[str, tuple[str, tuple[int, ...]]]
"""Of each parameter, by name: the format's name of its dtype, and its shape."""


class Parameter(NamedTuple):
    """One parameter in a file."""

    dtype: str  # the format's name of it
    shape: tuple[int, ...]
    data: memoryview  # its bytes, a view of the file

    def array(self) -> np.ndarray[Any, Any]:
        """A view of it; bfloat16 as uint16."""
        return np.frombuffer(self.data, _NUMPY[self.dtype]).reshape(self.shape)


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """How a file's header describes a parameter."""

    dtype: str
    shape: list[_Size]
    data_offsets: tuple[_Size, _Size]


def layout_of(manifest: Manifest) -> tuple[bytes, int]:
    """The header of a file of these parameters, which follow it one after the other, and the size of that file."""
    entries: dict[str, _Entry] = {}
    end = 0
    for name, (dtype, shape) in manifest.items():
        start, end = end, end + math.prod(shape) * _NUMPY[dtype].itemsize
        entries[name] = _Entry(dtype, list(shape), (start, end))
    header = _framed(msgspec.json.encode(entries))
    return header, len(header) + end


def _framed(text: bytes) -> bytes:
    """A header: its length, and the text, with spaces up to a multiple of 8 bytes."""
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def for_the_disk(
    weights: bytes | memoryview, metadata: Mapping[str, str] = MappingProxyType({})
) -> tuple[bytes, memoryview]:
    """A file's header, with other metadata and with checksums, and what follows it."""
    end = 8 + int.from_bytes(weights[:8], "little")
    entries = msgspec.json.decode(weights[8:end], type=dict[str, Any])
    body = memoryview(weights)[end:]
    checksums = f"{0:08x}{zlib.crc32(body):08x}"
    header = _framed(msgspec.json.encode({**entries, _METADATA: {**metadata, _CHECKSUMS: checksums}}))
    return header.replace(_OF_HEADER % 0, _OF_HEADER % zlib.crc32(header), 1), body


def _header(data: memoryview) -> tuple[dict[str, Any], Any, str, memoryview]:
    """A file, or its beginning -> its parameters, its metadata, the checksum of its body, if it has one, and its body.

    ValueError: the header is not as it was written.
    """
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(_MAX_HEADER_BYTES, len(data) - 8):
        raise ValueError(f"a header of {length} bytes in a file of {len(data)}")
    head, body = data[: 8 + length], data[8 + length :]
    header = msgspec.json.decode(head[8:], type=dict[str, Any])
    metadata = header.pop(_METADATA, {})
    said = str(metadata.get(_CHECKSUMS, "")) if isinstance(metadata, dict) else ""
    own = int(said[:8] or "0", 16)
    if said and zlib.crc32(bytes(head).replace(_OF_HEADER % own, _OF_HEADER % 0, 1)) != own:
        raise ValueError("its header does not match its checksum")
    return header, metadata, said[8:], body


def read_metadata(file: BinaryIO) -> dict[str, str]:
    """What the header of a safetensors file says beside its parameters, which are not read.

    Raises:
        DamagedPolicyError: not a safetensors file.
        OSError: the file cannot be read.
    """
    head = file.read(8)
    head += file.read(min(int.from_bytes(head, "little"), _MAX_HEADER_BYTES))
    try:
        return msgspec.convert(_header(memoryview(head))[1], dict[str, str])
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise DamagedPolicyError(f"{file.name} is not a safetensors file: {error}") from None


def read_file(weights: bytes | bytearray | memoryview) -> dict[str, Parameter]:
    """The bytes of a safetensors file -> its parameters, by name, none of them copied.

    Raises:
        DamagedPolicyError: not a safetensors file, or its parameters do not lie in it one after the other.
    """
    try:
        return _read(memoryview(weights).cast("B"))
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:  # the last are ValueErrors from 0.21 on
        raise DamagedPolicyError(f"weights are not a safetensors file: {error}") from None


def _read(data: memoryview) -> dict[str, Parameter]:
    header, _, checksum, body = _header(data)
    entries = msgspec.convert(header, dict[str, _Entry])
    if checksum and zlib.crc32(body) != int(checksum, 16):
        raise ValueError("its parameters do not match their checksum")
    parameters, position = {}, 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        if entry.dtype not in _NUMPY:
            raise ValueError(f"{name} has the dtype {entry.dtype!r:.40}, which this tmrl_like does not know")
        start, end = entry.data_offsets
        size = math.prod(entry.shape) * _NUMPY[entry.dtype].itemsize
        if start != position or end > len(body) or end - start != size:
            raise ValueError(f"{name} lies at {start} to {end}, which does not fit what comes before it or its shape")
        parameters[name] = Parameter(entry.dtype, tuple(entry.shape), body[start:end])
        position = end
    if position != len(body):
        raise ValueError(f"its tensors end after {position} of {len(body)} bytes")
    return parameters


class OnDisk:
    """What an actor has beside `weights`, `load_weights` and `to_device`: weights in a file."""

    def save(self: Any, path: str | os.PathLike[str]) -> None:
        """Write the weights atomically: after a kill the file is the old one or the new one, whole."""
        write_atomically(Path(path), *for_the_disk(self.weights()))

    def load(self: Any, path: str | os.PathLike[str], device: str = "cpu") -> Any:
        """Read weights written by `save`; returns what `to_device(device)` does.

        Raises:
            PolicyError: the file is damaged or belongs to another actor; the message names it.
            OSError: the file cannot be read.
        """
        try:
            self.load_weights(Path(path).read_bytes())
        except PolicyError as error:
            raise type(error)(f"{path}: {error}") from None
        return self.to_device(device)


def manifest_of(parameters: Mapping[str, Parameter]) -> Manifest:
    """What a file holds."""
    return {name: (parameter.dtype, parameter.shape) for name, parameter in parameters.items()}


def refuse_misfit(actor: str, own: Manifest, other: Manifest) -> None:
    """See that weights are those of an actor, which is called `actor` and has the parameters `own`.

    Raises:
        PolicyError: they are not; the message says what differs.
    """
    missing = [name for name in own if name not in other]
    extra = [name for name in other if name not in own]
    changed = [
        f"{name} is {_form(other[name], form)} instead of {_form(form, other[name])}"
        for name, form in own.items()
        if other.get(name, form) != form
    ]
    parts = [f"missing {', '.join(missing[:_LISTED])}"] * bool(missing)
    parts += [f"unknown {', '.join(extra[:_LISTED])}"] * bool(extra)
    parts += changed[:_LISTED]
    if parts:
        raise PolicyError(
            f"weights do not fit {actor}: {'; '.join(parts)}; they are of another environment, actor class or arguments"
        )


def _form(one: tuple[str, tuple[int, ...]], other: tuple[str, tuple[int, ...]]) -> str:
    """What tells a parameter from another one: its shape, else its dtype."""
    return str(one[1]) if one[1] != other[1] else DTYPES[one[0]]


def first_not_finite(parameters: Mapping[str, Parameter]) -> str:
    """The name of a parameter that holds NaN or infinity; empty: none does."""
    return next((name for name, parameter in parameters.items() if not _is_finite(parameter)), "")


@np.errstate(all="ignore")
def _is_finite(parameter: Parameter) -> bool:
    flat = parameter.array().reshape(-1)
    if parameter.dtype == "BF16":
        return not bool(((flat & _EXPONENT) == _EXPONENT).any())
    if flat.dtype.kind != "f":
        return True
    # nan and inf survive the product, which is quick; large numbers overflow in it
    return math.isfinite(flat.dot(flat)) or bool(np.isfinite(flat).all())
