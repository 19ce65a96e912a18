"""Names as parts of an engine's subjects."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from tmrl_like.engine.subjects import (
    MAX_RANKS,
    beats_of_rank,
    samples_of_rank,
    samples_subject,
    token,
)
from tmrl_like.wire.messages import share_of

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


@given(names, st.integers(1, MAX_RANKS))
def test_a_subject_with_wildcards_holds_the_workers_that_a_server_gives_a_rank(name, size):
    subject = samples_subject("run", "site", name).split(".")
    matching = [
        number
        for number in range(size)
        if all(
            wanted in ("*", found)
            for wanted, found in zip(
                samples_of_rank("run", number, size).split("."), subject, strict=True
            )
        )
    ]
    assert matching == [share_of(name, size)]


def test_who_is_alone_and_rank_0_hear_all_workers():
    alone = samples_of_rank("run", 0, 1)
    assert set(alone.removeprefix("tmrl.run.s.")) == {"*", "."}
    assert beats_of_rank("run", 0, 6) == alone.replace(".s.", ".b.")
    assert beats_of_rank("run", 1, 6) == samples_of_rank("run", 1, 6).replace(".s.", ".b.")
