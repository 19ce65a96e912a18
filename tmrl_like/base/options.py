"""What pages of options have in common: dataclasses, beside their owner, whose fields are written once.

A page has a field, its default, a sentence under `Attributes:` and a check in `__post_init__` for each option.
Constructors, the experiment's YAML and the command line all derive from it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from tmrl_like.errors import expect

_Page = TypeVar("_Page")


def with_given(page: type[_Page], options: _Page | None, **given: Any) -> _Page:
    """The options, or the page's defaults, with those of the arguments that are not None; ConfigError: out of range."""
    options = page() if options is None else options
    expect(isinstance(options, page), "the type of options", type(options).__name__, page.__name__)
    chosen = {name: value for name, value in given.items() if value is not None}
    return dataclasses.replace(options, **chosen)  # type: ignore[type-var]


def refuse_unknown(what: str, given: Mapping[str, object], page: type) -> None:
    """Raise ConfigError where arguments by name are none that a TypedDict, the `page`, has."""
    known = page.__annotations__
    for name in given:
        expect(name in known, f"an argument of {what}", name, f"one of {', '.join(known)}")


def at_least(page: object, least: float, *names: str) -> None:
    """Raise ConfigError where one of the fields is less, or not a number; one that is None is not looked at."""
    for name in names:
        value = getattr(page, name)
        expect(value is None or value >= least, name, value, f"{least} or more")


def above_0(page: object, *names: str) -> None:
    """Raise ConfigError where one of the fields is 0, negative, or not a number."""
    for name in names:
        expect(getattr(page, name) > 0, name, getattr(page, name), "more than 0")


def sentences(page: type) -> dict[str, str]:
    """What each field means, from the `Attributes:` of the class and of those that it is made of."""
    found: dict[str, str] = {}
    for cls in reversed(page.__mro__):
        for entry in re.split(r"\n        (?=\w+: )", (cls.__doc__ or "").partition("Attributes:")[2])[1:]:
            name, _, sentence = entry.partition(": ")
            found[name] = " ".join(sentence.split())
    return found
