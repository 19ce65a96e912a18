"""What both ends of a connection do: envelopes, messages in pieces, how much may wait, signs of life.

tlspyo writes an ASCII length of 10 bytes, towards the server the password, and an envelope: (stamp, command,
destination, object) towards the server, (stamp, command, object) towards a peer. Each is acknowledged by its stamp. Its
receive buffer is quadratic in the size of an envelope, so messages travel in pieces.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from tmrl_like.errors import DecodingError
from tmrl_like.transport.base import TransportOptions
from tmrl_like.transport.tlspyo.reactor import running_reactor

HEADER_BYTES = 10
PIECE_BYTES = 255 * 1024
MAX_ENVELOPE_BYTES = 256 * 1024
GROUP = "peers"
FAREWELL_S = 0.5
"""What was handed over has as long as this to leave when a link is closed."""

Piece: TypeAlias = tuple[bool, memoryview]  # whether it is the last one of its message, bytes
Command: TypeAlias = Literal["HELLO", "OBJ", "NTF", "ACK", "DENIED"]  # the last one is ours

encode = msgspec.msgpack.Encoder().encode
decode_at_server = msgspec.msgpack.Decoder(tuple[int, Command, dict[str, int] | None, Piece | str | None]).decode
decode_at_peer = msgspec.msgpack.Decoder(tuple[int, Command, Piece | None]).decode


def length_in(header: bytes) -> int:
    """Read tlspyo's ASCII length; raises DecodingError for no number, or one above `MAX_ENVELOPE_BYTES`."""
    text = header.rstrip(b" ")
    if not text.isdigit() or int(text) > MAX_ENVELOPE_BYTES:
        raise DecodingError(f"an envelope with the length {header!r}; at most {MAX_ENVELOPE_BYTES} bytes are allowed")
    return int(text)


class Assembler:
    """Puts the messages of one connection together. Memory grows with what has arrived, not with what is announced."""

    def __init__(self, options: TransportOptions) -> None:
        self._options = options
        self._parts: list[memoryview] = []
        self._size_bytes = 0

    def add(self, piece: Piece) -> bytes | memoryview | None:
        """Take the next piece; return the message that it completes, if any.

        Raises:
            OversizeError: the message is above the limit.
            DecodingError: a piece has another size than `cut` gives it.
        """
        last, part = piece
        if len(part) > PIECE_BYTES or (not last and len(part) < PIECE_BYTES):
            raise DecodingError(f"a piece of {len(part)} bytes where {PIECE_BYTES} belong")
        self._size_bytes += len(part)
        self._options.check_size(self._size_bytes)
        self._parts.append(part)
        if not last:
            return None
        whole = part if len(self._parts) == 1 else b"".join(self._parts)
        self._parts, self._size_bytes = [], 0
        return whole


def cut(data: bytes | memoryview) -> list[Piece]:
    """Cut a message into pieces, at least one."""
    view = memoryview(data).cast("B")
    starts = range(0, max(1, len(view)), PIECE_BYTES)
    return [(start == starts[-1], view[start : start + PIECE_BYTES]) for start in starts]


class Unacknowledged(dict[int, tuple[float, int]]):
    """tlspyo's table of what was not acknowledged yet: stamp -> (time, size), without a copy of every envelope."""

    size_bytes = 0

    def __setitem__(self, stamp: int, sent: tuple[float, Any]) -> None:
        super().__setitem__(stamp, (sent[0], len(sent[1])))
        self.size_bytes += len(sent[1])

    def __delitem__(self, stamp: int) -> None:
        self.size_bytes -= self[stamp][1]
        super().__delitem__(stamp)


