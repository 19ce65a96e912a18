"""Walks over nested values: tuples, lists and dicts of leaves, and gymnasium's Tuple and Dict
spaces.

Several values can be walked together, down to where one of them is a leaf or their keys differ. The
order and containers are those of the first value, so that, for example, an action space can be
walked together with an action that is configured as a list.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

Path = tuple[Any, ...]
"""Keys and positions, from the outside in."""


def map_leaves(call: Callable[..., Any], first: Any, *others: Any) -> Any:
    """Call a function with the parts at each place, and return the results in containers like those
    of the first value (but never in spaces).

    Parts whose keys differ are passed as a whole.
    """
    if (keys := _kind_of(type(first)) and _common_keys(first, others)) is None:
        return call(first, *others)
    if others:
        items = [map_leaves(call, *parts) for parts in _parts(keys, (first, *others))]
    else:  # fast path of the control loop: no call of this function per leaf
        parts = first.values() if isinstance(first, Mapping) else first
        items = [
            call(part) if _kind_of(type(part)) is None else map_leaves(call, part) for part in parts
        ]
    if isinstance(first, Mapping):
        return dict(zip(keys, items, strict=True))
    if isinstance(first, list):
        return items
    return type(first)(*items) if hasattr(first, "_fields") else tuple(items)


def walk(first: Any, *others: Any, path: Path = ()) -> Iterator[tuple[Any, ...]]:
    """Yield (path, part of the first, part of the second, …) for each place, left to right; see
    `map_leaves`.
    """
    keys = _common_keys(first, others)
    if keys is None:
        yield path, first, *others
    else:
        for key, parts in zip(keys, _parts(keys, (first, *others)), strict=True):
            yield from walk(*parts, path=(*path, key))


def leaves(value: Any) -> Iterator[Any]:
    """Iterate over all leaves, left to right."""
    return (leaf for _, leaf in walk(value))


def fill(like: Any, values: Iterator[Any]) -> Any:
    """Return a structure like `like` with its leaves replaced by the values, left to right."""
    return map_leaves(lambda _: next(values), like)


def is_leaf(value: Any) -> bool:
    """Whether a value is a leaf: not a tuple, list, dict or space of spaces."""
    return _kind_of(type(value)) is None


def name_of(path: Path) -> str:
    """Return a place as it is written after the name of the whole value: `[0]['camera']`."""
    return "".join(f"[{key!r}]" for key in path)


def part_at(value: Any, path: Path) -> Any:
    """Return the part of a value at a place."""
    for key in path:
        value = value[key]
    return value


def outline(value: Any) -> str:
    """Return the types and shapes in a value, for a message; no more than 500 characters."""
    kind = type(value).__name__
    if isinstance(value, tuple | list):
        text = f"{kind} of {', '.join(map(outline, value))}" if value else f"an empty {kind}"
    elif isinstance(value, dict):
        text = "{" + ", ".join(f"{key!r}: {outline(part)}" for key, part in value.items()) + "}"
    elif hasattr(value, "dtype"):
        text = f"{value.dtype} {value.shape}"
    else:
        text = f"{kind} {value!r:.40}"
    return text if len(text) <= 500 else f"{text[:499]}…"


def _common_keys(first: Any, others: Sequence[Any]) -> Collection[Any] | None:
    """Return the common keys or positions; None if a value is a leaf, or if they differ."""
    kind = _kind_of(type(first))
    if kind is None or any(_kind_of(other) is not kind for other in set(map(type, others))):
        return None
    if kind is Mapping:
        return first.keys() if all(other.keys() == first.keys() for other in others) else None
    return range(len(first)) if set(map(len, others)) <= {len(first)} else None


def _parts(keys: Collection[Any], values: Sequence[Any]) -> Iterable[Sequence[Any]]:
    """Return, for each of the common keys, the parts of all values."""
    if isinstance(keys, range):
        return zip(*values, strict=True)
    return ([value[key] for value in values] for key in keys)


def _find_kind(type_: type) -> Any:
    if issubclass(type_, str | bytes | bytearray | memoryview | range):
        return None
    return next((kind for kind in (Mapping, Sequence) if issubclass(type_, kind)), None)


_kind_of: Callable[[type], Any] = lru_cache(maxsize=1024)(_find_kind)
