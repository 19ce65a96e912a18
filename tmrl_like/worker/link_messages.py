"""What a worker and its link tell each other: when the link starts, five times a second, and when something changes.

Between two processes, a message is 4 bytes for its length, and msgpack.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from tmrl_like.base.files import write_whole
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.policies.network import NetworkSpec
from tmrl_like.policies.weight_file import Manifest
from tmrl_like.transport.base import TransportOptions
from tmrl_like.wire.condition import Condition
from tmrl_like.wire.messages import Spaces

STATUS_EVERY_S = 0.2

T = TypeVar("T")


class _Told(msgspec.Struct, array_like=True, tag=True):
    """Base of what the two tell each other."""


class Start(_Told):
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
    probes: bytes  # float32 [N, R]
    input_size: int  # R
    log_level: int
    condition: Condition
    epoch_s: float  # of the samples, see `wire.messages.SamplePacket`


class Fit(_Told):
    """To the link: a policy that only the other process can check is fit to act."""

    word: int


class Hasten(_Told):
    """To the link: what was appended so far shall leave now."""


class Leave(_Told):
    """To the link: send what is left, for so long at most, and end."""

    flush_s: float
    condition: Condition


class Ready(_Told):
    """From the link: it runs. It does not wait for the server."""


class Status(_Told):
    """From the link, five times a second."""

    connected: bool
    unacknowledged_samples: int
    lost_samples: int
    alarm: str  # what the worker's user should know; empty: all is well


class Published(_Told):
    """From the link: a policy is in a slot."""


class Trained(_Told):
    """From the link: the training steps are made that the entries of a lane up to this one allow."""

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
    is_shortage: bool = False  # of memory, or something else that another process may find


ToLink: TypeAlias = Start | Condition | Fit | Hasten | Leave
FromLink: TypeAlias = Ready | Status | Published | Trained | LogLine | Failed


class Reader(Generic[T]):
    """Reads messages of some kinds; an iterator, until the other side has ended."""

    def __init__(self, file: Any, kinds: Any) -> None:
        """`file` gives bytes, waits for them, and has no buffer: a thread that waits holds no lock of it."""
        self._file = file
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kinds)

    def __iter__(self) -> Iterator[T]:
        while len(size := self._read(4)) == 4:
            data = self._read(int.from_bytes(size, "little"))
            if len(data) == int.from_bytes(size, "little"):
                yield self._decoder.decode(data)

    def _read(self, size: int) -> bytearray:
        """So many bytes; fewer at the end."""
        data = bytearray()
        while len(data) < size and (more := self._file.read(size - len(data))):
            data += more
        return data


class Writer:
    """Writes messages; any thread calls it."""

    def __init__(self, file: Any) -> None:
        """`file` takes bytes, and has no buffer."""
        self._file = file
        self._lock = threading.Lock()

    def __call__(self, message: Any) -> None:
        """Write one; nothing where the other side has ended."""
        data = msgspec.msgpack.encode(message)
        with self._lock, contextlib.suppress(OSError, ValueError):
            write_whole(self._file, len(data).to_bytes(4, "little") + data)
