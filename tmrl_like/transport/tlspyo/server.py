"""The listening side."""

from __future__ import annotations

import contextlib
import errno
import hmac
import itertools
import logging
import queue
import time
from typing import Any

from tlspyo.server import Server, ServerProtocol
from twisted.internet import error, ssl, task
from twisted.internet.protocol import Factory

from tmrl_like.errors import DecodingError, TransportError
from tmrl_like.transport.base import (
    REVOKED,
    Identity,
    Incoming,
    TransportOptions,
    cannot_listen,
    next_in,
)
from tmrl_like.transport.credentials import KEYS_CHECK_S, AuthorizedKeys, KeyFolder
from tmrl_like.transport.strangers import Strangers
from tmrl_like.transport.tlspyo.connection import (
    GROUP,
    HEADER_BYTES,
    Connection,
    close_all,
    decode_at_server,
    encode,
    length_in,
)
from tmrl_like.transport.tlspyo.password import KEY_CHARACTERS, PASSWORD_BYTES, password_of
from tmrl_like.transport.tlspyo.reactor import in_reactor, running_reactor

log = logging.getLogger(__name__)

_BACKLOG = 1024
_TAKEN = (errno.EADDRINUSE, getattr(errno, "WSAEADDRINUSE", errno.EADDRINUSE))


class TlspyoServerLink:
    """Listens on one TCP port. See `ServerLink`."""

    def __init__(self, host: str, port: int, keys: KeyFolder, options: TransportOptions) -> None:
        """Bind before it returns; raises as `listen`."""
        self.options = options
        self.server_keys = keys.server_keys()
        self.keys = AuthorizedKeys(keys)
        self.inbox: queue.SimpleQueue[tuple[ServerConnection, bytes | memoryview] | None] = queue.SimpleQueue()
        self.numbers = itertools.count(1)
        self._connections: dict[bytes, ServerConnection] = {}
        self._strangers: Strangers[ServerConnection] = Strangers()
        self._has_refused = False
        self._reading_keys = task.LoopingCall(self.keys.refresh)
        try:
            self._port = in_reactor(self._listen, host, port)
        except error.CannotListenError as problem:
            taken = getattr(problem.socketError, "errno", None) in _TAKEN
            raise cannot_listen(host, port, taken, problem.socketError) from None
        self.address = (host, self._port.getHost().port)

    def _listen(self, host: str, port: int) -> Any:
        certificate = ssl.PrivateCertificate.loadPEM(self.server_keys.tls_key + self.server_keys.tls_certificate)
        factory = Factory()
        factory.noisy = False
        factory.buildProtocol = lambda address: ServerConnection(self)
        listening = running_reactor().listenSSL(port, factory, certificate.options(), _BACKLOG, host)
        self._reading_keys.start(KEYS_CHECK_S)
        return listening

    # in the reactor

    def made(self, connection: ServerConnection) -> None:
        """Somebody has dialled; of too many that prove no key one goes."""
        if surplus := self._strangers.add(connection, (connection.transport.getPeer().host,)):
            surplus[0].transport.abortConnection()

    def proved(self, connection: ServerConnection) -> None:
        self._strangers.remove(connection)
        self._connections[connection.id] = connection

    def gone(self, connection: ServerConnection) -> None:
        self._strangers.remove(connection)
        if self._connections.pop(connection.id, None) is None and not self._has_refused:
            self._has_refused = True
            log.warning("refused a connection without a valid key; `tmrl-like keys invite` makes a valid one")

    def identity_of(self, connection: ServerConnection) -> Identity:
        """Whose connection it is, by the keys that are valid now."""
        return self.keys.identities.get(connection.key, REVOKED)

    # in the user's thread

    def receive(self, timeout_s: float) -> Incoming | None:
        item = next_in(self.inbox, timeout_s)
        if item is None:
            return None
        connection, data = item
        connection.received(len(data))
        return Incoming(connection.id, self.identity_of(connection), data)

    def send(self, peer: bytes, data: bytes | memoryview) -> bool:
        self.options.check_size(len(data))
        connection = self._connections.get(peer)
        return connection is not None and connection.hand_over(data)

    def forget(self, peer: bytes) -> None:
        """See `ServerLink.forget`: nothing is kept of a connection that is gone."""

    def wake(self) -> None:
        self.inbox.put(None)

    def close(self) -> None:
        with contextlib.suppress(TransportError):  # without a reactor there is nothing to close
            if self._reading_keys.running:
                in_reactor(self._reading_keys.stop)
                in_reactor(self._port.stopListening)
                close_all([*self._connections.values(), *self._strangers])


class ServerConnection(Connection, ServerProtocol):  # type: ignore[misc]
    """One connection, with a tlspyo server to itself: there are no other peers that it could address."""

    def __init__(self, link: TlspyoServerLink) -> None:
        Connection.__init__(self, link.options, link.inbox)
        server = Server(
            port=-1,
            password=" " * PASSWORD_BYTES,  # for its length; `process_header` knows the passwords
            serializer=encode,
            deserializer=decode_at_server,
            accepted_groups={GROUP: {"max_count": 1, "max_consumables": None}},
        )
        server.pending_acks = self.unacknowledged
        ServerProtocol.__init__(self, server)
        self.id = next(link.numbers).to_bytes(8, "big")  # no other connection ever has it
        self.key = ""
        self._link = link

    def connectionMade(self) -> None:  # noqa: N802 - Twisted's name
        self.begin()
        self._link.made(self)
        super().connectionMade()

    def connectionLost(self, reason: Any) -> None:  # noqa: N802 - Twisted's name
        super().connectionLost(reason)
        self.end()
        self._link.gone(self)

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        if self._state == "KILLED":
            return
        self.heard_at = time.monotonic()
        try:
            super().dataReceived(data)
        except Exception as problem:  # tlspyo has cut the connection by now
            if self.proved:
                log.warning("cut the connection of %s: %s", self._link.identity_of(self).name, problem)

    def process_header(self) -> tuple[int, int, str | None]:
        """Bounds of the next envelope; nothing is read of a peer whose password is wrong."""
        start = HEADER_BYTES + PASSWORD_BYTES
        if len(self._buffer) < start or not (self.proved or self._judge(self._buffer[HEADER_BYTES:start])):
            return 0, len(self._buffer) + 1, None
        return start, start + length_in(self._buffer[:HEADER_BYTES]), None

    def _judge(self, password: bytes) -> bool:
        """Compare the first password of a connection; the TLS connection is its peer's from then on."""
        keys = self._link.server_keys
        public = password[:KEY_CHARACTERS].decode("latin-1")
        known = self._link.keys.find(public) is not None
        if known and hmac.compare_digest(password_of(public, keys.curve_public, keys.curve_secret).encode(), password):
            self.proved, self.key = True, public
            self._link.proved(self)
            return True
        self.send_obj(cmd="DENIED")
        self._state = "KILLED"
        self.transport.loseConnection()
        return False

    def retrieve_consumables(self, groups: Any) -> None:
        """Nothing is ever queued for a peer; it asks as a sign of life."""

    def forward_obj_to_dest(self, obj: Any, dest: Any) -> None:
        """Take what the peer says: whatever the destination, it is for this server."""
        if not isinstance(obj, tuple):
            raise DecodingError("not a piece of a message")
        self.arrive(obj)
