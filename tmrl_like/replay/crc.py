"""CRC debugging: checks, bit for bit, whether a transition that the memory rebuilt is the one that
the environment produced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from tmrl_like.errors import MemoryContractError, PipelineMismatchError
from tmrl_like.replay.row_set import Array
from tmrl_like.types import Observation

_OBSERVATION = (
    "the sample_compressor, the index arithmetic of get_transition, that act_buf_len is the "
    "environment's, and that it always returns the same dtype"
)
_FLAGS = "the order of terminated and truncated in the sample_compressor and in get_transition"
_HINTS = {
    "last_obs": _OBSERVATION,
    "act": "the sample_compressor, and which sample get_transition takes the action from",
    "rew": "the sample_compressor (does it convert the reward?) and get_transition",
    "obs": _OBSERVATION,
    "terminated": _FLAGS,
    "truncated": _FLAGS,
}
FIELDS = tuple(_HINTS)
Rebuilt: TypeAlias = Sequence[Any]
"""A transition: (last_obs, act, rew, obs, terminated, truncated[, info])."""
Difference: TypeAlias = tuple[str, ...]  # where two values differ, and what each of them is there


def check_transition(original: Rebuilt | None, rebuilt: Rebuilt) -> None:
    """Compare a rebuilt transition, with or without info, with what the environment produced; see
    `first_difference`.

    `original` is the `info.original` of the newer sample: (last_obs, act, rew, obs, terminated,
    truncated). Further items are ignored, and a last_obs of None is not compared.

    Raises:
        PipelineMismatchError: they differ; the message names field, element and both values.
        MemoryContractError: there is no original, or one of the two has too few items.
    """
    if original is None:
        raise MemoryContractError(
            "crc_debug is on in the memory, but this sample brought no original: switch crc_debug "
            "on in the worker too, and begin without samples of an earlier run (run --fresh, "
            "trainer.resume: none)"
        )
    if min(len(original), len(rebuilt)) < len(FIELDS):
        raise MemoryContractError(
            f"the original has {len(original)} items and the rebuilt transition {len(rebuilt)}; "
            f"both start with ({', '.join(FIELDS)})"
        )
    for name, produced, found in zip(FIELDS, original, rebuilt, strict=False):
        is_compared = name != "last_obs" or produced is not None
        if is_compared and (difference := first_difference(produced, found, name)):
            place, of_environment, of_memory = difference
            raise PipelineMismatchError(
                f"{place}: the environment produced {of_environment}, the memory rebuilt "
                f"{of_memory}; check {_HINTS[name]}; if the sample_compressor was wrong, begin "
                "without the samples that it made (run --fresh, trainer.resume: none)"
            )


def first_difference(one: Observation, other: Observation, name: str) -> Difference | None:
    """Return where two nested values first differ in type, dtype, shape, order or bits; None:
    nowhere.

    1, 1.0 and True differ, and so do -0.0 and 0.0; NaNs are equal if all their bits are. Subclasses
    of dict count as dict.
    """
    form = _form_of(one)
    other_form = _form_of(other)
    if form != other_form:
        return name, f"{form}, {one!r:.80}", f"{other_form}, {other!r:.80}"
    if isinstance(one, tuple | list | dict):
        keys = one if isinstance(one, dict) else range(len(one))
        differences = (first_difference(one[key], other[key], f"{name}[{key!r}]") for key in keys)
        return next(filter(None, differences), None)
    if isinstance(one, np.ndarray | np.generic | float):
        return _difference_of_arrays(np.asarray(one), np.asarray(other), name)
    return None if one == other else (name, repr(one), repr(other))


def _form_of(value: Observation) -> str:
    """Describe what must be equal before the contents of two values can be compared."""
    if isinstance(value, dict):
        return f"a dict with the keys {list(value)}"
    kind = type(value)
    if isinstance(value, tuple | list):
        return f"{kind} of {len(value)} items"
    if isinstance(value, np.ndarray | np.generic):
        return f"{kind} {value.dtype.str} {value.shape}"
    return str(kind)


def _difference_of_arrays(one: Array, other: Array, name: str) -> Difference | None:
    """Return where two arrays of one form first differ in bits."""
    if one.tobytes() == other.tobytes():
        return None
    differ = [
        place for place in np.ndindex(one.shape) if one[place].tobytes() != other[place].tobytes()
    ]
    if one.shape:
        name += f" at element {differ[0]} ({len(differ)} of {one.size} elements differ)"
    found = (array[differ[0]] for array in (one, other))
    return (name, *(f"{value!r} (bytes {value.tobytes().hex()})" for value in found))
