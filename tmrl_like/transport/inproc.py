"""A transport inside one process, for tests and one-script runs without sockets. Same contract."""

from __future__ import annotations

import itertools
import queue
import threading

from tmrl_like.errors import AddressInUseError
from tmrl_like.transport.base import LOCALHOST, Identity, Incoming, TransportOptions, next_in

_EVERYBODY = Identity("inproc", ("worker", "trainer"))
_servers: dict[tuple[str, int], InprocServerLink] = {}
_lock = threading.Lock()
_ports = itertools.count(100_000)


class InprocServerLink:
    """Listens at (host, port) within this process. See `ServerLink`."""

    def __init__(self, host: str = "inproc", port: int = 0, options: TransportOptions | None = None) -> None:
        """Take the address.

        Raises:
            AddressInUseError: another server of this process has it.
        """
        self._options = options or TransportOptions()
        self._inbox: queue.SimpleQueue[tuple[bytes, bytes] | None] = queue.SimpleQueue()
        self._outboxes: dict[bytes, queue.SimpleQueue[bytes | memoryview | None]] = {}
        self._ids = itertools.count(1)
        with _lock:
            host = LOCALHOST if host == "0.0.0.0" else host  # peers dial this machine
            self.address = (host, port or next(_ports))
            if self.address in _servers:
                raise AddressInUseError(f"port {port} on {host} is taken: another server of this process listens there")
            _servers[self.address] = self

    def receive(self, timeout_s: float) -> Incoming | None:
        """See `ServerLink.receive`."""
        item = next_in(self._inbox, timeout_s)
        return None if item is None else Incoming(item[0], _EVERYBODY, item[1])

    def send(self, peer: bytes, data: bytes | memoryview) -> bool:
        """See `ServerLink.send`."""
        self._options.check_size(len(data))
        outbox = self._outboxes.get(peer)
        if outbox is None or outbox.qsize() >= self._options.queue_messages:
            return False
        outbox.put(data)
        return True

    def accept(self, outbox: queue.SimpleQueue[bytes | memoryview | None]) -> bytes:
        """Register a peer's connection; returns its id."""
        peer = next(self._ids).to_bytes(8, "big")
        self._outboxes[peer] = outbox
        return peer

    def knows(self, peer: bytes) -> bool:
        """Whether `peer` is a connection, and not forgotten."""
        return peer in self._outboxes

    def deliver(self, peer: bytes, data: bytes) -> bool:
        """Take a message from a peer; False when too many wait.

        Raises:
            OversizeError: the message is above this side's limit.
        """
        self._options.check_size(len(data))
        if self._inbox.qsize() >= self._options.queue_messages:
            return False
        self._inbox.put((peer, data))
        return True

    def forget(self, peer: bytes) -> None:
        """Drop a connection."""
        self._outboxes.pop(peer, None)

    def wake(self) -> None:
        """See `ServerLink.wake`."""
        self._inbox.put(None)

    def refused_connections(self) -> int:
        """Always 0: nobody outside this process can connect."""
        return 0

    def close(self) -> None:
        """See `ServerLink.close`."""
        with _lock:
            if _servers.get(self.address) is self:
                del _servers[self.address]
        self._outboxes.clear()


class InprocPeerLink:
    """Dials a server of this process. See `PeerLink`."""

    def __init__(self, host: str, port: int, options: TransportOptions | None = None) -> None:
        self._address = (host, port)
        self._options = options or TransportOptions()
        self._inbox: queue.SimpleQueue[bytes | memoryview | None] = queue.SimpleQueue()
        self._server: InprocServerLink | None = None
        self._peer = b""
        self._closed = False

    def receive(self, timeout_s: float) -> bytes | memoryview | None:
        """See `PeerLink.receive`."""
        return next_in(self._inbox, timeout_s)

    def send(self, data: bytes) -> bool:
        """See `PeerLink.send`."""
        self._options.check_size(len(data))
        server = _servers.get(self._address)
        if server is None or self._closed:
            return False
        if server is not self._server or not server.knows(self._peer):
            self._server, self._peer = server, server.accept(self._inbox)
        return server.deliver(self._peer, data)

    def wake(self) -> None:
        """See `PeerLink.wake`."""
        self._inbox.put(None)

    def close(self) -> None:
        """See `PeerLink.close`."""
        self._closed = True
        if self._server is not None:
            self._server.forget(self._peer)
