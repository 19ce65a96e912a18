"""Policies in frames: whole or refused."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tmrl_like.errors import DecodingError, OversizeError
from tmrl_like.wire import messages as m
from tmrl_like.wire.policy import FRAME_BYTES, PolicyAssembler, split_policy


def frames_of(weights: bytes, version: int = 1) -> list[tuple[m.PolicyFrame, memoryview]]:
    decoded = [m.decode(data) for data in split_policy(weights, version, 1.5)]
    return [(frame, body) for frame, body in decoded if isinstance(frame, m.PolicyFrame)]


def assembled(frames: list[tuple[m.PolicyFrame, memoryview]], assembler: PolicyAssembler | None = None) -> bytes | None:
    assembler = assembler or PolicyAssembler(lambda size: memoryview(bytearray(size)))
    result = None
    for frame, body in frames:
        result = assembler.add(frame, body)
    return result


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 5), st.integers(-1, 1), st.integers(0, 2**32))
def test_a_policy_comes_out_as_it_went_in(frames_and: int, more: int, seed: int) -> None:
    weights = random.Random(seed).randbytes(max(0, frames_and * FRAME_BYTES + more))
    frames = frames_of(weights)
    assert assembled(frames) == weights
    assert [frame.index for frame, _ in frames] == list(range(frames[0][0].frames))
    assert all(len(body) == FRAME_BYTES for (_, body), _ in pairwise(frames))


def test_a_newer_policy_replaces_an_unfinished_one() -> None:
    assembler = PolicyAssembler(lambda size: memoryview(bytearray(size)))
    assert assembled(frames_of(b"a" * 3 * FRAME_BYTES)[:2], assembler) is None
    assert assembled(frames_of(b"b" * 2 * FRAME_BYTES, 2), assembler) == b"b" * 2 * FRAME_BYTES


def test_the_rest_of_an_unfinished_policy_is_skipped() -> None:
    first, second, third = frames_of(b"a" * 3 * FRAME_BYTES)
    assembler = PolicyAssembler(lambda size: memoryview(bytearray(size)))
    assert assembled([second, third], assembler) is None
    assert assembled([first, third], assembler) is None
    assert assembled([first, second, third], assembler) == b"a" * 3 * FRAME_BYTES


@pytest.mark.parametrize(("size", "damaged"), [(10, 0), (3 * FRAME_BYTES, 0), (3 * FRAME_BYTES, 2)])
def test_a_policy_with_a_damaged_frame_is_refused_and_the_next_one_is_taken(size: int, damaged: int) -> None:
    whole = frames_of(b"a" * size)
    frame, body = whole[damaged]
    assembler = PolicyAssembler(lambda size: memoryview(bytearray(size)))
    with pytest.raises(DecodingError, match="damaged"):
        assembled([*whole[:damaged], (frame, memoryview(b"b" + bytes(body[1:])))], assembler)
    assert assembled(whole[max(1, damaged) :], assembler) is None  # though that piece comes again, undamaged
    assert assembled(whole, assembler) == b"a" * size


@pytest.mark.parametrize("first_of_other", [1, 2])
def test_pieces_of_two_policies_of_one_version_and_size_do_not_become_one(first_of_other: int) -> None:
    one, other = frames_of(b"a" * 3 * FRAME_BYTES), frames_of(b"b" * 3 * FRAME_BYTES)
    with pytest.raises(DecodingError, match="different policies"):
        assembled([*one[:first_of_other], *other[first_of_other:]])


def test_pieces_that_came_in_another_order_are_refused() -> None:
    (first, a), (second, b), (third, c) = frames_of(b"".join(bytes([i]) * FRAME_BYTES for i in range(3)))
    with pytest.raises(DecodingError, match="different policies"):
        assembled([(first, a), (second, c), (third, b)])


def test_frames_that_do_not_add_up_are_refused() -> None:
    (first, body), (second, rest) = frames_of(b"a" * (FRAME_BYTES + 10))
    first.total_bytes = second.total_bytes = FRAME_BYTES + 5
    with pytest.raises(DecodingError, match="longer than announced"):
        assembled([(first, body), (second, rest)])
    first.total_bytes = second.total_bytes = FRAME_BYTES + 50
    with pytest.raises(DecodingError, match="ended after"):
        assembled([(first, body), (second, rest)])


def test_an_announced_length_above_the_limit_is_refused_before_anything_is_taken() -> None:
    frame, body = frames_of(b"a")[0]
    frame.total_bytes = 2**40
    with pytest.raises(OversizeError):
        PolicyAssembler(lambda size: memoryview(bytearray(size))).add(frame, body)
