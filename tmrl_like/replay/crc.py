"""CRC debugging: is the transition that the memory rebuilt the one that the environment produced, bit for bit?"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from tmrl_like.errors import MemoryContractError, PipelineMismatchError

FIELDS = ("last_obs", "act", "rew", "obs", "terminated", "truncated")
_HINTS = {
    "act": "the sample_compressor, and which sample get_transition takes the action from",
    "rew": "the sample_compressor (does it convert the reward?) and get_transition",
    "terminated": "the order of terminated and truncated in the sample_compressor and in get_transition",
}
_HINTS["truncated"] = _HINTS["terminated"]
_HINT_OBSERVATION = (
    "the sample_compressor, the index arithmetic of get_transition, and that act_buf_len is the environment's"
)


def check_transition(original: Sequence[Any] | None, rebuilt: Sequence[Any]) -> None:
    """Compare a rebuilt transition with what the environment produced.

    Types, dtypes, shapes and bytes are compared, inside tuples, lists and dicts too; -0.0 is not 0.0, and
    NaNs are equal where all their bits are.

    Args:
        original: (last_obs, act, rew, obs, terminated, truncated), what `info.original` of the newer sample
            holds (more items are ignored); last_obs None is not compared.
        rebuilt: what `get_transition` returned, with or without info.

    Raises:
        PipelineMismatchError: they differ; the message names field, element and both values.
        MemoryContractError: there is no original, or one of them has not the right number of items.
    """
    if original is None:
        raise MemoryContractError(
            "crc_debug is on in the memory, but this sample brought no original: switch crc_debug on in the "
            "worker too, and begin without samples of an earlier run (run --fresh, trainer.resume: none)"
        )
    if min(len(original), len(rebuilt)) < len(FIELDS):
        raise MemoryContractError(
            f"the original has {len(original)} items and the rebuilt transition {len(rebuilt)}; both start with "
            f"({', '.join(FIELDS)})"
        )
    for name, produced, found in zip(FIELDS, original, rebuilt, strict=False):
        if name == "last_obs" and produced is None:
            continue
        _compare(produced, found, name)


def _compare(produced: Any, found: Any, path: str) -> None:
    kind = type(produced)
    if kind is not type(found):
        _fail(path, f"type {_type_name(produced)}, {produced!r:.80}", f"type {_type_name(found)}, {found!r:.80}")
    if kind is np.ndarray:
        _compare_arrays(produced, found, path)
    elif isinstance(produced, np.generic):
        _compare_scalars(produced, found, path)
    elif isinstance(produced, tuple | list):
        _compare_sequences(produced, found, path)
    elif isinstance(produced, dict):
        _compare_dicts(produced, found, path)
    elif not _same_plain(produced, found):
        _fail(path, repr(produced), repr(found))


def _compare_arrays(produced: np.ndarray[Any, Any], found: np.ndarray[Any, Any], path: str) -> None:
    if produced.dtype != found.dtype or produced.shape != found.shape:
        _fail(path, f"{produced.dtype.str} {produced.shape}", f"{found.dtype.str} {found.shape}")
    if produced.tobytes() != found.tobytes():
        index, count = _first_difference(produced, found)
        where = f"{path} at element {index}" if produced.shape else path
        _fail(where, _value(produced[index]), _value(found[index]), f"{count} of {produced.size} elements differ; ")


def _first_difference(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> tuple[tuple[int, ...], int]:
    """Return the index of the first element whose bytes differ, and how many differ."""
    rows = [np.frombuffer(array.tobytes(), np.uint8).reshape(array.size, -1) for array in (one, other)]
    different = np.flatnonzero((rows[0] != rows[1]).any(axis=1))
    return tuple(int(i) for i in np.unravel_index(different[0], one.shape)), len(different)


def _compare_scalars(produced: np.generic, found: np.generic, path: str) -> None:
    if produced.dtype != found.dtype or produced.tobytes() != found.tobytes():
        _fail(path, f"{produced.dtype.str} {_value(produced)}", f"{found.dtype.str} {_value(found)}")


def _compare_sequences(produced: Sequence[Any], found: Sequence[Any], path: str) -> None:
    if len(produced) != len(found):
        _fail(path, f"{len(produced)} items", f"{len(found)} items")
    for i, (one, other) in enumerate(zip(produced, found, strict=True)):
        _compare(one, other, f"{path}[{i}]")


def _compare_dicts(produced: dict[Any, Any], found: dict[Any, Any], path: str) -> None:
    if list(produced) != list(found):
        _fail(path, f"the keys {list(produced)}", f"the keys {list(found)}")
    for key, value in produced.items():
        _compare(value, found[key], f"{path}[{key!r}]")


def _same_plain(produced: Any, found: Any) -> bool:
    if isinstance(produced, float):
        return struct.pack("<d", produced) == struct.pack("<d", found)
    if isinstance(produced, complex):
        return _complex_bytes(produced) == _complex_bytes(found)
    return bool(produced == found)


def _complex_bytes(value: complex) -> bytes:
    return struct.pack("<2d", value.real, value.imag)


def _value(value: Any) -> str:
    return f"{value!r} (bytes {value.tobytes().hex()})"


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _fail(path: str, produced: str, found: str, count: str = "") -> NoReturn:
    hint = _HINTS.get(path.partition(" ")[0].partition("[")[0], _HINT_OBSERVATION)
    raise PipelineMismatchError(
        f"{path}: the environment produced {produced}, the memory rebuilt {found}; {count}check {hint}"
    )
