"""What both ends of a connection do: envelopes, how much may wait, signs of life.

tlspyo writes an ASCII length of 10 bytes, towards the server the password, and an envelope: (stamp, command,
destination, object) towards the server, (stamp, command, object) towards a peer. Each is acknowledged by its stamp. A
message is an object. An acknowledgement of nothing (stamp 0) is a sign of life.
"""

from __future__ import annotations

import gc
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from tmrl_like.errors import DecodingError
from tmrl_like.transport.base import TransportOptions, next_in
from tmrl_like.transport.tlspyo.reactor import running_reactor

log = logging.getLogger(__name__)

HEADER_BYTES = 10
GROUP = "peers"
_ENVELOPE_BYTES = 64  # more than what it has beside its message
_FAREWELL_S = 0.5  # for what was handed over, when a link is closed


class Unremembered(dict[int, Any]):
    """In the place of tlspyo's table of what was not acknowledged yet, which has a copy of every envelope."""

    def __setitem__(self, stamp: int, sent: Any) -> None:
        pass


class Waiting:
    """Messages that one thread adds and another removes. Each number has one writer, so there is no lock."""

    def __init__(self, options: TransportOptions) -> None:
        self._options = options
        self._added = self._removed = (0, 0)

    def add(self, size_bytes: int) -> None:
        self._added = self._added[0] + 1, self._added[1] + size_bytes

    def remove(self, size_bytes: int) -> None:
        self._removed = self._removed[0] + 1, self._removed[1] + size_bytes

    def reaches(self, share: float) -> bool:
        """Whether they come to this share of what may wait."""
        messages, size_bytes = self._added[0] - self._removed[0], self._added[1] - self._removed[1]
        return messages >= share * self._options.queue_messages or size_bytes >= share * self._options.queue_bytes


class TlspyoLink:
    """What both sides have: a queue of what arrived; None in it is a wake-up."""

    def __init__(self, options: TransportOptions) -> None:
        self.options = options
        self.inbox: queue.SimpleQueue[tuple[Connection, memoryview] | None] = queue.SimpleQueue()

    def next_message(self, timeout_s: float) -> tuple[Any, memoryview] | None:
        item = next_in(self.inbox, timeout_s)
        if item is not None:
            connection, data = item
            connection.received(len(data))
        return item

    def wake(self) -> None:
        self.inbox.put(None)

    def made(self, connection: Any) -> None:
        """Take note of a connection. In the reactor, as the next."""

    def gone(self, connection: Any, reason: Any) -> None:
        """Take note of its end."""

    @staticmethod
    def end(connections: Iterable[Connection]) -> None:
        """End connections, from the user's thread: what was handed over has a moment to leave."""
        leaving, reactor = list(connections), running_reactor()
        for connection in leaving:
            reactor.callFromThread(connection.leave)
        until = time.monotonic() + _FAREWELL_S
        for connection in leaving:
            if not connection.ended.wait(max(0.0, until - time.monotonic())):
                reactor.callFromThread(connection.transport.abortConnection)


