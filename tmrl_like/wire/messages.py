"""All messages, each a typed structure, and their framing.

A message on the wire::

    1 byte   wire version
    4 bytes  length of the header, little-endian
    header   one of the structures below (msgpack)
    body     raw bytes that the structure describes; not every message has a body

The server reads headers and passes bodies on unread. A message that does not decode to one of these
types is refused; every length is compared with its limit before it is used. Names and texts are
single lines without control characters, so that they can be logged safely.
"""

from __future__ import annotations

import functools
import itertools
import secrets
import string
from hashlib import blake2b
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

import tmrl_like
from tmrl_like.base import clocks
from tmrl_like.base.text import CONTROLS, one_line
from tmrl_like.errors import DecodingError, OversizeError
from tmrl_like.types import Count, EpisodeStats, Receipt
from tmrl_like.wire.condition import Condition, Finite

WIRE_VERSION = 17  # increased with each change that an older peer would refuse: a field, a limit
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
Role = Annotated[str, msgspec.Meta(max_length=7, pattern=r"\A(worker|trainer|watcher)\Z")]
Text = Annotated[str, msgspec.Meta(max_length=4000)]
Entry = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]


class Message(msgspec.Struct, array_like=True, tag=True, forbid_unknown_fields=True):
    """Base class of all messages."""


class Spaces(msgspec.Struct, frozen=True, array_like=True):
    """Descriptions of the observation and action spaces, for comparing worker and trainer: their
    leaves, joined by `BETWEEN_LEAVES`.
    """

    observation: Text
    action: Text

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "observation", one_line(self.observation))
        msgspec.structs.force_setattr(self, "action", one_line(self.action))

    def difference(self, other: Spaces) -> tuple[str, str, str]:
        """Return which space differs, "observation" or "action", and its first differing leaf in
        `self` and in `other`.
        """
        what, own, others = "observation", self.observation, other.observation
        if own == others:
            what, own, others = "action", self.action, other.action
        leaves = own.split(BETWEEN_LEAVES), others.split(BETWEEN_LEAVES)
        pairs = itertools.zip_longest(*leaves, fillvalue="without this part")
        return what, *next(pair for pair in pairs if pair[0] != pair[1])


class Rank(msgspec.Struct, frozen=True, array_like=True):
    """A trainer's rank among several trainers that learn as one."""

    number: Annotated[int, msgspec.Meta(ge=0, lt=MAX_RANKS)] = 0
    size: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)] = 1
    group: Count = 0  # identifies the group of processes; 0: a single trainer


ALONE = Rank()


@functools.lru_cache(10_000)
def share_of(worker: str, shares: int) -> int:
    """Return which of `shares` shares of all workers a worker belongs to, by its name.

    At a server there are as many shares as ranks. Names that differ only in a number at the end
    take turns; other names are distributed by a hash.
    """
    before_number = worker.rstrip(string.digits)
    number = worker[len(before_number) :] or "0"
    digest = blake2b(before_number.encode(), digest_size=4).digest()
    return (int.from_bytes(digest, "little") + int(number)) % shares


class Hello(Message):
    """Peer to server: the peer's identity, version and spaces. The first message on a
    connection.
    """

    role: Role
    name: Name  # unique among live peers of that role
    incarnation: Count  # random per process; a restarted process has another
    software: Name  # version of tmrl_like, for error messages
    spaces: Spaces | None = None
    # hash of machine and path of the file where this peer keeps its weights; empty: none
    model_file: Name = ""
    # dead incarnations of this worker, whose packets it sends as well; if one of them still has a
    # seat, this peer gets it
    takes_over: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MAX_TAKEN_OVER)] = ()
    rank: Rank = ALONE  # of a trainer
    # of a trainer: the random name of its training, the same for all processes that resume it;
    # empty: the training is not stored
    run: Name = ""
    samples: Count = 0  # of a trainer: those that all its ranks had stored when it started
    # when the process started, by a monotonic clock of its machine (`base.clocks.up_s`)
    began_up_s: float = 0.0

    @classmethod
    def of_this_process(cls, role: Role, name: str, incarnation: int = 0, **more: Any) -> Hello:
        """Return the hello of a peer in this process. `incarnation` 0: a random number."""
        incarnation = incarnation or secrets.randbits(62) + 1
        software = tmrl_like.__version__
        return cls(role, name, incarnation, software, began_up_s=clocks.up_s(), **more)

    def goes_on_with(self, before: Hello) -> bool:
        """Whether this trainer resumes the training of the other one.

        Only the process that started later does, with more samples or, on one machine, at a later
        time: the hello of a dead process may arrive late.
        """
        is_later = (self.samples, self.began_up_s) > (before.samples, before.began_up_s)
        return self.run != "" and self.run == before.run and is_later


class Welcome(Message):
    """Server to peer: the peer has a seat.

    `feed` changes whenever packets in flight may have been lost (another server process, another
    trainer process): a worker then sends again what is not acknowledged. 0: there is no trainer
    yet. `policy_wanted`: the server holds no policy, so the trainer should publish it again.
    """

    feed: Count
    policy_wanted: bool = False


class HelloWanted(Message):
    """Server to peer: this connection is unknown (the server was restarted, or the link was cut);
    send a `Hello`.
    """


class Refusal(Message):
    """Server to peer: the peer gets no seat. `retry_after_s` < 0: do not try again."""

    reason: Text
    retry_after_s: float = -1.0

    def __post_init__(self) -> None:
        self.reason = one_line(self.reason)