class Tally:
    """Messages that one thread adds and another removes. Each number has one writer, so there is no lock."""

    def __init__(self) -> None:
        self._added = self._removed = (0, 0)

    def add(self, size_bytes: int) -> None:
        """Count a message that waits from now on."""
        self._added = self._added[0] + 1, self._added[1] + size_bytes

    def remove(self, size_bytes: int) -> None:
        """Count a message that no longer waits."""
        self._removed = self._removed[0] + 1, self._removed[1] + size_bytes

    def waiting(self) -> tuple[int, int]:
        """How many messages wait, and their bytes."""
        return self._added[0] - self._removed[0], self._added[1] - self._removed[1]


class Connection:
    """Mixed into tlspyo's two protocols. `hand_over` and `received` are for the user's thread."""

    transport: Any
    send_obj: Any

    def __init__(self, options: TransportOptions, inbox: queue.SimpleQueue[Any]) -> None:
        self.options = options
        self.unacknowledged = Unacknowledged()
        self.proved = False
        self.ended = threading.Event()
        self._inbox = inbox
        self._assembler = Assembler(options)
        self._made_at = self.heard_at = time.monotonic()
        self._timer: Any = None
        self._held = False
        self._to_cut, self._to_receive = Tally(), Tally()

    def begin(self) -> None:
        """Start to look after this connection."""
        self.transport.setTcpNoDelay(True)
        self._timer = running_reactor().callLater(self.options.heartbeat_s, self._look_after)

    def end(self) -> None:
        if self._timer.active():
            self._timer.cancel()
        self.ended.set()

    def _look_after(self) -> None:
        """Give a sign of life, and expect one."""
        now = time.monotonic()
        too_late = not self.proved and now - self._made_at > self.options.handshake_timeout_s
        if too_late or (not self._held and now - self.heard_at > self.options.silent_after_s):
            self.transport.abortConnection()
            return
        if self.proved and len(self.unacknowledged) < self.options.queue_messages:
            self.send_obj(cmd="NTF")
        self._timer = running_reactor().callLater(self.options.heartbeat_s, self._look_after)

    # out

    def hand_over(self, data: bytes | memoryview) -> bool:
        """Take a message to send; False where too much waits already."""
        messages, size_bytes = self._to_cut.waiting()
        many = messages + len(self.unacknowledged) >= self.options.queue_messages
        if many or size_bytes + self.unacknowledged.size_bytes >= self.options.queue_bytes:
            return False
        self._to_cut.add(len(data))
        running_reactor().callFromThread(self._send, data)
        return True

    def _send(self, data: bytes | memoryview) -> None:
        for piece in cut(data):
            self.send_obj(obj=piece)
        self._to_cut.remove(len(data))

    # in

    def arrive(self, piece: Piece) -> None:
        """Take a piece. Where too much waits to be received nothing is read: TCP makes the other side wait."""
        data = self._assembler.add(piece)
        if data is None:
            return
        self._to_receive.add(len(data))
        self._inbox.put((self, data))
        if not self._held and self._waits(1.0):
            self._held = True
            self.transport.pauseProducing()
            self._release()  # what was received before `_held` was set has not asked for it

    def received(self, size_bytes: int) -> None:
        self._to_receive.remove(size_bytes)
        if self._held and not self._waits(0.5):
            running_reactor().callFromThread(self._release)

    def _release(self) -> None:
        if self._held and not self._waits(0.5):
            self._held = False
            self.heard_at = time.monotonic()
            self.transport.resumeProducing()

    def _waits(self, share: float) -> bool:
        messages, size_bytes = self._to_receive.waiting()
        return messages >= share * self.options.queue_messages or size_bytes >= share * self.options.queue_bytes


def close_all(connections: Sequence[Connection]) -> None:
    """End connections, from the user's thread: what was handed over has `FAREWELL_S` to leave."""
    reactor = running_reactor()
    for connection in connections:
        reactor.callFromThread(connection.transport.loseConnection)
    until = time.monotonic() + FAREWELL_S
    for connection in connections:
        if not connection.ended.wait(max(0.0, until - time.monotonic())):
            reactor.callFromThread(connection.transport.abortConnection)
