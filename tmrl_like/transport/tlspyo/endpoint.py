"""An endpoint's side of the network, inside the child: tlspyo's client, which dials for as long as it lives."""

from __future__ import annotations

import time
from typing import Any

import OpenSSL
from tlspyo.client import Client, ClientProtocol, TLSClientFactory
from twisted.internet import reactor, ssl, task
from twisted.internet.interfaces import IHandshakeListener
from zope.interface import implementer

from tmrl_like.errors import DecodingError
from tmrl_like.transport.frames import Piece
from tmrl_like.transport.tlspyo import envelopes, local
from tmrl_like.transport.tlspyo.envelopes import HEADER_BYTES, MAX_ENVELOPE_BYTES, Accepted, Challenge, Unacknowledged
from tmrl_like.transport.tlspyo.flow import Flow
from tmrl_like.transport.tlspyo.proof import Secret

REDIAL_INITIAL_S = 0.2
REDIAL_MAX_S = 0.8
BROKEN_HANDSHAKES_BEFORE_GIVING_UP = 5
FAREWELL_S = 0.3


class Endpoint(Client):  # type: ignore[misc]
    """Dials one relay. See `child.Service`."""

    def __init__(self, job: local.EndpointJob, parent: Any) -> None:
        super().__init__(
            ip_server=job.host,
            port_server=job.port,
            password=job.password,
            serializer=envelopes.serialize,
            deserializer=envelopes.deserialize_at_endpoint,
            groups=envelopes.PEER_GROUPS,
            recon_max_delay=REDIAL_MAX_S,
            recon_initial_delay=REDIAL_INITIAL_S,
        )
        self.job = job
        self.parent = parent
        self.secret = Secret(job.curve_secret, job.curve_public)
        self.conversation: Conversation | None = None
        self.numbers = 0
        self.congested = False
        self._ever_joined = False
        self._stopping = False
        self._broken_handshakes = 0

    def start(self) -> None:
        """Dial."""
        authority = ssl.Certificate.loadPEM(self.job.tls_certificate)
        self._factory = _Dialler(client=self)
        self._connector = reactor.connectSSL(
            self.job.host,
            self.job.port,
            self._factory,
            ssl.optionsForClientTLS(hostname="default", trustRoot=authority),
            timeout=self.job.options.handshake_timeout_s,
        )
        task.LoopingCall(self._look_after_connection).start(self.job.options.heartbeat_s, now=False)
        self.parent.tell(local.Ready(self.job.port))

    def obey(self, command: local.Command) -> None:
        """Do what the parent says."""
        conversation = self.conversation
        if isinstance(command, local.Stop):
            self._stop()
        elif conversation is None or conversation.number != command.line:
            pass  # meant for a connection that is gone
        elif isinstance(command, local.Give):
            conversation.give(command.piece, command.last)
        elif isinstance(command, local.Hold):
            conversation.hold("this line's messages wait")
        elif isinstance(command, local.Release):
            conversation.release("this line's messages wait")
        else:
            conversation.kill()

    def congest(self, congested: bool) -> None:
        """The parent does not keep up (or does again): stop (go on) reading."""
        self.congested = congested
        if self.conversation:
            self.conversation.congest(congested)

    def _stop(self) -> None:
        self._factory.stopTrying()
        self._stopping = True
        if self.conversation:
            self.conversation.transport.loseConnection()
        reactor.callLater(FAREWELL_S if self.conversation else 0, self.parent.hang_up)

    def ended(self) -> None:
        """The connection is gone."""
        self.conversation = None
        if self._stopping:
            self.parent.hang_up()

    def _look_after_connection(self) -> None:
        if self.conversation:
            self.conversation.look_after()

    def joined(self) -> None:
        """The server accepted this connection."""
        self._ever_joined = True
        self._factory.resetDelay()

    def broken(self, reason: Any, said_no: bool) -> None:
        """A connection ended before the server accepted it: is it the right server, and the right key?

        A wrong certificate is a proof. Otherwise somebody must have said no at once, several times: a server that is
        frozen does not, nor does a forwarder whose server is away, which just closes.
        """
        foreign = isinstance(reason.value, OpenSSL.SSL.Error) and "certificate verify failed" in str(reason.value)
        self._broken_handshakes += said_no and not self._ever_joined
        if foreign or self._broken_handshakes >= BROKEN_HANDSHAKES_BEFORE_GIVING_UP:
            self.give_up("other server")

    def give_up(self, reason: Any) -> None:
        """Tell the parent why, and do not dial again."""
        self._factory.stopTrying()
        self.parent.tell(local.Denied(reason))


class _Dialler(TLSClientFactory):  # type: ignore[misc]
    noisy = False

    def __init__(self, client: Endpoint) -> None:
        super().__init__(client=client)
        self.resetDelay()

    def buildProtocol(self, addr: Any) -> Any:  # noqa: N802 - Twisted's name
        self._client.numbers += 1
        return Conversation(self._client, self._client.numbers)