class Connection:
    """Mixed into tlspyo's two protocols. `hand_over` and `received` are for the user's thread.

    Attributes:
        proved: the other side has proved that it has its key.
        ended: set when there is no connection any more.
    """

    transport: Any
    send_obj: Any
    send_ack: Any
    _state: str

    def __init__(self, link: TlspyoLink) -> None:
        self.proved = False
        self.ended = threading.Event()
        self._link = link
        self._options = link.options
        self._buffer = bytearray()  # tlspyo's; its own, of bytes, is copied with all that arrives
        self._arrived, self._handed_over = Waiting(self._options), Waiting(self._options)
        self._outgoing: deque[bytes | memoryview] = deque()
        self._is_blocked = self._is_leaving = self._is_held = False
        self._heard_at = time.monotonic()
        self._timer: Any = None

    def connectionMade(self) -> None:  # noqa: N802 - Twisted's name, as others here
        self.transport.setTcpNoDelay(True)
        self.transport.registerProducer(self, True)
        self._timer = running_reactor().callLater(self._options.heartbeat_s, self._look_after)
        self._link.made(self)
        super().connectionMade()  # type: ignore[misc]

    def connectionLost(self, reason: Any) -> None:  # noqa: N802
        super().connectionLost(reason)  # type: ignore[misc]
        self.transport.unregisterProducer()
        if self._timer.active():
            self._timer.cancel()
        self.ended.set()
        self._link.gone(self, reason)
        running_reactor().callLater(0, gc.collect, 0)  # 150 kB of OpenSSL hang in a circle with the error that ended it

    def _look_after(self) -> None:
        """Give a sign of life, and expect one, or a proof."""
        now = time.monotonic()
        if self._is_held:
            self._heard_at = now  # nothing is read
        limit_s = self._options.silent_after_s if self.proved else self._options.handshake_timeout_s
        if now - self._heard_at > limit_s:
            self.transport.abortConnection()
            return
        if self.proved:
            self.send_ack(0)
        self._timer = running_reactor().callLater(self._options.heartbeat_s, self._look_after)

    # out

    def hand_over(self, data: bytes | memoryview) -> bool:
        """Take a message to send; False where too much waits already."""
        if self._handed_over.reaches(1.0):
            return False
        self._handed_over.add(len(data))
        self._outgoing.append(data)
        running_reactor().callFromThread(self._send)
        return True

    def leave(self) -> None:
        """End the connection when what was handed over has left."""
        self._is_leaving = True
        self._send()

    def _send(self) -> None:
        while self._outgoing and not self._is_blocked:
            data = self._outgoing.popleft()
            self.send_obj(obj=data)
            self._handed_over.remove(len(data))
        if self._is_leaving and not self._outgoing:
            self.transport.unregisterProducer()
            self.transport.loseConnection()

    def pauseProducing(self) -> None:  # noqa: N802
        """Twisted says: what was written waits for the network."""
        self._is_blocked = True

    def resumeProducing(self) -> None:  # noqa: N802
        """Twisted says: it has left."""
        self._is_blocked = False
        self._send()

    def stopProducing(self) -> None:  # noqa: N802
        """Twisted says: nothing leaves any more."""

    # in

    def dataReceived(self, data: bytes) -> None:  # noqa: N802
        if self._is_leaving:
            return
        try:
            super().dataReceived(data)  # type: ignore[misc]
        except Exception as problem:
            if self.proved:
                log.warning("cut the connection %s: %s", self, problem)
            self.transport.abortConnection()
        if self.proved:
            self._heard_at = time.monotonic()
        if self._state == "CLOSED":  # by tlspyo, for what it does not accept
            self.leave()

    def bounds(self, start: int) -> tuple[int, int]:
        """Of the next envelope, behind so many bytes; raises DecodingError for a length that none has."""
        if len(self._buffer) < start:
            return 0, len(self._buffer) + 1
        length = bytes(self._buffer[:HEADER_BYTES])
        limit = self._options.max_message_bytes + _ENVELOPE_BYTES
        if not length.rstrip(b" ").isdigit() or int(length) > limit:
            raise DecodingError(f"an envelope with the length {length!r}; at most {limit} bytes are allowed")
        return start, start + int(length)

    def arrive(self, data: memoryview) -> None:
        """Take a message. Where too much waits to be received nothing is read: TCP makes the other side wait."""
        self._options.check_size(len(data))
        self._arrived.add(len(data))
        self._link.inbox.put((self, data))
        if not self._is_held and self._arrived.reaches(1.0):
            self._is_held = True
            self.transport.pauseProducing()
            self._release()  # what was received before `_is_held` was set has not asked for it

    def received(self, size_bytes: int) -> None:
        """The user has taken a message."""
        self._arrived.remove(size_bytes)
        if self._is_held and not self._arrived.reaches(0.5):
            running_reactor().callFromThread(self._release)

    def _release(self) -> None:
        if self._is_held and not self._arrived.reaches(0.5):
            self._is_held = False
            self.transport.resumeProducing()
