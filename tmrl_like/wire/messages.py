"""The messages of the system, each a typed structure, and their framing.

A message on the wire::

    1 byte   wire version
    4 bytes  length of the header, little-endian
    header   one of the structures below (msgpack)
    body     raw bytes that the structure describes, of those that have one

The server reads headers and passes bodies on unread. A message that does not decode to one of these
types is refused; no length is used before it was compared with its limit. Names and texts come out
as one line that steers no terminal, so that a log may show them as they are.
"""

from __future__ import annotations

import functools
import itertools
import string
from hashlib import blake2b
from typing import Annotated, TypeAlias, TypeVar

import msgspec

from tmrl_like.base.text import CONTROLS, one_line
from tmrl_like.errors import DecodingError, OversizeError
from tmrl_like.types import Count, EpisodeStats, Receipt
from tmrl_like.wire.condition import Condition, Finite

WIRE_VERSION = 14  # one more with each change that an older peer would refuse: a field, a limit
MAX_HEADER_BYTES = 1 << 16
MAX_TAKEN_OVER = 1000
MAX_RANKS = 1024
MAX_BODY_BYTES = 256 << 20  # of a packet, before compression
MAX_EPISODES = 50  # in a packet
MAX_PROBE_BYTES = 1 << 20
MAX_REPORT_BYTES = 64 << 10
MAX_REPORTS_BYTES = 1 << 20  # of reports in a view
MAX_NAME = 200
BETWEEN_LEAVES = " | "

T = TypeVar("T")

Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME, pattern=rf"\A[^{CONTROLS}]*\Z")]
Text = Annotated[str, msgspec.Meta(max_length=4000)]
Entry = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]


class Message(msgspec.Struct, array_like=True, tag=True, forbid_unknown_fields=True):
    """Base of all messages."""


class Spaces(msgspec.Struct, frozen=True, array_like=True):
    """What observations and actions look like, for comparing worker and trainer: their leaves,
    `BETWEEN_LEAVES`.
    """

    observation: Text
    action: Text

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "observation", one_line(self.observation))
        msgspec.structs.force_setattr(self, "action", one_line(self.action))

    def difference(self, other: Spaces) -> tuple[str, str, str]:
        """The space that differs, "observation" or "action", and its first leaf that does: this
        one's, the other's.
        """
        what = "observation" if self.observation != other.observation else "action"
        leaves = (getattr(spaces, what).split(BETWEEN_LEAVES) for spaces in (self, other))
        pairs = itertools.zip_longest(*leaves, fillvalue="without this part")
        return what, *next((own, others) for own, others in pairs if own != others)


class Rank(msgspec.Struct, frozen=True, array_like=True):
    """Which of several trainers that learn as one a trainer is."""

    number: Annotated[int, msgspec.Meta(ge=0, lt=MAX_RANKS)] = 0
    size: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)] = 1
    group: Count = 0  # names these trainers' processes; 0: alone


ALONE = Rank()


@functools.lru_cache(10_000)
def share_of(worker: str, shares: int) -> int:
    """Which of so many shares of all workers one belongs to: at a server, of as many as there are
    ranks.

    Names that differ in a number at the end take turns; the others fall where they fall.
    """
    before_number = worker.rstrip(string.digits)
    number = worker[len(before_number) :] or "0"
    digest = blake2b(before_number.encode(), digest_size=4).digest()
    return (int.from_bytes(digest, "little") + int(number)) % shares


class Hello(Message):
    """Peer to server: who I am, what I speak, which spaces I have. The first message on a
    connection.
    """

    role: Name  # "worker", "trainer" or "watcher"
    name: Name  # unique among live peers of that role
    incarnation: Count  # random per process; a restarted process has another
    software: Name  # version of tmrl_like, for error messages
    spaces: Spaces | None = None
    # hash of machine and path of the file where this peer keeps its weights; empty: none
    model_file: Name = ""
    # incarnations
    takes_over: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MAX_TAKEN_OVER)] = ()
    # of this worker that are dead, whose packets it sends as well; a seat that one of them still
    # has is this peer's
    rank: Rank = ALONE  # of a trainer
    # of a trainer: the random name of its training, which all that resume it know; empty: none is
    # kept
    run: Name = ""
    # when the process began, by a clock of its machine that nobody sets (`base.clocks.up_s`)
    began_up_s: float = 0.0

    def goes_on_with(self, before: Hello) -> bool:
        """Whether a trainer goes on with what an earlier one has stored; what a dead one said may
        arrive behind it.
        """
        return self.run != "" and self.run == before.run and self.began_up_s > before.began_up_s


class Welcome(Message):
    """Server to peer: you are in.

    `feed` changes whenever packets sent so far may have been lost on their way (another server
    process, another trainer process): a worker then sends again what is not acknowledged. 0: there
    is no trainer yet. `policy_wanted`: the server holds no policy (a trainer then publishes again).
    """

    feed: Count
    policy_wanted: bool = False


class HelloWanted(Message):
    """Server to peer: there is no record of this connection (the server was restarted, or the link
    was cut).
    """


class Refusal(Message):
    """Server to peer: you may not take part. `retry_after_s` < 0: do not try again."""

    reason: Text
    retry_after_s: float = -1.0

    def __post_init__(self) -> None:
        self.reason = one_line(self.reason)


