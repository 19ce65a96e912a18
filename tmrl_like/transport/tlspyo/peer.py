"""The dialling side."""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from typing import Any

import OpenSSL
from tlspyo.client import Client, ClientProtocol, TLSClientFactory
from twisted.internet import ssl

from tmrl_like.errors import CredentialsError, TransportError
from tmrl_like.transport.base import TransportOptions, key_refused, next_in, other_server
from tmrl_like.transport.credentials import KeyFolder
from tmrl_like.transport.tlspyo.connection import (
    GROUP,
    HEADER_BYTES,
    Command,
    Connection,
    Piece,
    close_all,
    decode_at_peer,
    encode,
    length_in,
)
from tmrl_like.transport.tlspyo.password import password_of
from tmrl_like.transport.tlspyo.reactor import in_reactor, running_reactor

log = logging.getLogger(__name__)

_REDIAL_INITIAL_S = 0.2
_REDIAL_MAX_S = 0.8
_STRANGE_ANSWERS_BEFORE_GIVING_UP = 5


class TlspyoPeerLink:
    """Dials one server and goes on dialling. See `PeerLink`."""

    def __init__(self, host: str, port: int, folder: KeyFolder, options: TransportOptions) -> None:
        keys = folder.peer_keys()
        self.options = options
        self.inbox: queue.SimpleQueue[tuple[PeerConnection, bytes | memoryview] | None] = queue.SimpleQueue()
        self.client = Client(
            ip_server=host,
            port_server=port,
            password=password_of(keys.curve_public, keys.server_curve_public, keys.curve_secret),
            serializer=encode,
            deserializer=None,
            groups=GROUP,
            recon_max_delay=_REDIAL_MAX_S,
            recon_initial_delay=_REDIAL_INITIAL_S,
        )
        self.where = f"{host}:{port}"
        self.is_lost = False
        self._connection: PeerConnection | None = None
        self._error: CredentialsError | None = None
        self._ever_proved = False
        self._strange_answers = 0
        authority = ssl.Certificate.loadPEM(keys.tls_certificate)
        self._dialler = TLSClientFactory(client=self.client)
        self._dialler.noisy = False
        self._dialler.delay = _REDIAL_INITIAL_S
        self._dialler.buildProtocol = lambda address: PeerConnection(self)
        self._dialler.connector = in_reactor(
            running_reactor().connectSSL,
            host,
            port,
            self._dialler,
            ssl.optionsForClientTLS(hostname="default", trustRoot=authority),
            self.options.handshake_timeout_s,
        )

    # in the reactor

    def made(self, connection: PeerConnection) -> None:
        self._connection = connection

    def proved(self) -> None:
        self._ever_proved = True
        self.is_lost = False
        self._dialler.delay = _REDIAL_INITIAL_S

    def gone(self, reason: Any) -> None:
        """A connection has ended: was it the right server?

        A wrong certificate is a proof that it was not. Something else that is no TLS must have answered several times
        before the server ever did; a server that is away, and a forwarder before it, say nothing.
        """
        self._connection = None
        self.is_lost = True
        if isinstance(reason.value, OpenSSL.SSL.Error) and not self._ever_proved:
            self._strange_answers += 1
            certificate = "certificate verify failed" in str(reason.value)
            if certificate or self._strange_answers >= _STRANGE_ANSWERS_BEFORE_GIVING_UP:
                self.give_up(other_server(self.where))

    def give_up(self, error: CredentialsError) -> None:
        self._dialler.stopTrying()
        self._error = error
        self.wake()

    # in the user's thread

    def receive(self, timeout_s: float) -> bytes | memoryview | None:
        item = next_in(self.inbox, 0.0 if self._error else timeout_s)
        if item is None:
            if self._error:
                raise self._error
            return None
        connection, data = item
        connection.received(len(data))
        return data

    def send(self, data: bytes) -> bool:
        """See `PeerLink.send`. Also False while there is no connection: nothing piles up."""
        self.options.check_size(len(data))
        connection = self._connection
        return connection is not None and connection.proved and connection.hand_over(data)

    def wake(self) -> None:
        self.inbox.put(None)

    def close(self) -> None:
        with contextlib.suppress(TransportError):  # without a reactor there is nothing to close
            in_reactor(self._dialler.stopTrying)
            close_all([connection] if (connection := self._connection) else [])


class PeerConnection(Connection, ClientProtocol):  # type: ignore[misc]
    """One connection to the server."""

    def __init__(self, link: TlspyoPeerLink) -> None:
        Connection.__init__(self, link.options, link.inbox)
        ClientProtocol.__init__(self, link.client, link.client.password, groups=link.client.groups)
        link.client.pending_acks = self.unacknowledged
        link.client.deserializer = self._read
        self._link = link

    def connectionMade(self) -> None:  # noqa: N802 - Twisted's name
        self.begin()
        self._link.made(self)
        super().connectionMade()

    def connectionLost(self, reason: Any) -> None:  # noqa: N802 - Twisted's name
        super().connectionLost(reason)
        self.end()
        self._link.gone(reason)

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        self.heard_at = time.monotonic()
        try:
            super().dataReceived(data)
        except Exception as problem:
            log.warning("cut the connection to %s: %s", self._link.where, problem)
            self.transport.abortConnection()

    def process_header(self) -> tuple[int, int]:
        """Bounds of the next envelope."""
        if len(self._buffer) < HEADER_BYTES:
            return 0, len(self._buffer) + 1
        return HEADER_BYTES, HEADER_BYTES + length_in(self._buffer[:HEADER_BYTES])

    def _read(self, envelope: bytes) -> tuple[int, Command, Piece | None]:
        """Decode an envelope, and take what is in it; tlspyo acknowledges it then."""
        stamp, command, piece = decode_at_peer(envelope)
        if command == "DENIED":
            self._link.give_up(key_refused(self._link.where))
        elif command == "ACK" and not self.proved:  # the server answers only those whose key it knows
            self.proved = True
            self._link.proved()
        elif command == "OBJ" and piece is not None:
            self.arrive(piece)
        return stamp, command, piece
