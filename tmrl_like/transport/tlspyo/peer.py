"""The dialling side."""

from __future__ import annotations

import contextlib
from typing import Any, Literal

import msgspec
import OpenSSL
from tlspyo.client import Client, ClientProtocol, TLSClientFactory
from twisted.internet import ssl

from tmrl_like.errors import CredentialsError, TransportError
from tmrl_like.transport.base import TransportOptions, key_refused, other_server
from tmrl_like.transport.credentials import KeyFolder
from tmrl_like.transport.tlspyo.password import password_of
from tmrl_like.transport.tlspyo.reactor import in_reactor, running_reactor
from tmrl_like.transport.tlspyo.tlspyo_connection import GROUP, HEADER_BYTES, Connection, TlspyoLink, Unremembered

_REDIAL_INITIAL_S = 0.2
_REDIAL_MAX_S = 0.8
_STRANGE_ANSWERS_BEFORE_GIVING_UP = 5

_decode = msgspec.msgpack.Decoder(tuple[int, Literal["HELLO", "OBJ", "ACK", "DENIED"], memoryview | None]).decode


class TlspyoPeerLink(TlspyoLink):
    """Dials one server and goes on dialling. See `PeerLink`."""

    def __init__(self, host: str, port: int, folder: KeyFolder, options: TransportOptions) -> None:
        super().__init__(options)
        keys = folder.peer_keys()
        self.is_lost = False
        self._where = f"{host}:{port}"
        self._connection: PeerConnection | None = None
        self._error: CredentialsError | None = None
        self._ever_proved = False
        self._strange_answers = 0
        self.client = Client(
            ip_server=host,
            port_server=port,
            password=password_of(keys.curve_public, keys.server_curve_public, keys.curve_secret),
            serializer=msgspec.msgpack.encode,
            deserializer=None,
            groups=(GROUP,),
            recon_max_delay=_REDIAL_MAX_S,
            recon_initial_delay=_REDIAL_INITIAL_S,
        )
        self.client.pending_acks = Unremembered()
        self._dialler = TLSClientFactory(client=self.client)
        self._dialler.noisy = False
        self._dialler.delay = _REDIAL_INITIAL_S
        self._dialler.buildProtocol = lambda address: PeerConnection(self)
        authority = ssl.Certificate.loadPEM(keys.tls_certificate)
        trusted = ssl.optionsForClientTLS(hostname="default", trustRoot=authority)
        self._dialler.connector = in_reactor(
            running_reactor().connectSSL, host, port, self._dialler, trusted, options.handshake_timeout_s
        )

    # in the reactor

    def made(self, connection: PeerConnection) -> None:
        self._connection = connection

    def heard(self, command: str) -> None:
        """Take note of what the server says first: it answers only those whose key it knows."""
        if command == "DENIED":
            self._give_up(key_refused(self._where))
        elif command == "ACK":
            self._ever_proved, self.is_lost = True, False
            self._dialler.delay = _REDIAL_INITIAL_S

    def gone(self, connection: PeerConnection, reason: Any) -> None:
        """A connection has ended: was it the right server?

        A wrong certificate is a proof that it was not. Something else that is no TLS must have answered several times
        before the server ever did; a server that is away, and a forwarder before it, say nothing.
        """
        self._connection, self.is_lost = None, True
        if isinstance(reason.value, OpenSSL.SSL.Error) and not self._ever_proved:
            self._strange_answers += 1
            is_proof = "certificate verify failed" in str(reason.value)
            if is_proof or self._strange_answers >= _STRANGE_ANSWERS_BEFORE_GIVING_UP:
                self._give_up(other_server(self._where))

    def _give_up(self, error: CredentialsError) -> None:
        self._dialler.stopTrying()
        self._error = error
        self.wake()

    # in the user's thread

    def receive(self, timeout_s: float) -> memoryview | None:
        item = self.next_message(0.0 if self._error else timeout_s)
        if item is None and self._error:
            raise self._error
        return item and item[1]

    def send(self, data: bytes) -> bool:
        """See `PeerLink.send`. Also False while there is no connection: nothing piles up."""
        self.options.check_size(len(data))
        connection = self._connection
        return connection is not None and connection.proved and connection.hand_over(data)

    def close(self) -> None:
        with contextlib.suppress(TransportError):  # without a reactor there is nothing to close
            in_reactor(self._dialler.stopTrying)
            self.end([connection] if (connection := self._connection) else [])


class PeerConnection(Connection, ClientProtocol):  # type: ignore[misc]
    """One connection to the server."""

    _link: TlspyoPeerLink

    def __init__(self, link: TlspyoPeerLink) -> None:
        ClientProtocol.__init__(self, link.client, link.client.password, HEADER_BYTES, (GROUP,))
        Connection.__init__(self, link)
        link.client.deserializer = self._read

    def process_header(self) -> tuple[int, int]:
        """Bounds of the next envelope."""
        return self.bounds(HEADER_BYTES)

    def _read(self, envelope: bytes) -> tuple[int, str, None]:
        """Decode an envelope, and take what is in it; tlspyo acknowledges it then."""
        stamp, command, data = _decode(envelope)
        if data is not None:
            self.arrive(data)
        elif not self.proved:
            self.proved = command == "ACK"
            self._link.heard(command)
        return stamp, command, None

    def __str__(self) -> str:
        return "to the server"
