"""What a worker and its link tell each other: when the link starts, five times a second, and when
something changes.

Between two processes, a message is 4 bytes for its length, and msgpack; between threads it is
handed over.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import IO, TypeAlias, TypeVar

import msgspec

from tmrl_like.base.files import write_whole
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.policies.network import NetworkSpec
from tmrl_like.policies.weight_file import Manifest
from tmrl_like.transport.base import TransportOptions
from tmrl_like.wire.condition import Condition
from tmrl_like.wire.messages import Spaces

STATUS_EVERY_S = 0.2

_T = TypeVar("_T")


class _Told(msgspec.Struct, array_like=True, tag=True):
    """Base of what the two tell each other."""


class Setup(_Told):
    """To the link, first: what it does."""

    worker: str
    folder: str  # of the entries
    incarnations: list[int]  # of the control loops, a lane each
    shared: str  # folder of the policy slots
    outbox: OutboxOptions
    transport: str
    servers: tuple[str, ...]  # HOST:PORT
    keys: str
    limits: TransportOptions
    spaces: Spaces
    weights: str  # files; empty: none
    history: str
    model_history: int
    actor: str  # its class, for messages
    manifest: Manifest
    network: NetworkSpec | None  # None: the link does not know what a policy computes
    probes: bytes  # float32 [N, R], flat observations
    log_level: int
    epoch_s: float  # of the samples, see `wire.messages.SamplePacket`
    condition: Condition = msgspec.field(default_factory=Condition)


class Fit(_Told):
    """To the link: a policy that only the other process can check is fit to act."""

    word: int


class Hasten(_Told):
    """To the link: what was appended so far shall leave now."""


class Leave(_Told):
    """To the link: send what is left, for so long at most, and end."""

    flush_s: float
    condition: Condition


class Status(_Told):
    """From the link, as soon as it runs, then five times a second."""

    connected: bool
    condition: Condition  # the worker's, as the next beat says it


class Published(_Told):
    """From the link: a policy is in a slot, and only the other process can check it."""


class Trained(_Told):
    """From the link: the training steps are made that the entries of a lane up to this one
    allow.
    """

    incarnation: int
    entry: int


class LogLine(_Told):
    """From the link."""

    logger: str
    level: int
    text: str


class Failed(_Told):
    """From the link, last: what ended it."""

    kind: str  # the error's class
    text: str


ToLink: TypeAlias = Setup | Condition | Fit | Hasten | Leave
FromLink: TypeAlias = Status | Published | Trained | LogLine | Failed
TO_LINK: msgspec.msgpack.Decoder[ToLink] = msgspec.msgpack.Decoder(ToLink)
FROM_LINK: msgspec.msgpack.Decoder[FromLink] = msgspec.msgpack.Decoder(FromLink)


def messages_in(file: IO[bytes], decoder: msgspec.msgpack.Decoder[_T]) -> Iterator[_T]:
    """The messages that come in a file, which waits for them and has no buffer; until its end."""
    while len(size := _read(file, 4)) == 4:
        data = _read(file, int.from_bytes(size, "little"))
        if len(data) == int.from_bytes(size, "little"):
            yield decoder.decode(data)


def _read(file: IO[bytes], size: int) -> bytearray:
    """So many bytes; fewer at the end. A thread that waits here holds no lock of the file."""
    data = bytearray()
    while len(data) < size and (more := file.read(size - len(data))):
        data += more
    return data


class MessageWriter:
    """Writes messages; any thread calls it."""

    def __init__(self, file: IO[bytes]) -> None:
        """`file` takes bytes, and has no buffer."""
        self._file = file
        self._lock = threading.Lock()

    def __call__(self, message: ToLink | FromLink) -> None:
        """Write one; nothing where the other side has ended."""
        data = msgspec.msgpack.encode(message)
        with self._lock, contextlib.suppress(OSError, ValueError):
            write_whole(self._file, len(data).to_bytes(4, "little") + data)
