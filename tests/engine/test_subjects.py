"""Names as parts of an engine's subjects."""

import re

from hypothesis import given
from hypothesis import strategies as st

from tmrl_like.engine.subjects import token

names = st.text(max_size=100)


@given(names)
def test_a_token_is_one_part_of_a_subject(name):
    assert re.fullmatch("[A-Za-z0-9_=-]{1,64}", token(name))


@given(names, names)
def test_different_names_have_different_tokens(one, other):
    assert (token(one) == token(other)) == (one == other)


def test_tokens_of_plain_names_are_the_names():
    assert token("arena-1_b") == "arena-1_b"
    assert token("a.b") == "a=2Eb"
    assert token("é") == "=C3=A9"
