"""Dataclasses of options."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import pytest
from msgspec import Meta

from tmrl_like.base.options import (
    AboveZero,
    Options,
    Port,
    Positive,
    in_ranges,
    with_given,
)
from tmrl_like.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Owner(Options):
    """A page.

    Attributes:
        size: how large.
        rate_hz: how often.
        share: of it.
        port: where.
        mode: in which way.
        sizes: several.
        shares: two of them.
    """

    size: Positive | None = 1
    rate_hz: AboveZero = 2.0
    share: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    mode: Literal["a", "b", "c"] = "a"
    sizes: tuple[Positive, ...] = (1, 2)
    shares: tuple[Annotated[float, Meta(ge=0, lt=1)], Annotated[float, Meta(ge=0, lt=1)]] = (0, 0)


@dataclass(frozen=True, kw_only=True)
class More(Owner):
    """A page with more.

    Attributes:
        name: what it is called.
    """

    name: str = ""


def test_what_was_given_stands_in_for_what_the_page_says():
    assert with_given(More, More(size=3, name="a"), size=None, rate_hz=5.0) == More(
        size=3, rate_hz=5.0, name="a"
    )


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"size": 0}, "size is 0; expected 1 or more"),
        ({"size": 1.5}, "size is 1.5; expected a whole number, 1 or more"),
        ({"rate_hz": math.nan}, "rate_hz is nan; expected more than 0"),
        ({"rate_hz": "fast"}, "rate_hz is 'fast'; expected a number, more than 0"),
        ({"port": 65536}, "port is 65536; expected 0 to 65535"),
        ({"mode": "d"}, "mode is 'd'; expected a, b or c"),
        ({"sizes": [3, 0]}, "a number in sizes is 0; expected 1 or more"),
        ({"sizes": "256"}, "sizes is '256'; expected a list of numbers"),
        ({"shares": (0.5, 1.0)}, "a number in shares is 1.0; expected 0 to below 1"),
        ({"shares": (0.5,)}, r"shares is \(0.5,\); expected 2 numbers"),
    ],
)
def test_a_value_that_cannot_be_is_named(wrong, problem):
    with pytest.raises(ConfigError, match=f"^{problem}$"):
        with_given(Owner, Owner(size=None, share=0.5, port=65535), **wrong)


class Counter:
    @in_ranges
    def __init__(self, size: Positive | None = None, port: Port = 0) -> None:
        self.size = size


@pytest.mark.parametrize("page", [Owner, Counter])
def test_none_is_refused_where_there_must_be_a_number(page):
    with pytest.raises(ConfigError, match=r"^port is None; expected a number, 0 to 65535$"):
        page(port=None)


@pytest.mark.parametrize("page", [Owner, Counter])
@pytest.mark.parametrize("number", [1e3, np.int64(1000)], ids=["float", "numpy"])
def test_a_whole_number_of_another_type_becomes_an_int(page, number):
    assert page(size=None).size is None
    size = page(size=number).size
    assert (size, type(size)) == (1000, int)
    assert list(map(type, Owner(sizes=[number]).sizes)) == [int]


@pytest.mark.parametrize("options", [Owner(), {"size": 3}])
def test_options_of_another_page_are_refused(options):
    with pytest.raises(ConfigError, match=r"the type of options is .*; expected More"):
        with_given(More, options)


def test_annotations_of_a_subclass_that_is_no_dataclass_are_not_evaluated():
    class Mine(Owner):
        note: "Nonesuch"  # noqa: F821

    with pytest.raises(ConfigError, match="size is 0; expected 1 or more"):
        Mine(size=0)
