"""Policies in frames: whole or refused."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tmrl_like.errors import DecodingError, OversizeError
from tmrl_like.wire import messages as m
from tmrl_like.wire.policy import FRAME_BYTES, PolicyAssembler, split_policy


def frames_of(pieces: list[bytes], version: int = 1) -> list[tuple[m.PolicyFrame, memoryview]]:
    decoded = [m.decode(data) for data in split_policy(pieces, version, 1.5)]
    return [(frame, body) for frame, body in decoded if isinstance(frame, m.PolicyFrame)]


def assembled(frames: list[tuple[m.PolicyFrame, memoryview]], assembler: PolicyAssembler | None = None) -> bytes | None:
    assembler = assembler or PolicyAssembler(lambda size: memoryview(bytearray(size)))
    result = None
    for frame, body in frames:
        result = assembler.add(frame, body)
    return result


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 2 * FRAME_BYTES), max_size=5), st.integers(0, 2**32))
def test_a_policy_in_any_pieces_comes_out_as_it_went_in(sizes: list[int], seed: int) -> None:
    generator = random.Random(seed)
    pieces = [generator.randbytes(size) for size in sizes]
    frames = frames_of(pieces)
    assert assembled(frames) == b"".join(pieces)
    assert [frame.index for frame, _ in frames] == list(range(frames[0][0].frames))
    assert all(len(body) == FRAME_BYTES for (_, body), _ in pairwise(frames))


def test_a_newer_policy_replaces_an_unfinished_one() -> None:
    assembler = PolicyAssembler(lambda size: memoryview(bytearray(size)))
    assert assembled(frames_of([b"a" * 3 * FRAME_BYTES])[:2], assembler) is None
    assert assembled(frames_of([b"b" * 2 * FRAME_BYTES], 2), assembler) == b"b" * 2 * FRAME_BYTES


def test_the_rest_of_an_unfinished_policy_is_skipped() -> None:
    first, second, third = frames_of([b"a" * 3 * FRAME_BYTES])
    assembler = PolicyAssembler(lambda size: memoryview(bytearray(size)))
    assert assembled([second, third], assembler) is None
    assert assembled([first, third], assembler) is None
    assert assembled([first, second, third], assembler) == b"a" * 3 * FRAME_BYTES


@pytest.mark.parametrize("size", [10, 3 * FRAME_BYTES])
def test_a_policy_with_a_damaged_frame_is_refused(size: int) -> None:
    (frame, body), *rest = frames_of([b"a" * size])
    with pytest.raises(DecodingError, match="damaged"):
        assembled([(frame, memoryview(b"b" + bytes(body[1:]))), *rest])


def test_frames_that_do_not_add_up_are_refused() -> None:
    (first, body), (second, rest) = frames_of([b"a" * (FRAME_BYTES + 10)])
    first.total_bytes = second.total_bytes = FRAME_BYTES + 5
    with pytest.raises(DecodingError, match="longer than announced"):
        assembled([(first, body), (second, rest)])
    first.total_bytes = second.total_bytes = FRAME_BYTES + 50
    with pytest.raises(DecodingError, match="ended after"):
        assembled([(first, body), (second, rest)])


def test_an_announced_length_above_the_limit_is_refused_before_anything_is_taken() -> None:
    frame, body = frames_of([b"a"])[0]
    frame.total_bytes = 2**40
    with pytest.raises(OversizeError):
        PolicyAssembler(lambda size: memoryview(bytearray(size))).add(frame, body)
