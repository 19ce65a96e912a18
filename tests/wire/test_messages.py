"""Every message comes back as what it was, and nothing else is taken for one."""

from __future__ import annotations

import re
from typing import get_args

import msgspec
import pytest

from tmrl_like.errors import DecodingError, OversizeError
from tmrl_like.wire import messages
from tmrl_like.wire.condition import MAX_NOTE, Condition
from tmrl_like.wire.messages import (
    MAX_HEADER_BYTES,
    MAX_TAKEN_OVER,
    WIRE_VERSION,
    AnyMessage,
    Hello,
    WireVersionError,
    decode,
    encode,
)

TYPES = get_args(AnyMessage)


def example(kind):
    """Any value of a type, made from the type's own description."""
    if isinstance(kind, msgspec.inspect.StructType):
        return kind.cls(*(example(field.type) for field in kind.fields))
    if isinstance(kind, msgspec.inspect.UnionType):
        return example(next(t for t in kind.types if not isinstance(t, msgspec.inspect.NoneType)))
    if isinstance(kind, msgspec.inspect.VarTupleType):
        return (example(kind.item_type),)
    if isinstance(kind, msgspec.inspect.TupleType):
        return tuple(map(example, kind.item_types))
    if isinstance(kind, msgspec.inspect.StrType):
        return "text é" if re.search(kind.pattern or "", "text é") else "text"
    simple = {
        msgspec.inspect.IntType: 3,
        msgspec.inspect.FloatType: 2.5,
        msgspec.inspect.BoolType: True,
        msgspec.inspect.BytesType: b"digest",
    }
    return simple[type(kind)]


def example_of(message):
    return example(msgspec.inspect.type_info(message))


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_every_message_comes_back_with_its_body(kind):
    message = example_of(kind)
    for body in (b"", b"body", memoryview(bytes(100_000))):
        decoded, rest = decode(encode(message, body))
        assert decoded == message
        assert type(decoded) is kind
        assert rest == body


def test_a_message_of_another_wire_version_is_refused_by_its_number():
    data = bytearray(encode(messages.Bye()))
    for version in {0, 2, 255} - {WIRE_VERSION}:
        data[0] = version
        with pytest.raises(
            WireVersionError, match=f"wire version {version} .* speaks {WIRE_VERSION}"
        ) as caught:
            decode(data)
        assert caught.value.found == version


def test_a_header_above_the_limit_is_refused_by_its_length():
    for length in (MAX_HEADER_BYTES + 1, 2**32 - 1):
        with pytest.raises(OversizeError, match=str(length)):
            decode(bytes((WIRE_VERSION,)) + length.to_bytes(4, "little") + bytes(10))


@pytest.mark.parametrize("data", [b"", b"V", b"V\0\0\0", b"V\5\0\0\0abc", b"V\0\0\0\0"])
def test_too_few_bytes_are_refused(data):
    with pytest.raises(DecodingError, match=r"bytes are too few|a header of 5 bytes|not a message"):
        decode(data.replace(b"V", bytes((WIRE_VERSION,))))


@pytest.mark.parametrize(
    "header",
    [
        ["NoSuchMessage"],
        ["Hello"],
        ["Hello", 1, 2, 3, 4],
        ["Hello", "worker", "n" * 201, 1, "0.1"],
        ["Hello", "worker", "name", -1, "0.1"],
        ["Hello", "worker", "name", 2**63, "0.1"],
        ["Hello", "worker", "name", 1.5, "0.1"],
        ["Hello", "worker", "name", 1, "0.1", None, "", [1] * (MAX_TAKEN_OVER + 1)],
        {"type": "Hello"},
        "Hello",
        17,
        None,
        [["Hello"]],
    ],
    ids=str,
)
def test_what_does_not_fit_its_type_is_refused(header):
    encoded = msgspec.msgpack.encode(header)
    with pytest.raises(DecodingError, match="not a message"):
        decode(bytes((WIRE_VERSION,)) + len(encoded).to_bytes(4, "little") + encoded)


def test_a_body_is_not_copied():
    data = encode(Hello("worker", "name", 1, "0.1"), bytes(1000))
    assert decode(data)[1].obj is data


FORGED = "fine\n2026-01-01 ERROR worker w2: on fire\x1b[2J\x9b31m\u2028\u202eafter\rback\x00"


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_no_text_of_a_message_can_forge_a_line_of_a_log(kind):
    """Names with control characters are refused; in other texts they are replaced, on both sides
    alike.
    """
    for forge in ("name", "text", "note"):
        limits = {"name": 200, "text": 4000, "note": MAX_NOTE}
        parts = msgspec.to_builtins(example_of(kind))
        raw = _forged(msgspec.inspect.type_info(kind), parts, limits[forge])
        header = msgspec.msgpack.encode(raw)
        try:
            message, _ = decode(bytes((WIRE_VERSION,)) + len(header).to_bytes(4, "little") + header)
        except DecodingError as error:
            shown = [str(error)]
        else:
            shown = _texts_in(msgspec.to_builtins(message))
        assert [text for text in shown if not text.isprintable()] == []


def _forged(kind, value, max_length):
    """The plain values of a message, its texts of that length limit replaced."""
    if isinstance(kind, msgspec.inspect.StrType):
        return FORGED if kind.max_length == max_length else value
    if isinstance(kind, msgspec.inspect.StructType) and isinstance(value, list | tuple):
        tag = value[: len(value) - len(kind.fields)]
        fields = zip(kind.fields, value[len(tag) :], strict=True)
        return [*tag, *(_forged(field.type, item, max_length) for field, item in fields)]
    if isinstance(kind, msgspec.inspect.VarTupleType):
        return [_forged(kind.item_type, v, max_length) for v in value]
    if isinstance(kind, msgspec.inspect.UnionType):
        return _forged(
            next(t for t in kind.types if not isinstance(t, msgspec.inspect.NoneType)),
            value,
            max_length,
        )
    return value


def _texts_in(value):
    if isinstance(value, list | tuple):
        return [text for item in value for text in _texts_in(item)]
    return [value] if isinstance(value, str) else []


def test_what_a_decoder_says_of_a_forged_message_is_one_line():
    header = msgspec.msgpack.encode([FORGED, 1])
    with pytest.raises(DecodingError) as refused:
        decode(bytes((WIRE_VERSION,)) + len(header).to_bytes(4, "little") + header)
    assert str(refused.value).isprintable()


def test_a_text_is_the_same_on_both_sides():
    beat = messages.Beat("w", Condition(alarm="two\nlines  and a\ttab é", ended="x" * 5000))
    assert beat.condition.alarm == "two lines and a tab é"
    assert len(beat.condition.ended) == MAX_NOTE
    assert decode(encode(beat))[0] == beat
    assert decode(encode(Hello("worker", "Röbot 1/ä", 1, "0")))[0].name == "Röbot 1/ä"


def test_a_packet_may_not_announce_more_than_its_limits():
    packet = example_of(messages.SamplePacket)
    assert isinstance(packet, messages.SamplePacket)
    episode = packet.episodes[0]
    for changes in ({"body_bytes": 2**40}, {"episodes": (episode,) * (messages.MAX_EPISODES + 1)}):
        with pytest.raises(DecodingError):
            decode(encode(msgspec.structs.replace(packet, **changes)))
