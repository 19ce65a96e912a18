"""A transport within one process, for tests and one-script runs without sockets. It follows the
same contract.
"""

from __future__ import annotations

import itertools
import queue
from typing import Generic, TypeVar

from tmrl_like.errors import AddressInUseError
from tmrl_like.transport.base import LOCALHOST, Identity, Incoming, TransportOptions, next_in

T = TypeVar("T")

_EVERYBODY = Identity("inproc", ("worker", "trainer"))
_servers: dict[tuple[str, int], InprocServerLink] = {}
_ports = itertools.count(20_000)
_ids = itertools.count(1)


class _InprocLink(Generic[T]):
    """Common part of both sides: a queue of received messages, in which None is a wake-up."""

    def __init__(self, options: TransportOptions) -> None:
        self.options = options
        self._inbox: queue.SimpleQueue[T | None] = queue.SimpleQueue()

    def receive(self, timeout_s: float) -> T | None:
        return next_in(self._inbox, timeout_s)

    def wake(self) -> None:
        self._inbox.put(None)

    def take(self, item: T) -> bool:
        """Take a message from the other side; return False if too many wait already."""
        if self._inbox.qsize() >= self.options.queue_messages:
            return False
        self._inbox.put(item)
        return True


class InprocServerLink(_InprocLink[Incoming]):
    """Listens on (host, port) within this process. See `ServerLink`."""

    def __init__(self, host: str, port: int, keys: object, options: TransportOptions) -> None:
        """Take the address; raise AddressInUseError if another server in this process has it."""
        super().__init__(options)
        self.peers: dict[bytes, InprocPeerLink] = {}
        host = LOCALHOST if host == "0.0.0.0" else host  # peers dial this machine
        self.address = (host, port or next(_ports))
        if _servers.setdefault(self.address, self) is not self:
            raise AddressInUseError(
                f"port {port} on {host} is taken: another server of this process listens there"
            )

    def send(self, peer: bytes, data: bytes | memoryview) -> bool:
        self.options.check_size(len(data))
        link = self.peers.get(peer)
        return link is not None and link.take(data)

    def is_valid(self, key: str) -> bool:
        return key == _EVERYBODY.name

    def forget(self, peer: bytes) -> None:
        self.peers.pop(peer, None)

    def close(self) -> None:
        if _servers.get(self.address) is self:
            _servers.pop(self.address, None)
        self.peers.clear()


class InprocPeerLink(_InprocLink[bytes | memoryview]):
    """Dials a server in this process. See `PeerLink`."""

    logs_itself = False

    def __init__(self, host: str, port: int, keys: object, options: TransportOptions) -> None:
        super().__init__(options)
        self.where = f"{host}:{port}"
        self._address = (host, port)
        self._id = next(_ids).to_bytes(8, "big")
        self._closed = False

    @property
    def is_lost(self) -> bool:
        return self._address not in _servers

    def send(self, data: bytes) -> bool:
        self.options.check_size(len(data))
        server = _servers.get(self._address)
        if server is None or self._closed:
            return False
        server.options.check_size(len(data))
        server.peers[self._id] = self
        return server.take(Incoming(self._id, _EVERYBODY, data))

    def close(self) -> None:
        self._closed = True
        if server := _servers.get(self._address):
            server.forget(self._id)
