"""Every message is decoded to what was encoded, and nothing else is taken for a message."""

from __future__ import annotations

import math
from typing import get_args

import msgspec
import pytest
from kit.episodes import episode

from tmrl_like.errors import DecodingError, OversizeError
from tmrl_like.wire import messages
from tmrl_like.wire.condition import MAX_NOTE, Condition
from tmrl_like.wire.messages import (
    MAX_HEADER_BYTES,
    MAX_NAME,
    MAX_TAKEN_OVER,
    WIRE_VERSION,
    AnyMessage,
    Hello,
    decode,
    encode,
)

TYPES = get_args(AnyMessage)
FORGED = "fine\n2026-01-01 ERROR worker w2: on fire\x1b[2J\x9b31m\u2028\u202eafter\rback\x00"


def plain(kind, forged=None):
    """Return a value of a type in msgpack's form; texts with the length limit `forged` contain
    forged lines.
    """
    match kind:
        case msgspec.inspect.StructType():
            fields = {field.encode_name: plain(field.type, forged) for field in kind.fields}
            tag = [kind.tag] if kind.tag else []
            return [*tag, *fields.values()] if kind.array_like else fields
        case msgspec.inspect.UnionType():
            return plain(kind.types[0], forged)
        case msgspec.inspect.VarTupleType():
            return [plain(kind.item_type, forged)]
        case msgspec.inspect.TupleType():
            return [plain(each, forged) for each in kind.item_types]
        case msgspec.inspect.StrType():
            return FORGED if kind.max_length == forged else "worker"
        case msgspec.inspect.FloatType():
            return 2.5
        case msgspec.inspect.BoolType():
            return True
        case _:
            return 3


def framed(header):
    """Return a message with these plain values as its header."""
    data = msgspec.msgpack.encode(header)
    return bytes((WIRE_VERSION,)) + len(data).to_bytes(4, "little") + data


def example_of(message):
    return decode(framed(plain(msgspec.inspect.type_info(message))))[0]


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_every_message_comes_back_with_its_body(kind):
    message = example_of(kind)
    for body in (b"", memoryview(bytes(100_000))):
        data = encode(message, body)
        decoded, rest = decode(data)
        assert (type(decoded), decoded, rest) == (kind, message, body)
        assert rest.obj is data, "a body is not copied"


def test_a_header_above_the_limit_is_refused_by_its_length():
    for length in (MAX_HEADER_BYTES + 1, 2**32 - 1):
        with pytest.raises(OversizeError, match=str(length)):
            decode(bytes((WIRE_VERSION,)) + length.to_bytes(4, "little") + bytes(10))


@pytest.mark.parametrize("data", [b"", b"V", b"V\0\0\0", b"V\5\0\0\0abc", b"V\0\0\0\0"])
def test_too_few_bytes_are_refused(data):
    with pytest.raises(DecodingError, match=r"bytes are too few|a header of 5 bytes|not a message"):
        decode(data.replace(b"V", bytes((WIRE_VERSION,))))


PACKET = example_of(messages.SamplePacket)
NOT_FINITE = [messages.Beat("w", Condition(returns=(1.0, each))) for each in (math.nan, math.inf)]
TOO_LARGE = [
    msgspec.structs.replace(PACKET, body_bytes=2**40),
    msgspec.structs.replace(PACKET, episodes=((1, episode()),) * (messages.MAX_EPISODES + 1)),
]
HEADERS = [
    ["NoSuchMessage"],
    ["Hello"],
    ["Hello", "robot", "name", 1, "0.1"],
    ["Hello", "worker", "n" * 201, 1, "0.1"],
    ["Hello", "worker", "name", -1, "0.1"],
    ["Hello", "worker", "name", 1, "0.1", None, "", [1] * (MAX_TAKEN_OVER + 1)],
    ["SamplePacket", "w", 1, 1, 1, 1, 0, 1, 0, False, 1e12],
    ["SamplePacket", "w", 1, 1, 1, 1, 0, 1, 0, False, math.nan],
    None,
]


@pytest.mark.parametrize(
    "data", [*map(framed, HEADERS), *map(encode, NOT_FINITE), *map(encode, TOO_LARGE)]
)
def test_what_does_not_fit_its_type_is_refused(data):
    with pytest.raises(DecodingError, match="not a message"):
        decode(data)


@pytest.mark.parametrize("max_length", [MAX_NAME, 4000, MAX_NOTE])
@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_no_text_of_a_message_can_forge_a_line_of_a_log(kind, max_length):
    """Names with control characters are refused; in other texts they are replaced."""
    try:
        message, _ = decode(framed(plain(msgspec.inspect.type_info(kind), max_length)))
        said = texts_in(msgspec.to_builtins(message))
    except DecodingError as error:
        said = [str(error)]
    assert all(text.isprintable() for text in said)


def texts_in(value):
    if isinstance(value, list | tuple):
        return [text for item in value for text in texts_in(item)]
    return [value] if isinstance(value, str) else []


def test_what_a_decoder_says_of_a_forged_message_is_one_line():
    with pytest.raises(DecodingError) as refused:
        decode(framed([FORGED, 1]))
    assert str(refused.value).isprintable()


def test_a_text_is_the_same_on_both_sides():
    beat = messages.Beat("w", Condition(alarm="two\nlines  and a\ttab é", ended="x" * 5000))
    assert beat.condition.alarm == "two lines and a tab é"
    assert len(beat.condition.ended) == MAX_NOTE
    assert decode(encode(beat))[0] == beat
    assert decode(encode(Hello("worker", "Röbot 1/ä", 1, "0")))[0].name == "Röbot 1/ä"


def test_the_longest_reports_of_faults_fit_a_packet():
    name, most = "\N{ROBOT FACE}" * MAX_NAME, 2**63 - 1
    counts = dict.fromkeys(("steps", "policy_version", "overruns"), most)
    report = episode(worker=name, fault="x" * 2000, **counts)
    episodes = ((most, report),) * messages.MAX_EPISODES
    packet = msgspec.structs.replace(PACKET, worker=name, episodes=episodes)
    assert decode(encode(packet))[0] == packet
