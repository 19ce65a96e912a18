"""Policies in frames are assembled completely or refused."""

import random
import zlib

import msgspec
import pytest

from tmrl_like.errors import DecodingError, OversizeError
from tmrl_like.wire import messages as m
from tmrl_like.wire.policy import FRAME_BYTES, MAX_MANIFEST_BYTES, PolicyAssembler, split_policy


def frames_of(data, version=1):
    weights = {"w": ("U8", (len(data),))}, data
    return [m.decode(message) for message in split_policy(weights, version, 1.5)]


def memory_for(manifest):
    ((_, (size,)),) = manifest.values()
    return memoryview(bytearray(size))


def assembled(frames, assembler=None):
    """Return what the last of these frames completes, or None."""
    assembler = assembler or PolicyAssembler(memory_for)
    return [assembler.add(frame, body) for frame, body in frames][-1]


@pytest.mark.parametrize(
    ("size", "pieces"),
    [(0, 0), (1, 1), (FRAME_BYTES, 1), (FRAME_BYTES + 1, 2)],
)
def test_a_policy_comes_out_as_it_went_in(size, pieces):
    data = random.Random(size).randbytes(size)
    frames = frames_of(data)
    assert assembled(frames) == data
    assert len(frames) == 1 + pieces


@pytest.mark.parametrize(
    ("frames", "policy"),
    [
        ("a0 a1 b0 b1 b2 b3", "b"),  # a newer one replaces an unfinished one
        ("a1 a2 a3 a0 a1 a3 a0 a1 a2 a3", "a"),
    ],
)
def test_only_consecutive_frames_make_a_policy(frames, policy):
    data = {name: name.encode() * 3 * FRAME_BYTES for name in "ab"}
    whole = {name: frames_of(data[name], version) for version, name in enumerate("ab", start=1)}
    found = assembled(whole[frame[0]][int(frame[1])] for frame in frames.split())
    assert found == data[policy]


@pytest.mark.parametrize("damaged", [0, 3])
def test_a_policy_with_a_damaged_frame_is_refused_and_the_next_one_is_taken(damaged):
    data = b"a" * 3 * FRAME_BYTES
    whole, assembler = frames_of(data), PolicyAssembler(memory_for)
    frame, body = whole[damaged]
    with pytest.raises(DecodingError, match="damaged"):
        assembled([*whole[:damaged], (frame, memoryview(b"b" + bytes(body[1:])))], assembler)
    # although that frame comes again, undamaged
    assert assembled(whole[max(1, damaged) :], assembler) is None
    assert assembled(whole, assembler) == data


def test_pieces_of_two_policies_of_one_version_and_size_do_not_become_one():
    one, other = frames_of(b"a" * 3 * FRAME_BYTES), frames_of(b"b" * 3 * FRAME_BYTES)
    with pytest.raises(DecodingError, match="different policies"):
        assembled([*one[:2], *other[2:]])


@pytest.mark.parametrize(
    ("announced", "memory_bytes", "problem"),
    [
        (FRAME_BYTES, FRAME_BYTES, "longer than announced"),
        (2 * FRAME_BYTES, 2 * FRAME_BYTES, "bytes ended"),
        (FRAME_BYTES, 2 * FRAME_BYTES, f"of {FRAME_BYTES} bytes for parameters of "),
    ],
)
def test_frames_that_do_not_add_up_are_refused(announced, memory_bytes, problem):
    frames = frames_of(b"a" * (FRAME_BYTES + 10))
    for frame, _ in frames:
        frame.total_bytes = announced
    with pytest.raises(DecodingError, match=problem):
        assembled(frames, PolicyAssembler(lambda _: memoryview(bytearray(memory_bytes))))


def described_by(body):
    """Return the first frame of a policy with this description."""
    (frame, _), *_ = frames_of(b"a")
    frame.checksum = zlib.crc32(body)
    return frame, memoryview(body)


@pytest.fixture
def refusing():
    return PolicyAssembler(lambda _: pytest.fail("nothing is allocated"))


@pytest.mark.parametrize(
    "description", [3, {"w": ("F33", (1,))}, {"w": ("F32", (-1,))}, {"w": "F32"}]
)
def test_a_description_that_is_none_is_refused(refusing, description):
    with pytest.raises(DecodingError, match="give trainer and worker the same tmrl_like"):
        refusing.add(*described_by(msgspec.msgpack.encode(description)))


def test_what_is_larger_than_allowed_is_refused_before_anything_is_taken(refusing):
    with pytest.raises(OversizeError, match="description"):
        refusing.add(*described_by(bytes(MAX_MANIFEST_BYTES + 1)))
    frame, body = frames_of(b"a")[0]
    frame.total_bytes = 2**40
    with pytest.raises(OversizeError, match="a policy of"):
        refusing.add(frame, body)
