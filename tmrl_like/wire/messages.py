"""The messages of the system, each a typed structure, and their framing.

A message on the wire::

    1 byte   wire version
    4 bytes  length of the header, little-endian
    header   one of the structures below (msgpack)
    body     raw bytes that the structure describes; only SamplePacket and PolicyFrame have one

The server reads headers and passes bodies on unread. A message that does not decode to one of these
types is refused; no length is used before it was compared with its limit.

====================  ==================  ==========================================================
message               way                 purpose
====================  ==================  ==========================================================
Hello                 peer → server       who I am, what I speak, which spaces I have
Welcome               server → peer       accepted; which trainer session is being fed
HelloWanted           server → peer       I do not know this connection: introduce yourself
Refusal               server → peer       no, and why
SamplePacket          worker → trainer    samples and finished episodes, numbered
Bundle                worker → trainer    several SamplePackets at once
Ack                   trainer → worker    up to which number packets are in the memory, and stored for good
Dismissal             trainer → server    the samples of a worker process do not fit the memory
PolicyFrame           trainer → workers   a piece of a policy
Beat                  both ways           I am alive; from workers with their condition, from the trainer
                                          to the server only
Bye                   peer → server       I leave; my seat is free
====================  ==================  ==========================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, TypeAlias

import msgspec

from tmrl_like.errors import DecodingError, OversizeError

WIRE_VERSION = 3
MAX_HEADER_BYTES = 1 << 16
MAX_TAKEN_OVER = 1000

Name = Annotated[str, msgspec.Meta(max_length=200)]
Text = Annotated[str, msgspec.Meta(max_length=4000)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Real = float


class Message(msgspec.Struct, array_like=True, tag=True, forbid_unknown_fields=True):
    """Base of all messages."""


class Spaces(msgspec.Struct, frozen=True, array_like=True):
    """What observations and actions look like, for comparing worker and trainer."""

    observation: Text
    action: Text


class Hello(Message):
    """First message on a connection."""

    role: Name  # "worker" or "trainer"
    name: Name  # unique among live peers of that role
    session: Count  # random per process; a restarted process has another
    software: Name  # version of tmrl_like, for error messages
    spaces: Spaces | None = None
    model_file: Name = ""  # hash of machine and path of the file where this peer keeps its weights; empty: none
    takes_over: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MAX_TAKEN_OVER)] = ()  # sessions of dead
    # processes of this worker, whose packets it sends as well; a seat that one of them still has is this peer's


class Welcome(Message):
    """The peer is in.

    `stream` changes whenever packets sent so far may have been lost on their way (another server
    process, another trainer process): a worker then sends again what is not acknowledged. 0: there is
    no trainer yet. `policy_wanted`: the server holds no policy (a trainer then publishes again).
    """

    stream: Count
    policy_wanted: bool = False


class HelloWanted(Message):
    """The server has no record of this connection (it was restarted, or the link was cut)."""


class Refusal(Message):
    """The peer may not take part. `retry_after_s` < 0: do not try again."""

    reason: Text
    retry_after_s: Real = -1.0


class Episode(msgspec.Struct, frozen=True, array_like=True):
    """`EpisodeStats` without the worker's name (the packet has it)."""

    test: bool
    return_: Real
    steps: Count
    terminated: bool
    truncated: bool
    finished_at_s: Real
    policy_version: Count
    duration_s: Real
    overruns: Count
    fault: Text


class SamplePacket(Message):
    """Samples of one worker. The body holds the columns (`wire.packet`)."""

    worker: Name
    session: Count  # the worker process that made them
    sequence: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]  # 1, 2, 3, … within the session
    run: Count  # counts breaks: samples of one run are consecutive, those of the next do not continue them
    samples: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
    body_bytes: Count  # of the body before compression
    checksum: Count  # CRC-32 of the body as sent
    compressed: bool  # zstandard
    lost_samples: Count = 0  # dropped by this worker so far because its outbox was full
    oldest: Count = 0  # sequence of the oldest packet that the worker still keeps; older ones come no more
    gap: Count = 0  # packets right before this one that are lost for good; not counted for the oldest one
    episodes: tuple[Episode, ...] = ()


class Bundle(Message):
    """Several SamplePackets of one worker, sent as one message when more than one wait.

    The body holds whole messages, each after its length in 4 bytes, little-endian.
    """

    worker: Name
    session: Count
    samples: Count  # of all its packets


