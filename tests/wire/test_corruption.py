"""Any invalid bytes are refused with a `DecodingError`."""

from __future__ import annotations

import struct

import msgspec
import pytest
import zstandard
from kit.allocations import peak_of
from kit.packets import forged, numbered

from tmrl_like.errors import DecodingError, OversizeError
from tmrl_like.wire.messages import MAX_BODY_BYTES
from tmrl_like.wire.packet import MAX_HEAD_BYTES, decode_body
from tmrl_like.wire.schema import MAX_DEPTH, MAX_NODES

from .samples import announce, columns_of, written

MEGABYTE = 1 << 20


SAMPLES = 20
COLUMNS = columns_of(written(map(numbered, range(SAMPLES)), {0}))


def test_another_number_of_samples_than_announced_is_refused():
    for samples in (0, SAMPLES - 1, SAMPLES + 1):
        with pytest.raises(DecodingError, match="another number"):
            decode_body(announce(COLUMNS, samples), COLUMNS)


def refused(packet, columns):
    with pytest.raises(DecodingError):
        decode_body(packet, columns)


def lie(leaf, **how):
    """Return the columns of samples whose action has this structure; the other fields are None."""
    return forged(("t", [leaf, *[NONE] * 5]), **how)


def nested(levels):
    return ("l", [nested(levels - 1)]) if levels else NONE


NONE, TEXT = ("p", "none"), ("p", "str")
LIES = {
    "a dtype that is code": lie(("a", "|O8", [1]), buffers=bytes(8)),
    "a float of two lines": lie(("a", "<f4\n", [1]), buffers=bytes(4)),
    "a shape of exabytes": lie(("a", "<f4", [2**31, 2**31])),
    "an empty shape of exabytes": lie(("a", "<f4", [0, 2**31, 2**31, 2**31])),
    "a negative shape": lie(("a", "<f4", [-1, -4]), buffers=bytes(16)),
    "forty dimensions": lie(("a", "<f4", [1] * 40), buffers=bytes(4)),
    "a size too few": lie(TEXT, buffers=b"\x91\xa0"),
    "a negative size": lie(TEXT, sizes=(-2,), buffers=b"\x91\xa0"),
    "a text beyond the end": lie(TEXT, sizes=(1000,), buffers=b"\x91\xa0"),
    "a billion rows": lie(NONE, rows=10**9, timing=bytes(26)),
    "no rows": lie(NONE, rows=0, timing=bytes(26)),
    "keys without items": lie(("d", ["a", "b"], [NONE])),
    "a key twice": lie(("d", ["a", "a"], [NONE] * 2)),
    "one level too many": lie(nested(MAX_DEPTH)),
    "nesting without end": lie(msgspec.Raw(b"\x92\xa1l\x91" * 100_000 + b"\x92\xa1p\xa4none")),
    "containers without end": lie(("t", [("t", [])] * MAX_NODES)),
    "five items": forged(("t", [NONE] * 5)),
    "an unknown kind": lie(("p", "code")),
    "text that is none": lie(TEXT, sizes=(3,), buffers=b"\x91\xa1\xff"),
    "too few texts": lie(TEXT, sizes=(1,), buffers=b"\x90"),
    "too little timing": lie(NONE, timing=bytes(25)),
    "an unknown source of actions": lie(NONE, timing=bytes(24) + b"\x63\0"),
    "a negative version": lie(NONE, timing=bytes(16) + b"\xff" * 8 + bytes(2)),
    "nothing": b"",
}


@pytest.mark.parametrize("body", LIES.values(), ids=LIES)
def test_a_lying_packet_is_refused_without_allocating(body):
    assert peak_of(lambda: refused(announce(body, 1), body))[1] < 4 * MEGABYTE


def test_the_forger_can_also_tell_the_truth():
    body = lie(("a", "<f4", [2]), rows=2, buffers=bytes(16))
    samples = decode_body(announce(body, 2), body).samples()
    assert [sample.act.tolist() for sample in samples] == [[0, 0]] * 2


# sizes


BOMB_BYTES = MAX_BODY_BYTES + MEGABYTE


@pytest.mark.parametrize("writes_size", [True, False])
@pytest.mark.parametrize("claimed", [0, MAX_BODY_BYTES])
def test_a_compression_bomb_is_refused_before_it_is_unpacked(writes_size, claimed):
    bomb = zstandard.ZstdCompressor(level=1, write_content_size=writes_size).compress(
        bytes(BOMB_BYTES)
    )
    packet = announce(bomb, 1, raw_bytes=claimed)
    assert peak_of(lambda: refused(packet, bomb))[1] < MEGABYTE


def test_a_head_above_its_limit_is_not_read():
    columns = struct.pack("<I", MAX_HEAD_BYTES + 1) + b"\xff" * (MAX_HEAD_BYTES + 1)
    with pytest.raises(OversizeError, match=f"at most {MAX_HEAD_BYTES} are allowed"):
        decode_body(announce(columns, 1), columns)


def test_a_packet_that_holds_more_than_it_announces_is_refused():
    with pytest.raises(
        DecodingError, match=f"announces {len(COLUMNS)} bytes and holds {len(COLUMNS) + 1}"
    ):
        decode_body(announce(COLUMNS, SAMPLES), COLUMNS + b"\0")


def test_what_takes_no_bytes_counts_as_well():
    body = lie(("t", [("t", []), NONE] * 1000), rows=2000)
    with pytest.raises(OversizeError, match=r"a packet of 5\d{8} bytes in memory"):
        decode_body(announce(body, 2000), body)


def test_compressed_nonsense_is_refused():
    whole = zstandard.ZstdCompressor(level=1).compress(COLUMNS)
    for damaged in (b"nonsense", *(whole[:end] for end in range(0, len(whole), 50))):
        refused(announce(damaged, SAMPLES, raw_bytes=len(COLUMNS)), damaged)
