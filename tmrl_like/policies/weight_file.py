"""A policy's parameters, without torch: what they are, where they lie, and the safetensors file
that keeps them.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open

from tmrl_like.base.files import write_atomically
from tmrl_like.errors import DamagedPolicyError, PolicyError
from tmrl_like.wire.policy import DtypeName
from tmrl_like.wire.policy import Manifest as Manifest

DTYPES: dict[DtypeName, str] = {
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
"""The usual names of the dtypes that a parameter may have."""

_NUMPY = {name: np.dtype(usual.replace("bfloat16", "uint16")) for name, usual in DTYPES.items()}
_EXPONENT = 0x7F80  # of a bfloat16: all ones in NaN and infinity
_LISTED = 3
# of the metadata; CRC-32 of card and manifest, and of the parameters
_CARD, _CHECKSUMS = "tmrl_like", "checksums"

_Array: TypeAlias = np.ndarray[Any, Any]


class Weights(NamedTuple):
    """A policy's parameters, which lie in memory one after the other, in the manifest's order."""

    manifest: Manifest
    data: bytes | memoryview

    def arrays(self) -> dict[str, _Array]:
        """Views of them, by name; bfloat16 as uint16."""
        found, start = {}, 0
        for name, (dtype, shape) in self.manifest.items():
            found[name] = np.ndarray(shape, _NUMPY[dtype], self.data, start)
            start += found[name].nbytes
        return found


def weights_of(manifest: Manifest, arrays: Mapping[str, _Array]) -> Weights:
    """A copy of arrays, which are as the manifest says."""
    return Weights(manifest, b"".join(arrays[name].tobytes() for name in manifest))


def size_of(manifest: Manifest) -> int:
    """Bytes of all parameters."""
    return sum(math.prod(shape) * _NUMPY[dtype].itemsize for dtype, shape in manifest.values())


# -- files -----------------------------------------------------------------------------------------


def write_weights(path: Path, weights: Weights, card: str = "") -> None:
    """Write a safetensors file, whose metadata hold `card`: after a kill it is the old one or the
    new one, whole.

    The library's own `serialize` copies all parameters while it holds the interpreter, and its
    `serialize_file` knows neither our modes and names of drafts nor OSError; so its header is
    written here. OSError: it cannot be written.
    """
    manifest, data = weights
    header: dict[str, object] = {
        "__metadata__": {_CARD: card, _CHECKSUMS: _crc(_described(card, manifest)) + _crc(data)}
    }
    end = 0
    for name, (dtype, shape) in manifest.items():
        start, end = end, end + size_of({name: (dtype, shape)})
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": (start, end)}
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    write_atomically(path, len(text).to_bytes(8, "little"), text, memoryview(data))


def read_weights(path: Path) -> tuple[str, Weights]:
    """The card in a file, and the parameters in the same file, whatever happens to its name
    meanwhile.

    Raises:
        DamagedPolicyError: not a safetensors file, or not as it was written.
        OSError: the file cannot be read.
    """
    while True:
        with path.open("rb") as file:
            card, manifest, checksum = _read_header(path)
            if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                continue  # it has been replaced
            data = np.empty(size_of(manifest), np.uint8).data
            file.seek(-len(data), os.SEEK_END)
            file.readinto(data)
        if checksum not in ("", _crc(data)):
            raise DamagedPolicyError(
                f"{path} is damaged: its parameters do not match their checksum"
            )
        return card, Weights(manifest, data)


def read_card_text(path: Path) -> str:
    """The card in a file, whose parameters are not read; raises as `read_weights`."""
    return _read_header(path)[0]


def _read_header(path: Path) -> tuple[str, Manifest, str]:
    """Card, manifest, and the checksum of the parameters; text is empty where the file says
    nothing.
    """
    try:
        with safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
            slices = {name: file.get_slice(name) for name in file.offset_keys()}
            manifest = msgspec.convert(
                {k: (s.get_dtype(), s.get_shape()) for k, s in slices.items()}, Manifest
            )
    except (SafetensorError, msgspec.ValidationError) as error:
        raise DamagedPolicyError(f"{path} is not a safetensors file: {error}") from None
    card, checksums = metadata.get(_CARD, ""), metadata.get(_CHECKSUMS, "")
    if checksums[:8] not in ("", _crc(_described(card, manifest))):
        raise DamagedPolicyError(f"{path} is damaged: its header does not match its checksum")
    return card, manifest, checksums[8:]


def _described(card: str, manifest: Manifest) -> bytes:
    return msgspec.msgpack.encode((card, manifest))


def _crc(data: bytes | memoryview) -> str:
    return f"{zlib.crc32(data):08x}"


# -- checks ----------------------------------------------------------------------------------------


def refuse_misfit(actor: str, own: Manifest, other: Manifest) -> None:
    """See that weights are those of an actor, which is called `actor` and has the parameters `own`.

    Raises:
        PolicyError: they are not; the message says what differs.
    """
    missing = [name for name in own if name not in other]
    extra = [name for name in other if name not in own]
    changed = [name for name in own if other.get(name, own[name]) != own[name]]
    parts = [f"missing {', '.join(missing[:_LISTED])}"] * bool(missing)
    parts += [f"unknown {', '.join(extra[:_LISTED])}"] * bool(extra)
    for name in changed[:_LISTED]:
        (dtype, shape), (own_dtype, own_shape) = other[name], own[name]
        found, expected = (
            (shape, own_shape) if shape != own_shape else (DTYPES[dtype], DTYPES[own_dtype])
        )
        parts.append(f"{name} is {found} instead of {expected}")
    if parts:
        raise PolicyError(
            f"weights do not fit {actor}: {'; '.join(parts)}; they are of another environment, "
            "actor class or arguments"
        )


@np.errstate(all="ignore")
def refuse_not_finite(weights: Weights) -> None:
    """PolicyError, with its name: a parameter holds NaN or infinity."""
    for name, values in weights.arrays().items():
        flat = values.reshape(-1)
        if flat.dtype == np.uint16:  # bfloat16
            is_finite = not bool(((flat & _EXPONENT) == _EXPONENT).any())
        else:  # nan and inf survive the product, which is quick; large numbers overflow in it
            is_finite = (
                flat.dtype.kind != "f"
                or math.isfinite(flat.dot(flat))
                or bool(np.isfinite(flat).all())
            )
        if not is_finite:
            raise PolicyError(f"{name} holds values that are not finite")
