"""The messages between a worker and its link: when the link starts, five times a second, and when
something changes.

Between two processes, a message is sent as its length in 4 bytes, followed by msgpack; between
threads, the object itself is passed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
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
    """Base of the messages between a worker and its link."""


class Setup(_Told):
    """To the link, first: what it is to do."""

    worker: str
    folder: str  # with the entries
    incarnations: list[int]  # of the control loops, one per lane
    dead: tuple[int, ...]  # incarnations of earlier processes that left entries in the folder
    shared: str  # folder of the policy slots
    outbox: OutboxOptions
    transport: str
    server: tuple[str, int]  # host and port
    keys: str
    limits: TransportOptions
    spaces: Spaces
    weights: str  # file of the newest weights; empty: none
    history: str  # path prefix of the weights that are kept; empty: none
    model_history: int
    actor: str  # its class, for messages
    manifest: Manifest
    network: NetworkSpec | None  # None: the link cannot compute a policy's actions
    probes: bytes  # float32 [N, R], flat observations
    epoch_s: float  # of the samples, see `wire.messages.SamplePacket`
    condition: Condition = msgspec.field(default_factory=Condition)


class Fit(_Told):
    """To the link: a policy that only the other process can check is fit to act."""

    word: int


class Hasten(_Told):
    """To the link: send now what was appended so far."""


class Leave(_Told):
    """To the link: send what is left, for at most `flush_s`, and end."""

    flush_s: float


class Status(_Told):
    """From the link, as soon as it runs, and then five times a second."""

    connected: bool
    condition: Condition  # the worker's, as in the next beat


class Published(_Told):
    """From the link: a policy is in a slot, and only the other process can check it."""


class Trained(_Told):
    """From the link: the training steps that a lane's entries up to this one allow are done."""

    incarnation: int
    entry: int


class LogLine(_Told):
    """From the link: a line for the log."""

    logger: str
    level: int
    text: str


class Left(_Told):
    """From the link, last: it has sent what it could, as it was asked to."""


class Failed(_Told):
    """From the link, last: what ended it."""

    kind: str  # the error's class
    text: str


ToLink: TypeAlias = Setup | Condition | Fit | Hasten | Leave
FromLink: TypeAlias = Status | Published | Trained | LogLine | Left | Failed
TO_LINK: msgspec.msgpack.Decoder[ToLink] = msgspec.msgpack.Decoder(ToLink)
FROM_LINK: msgspec.msgpack.Decoder[FromLink] = msgspec.msgpack.Decoder(FromLink)


def messages_in(file: IO[bytes], decoder: msgspec.msgpack.Decoder[_T]) -> Iterator[_T]:
    """Yield the messages in a file without a buffer, waiting for each of them, until its end."""
    while len(size := _read(file, 4)) == 4:
        length = int.from_bytes(size, "little")
        if len(data := _read(file, length)) == length:
            yield decoder.decode(data)


def _read(file: IO[bytes], size: int) -> bytearray:
    """Return `size` bytes, or fewer at the end. A thread that waits here holds no lock of the
    file.
    """
    data = bytearray()
    while len(data) < size and (more := file.read(size - len(data))):
        data += more
    return data


def message_writer(file: IO[bytes]) -> Callable[[ToLink | FromLink], bool]:
    """Return a function that writes messages to a file without a buffer, and returns False if the
    other side has ended. Any thread may call it.
    """
    lock = threading.Lock()

    def write(message: ToLink | FromLink) -> bool:
        data = msgspec.msgpack.encode(message)
        with lock, contextlib.suppress(OSError, ValueError):
            write_whole(file, len(data).to_bytes(4, "little") + data)
            return True
        return False

    return write