class SamplePacket(Message):
    """Worker to trainer: the entries `first` to `last` of one worker process, the same bytes on the
    wire and on a disk.

    What a process says in order are its entries, numbered 1, 2, 3, …: samples, reports of finished
    episodes, and breaks (what follows does not continue what came before). Entries may be cut into
    packets in any way, and again in another; a break is the first entry of its packet. The body is
    a checksum and the columns of the samples (`wire.packet`).
    """

    worker: Name
    incarnation: Count  # the worker process that made them
    first: Entry
    last: Entry
    oldest: Entry  # that the worker still has: what is missing before it never comes
    # of the process, up to here: samples of packets that differ in it do not continue each other
    breaks: Count
    samples: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
    # of the columns before compression
    body_bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_BODY_BYTES)]
    compressed: bool  # zstandard
    observed_at_s: float = 0.0  # of the first sample; Unix time
    policy_version: Count = 0  # the oldest that chose an action in it; 0: none was published yet
    episodes: Annotated[
        tuple[tuple[Entry, EpisodeStats], ...], msgspec.Meta(max_length=MAX_EPISODES)
    ] = ()
    # of this process so far: dropped because the worker's limits were reached
    lost_samples: Count = 0
    # lockstep: the worker holds still until `Ack.trained` comes up to these entries
    awaits: bool = False
    # when `Beat.up_s` was 0, in the Unix time of these samples; 0: of a process that is dead
    epoch_s: float = 0.0

    @property
    def receipt(self) -> Receipt:
        """Its process, and its last entry."""
        return Receipt(self.worker, self.incarnation, self.last)


class Answer(Message):
    """Trainer to worker, of the entries of (worker, incarnation); what lies between passes it
    on.
    """

    worker: Name
    incarnation: Count


class Ack(Answer):
    """How far the entries of a process have come.

    Up to `stored` they are where a trainer that is killed finds them again (in its log, or just in
    its memory where it keeps no log): the worker may forget them. Up to `received` they are in the
    trainer's memory: they are no longer in flight. `again`: what follows `received` is missing;
    send it again. Up to `trained` the training steps that they allow are made: of a process that
    awaits it.
    """

    stored: Count
    received: Count
    again: bool = False
    trained: Count = 0


class Dismissal(Answer):
    """The samples of a process do not fit the memory, none of them is taken any more.

    A worker whose process they are of ends; one that only sends what that process left keeps them
    to itself.
    """

    reason: Text

    def __post_init__(self) -> None:
        self.reason = one_line(self.reason)


class PolicyFrame(Message):
    """Trainer to workers: piece `index` of `frames` of a policy; the body is its bytes."""

    version: Count
    index: Count
    frames: Count
    total_bytes: Count
    published_at_s: float
    checksum: Count = 0  # CRC-32 of the policy from its beginning to the end of this piece


class Beat(Message):
    """Sign of life of everybody; a worker's goes on to the trainer, with its condition, which the
    metrics show.
    """

    worker: Name = ""
    condition: Condition = msgspec.field(default_factory=Condition)
    policy_received: Count = 0  # the newest version that arrived whole
    at_s: Finite = 0.0  # when the worker said this; Unix time, by its own clock as it is set now
    # when the worker said this, by a clock of its machine that nobody sets (`base.clocks.up_s`)
    up_s: Finite = 0.0


class Report(Message):
    """Trainer to server: a record of its metrics, for watchers. The body is the record, a JSON
    object.

    It may be lost.
    """


class Look(Message):
    """Watcher to server: what is there to see?"""

    view: Count = 0  # number of the newest view that arrived
    report: Count = 0  # number of the newest report among them; 0: none


class View(Message):
    """Server to watcher: the answer. The body is a `Sight`, as msgpack."""

    number: Count  # 1, 2, 3, … in this server's life
    report: Count  # number of the newest report that is in this view or an earlier one


class Sight(msgspec.Struct, array_like=True):
    """What a server shows to a watcher."""

    trainers: list[str]
    counters: dict[str, int]  # of the server since its start
    workers: list[tuple[float, Beat]]  # of each the seconds since its newest beat came, and that
    # records that the trainer has sent since the last view, oldest first, as JSON
    reports: list[bytes]


class Probe(Message):
    """Peer to server, before a `Hello`, too; and back, with the same body and what the peer cannot
    know.
    """

    time_s: float = 0.0  # the server's, Unix time
    software: Name = ""  # the server's version of tmrl_like
    key: Name = ""  # what the server calls the peer's key
    roles: Annotated[tuple[Name, ...], msgspec.Meta(max_length=16)] = ()  # that it may play


class Bye(Message):
    """Peer to server: I leave, my seat is free."""


AnyMessage: TypeAlias = (
    Hello
    | Welcome
    | HelloWanted
    | Refusal
    | SamplePacket
    | Ack
    | Dismissal
    | PolicyFrame
    | Beat
    | Report
    | Look
    | View
    | Probe
    | Bye
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


class WireVersionError(DecodingError):
    """The other side speaks another wire version."""

    def __init__(self, found: int) -> None:
        super().__init__(f"wire version {found} where this tmrl_like speaks {WIRE_VERSION}")
        self.found = found


def decoded(decoder: msgspec.msgpack.Decoder[T], data: bytes | memoryview, what: str) -> T:
    """What msgpack says; DecodingError: it is not what is decoded there."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DecodingError(f"not {what}: {one_line(str(error))}") from None


def encode(message: Message, *body: bytes | memoryview) -> bytes:
    """Frame a message and its body, in one or several pieces, into the bytes that a transport
    carries.
    """
    return b"".join((frame_of(message), *body))


def frame_of(message: Message) -> bytes:
    """What comes before a message's body."""
    header = _encoder.encode(message)
    return b"".join((bytes((WIRE_VERSION,)), len(header).to_bytes(4, "little"), header))


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
    return decoded(_decoder, view[5 : 5 + length], "a message"), view[5 + length :]
