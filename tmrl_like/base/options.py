"""Common code of options pages: dataclasses, next to their owner, in which each option is written
once.

A page has, for each option, a field with its default, and a sentence under `Attributes:`. A field's
range is in its annotation. Constructors, the experiment's YAML and the command line are all derived
from the page.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from tmrl_like.errors import expect

Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[float, Meta(ge=0)]
AboveZero = Annotated[float, Meta(gt=0)]
Port = Annotated[int, Meta(ge=0, le=65535)]
MAX_REWARD = 1e6
Reward = Annotated[float, Meta(ge=-MAX_REWARD, le=MAX_REWARD)]

_Page = TypeVar("_Page")
_Init = TypeVar("_Init", bound=Callable[..., None])


class Options:
    """Base class for dataclasses of options; raises ConfigError if a value is outside its range.

    Ranges are in the annotations of the fields; None is in that of `... | None`. A whole number
    becomes an int, whatever its type was. A field with a Literal annotation must be one of its
    choices.
    """

    def __post_init__(self) -> None:
        # a subclass that is no dataclass may have annotations that cannot be evaluated
        page = next(cls for cls in type(self).__mro__ if "__dataclass_fields__" in vars(cls))
        values = {name: getattr(self, name, None) for name in _hints(page)}
        for name, value in _in_ranges(page, values).items():
            if value is not values[name]:
                object.__setattr__(self, name, value)  # the page may be frozen


def in_ranges(init: _Init) -> _Init:
    """Decorate a constructor so that it checks its arguments against the ranges in their
    annotations, as `Options` does.
    """
    signature = inspect.signature(init)

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs)
        given.arguments.update(_in_ranges(init, given.arguments))
        init(*given.args, **given.kwargs)

    return typing.cast(_Init, checked)


def _in_ranges(annotated: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Raise ConfigError if a value is outside the range in its annotation; return the values that
    are given, whole numbers as ints.
    """
    return {
        name: in_range(name, values[name], kind)
        for name, kind in _hints(annotated).items()
        if name in values
    }


def in_range(name: str, value: Any, kind: Any) -> Any:
    """Check a value by one annotation; return it, a whole number as an int."""
    parts, origin = typing.get_args(kind), typing.get_origin(kind)
    if origin is Annotated:
        _expect_in_range(name, value, *parts[:2])
        return int(value) if parts[0] is int else value
    if origin is typing.Literal:
        expect(value in parts, name, value, " or ".join([", ".join(parts[:-1]), parts[-1]]))
    elif origin is tuple and typing.get_origin(parts[0]) is Annotated:
        is_any_length = parts[-1] is Ellipsis
        expected = "a list of numbers" if is_any_length else f"{len(parts)} numbers"
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        expect(is_list and (is_any_length or len(value) == len(parts)), name, value, expected)
        return tuple(in_range(f"a number in {name}", entry, parts[0]) for entry in value)
    elif origin in (typing.Union, types.UnionType) and value is not None:
        for part in parts:
            value = in_range(name, value, part)
    return value


def _expect_in_range(name: str, value: Any, kind: type, limits: Meta) -> None:
    """Raise ConfigError if a value is outside the range of an `Annotated[kind, limits]`."""
    low, high = (
        limits.ge if limits.gt is None else limits.gt,
        limits.le if limits.lt is None else limits.lt,
    )
    words = f"{low} or more" if limits.gt is None else f"more than {low}"
    if high is not None:
        words = f"{words.removesuffix(' or more')} to {'' if limits.lt is None else 'below '}{high}"
    expect(isinstance(value, Real), name, value, f"a number, {words}")
    above = value > low if limits.gt is not None else value >= low
    below = high is None or (value < high if limits.lt is not None else value <= high)
    expect(above and below, name, value, words)
    expect(kind is not int or value % 1 == 0, name, value, f"a whole number, {words}")


@functools.lru_cache
def _hints(page: Callable[..., Any]) -> dict[str, Any]:
    return typing.get_type_hints(page, include_extras=True)


def with_given(page: type[_Page], options: _Page | None, **given: Any) -> _Page:
    """Return the options, or the page's defaults, with the given arguments that are not None.

    Raises:
        ConfigError: a value is out of range, or the options are of another page.
    """
    options = page() if options is None else options
    expect(isinstance(options, page), "the type of options", type(options).__name__, page.__name__)
    chosen = {name: value for name, value in given.items() if value is not None}
    return dataclasses.replace(options, **chosen)  # type: ignore[type-var]


def refuse_unknown(what: str, given: Mapping[str, object], page: type) -> None:
    """Raise ConfigError if a given name is not one of the TypedDict `page`."""
    known = page.__annotations__
    for name in given:
        expect(name in known, f"an argument of {what}", name, f"one of {', '.join(known)}")
