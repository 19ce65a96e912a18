"""Pages of options."""

import math
from dataclasses import dataclass
from typing import Any

import pytest

from tmrl_like.base.options import above_0, at_least, sentences, with_given
from tmrl_like.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Owner:
    """A page.

    Attributes:
        size: how large; a second
            line.
        rate_hz: how often.
    """

    size: int | None = 1
    rate_hz: float = 2.0

    def __post_init__(self) -> None:
        at_least(self, 1, "size")
        above_0(self, "rate_hz")


@dataclass(frozen=True, kw_only=True)
class More(Owner):
    """A page with more.

    Attributes:
        name: what it is called.
    """

    name: str = ""


def test_what_was_given_stands_in_for_what_the_page_says() -> None:
    assert with_given(More, More(size=3, name="a"), size=None, rate_hz=5.0) == More(size=3, rate_hz=5.0, name="a")


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [({"size": 0}, "size is 0; expected 1 or more"), ({"rate_hz": math.nan}, "rate_hz is nan; expected more than 0")],
)
def test_a_value_that_cannot_be_is_named(wrong: dict[str, float], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        with_given(Owner, Owner(size=None), **wrong)


def test_each_field_has_its_sentence_those_of_the_bases_too() -> None:
    assert sentences(More) == {
        "size": "how large; a second line.",
        "rate_hz": "how often.",
        "name": "what it is called.",
    }


@pytest.mark.parametrize("options", [Owner(), {"size": 3}])
def test_options_of_another_page_are_refused(options: Any) -> None:
    with pytest.raises(ConfigError, match=r"the type of options is .*; expected More"):
        with_given(More, options)
