"""What pages of options have in common: dataclasses, beside their owner, whose fields are written
once.

A page has a field, its default, and a sentence under `Attributes:` for each option; a field's range
stands in its annotation. Constructors, the experiment's YAML and the command line all derive from
it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from tmrl_like.errors import expect

Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[float, Meta(ge=0)]
AboveZero = Annotated[float, Meta(gt=0)]
Port = Annotated[int, Meta(ge=0, le=65535)]

_Page = TypeVar("_Page")
_Init = TypeVar("_Init", bound=Callable[..., None])


class Options:
    """A dataclass of options whose values are in the ranges of their annotations; ConfigError: one
    is not.

    None is in every range. A field that is a Literal is one of its choices.
    """

    def __post_init__(self) -> None:
        page = next(cls for cls in type(self).__mro__ if "__dataclass_fields__" in vars(cls))
        _expect_in_ranges(page, {name: getattr(self, name, None) for name in _hints(page)})


def in_ranges(init: _Init) -> _Init:
    """Decorate a constructor whose arguments must be in the ranges of their annotations, as those
    of `Options`.
    """
    signature = inspect.signature(init)

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        _expect_in_ranges(init, signature.bind(self, *args, **kwargs).arguments)
        init(self, *args, **kwargs)

    return typing.cast(_Init, checked)


def _expect_in_ranges(annotated: Callable[..., Any], values: Mapping[str, Any]) -> None:
    for name, kind in _hints(annotated).items():
        value = values.get(name)
        for part in (kind, *typing.get_args(kind)) if value is not None else ():
            if typing.get_origin(part) is typing.Literal:
                choices = typing.get_args(part)
                expect(
                    value in choices,
                    name,
                    value,
                    " or ".join([", ".join(choices[:-1]), choices[-1]]),
                )
            elif typing.get_origin(part) is Annotated:
                expect_in_range(name, value, *typing.get_args(part)[:2])


def expect_in_range(name: str, value: Any, kind: type, limits: Meta) -> None:
    """Raise ConfigError where a value is not in the range of an `Annotated[kind, limits]`."""
    low, high = (
        limits.ge if limits.gt is None else limits.gt,
        limits.le if limits.lt is None else limits.lt,
    )
    words = f"{low} or more" if limits.gt is None else f"more than {low}"
    if high is not None:
        words = f"{words.removesuffix(' or more')} to {'' if limits.lt is None else 'below '}{high}"
    expect(not isinstance(value, str), name, value, f"a number, {words}")
    above = value > low if limits.gt is not None else value >= low
    below = high is None or (value < high if limits.lt is not None else value <= high)
    expect(above and below, name, value, words)
    expect(kind is not int or value % 1 == 0, name, value, "a whole number")


@functools.lru_cache
def _hints(page: Callable[..., Any]) -> dict[str, Any]:
    return typing.get_type_hints(page, include_extras=True)


def with_given(page: type[_Page], options: _Page | None, **given: Any) -> _Page:
    """The options, or the page's defaults, with those of the arguments that are not None;
    ConfigError: out of range.
    """
    options = page() if options is None else options
    expect(isinstance(options, page), "the type of options", type(options).__name__, page.__name__)
    chosen = {name: value for name, value in given.items() if value is not None}
    return dataclasses.replace(options, **chosen)  # type: ignore[type-var]


def refuse_unknown(what: str, given: Mapping[str, object], page: type) -> None:
    """Raise ConfigError where arguments by name are none that a TypedDict, the `page`, has."""
    known = page.__annotations__
    for name in given:
        expect(name in known, f"an argument of {what}", name, f"one of {', '.join(known)}")


def sentences(page: type) -> dict[str, str]:
    """What each field means, from the `Attributes:` of the class and of those that it is made
    of.
    """
    found: dict[str, str] = {}
    for cls in reversed(page.__mro__):
        for entry in re.split(
            r"\n        (?=\w+: )", (cls.__doc__ or "").partition("Attributes:")[2]
        )[1:]:
            name, _, sentence = entry.partition(": ")
            found[name] = " ".join(sentence.split())
    return found
