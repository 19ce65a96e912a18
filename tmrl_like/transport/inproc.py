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
_ports = itertools.count(20_000)
_ids = itertools.count(1)


class InprocServerLink:
    """Listens at (host, port) within this process. See `ServerLink`."""

    def __init__(self, host: str, port: int, keys: object, options: TransportOptions) -> None:
        """Take the address; raises AddressInUseError where another server of this process has it."""
        self._options = options
        self._inbox: queue.SimpleQueue[tuple[bytes, bytes] | None] = queue.SimpleQueue()
        self._outboxes: dict[bytes, queue.SimpleQueue[bytes | memoryview | None]] = {}
        with _lock:
            host = LOCALHOST if host == "0.0.0.0" else host  # peers dial this machine
            self.address = (host, port or next(_ports))
            if self.address in _servers:
                raise AddressInUseError(f"port {port} on {host} is taken: another server of this process listens there")
            _servers[self.address] = self

    def receive(self, timeout_s: float) -> Incoming | None:
        item = next_in(self._inbox, timeout_s)
        return None if item is None else Incoming(item[0], _EVERYBODY, item[1])

    def send(self, peer: bytes, data: bytes | memoryview) -> bool:
        self._options.check_size(len(data))
        outbox = self._outboxes.get(peer)
        if outbox is None or outbox.qsize() >= self._options.queue_messages:
            return False
        outbox.put(data)
        return True

    def deliver(self, peer: bytes, outbox: queue.SimpleQueue[bytes | memoryview | None], data: bytes) -> bool:
        """Take a message from a peer, who is answered in `outbox`; False when too many wait."""
        self._options.check_size(len(data))
        if self._inbox.qsize() >= self._options.queue_messages:
            return False
        self._outboxes[peer] = outbox
        self._inbox.put((peer, data))
        return True

    def forget(self, peer: bytes) -> None:
        self._outboxes.pop(peer, None)

    def wake(self) -> None:
        self._inbox.put(None)

    def close(self) -> None:
        with _lock:
            if _servers.get(self.address) is self:
                del _servers[self.address]
        self._outboxes.clear()


class InprocPeerLink:
    """Dials a server of this process. See `PeerLink`."""

    def __init__(self, host: str, port: int, keys: object, options: TransportOptions) -> None:
        self._address = (host, port)
        self._options = options
        self._inbox: queue.SimpleQueue[bytes | memoryview | None] = queue.SimpleQueue()
        self._id = next(_ids).to_bytes(8, "big")
        self._closed = False

    @property
    def is_lost(self) -> bool:
        return self._address not in _servers

    def receive(self, timeout_s: float) -> bytes | memoryview | None:
        return next_in(self._inbox, timeout_s)

    def send(self, data: bytes) -> bool:
        self._options.check_size(len(data))
        server = _servers.get(self._address)
        return server is not None and not self._closed and server.deliver(self._id, self._inbox, data)

    def wake(self) -> None:
        self._inbox.put(None)

    def close(self) -> None:
        self._closed = True
        if server := _servers.get(self._address):
            server.forget(self._id)


class OneThreadServerLink(InprocServerLink):
    """The same where server and peers live in one thread, and take turns: nobody waits, nobody is woken."""

    takes_turns = True

    def receive(self, timeout_s: float) -> Incoming | None:
        return super().receive(0.0)

    def wake(self) -> None:
        pass


class OneThreadPeerLink(InprocPeerLink):
    """The other side."""

    takes_turns = True

    def receive(self, timeout_s: float) -> bytes | memoryview | None:
        return super().receive(0.0)

    def wake(self) -> None:
        pass