@implementer(IHandshakeListener)
class Conversation(Flow, ClientProtocol):  # type: ignore[misc]
    """One connection to the relay."""

    def __init__(self, endpoint: Endpoint, number: int) -> None:
        super().__init__(endpoint, endpoint.password, groups=endpoint.groups)
        endpoint.pending_acks = Unacknowledged()
        endpoint.endpoint = _Delivery(self)
        self.number = number
        self.proved = False
        self._endpoint = endpoint
        self._made_at = 0.0
        self._speaks_tls = False
        self._deadline: Any = None

    # from the network

    def connectionMade(self) -> None:  # noqa: N802 - Twisted's name
        super().connectionMade()
        self._endpoint.conversation = self
        self.transport.setTcpNoDelay(True)
        self._made_at = time.monotonic()
        self._deadline = reactor.callLater(self._endpoint.job.options.handshake_timeout_s, self.kill)

    def handshakeCompleted(self) -> None:  # noqa: N802 - Twisted's name
        """TLS stands: somebody who has the certificate is there."""
        self._speaks_tls = True

    def connectionLost(self, reason: Any) -> None:  # noqa: N802 - Twisted's name
        super().connectionLost(reason)
        self._endpoint.ended()
        if self._deadline.active():
            self._deadline.cancel()
        if self.proved:
            self._endpoint.parent.tell(local.Left(self.number))
        else:
            took_s = time.monotonic() - self._made_at
            answered = self._speaks_tls or isinstance(reason.value, OpenSSL.SSL.Error)
            at_once = took_s < self._endpoint.job.options.handshake_timeout_s / 2
            self._endpoint.broken(reason, said_no=answered and at_once)

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        self.heard()
        try:
            super().dataReceived(data)
        except Exception:  # not tlspyo on the other side, or not ours
            self.kill()
        for _ in range(self._endpoint.pending_acks.take_completed()):
            self._endpoint.parent.tell(local.Acknowledged(self.number))

    def process_header(self) -> tuple[int, int]:
        """Bounds of the next envelope."""
        if len(self._buffer) < HEADER_BYTES:
            return 0, len(self._buffer) + 1
        return HEADER_BYTES, HEADER_BYTES + envelopes.length_in(self._buffer[:HEADER_BYTES], MAX_ENVELOPE_BYTES)

    def deliver(self, obj: memoryview) -> None:
        """Take what the server says."""
        said = envelopes.said_by_server(obj)
        if isinstance(said, Piece) and self.proved:
            self._endpoint.parent.tell(local.Took(self.number, obj))
        elif isinstance(said, Challenge) and not self.proved:
            self._answer(said.nonce)
        elif isinstance(said, Accepted) and not self.proved:
            self._begin()
        elif isinstance(said, envelopes.Denied):
            self._endpoint.give_up("key refused")
            self.transport.loseConnection()
        else:
            raise DecodingError("nothing that a server says at this point")

    def _answer(self, nonce: bytes) -> None:
        job = self._endpoint.job
        mac = self._endpoint.secret.prove_to(job.server_curve_public, nonce)
        proof = envelopes.serialize(envelopes.Proof(job.curve_public, mac))
        self.send_obj(dest=envelopes.TO_SERVER, obj=proof)

    def _begin(self) -> None:
        self._deadline.cancel()
        self.proved = True
        self._endpoint.joined()
        self._endpoint.parent.tell(local.Joined(self.number))
        self.congest(self._endpoint.congested)

    # from the parent and the clock

    def give(self, piece: bytes | memoryview, last: bool) -> None:
        """Send a piece."""
        if last:
            self._endpoint.pending_acks.messages.add(self._endpoint.ack_stamp + 1)
        self.send_obj(dest=envelopes.TO_SERVER, obj=piece)

    def congest(self, congested: bool) -> None:
        """Wait while the parent does not keep up."""
        if congested and self.proved:
            self.hold("the parent does not keep up")
        elif not congested:
            self.release("the parent does not keep up")

    def look_after(self) -> None:
        """Give a sign of life, and expect one."""
        if self.proved and self.silent_for_s() > self._endpoint.job.options.silent_after_s:
            self.kill()
        elif self.proved:
            self.send_obj(cmd="NTF", dest={})

    def kill(self) -> None:
        """Cut the connection; the factory dials again."""
        self.transport.abortConnection()


class _Delivery:
    """What tlspyo takes for the local connection to which it hands what arrives."""

    def __init__(self, conversation: Conversation) -> None:
        self.transport = self
        self._conversation = conversation

    def write(self, envelope: bytes) -> None:
        """Take an envelope with its header."""
        self._conversation.deliver(envelopes.deserialize_at_endpoint(envelope[HEADER_BYTES:])[2])
