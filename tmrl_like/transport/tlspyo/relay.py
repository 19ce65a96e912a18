"""The relay's side of the network, inside the child: tlspyo's server, one instance per connection.

tlspyo's own relay lets every endpoint that knows the password send to every group, has no limits and
waits for ever. Here each connection has a tlspyo `Server` to itself, in which it is the only client and
the application the only destination; it proves its key or is dropped.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import secrets
import time
from pathlib import Path
from typing import Any

from tlspyo.server import Server, ServerProtocol
from twisted.internet import error, reactor, ssl, task
from twisted.internet.protocol import Factory

from tmrl_like.errors import DecodingError
from tmrl_like.transport.base import MAX_UNPROVED_CONNECTIONS, Identity
from tmrl_like.transport.credentials import KEYS_CHECK_S, AuthorizedKeys, KeyFolder
from tmrl_like.transport.frames import pieces_of
from tmrl_like.transport.tlspyo import envelopes, local
from tmrl_like.transport.tlspyo.envelopes import (
    HEADER_BYTES,
    MAX_ENVELOPE_BYTES,
    MAX_UNPROVED_BYTES,
    Accepted,
    Challenge,
    Denied,
    Unacknowledged,
)
from tmrl_like.transport.tlspyo.flow import Flow
from tmrl_like.transport.tlspyo.proof import NONCE_BYTES, Secret

BACKLOG = 1024  # connections that the system keeps at the door
MAKES_ROOM_AFTER_S = 0.5  # of an unproved connection, while others wait at the door
SPARE_ENVELOPES = 1000  # signs of life that may go unanswered, on top of what the parent's window allows
FAREWELL_S = 0.3
_TAKEN = (errno.EADDRINUSE, getattr(errno, "WSAEADDRINUSE", errno.EADDRINUSE))


class Relay:
    """Listens, and knows all connections. See `child.Service`."""

    def __init__(self, job: local.RelayJob, parent: Any) -> None:
        self.job = job
        self.parent = parent
        self.secret = Secret(job.curve_secret, job.curve_public)
        self.keys = AuthorizedKeys(KeyFolder(Path(job.keys_dir)))
        self.connections: dict[int, Connection] = {}
        self._unproved: dict[int, Connection] = {}  # by number: the oldest first
        self._makes_room: Any = None
        self.numbers = job.lines_from
        self.congested = False
        self._port: Any = None
        self._stopping = False
        limits = job.options
        pieces = 4 * pieces_of(limits.max_message_bytes)
        self.most_unanswered = limits.queue_messages + pieces + SPARE_ENVELOPES

    def start(self) -> None:
        """Listen, and tell the parent where."""
        pem = self.job.tls_key + self.job.tls_certificate
        context = ssl.PrivateCertificate.loadPEM(pem).options()
        try:
            self._port = reactor.listenSSL(self.job.port, _Connections(self), context, BACKLOG, self.job.host)
        except error.CannotListenError as problem:
            taken = getattr(problem.socketError, "errno", None) in _TAKEN
            self.parent.tell(local.Failed(taken, str(problem.socketError)))
            self.parent.hang_up()
            return
        self._port.numberAccepts = 1
        task.LoopingCall(self._look_after_connections).start(self.job.options.heartbeat_s, now=False)
        task.LoopingCall(self._read_keys).start(KEYS_CHECK_S)
        self.parent.tell(local.Ready(self._port.getHost().port))

    def obey(self, command: local.Command) -> None:
        """Do what the parent says."""
        connection = None if isinstance(command, local.Stop) else self.connections.get(command.line)
        if isinstance(command, local.Stop):
            self._stop()
        elif connection is None:
            pass  # it has just left; the parent is being told
        elif isinstance(command, local.Give):
            connection.give(command.piece, command.last)
        elif isinstance(command, local.Hold):
            connection.hold("this line's messages wait")
        elif isinstance(command, local.Release):
            connection.release("this line's messages wait")
        else:
            connection.kill()

    def congest(self, congested: bool) -> None:
        """The parent does not keep up (or does again): stop (go on) reading from everybody."""
        self.congested = congested
        for connection in self.connections.values():
            connection.congest(congested)

    def _stop(self) -> None:
        self._stopping = True
        if self._port:
            self._port.stopListening()
        for connection in list(self.connections.values()):
            connection.transport.loseConnection()
        reactor.callLater(FAREWELL_S if self.connections else 0, self.parent.hang_up)

    def let_in(self, connection: Connection) -> None:
        """Accept no more connections while too many have proved nothing; the others wait at the door.

        While they do, the oldest of those inside leave, one by one, when they have had `MAKES_ROOM_AFTER_S`.
        """
        self.connections[connection.number] = self._unproved[connection.number] = connection
        self._port.numberAccepts = 0  # Twisted makes this 1: one connection at a time
        if len(self._unproved) >= MAX_UNPROVED_CONNECTIONS:
            self._port.stopReading()
            self._make_room()

    def no_longer_unproved(self, connection: Connection) -> None:
        """It has proved its key, or is gone."""
        self._unproved.pop(connection.number, None)
        if len(self._unproved) >= MAX_UNPROVED_CONNECTIONS:
            self._make_room()
        elif not self._stopping:
            self._port.startReading()

    def _make_room(self) -> None:
        if self._makes_room and self._makes_room.active():
            return
        if len(self._unproved) < MAX_UNPROVED_CONNECTIONS:
            return
        oldest = next(iter(self._unproved.values()))
        wait_s = oldest.made_at + MAKES_ROOM_AFTER_S - time.monotonic()
        if wait_s > 0:
            self._makes_room = reactor.callLater(wait_s, self._make_room)
        else:
            oldest.kill()

    def refused(self, connection: Connection) -> None:
        """A connection ended without a valid key."""
        self.no_longer_unproved(connection)
        if not self._stopping:
            self.parent.tell(local.Refused())

    def forget(self, connection: Connection) -> None:
        """A connection is gone."""
        self.connections.pop(connection.number, None)
        if self._stopping and not self.connections:
            self.parent.hang_up()

    def _look_after_connections(self) -> None:
        for connection in list(self.connections.values()):
            connection.look_after()

    def _read_keys(self) -> None:
        self.keys.refresh()
        for connection in list(self.connections.values()):
            connection.check_key()


class _Connections(Factory):  # type: ignore[misc]
    noisy = False

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def buildProtocol(self, addr: Any) -> Any:  # noqa: N802 - Twisted's name
        self._relay.numbers += 1
        return Connection(self._relay, self._relay.numbers)


class Seat(Server):  # type: ignore[misc]
    """tlspyo's server with a single client."""

    def __init__(self, relay: Relay) -> None:
        super().__init__(
            port=-1,
            password=relay.job.password,
            serializer=envelopes.serialize,
            deserializer=envelopes.deserialize_at_relay,
        )
        self.pending_acks = Unacknowledged()

    def check_new_client(self, groups: tuple[str, ...]) -> bool:
        """Admit one client, to the only group there is."""
        return groups == envelopes.PEER_GROUPS and not self.to_clients


