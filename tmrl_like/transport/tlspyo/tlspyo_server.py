"""The listening side."""

from __future__ import annotations

import contextlib
import errno
import hmac
import itertools
from typing import Any, Literal

import msgspec
from tlspyo.server import Server, ServerProtocol
from twisted.internet import error, ssl, task
from twisted.internet.protocol import Factory

from tmrl_like.errors import DecodingError, TransportError
from tmrl_like.transport.base import Identity, Incoming, TransportOptions, cannot_listen
from tmrl_like.transport.credentials import KEYS_CHECK_S, AuthorizedKeys, KeyFolder
from tmrl_like.transport.strangers import Strangers
from tmrl_like.transport.tlspyo.password import KEY_CHARACTERS, PASSWORD_BYTES, password_of
from tmrl_like.transport.tlspyo.reactor import in_reactor, running_reactor
from tmrl_like.transport.tlspyo.tlspyo_connection import GROUP, HEADER_BYTES, Connection, TlspyoLink, Unremembered

_BACKLOG = 1024
_TAKEN = (errno.EADDRINUSE, getattr(errno, "WSAEADDRINUSE", errno.EADDRINUSE))
_ENVELOPE_START = HEADER_BYTES + PASSWORD_BYTES

_decode = msgspec.msgpack.Decoder(
    tuple[int, Literal["HELLO", "OBJ", "NTF", "ACK"], dict[str, int] | None, memoryview | tuple[str] | None]
).decode


class TlspyoServerLink(TlspyoLink):
    """Listens on one TCP port. See `ServerLink`."""

    def __init__(self, host: str, port: int, folder: KeyFolder, options: TransportOptions) -> None:
        """Bind before it returns; raises as `listen`."""
        super().__init__(options)
        self.server_keys = folder.server_keys()
        self.keys = AuthorizedKeys(folder)
        self.numbers = itertools.count(1)
        self._connections: dict[bytes, ServerConnection] = {}
        self._strangers: Strangers[ServerConnection] = Strangers()
        self._reading_keys = task.LoopingCall(self.keys.refresh)
        try:
            self._port = in_reactor(self._listen, host, port)
        except error.CannotListenError as problem:
            taken = getattr(problem.socketError, "errno", None) in _TAKEN
            raise cannot_listen(host, port, taken, problem.socketError) from None
        self.address = (host, self._port.getHost().port)

    # in the reactor

    def _listen(self, host: str, port: int) -> Any:
        certificate = ssl.PrivateCertificate.loadPEM(self.server_keys.tls_key + self.server_keys.tls_certificate)
        factory = Factory()
        factory.noisy = False
        factory.buildProtocol = lambda address: ServerConnection(self)
        listening = running_reactor().listenSSL(port, factory, certificate.options(), _BACKLOG, host)
        self._reading_keys.start(KEYS_CHECK_S)
        return listening

    def made(self, connection: ServerConnection) -> None:
        if surplus := self._strangers.add(connection, (connection.transport.getPeer().host,)):
            surplus[0].transport.abortConnection()

    def judge(self, connection: ServerConnection, password: bytes) -> str:
        """The public key to which a password belongs, which is the connection's from then on; empty: to none."""
        keys, public = self.server_keys, password[:KEY_CHARACTERS].decode("latin-1")
        if self.keys.find(public) is None:
            return ""
        right = password_of(public, keys.curve_public, keys.curve_secret)
        if not hmac.compare_digest(right.encode(), password):
            return ""
        self._strangers.remove(connection)
        self._connections[connection.id] = connection
        return public

    def gone(self, connection: ServerConnection, reason: Any) -> None:
        self._strangers.remove(connection)
        self._connections.pop(connection.id, None)

    # in the user's thread

    def receive(self, timeout_s: float) -> Incoming | None:
        item = self.next_message(timeout_s)
        return item and Incoming(item[0].id, item[0].identity, item[1])

    def send(self, peer: bytes, data: bytes | memoryview) -> bool:
        self.options.check_size(len(data))
        connection = self._connections.get(peer)
        return connection is not None and connection.hand_over(data)

    def forget(self, peer: bytes) -> None:
        """See `ServerLink.forget`: nothing is kept of a connection that is gone."""

    def close(self) -> None:
        with contextlib.suppress(TransportError):  # without a reactor there is nothing to close
            if self._reading_keys.running:
                in_reactor(self._reading_keys.stop)
                in_reactor(self._port.stopListening)
                self.end([*self._connections.values(), *self._strangers])


class ServerConnection(Connection, ServerProtocol):  # type: ignore[misc]
    """One connection, with a tlspyo server to itself: there are no other peers that it could address."""

    _link: TlspyoServerLink

    def __init__(self, link: TlspyoServerLink) -> None:
        server = Server(
            port=-1,
            password=" " * PASSWORD_BYTES,  # for its length; `process_header` knows the passwords
            serializer=msgspec.msgpack.encode,
            deserializer=_decode,
            accepted_groups={GROUP: {"max_count": 1, "max_consumables": None}},
        )
        server.pending_acks = Unremembered()
        ServerProtocol.__init__(self, server)
        Connection.__init__(self, link)
        self.id = next(link.numbers).to_bytes(8, "big")  # no other connection ever has it
        self._key = ""

    @property
    def identity(self) -> Identity:
        """Whose it is, by the keys that are valid now."""
        return self._link.keys.identity_of(self._key)

    def process_header(self) -> tuple[int, int, None]:
        """Bounds of the next envelope; nothing is read of a peer whose password is wrong."""
        if len(self._buffer) >= _ENVELOPE_START and not self.proved:
            self._key = self._link.judge(self, bytes(self._buffer[HEADER_BYTES:_ENVELOPE_START]))
            self.proved = bool(self._key)
            if not self.proved:
                self.send_obj(cmd="DENIED")
                self._state = "CLOSED"
                return 0, len(self._buffer) + 1, None
        return *self.bounds(_ENVELOPE_START), None

    def retrieve_consumables(self, groups: Any) -> None:
        """Nothing is ever queued for a peer."""

    def forward_obj_to_dest(self, obj: Any, dest: Any) -> None:
        """Take what the peer says: whatever the destination, it is for this server."""
        if not isinstance(obj, memoryview):
            raise DecodingError("not a message")
        self.arrive(obj)

    def __str__(self) -> str:
        return f"of {self.identity.name}"