class Ack(Message):
    """How far the packets of (worker, session) have come.

    Up to `stored` they are where a trainer that is killed finds them again (in its checkpoint, or just in
    its memory where it keeps no checkpoints): the worker may forget them. Up to `received` they are in
    the trainer's memory: they do not count as on their way any more. `again`: packets after `received`
    are missing; send them again.
    """

    worker: Name
    session: Count
    stored: Count
    received: Count
    again: bool = False


class Dismissal(Message):
    """The samples of (worker, session) do not fit the memory: none of them is taken any more.

    The server refuses a worker of this session. One that only sends what that process left is sent this message,
    and keeps these packets to itself.
    """

    worker: Name
    session: Count
    reason: Text


class PolicyFrame(Message):
    """Piece `index` of `frames` of a policy; the body is its bytes."""

    version: Count
    index: Count
    frames: Count
    total_bytes: Count
    checksum: Count  # CRC-32 of the body
    published_at_s: Real
    digest: bytes = b""  # of the last piece: SHA-256 of the whole policy


class Beat(Message):
    """Sign of life, with a worker's condition (the trainer's metrics show it)."""

    worker: Name = ""
    policy_version: Count = 0  # the version that drives now
    policy_age_s: Real = 0.0
    policy_received: Count = 0  # the newest version that arrived whole
    env_steps: Count = 0
    overruns: Count = 0
    unacknowledged_samples: Count = 0
    expert: bool = False  # ignores policies
    lost_samples: Count = 0
    alarm: Text = ""  # what the worker's user should know; empty: all is well
    safe_steps: Count = 0  # steps that the safe action drove
    env_faults: Count = 0  # how often the environment raised, hung or could not be made anew
    env_rebuilds: Count = 0  # how often it was made anew


class Bye(Message):
    """Clean leave."""


AnyMessage: TypeAlias = (
    Hello | Welcome | HelloWanted | Refusal | SamplePacket | Bundle | Ack | Dismissal | PolicyFrame | Beat | Bye
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


class WireVersionError(DecodingError):
    """The other side speaks another wire version."""

    def __init__(self, found: int) -> None:
        super().__init__(f"wire version {found} where this tmrl_like speaks {WIRE_VERSION}")
        self.found = found


def encode(message: AnyMessage, body: bytes | memoryview = b"") -> bytes:
    """Frame a message and its body into the bytes that a transport carries."""
    header = _encoder.encode(message)
    return b"".join((*_framed(header), body))


def decode(data: bytes | memoryview) -> tuple[AnyMessage, memoryview]:
    """Take a message apart: header and body (a view of `data`).

    Raises:
        WireVersionError: another version of the protocol.
        OversizeError: the header claims to be larger than `MAX_HEADER_BYTES`.
        DecodingError: not a message.
    """
    view = memoryview(data)
    if len(view) < 5:
        raise DecodingError(f"{len(view)} bytes are too few for a message")
    if view[0] != WIRE_VERSION:
        raise WireVersionError(view[0])
    length = int.from_bytes(view[1:5], "little")
    if length > MAX_HEADER_BYTES:
        raise OversizeError(f"a header of {length} bytes; at most {MAX_HEADER_BYTES} are allowed")
    if length > len(view) - 5:
        raise DecodingError(f"a header of {length} bytes in a message of {len(view)}")
    try:
        return _decoder.decode(view[5 : 5 + length]), view[5 + length :]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DecodingError(f"not a message: {error}") from None


def encode_bundle(packets: Sequence[tuple[SamplePacket, bytes | memoryview]]) -> bytes:
    """Frame packets of one worker process, with their bodies, as one message."""
    parts = []
    for packet, body in packets:
        header = _encoder.encode(packet)
        parts += [(5 + len(header) + len(body)).to_bytes(4, "little"), *_framed(header), body]
    first = packets[0][0]
    bundle = _encoder.encode(Bundle(first.worker, first.session, sum(packet.samples for packet, _ in packets)))
    return b"".join((*_framed(bundle), *parts))


def decode_bundle(body: memoryview) -> Iterator[tuple[AnyMessage, memoryview]]:
    """Yield the messages in a bundle's body, each with its own body.

    Raises:
        DecodingError: a length that leads out of the bundle, or something that is not a message.
    """
    while body:
        length = int.from_bytes(body[:4], "little")
        if length > len(body) - 4:
            raise DecodingError(f"a packet of {length} bytes in the last {len(body)} of a bundle")
        yield decode(body[4 : 4 + length])
        body = body[4 + length :]


def _framed(header: bytes) -> tuple[bytes, bytes, bytes]:
    return bytes((WIRE_VERSION,)), len(header).to_bytes(4, "little"), header