class Connection(Flow, ServerProtocol):  # type: ignore[misc]
    """One connection, from the first byte on."""

    def __init__(self, relay: Relay, number: int) -> None:
        super().__init__(Seat(relay))
        self.number = number
        self.key = ""
        self.identity: Identity | None = None
        self.made_at = 0.0
        self._relay = relay
        self._secret_bytes = relay.job.password.encode()
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._deadline: Any = None

    # from the network

    def connectionMade(self) -> None:  # noqa: N802 - Twisted's name
        self.made_at = time.monotonic()
        self._relay.let_in(self)
        self._deadline = reactor.callLater(self._relay.job.options.handshake_timeout_s, self.kill)
        self.transport.setTcpNoDelay(True)
        super().connectionMade()

    def connectionLost(self, reason: Any) -> None:  # noqa: N802 - Twisted's name
        super().connectionLost(reason)
        if self._deadline.active():
            self._deadline.cancel()
        self._relay.forget(self)
        if not self.key:
            self._relay.refused(self)
        elif self.identity:
            self._relay.parent.tell(local.Left(self.number))

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        self.heard()
        with contextlib.suppress(Exception):  # tlspyo cut the connection already and raises for the log
            super().dataReceived(data)
        for _ in range(self._server.pending_acks.take_completed()):
            self._relay.parent.tell(local.Acknowledged(self.number))

    def process_header(self) -> tuple[int, int, str | None]:
        """Bounds of the next envelope; the password is compared in constant time and appears in no log."""
        start = HEADER_BYTES + len(self._secret_bytes)
        if len(self._buffer) < start:
            return 0, len(self._buffer) + 1, None
        if not hmac.compare_digest(self._buffer[HEADER_BYTES:start], self._secret_bytes):
            raise DecodingError("wrong password")
        limit = MAX_ENVELOPE_BYTES if self.key else MAX_UNPROVED_BYTES
        return start, start + envelopes.length_in(self._buffer[:HEADER_BYTES], limit), self._password

    def retrieve_broadcast(self) -> None:
        """What a new client gets first: a challenge."""
        self.send_obj(obj=envelopes.serialize(Challenge(self._nonce)))

    def retrieve_consumables(self, groups: Any) -> None:
        """Nothing is ever queued here; endpoints ask as a sign of life."""

    def forward_obj_to_dest(self, obj: Any, dest: Any) -> None:
        """Take what the peer says to the only destination it has."""
        if dest != envelopes.TO_SERVER or not isinstance(obj, memoryview):
            raise DecodingError("a destination other than the server")
        if self.identity:
            self._relay.parent.tell(local.Took(self.number, obj))
        elif not self.key:
            self._judge(envelopes.proof_from(obj))

    def _judge(self, proof: envelopes.Proof) -> None:
        identity = self._relay.keys.find(proof.curve_public)
        valid = self._relay.secret.verify(proof.curve_public, self._nonce, proof.mac)
        if identity is None or not valid:
            self._dismiss()
            return
        self._deadline.cancel()
        self._relay.no_longer_unproved(self)
        self.key, self.identity = proof.curve_public, identity
        self._relay.parent.tell(local.Joined(self.number, identity.name, identity.roles))
        self.send_obj(obj=envelopes.serialize(Accepted()))
        self.congest(self._relay.congested)

    def _dismiss(self) -> None:
        """Say no, and wait only so long for the peer to hear it."""
        self._state = "CLOSED"
        self.send_obj(obj=envelopes.serialize(Denied()))
        self.transport.loseConnection()
        if not self._deadline.active():
            self._deadline = reactor.callLater(self._relay.job.options.handshake_timeout_s, self.kill)

    # from the parent and the clock

    def give(self, piece: bytes | memoryview, last: bool) -> None:
        """Send a piece."""
        if last:
            self._server.pending_acks.messages.add(self._server.ack_stamp + 1)
        self.send_obj(obj=piece)

    def congest(self, congested: bool) -> None:
        """Wait while the parent does not keep up; before its proof a peer says little, and must be in time."""
        if congested and self.key:
            self.hold("the parent does not keep up")
        elif not congested:
            self.release("the parent does not keep up")

    def check_key(self) -> None:
        """Compare with the keys that are valid now."""
        if not self.identity:
            return
        identity = self._relay.keys.identities.get(self.key)
        if identity is None:
            self.identity = None
            self._relay.parent.tell(local.Left(self.number, revoked=True))
            self._dismiss()
        elif identity != self.identity:
            self.identity = identity
            self._relay.parent.tell(local.Joined(self.number, identity.name, identity.roles))

    def look_after(self) -> None:
        """Give a sign of life, and expect one."""
        silent = self.silent_for_s() > self._relay.job.options.silent_after_s
        unanswered = len(self._server.pending_acks)
        if self._state == "ALIVE" and (silent or unanswered > self._relay.most_unanswered):
            self.kill()
        elif self._state == "ALIVE":
            self.send_obj(cmd="NTF")

    def kill(self) -> None:
        """Cut the connection."""
        self._state = "KILLED"
        self.transport.abortConnection()
