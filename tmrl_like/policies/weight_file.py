"""A policy's parameters, without torch: their description, their memory, and the safetensors file
that stores them.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open

from tmrl_like.base.files import write_atomically
from tmrl_like.errors import DamagedPolicyError, PolicyError
from tmrl_like.wire.policy import DtypeName
from tmrl_like.wire.policy import Manifest as Manifest
from tmrl_like.wire.schema import Array

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
"""The dtypes that a parameter may have, by safetensors' names, with numpy's and torch's names."""

_NUMPY = {name: np.dtype(usual.replace("bfloat16", "uint16")) for name, usual in DTYPES.items()}
_EXPONENT = 0x7F80  # of a bfloat16: all ones in NaN and infinity
_LISTED = 3
# keys in the metadata; the checksums are CRC-32 of card and manifest, then of the parameters
_CARD, _CHECKSUMS = "tmrl_like", "checksums"


class Weights(NamedTuple):
    """A policy's parameters, one after the other in memory, in the manifest's order."""

    manifest: Manifest
    data: bytes | memoryview

    def arrays(self) -> dict[str, Array]:
        """Return views of the parameters, by name; bfloat16 as uint16."""
        found = {}
        for start, _, name in _places(self.manifest):
            dtype, shape = self.manifest[name]
            found[name] = np.ndarray(shape, _NUMPY[dtype], self.data, start)
        return found


def size_of(manifest: Manifest) -> int:
    """Return the size of all parameters in bytes."""
    return sum(math.prod(shape) * _NUMPY[dtype].itemsize for dtype, shape in manifest.values())


# -- files -----------------------------------------------------------------------------------------


def write_weights(path: Path, weights: Weights, card: str = "") -> None:
    """Write a safetensors file whose metadata hold `card`, atomically: a process that is killed
    leaves the whole old file or the whole new one. Raise OSError if it cannot be written.

    The header is written here, since the library's `serialize` copies all parameters while it holds
    the interpreter, and its `serialize_file` knows neither our file modes and temporary names nor
    OSError.
    """
    manifest, data = weights
    header: dict[str, object] = {
        "__metadata__": {_CARD: card, _CHECKSUMS: _crc(_described(card, manifest)) + _crc(data)}
    }
    for start, end, name in _places(manifest):
        dtype, shape = manifest[name]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": (start, end)}
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    write_atomically(path, len(text).to_bytes(8, "little"), text, memoryview(data))


def read_weights(path: Path) -> tuple[str, Weights]:
    """Return the card in a file, and its parameters: both are of one file, even if another takes
    its name meanwhile.

    Raises:
        DamagedPolicyError: it is not a safetensors file, or not as it was written.
        PolicyError: it holds values that are not finite.
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
        weights = Weights(manifest, data)
        try:
            refuse_not_finite(weights)
        except PolicyError as error:
            raise PolicyError(f"{path}: {error}") from None
        return card, weights


def read_card_text(path: Path) -> str:
    """Return the card in a file without reading the parameters; raise as `read_weights` does."""
    return _read_header(path)[0]


def _read_header(path: Path) -> tuple[str, Manifest, str]:
    """Return card, manifest, and the checksum of the parameters. Card and checksum are empty if the
    file has none.
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
    # those without numbers lie at one place, and the library gives them in any order
    names = [name for *_, name in sorted(_places(manifest))]
    return msgspec.msgpack.encode((card, {name: manifest[name] for name in names}))


def _places(manifest: Manifest) -> Iterator[tuple[int, int, str]]:
    """Yield where each parameter begins and ends in memory, and its name."""
    end = 0
    for name, entry in manifest.items():
        start, end = end, end + size_of({name: entry})
        yield start, end, name


def _crc(data: bytes | memoryview) -> str:
    return f"{zlib.crc32(data):08x}"


# -- checks ----------------------------------------------------------------------------------------


def refuse_misfit(actor: str, own: Manifest, other: Manifest) -> None:
    """Check that weights with the manifest `other` fit an actor, which is called `actor` and has
    the manifest `own`.

    Raises:
        PolicyError: they do not; the message says what differs.
    """
    parts = []
    for what, names, others in (("missing", own, other), ("unknown", other, own)):
        lacking = [name for name in names if name not in others]
        if lacking:
            parts.append(f"{what} {', '.join(lacking[:_LISTED])}")
    changed = [name for name in own if other.get(name, own[name]) != own[name]]
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
    """Raise PolicyError, with the parameter's name, if a parameter holds NaN or infinity."""
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
