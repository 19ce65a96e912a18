"""Names as parts of subjects, and what the roles' rights cover."""

from __future__ import annotations

import collections
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmrl_like.engine.subjects import (
    PARTS,
    GatewayState,
    acks_subject,
    beats_subject,
    gateway_subject,
    inbox,
    leaf_inbox,
    part_of,
    policy_subject,
    rights,
    samples_subject,
    token,
)

names = st.text(max_size=100)


def covers(patterns: tuple[str, ...], subject: str) -> bool:
    """Whether one of NATS's patterns matches a subject: `*` one token, `>` all that follow."""
    ways = (re.escape(pattern).replace(r"\*", "[^.]+").replace(">", ".+") for pattern in patterns)
    return any(re.fullmatch(way, subject) for way in ways)


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


@given(names, names, names, names)
def test_a_sites_rights_cover_its_own_subjects_and_no_other_sites(run: str, site: str, other: str, worker: str) -> None:
    allowed = rights("site", site)
    assert covers(allowed.publish, samples_subject(run, site, worker))
    assert covers(allowed.publish, gateway_subject(run, site))
    assert covers(allowed.hear, acks_subject(run, site))
    assert covers(allowed.hear, policy_subject(run))
    assert not covers(allowed.publish, policy_subject(run))
    if other != site:
        assert not covers(allowed.publish, samples_subject(run, other, worker))
        assert not covers(allowed.hear, acks_subject(run, other))
        assert not covers(allowed.hear, f"{inbox(other)}.x")


def test_a_trainers_rights_cover_no_samples_and_no_end_of_a_stream() -> None:
    allowed = rights("trainer", "gpu")
    assert covers(allowed.publish, policy_subject("run"))
    assert covers(allowed.publish, "$JS.API.STREAM.CREATE.tmrl-run")
    assert covers(allowed.publish, "$JS.arena.API.STREAM.PURGE.tmrl-run")
    for subject in (samples_subject("run", "arena", "w"), "$JS.API.STREAM.DELETE.tmrl-run", "$JS.API.STREAM.UPDATE.x"):
        assert not covers(allowed.publish, subject)


@given(names, names, names)
def test_a_leafs_rights_cover_no_samples_and_no_other_sites_leaf(site: str, other: str, worker: str) -> None:
    allowed = rights("leaf", site)
    assert covers(allowed.publish, beats_subject("run", site, worker))
    assert covers(allowed.publish, f"{leaf_inbox('gpu', token(site))}.x")
    assert covers(allowed.hear, f"$JS.{token(site)}.API.STREAM.CREATE.tmrl-run")
    for subject in (
        samples_subject("run", site, worker),
        policy_subject("run"),
        acks_subject("run", site),
        "_INBOX.gpu.x",
    ):
        assert not covers(allowed.publish, subject)
    if other != site:
        assert not covers(allowed.publish, f"{leaf_inbox('gpu', token(other))}.x")
        assert not covers(allowed.publish, beats_subject("run", other, worker))
        assert not covers(allowed.hear, f"$JS.{token(other)}.API.STREAM.CREATE.tmrl-run")


def test_a_gateways_state_names_no_domain_that_is_more_than_a_token() -> None:
    state = GatewayState("arena", token("arena.1"), workers=3)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=GatewayState) == state
    for domain in ("a.b", "*", ">", "a b", "é"):
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(GatewayState("arena", domain)), type=GatewayState)
