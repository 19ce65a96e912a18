"""Names as parts of subjects."""

from __future__ import annotations

import collections
import re

from hypothesis import given
from hypothesis import strategies as st

from tmrl_like.engine.subjects import PARTS, part_of, token

names = st.text(max_size=100)


@given(names)
def test_a_token_is_one_part_of_a_subject(name: str) -> None:
    assert re.fullmatch("[A-Za-z0-9_=-]{1,64}", token(name))


@given(names, names)
def test_different_names_have_different_tokens(one: str, other: str) -> None:
    assert (token(one) == token(other)) == (one == other)


def test_tokens_of_plain_names_are_the_names() -> None:
    assert token("arena-1_b") == "arena-1_b"
    assert token("a.b") == "a=2Eb"
    assert token("é") == "=C3=A9"


def test_workers_with_consecutive_numbers_are_spread_evenly_over_the_parts() -> None:
    for name in ("worker-{}", "robot{}", "{}", "arena.{}"):
        counts = collections.Counter(part_of(name.format(i)) for i in range(1, 4 * PARTS + 1))
        assert set(counts.values()) == {4}, name


@given(names)
def test_a_part_is_one_of_the_parts(name: str) -> None:
    assert part_of(name) in range(PARTS)