class SamplePacket(Message):
    """Worker to trainer: the entries `first` to `last` of one worker process, in the same bytes on
    the wire and on disk.

    The entries of a process are numbered 1, 2, 3, …: samples, reports of finished episodes, and
    breaks (what follows does not continue what came before). Entries may be divided into packets in
    any way, and in another way when they are sent again; a break is the first entry of its packet.
    The body is a checksum and the columns of the samples (`wire.packet`).
    """

    worker: Name
    incarnation: Count  # the worker process that made the entries
    first: Entry
    last: Entry
    oldest: Entry  # the oldest that the worker still has: earlier ones that are missing are lost
    # number of breaks so far: samples of packets that differ in it do not continue each other
    breaks: Count
    samples: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
    # size of the columns before compression
    body_bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_BODY_BYTES)]
    compressed: bool  # zstandard
    # of the first sample; Unix time, of which a date can be made
    observed_at_s: Annotated[float, msgspec.Meta(ge=-1e11, le=1e11)] = 0.0
    policy_version: Count = 0  # the oldest that chose an action here; 0: none was published yet
    episodes: Annotated[
        tuple[tuple[Entry, EpisodeStats], ...], msgspec.Meta(max_length=MAX_EPISODES)
    ] = ()
    # lockstep: the worker waits until `Ack.trained` has reached these entries
    awaits: bool = False
    # when `Beat.up_s` was 0, in the Unix time of these samples; 0: the process is dead
    epoch_s: float = 0.0

    @property
    def receipt(self) -> Receipt:
        """The packet's process and last entry."""
        return Receipt(self.worker, self.incarnation, self.last)


class Answer(Message):
    """Base of messages from the trainer to a worker about the entries of (worker, incarnation);
    servers in between pass them on.
    """

    worker: Name
    incarnation: Count


class Ack(Answer):
    """How far the entries of a process have come.

    Entries up to `stored` survive a kill of the trainer (in its sample store, or only in its memory
    if it has none), so the worker may forget them. Entries up to `received` are in the trainer's
    memory and no longer in flight. `again`: what follows `received` is missing; send it again.
    `trained`, for a process in lockstep: the training steps that entries up to here allow have been
    made.
    """

    stored: Count
    received: Count
    again: bool = False
    trained: Count = 0


class Dismissal(Answer):
    """The samples of a process do not fit the memory; no more of them are taken.

    If this is the worker's own process, the worker ends. If an earlier process left these samples,
    the worker stops sending them and keeps them.
    """

    reason: Text

    def __post_init__(self) -> None:
        self.reason = one_line(self.reason)


class PolicyFrame(Message):
    """Trainer to workers: piece `index` of the `frames` pieces of a policy; the body is its
    bytes.
    """

    version: Count
    index: Count
    frames: Count
    total_bytes: Count
    published_at_s: float
    checksum: Count = 0  # CRC-32 of the policy from its beginning to the end of this piece


class Beat(Message):
    """A sign of life of any part. A worker's heartbeat is passed on to the trainer, with its
    condition for the metrics.
    """

    worker: Name = ""
    condition: Condition = msgspec.field(default_factory=Condition)
    policy_received: Count = 0  # the newest version that arrived whole
    at_s: Finite = 0.0  # when it was sent; Unix time, by the worker's clock as it is set now
    # when it was sent, by a monotonic clock of the worker's machine (`base.clocks.up_s`)
    up_s: Finite = 0.0


class Report(Message):
    """Trainer to server: a record of its metrics, for watchers. The body is a JSON object.

    A report may be lost.
    """


class Look(Message):
    """Watcher to server: request for a view."""

    view: Count = 0  # number of the newest view that arrived
    report: Count = 0  # number of the newest report that arrived; 0: none


class View(Message):
    """Server to watcher: the answer to a `Look`. The body is a `Sight`, as msgpack."""

    number: Count  # 1, 2, 3, … since the server started
    report: Count  # number of the newest report in this view or an earlier one


class Sight(msgspec.Struct, array_like=True):
    """The content of a `View`: what a server shows to a watcher."""

    trainers: list[str]
    counters: dict[str, int]  # of the server since its start
    workers: list[tuple[float, Beat]]  # of each, its newest beat, after its age in seconds
    # records that the trainer has sent since the last view, oldest first, as JSON
    reports: list[bytes]


class Probe(Message):
    """Peer to server, also before a `Hello`; the server returns it with the same body, and with the
    fields filled in.
    """

    time_s: float = 0.0  # the server's, Unix time
    software: Name = ""  # the server's version of tmrl_like
    key: Name = ""  # the server's name for the peer's key
    roles: Annotated[tuple[Name, ...], msgspec.Meta(max_length=16)] = ()  # that the key may play


class Bye(Message):
    """Peer to server: the peer leaves, and its seat is free."""


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
    """Decode msgpack data; raise DecodingError if it is not `what` the decoder expects."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DecodingError(f"not {what}: {one_line(str(error))}") from None


def encode(message: Message, *body: bytes | memoryview) -> bytes:
    """Return a message and its body, given in one or several pieces, as bytes for a transport."""
    return b"".join((frame_of(message), *body))


def frame_of(message: Message) -> bytes:
    """Return everything that precedes a message's body: wire version, length and header."""
    header = _encoder.encode(message)
    return b"".join((bytes((WIRE_VERSION,)), len(header).to_bytes(4, "little"), header))


def decode(data: bytes | memoryview) -> tuple[AnyMessage, memoryview]:
    """Split a message into its decoded header and its body (a view of `data`).

    Raises:
        WireVersionError: the message has another wire version.
        OversizeError: the header claims to be larger than `MAX_HEADER_BYTES`.
        DecodingError: the data is not a message.
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
