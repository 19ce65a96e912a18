"""Are two samples the same, bit for bit? Stricter than `==`: 1, 1.0 and True differ, and NaN equals itself."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np


def first_difference(actual: Any, expected: Any, name: str = "value") -> str:
    """Say where two nested values first differ in type, dtype, shape, order or bits; "" if nowhere.

    Floats are compared by their bits, so NaN payloads and signs of zeros count. Subclasses of dict
    (`types.Info`) count as dict.
    """
    return next(_differences(actual, expected, name), "")


def _differences(actual: Any, expected: Any, name: str) -> Iterator[str]:
    if _kind(actual) is not _kind(expected):
        yield f"{name} is a {type(actual).__name__}, expected {type(expected).__name__}"
    elif isinstance(expected, np.ndarray | np.generic):
        yield from _array_differences(np.asarray(actual), np.asarray(expected), name)
    elif isinstance(expected, dict):
        if [(type(k), k) for k in actual] != [(type(k), k) for k in expected]:
            yield f"{name} has the keys {list(actual)}, expected {list(expected)}"
        for key in expected:
            yield from _differences(actual[key], expected[key], f"{name}[{key!r}]")
    elif isinstance(expected, tuple | list):
        if len(actual) != len(expected):
            yield f"{name} has {len(actual)} items, expected {len(expected)}"
        for i, (a, e) in enumerate(zip(actual, expected, strict=False)):
            yield from _differences(a, e, f"{name}[{i}]")
    elif _bits(actual) != _bits(expected):
        yield f"{name} is {actual!r}, expected {expected!r}"


def _kind(value: Any) -> type:
    return dict if isinstance(value, dict) else type(value)


def _array_differences(actual: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], name: str) -> Iterator[str]:
    if actual.dtype.str != expected.dtype.str:
        yield f"{name} has dtype {actual.dtype.str}, expected {expected.dtype.str}"
    elif actual.shape != expected.shape:
        yield f"{name} has shape {actual.shape}, expected {expected.shape}"
    elif actual.tobytes() != expected.tobytes():
        yield f"{name} is {actual!r}, expected {expected!r}"


def _bits(value: Any) -> Any:
    if type(value) is float:
        return struct.pack("<d", value)
    if type(value) is complex:
        return struct.pack("<dd", value.real, value.imag)
    return value
