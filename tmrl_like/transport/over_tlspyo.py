"""The tlspyo transport: tlspyo's protocol over TLS and its server and client classes, with one
password per key.

On the wire, tlspyo writes an ASCII length of 10 bytes, then (towards the server only) the password,
then an envelope: (stamp, command, destination, object) towards the server, (stamp, command, object)
towards a peer. Here envelopes are typed msgpack. Each is acknowledged by its stamp. A message is an
object. An acknowledgement with stamp 0, which acknowledges nothing, is a sign of life.

Twisted's reactor runs in one thread of this process. tlspyo's own `Relay` and `Endpoint` are not
used: they unpickle data, share one password among all peers, let peers address each other, have no
limits, and run in processes that outlive a killed parent.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import hashlib
import hmac
import itertools
import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal

import msgspec
import OpenSSL
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from tlspyo.client import Client, ClientProtocol, TLSClientFactory
from tlspyo.server import Server, ServerProtocol
from twisted.internet import defer, error, ssl, task, threads
from twisted.internet import reactor as twisted_reactor
from twisted.internet.protocol import Factory
from twisted.protocols.policies import TimeoutMixin
from zmq.utils import z85

from tmrl_like.base.threads import start_thread
from tmrl_like.errors import CredentialsError, DecodingError, TransportError
from tmrl_like.transport.addresses import written
from tmrl_like.transport.base import (
    Identity,
    Incoming,
    TransportOptions,
    cannot_listen,
    key_refused,
    next_in,
    other_server,
)
from tmrl_like.transport.credentials import KEYS_CHECK_S, AuthorizedKeys, KeyFolder
from tmrl_like.transport.strangers import Strangers

log = logging.getLogger(__name__)

GROUP = "peers"
_HEADER_BYTES, _KEY_BYTES, PASSWORD_BYTES = 10, 40, 104
_ENVELOPE_START = _HEADER_BYTES + PASSWORD_BYTES  # towards the server
_ENVELOPE_BYTES = 64  # more than an envelope takes in addition to its message
_PERSON = b"tmrl-like-proof2"
_BACKLOG = 1024
_FAREWELL_S = 0.5  # for pending messages, when a link is closed
_REDIAL_INITIAL_S = 0.2
_REDIAL_MAX_S = 0.8
_STRANGE_ANSWERS_BEFORE_GIVING_UP = 5

_decode_at_server = msgspec.msgpack.Decoder(
    tuple[
        int,
        Literal["HELLO", "OBJ", "NTF", "ACK"],
        msgspec.Raw,  # the destination, which is always this server
        memoryview | tuple[str] | None,
    ]
).decode
_decode_at_peer = msgspec.msgpack.Decoder(
    tuple[int, Literal["HELLO", "OBJ", "ACK", "DENIED"], memoryview | None]
).decode

_lock = threading.Lock()
_process = 0  # id of the process that runs the reactor: a fork inherits memory, but no threads


def running_reactor() -> Any:
    """Return Twisted's reactor; start it in a thread unless the program already runs it.

    Raises:
        TransportError: this process was forked from one that uses the reactor.
        ShortageError: the system has no thread for it.
    """
    global _process
    with _lock:
        if not _process:
            logging.getLogger("tlspyo").setLevel(logging.CRITICAL)
            if not twisted_reactor.running:
                started = threading.Event()
                twisted_reactor.callWhenRunning(started.set)
                start_thread(partial(twisted_reactor.run, False), "tmrl-tlspyo")
                started.wait()
            _process = os.getpid()
        if _process != os.getpid():
            raise TransportError(
                "this process was forked from one that uses the transport tlspyo: start processes "
                "with the method "
                '"spawn" of multiprocessing, or use the transport zmq'
            )
    return twisted_reactor


def in_reactor(call: Callable[..., Any], *args: Any) -> Any:
    """Call a function in the reactor's thread, and return its result or that of its Deferred."""
    return threads.blockingCallFromThread(running_reactor(), call, *args)


def password_of(peer_public: str, server_public: str, own_secret: str) -> str:
    """Return a peer's password, which tlspyo expects with every envelope.

    The password is the peer's public key and a keyed hash over both public keys. The key of the
    hash is the shared secret that server and peer derive from their CURVE keys (X25519), so nobody
    else can compute it. It is sent only over TLS, and only after the peer has checked the server's
    certificate. Keys are Z85 text; `own_secret` is the secret key of the peer or of the server.
    """
    secret = X25519PrivateKey.from_private_bytes(z85.decode(own_secret))
    server, peer = z85.decode(server_public), z85.decode(peer_public)
    other = peer if secret.public_key().public_bytes_raw() == server else server
    shared = secret.exchange(X25519PublicKey.from_public_bytes(other))
    return (
        peer_public
        + hashlib.blake2b(server + peer, key=shared, person=_PERSON, digest_size=32).hexdigest()
    )


class _Unremembered(dict[int, Any]):
    """Replaces tlspyo's table of unacknowledged envelopes, which would hold a copy of each."""

    def __setitem__(self, stamp: int, sent: Any) -> None:
        pass


class TlspyoLink:
    """Common part of both sides: a queue that holds the connection of each received message, in
    order; None in it is a wake-up.
    """

    end: Callable[[], defer.DeferredList]  # called in the reactor by `close`

    def __init__(self, options: TransportOptions) -> None:
        self.options = options
        self.inbox: queue.SimpleQueue[Connection | None] = queue.SimpleQueue()

    def wake(self) -> None:
        self.inbox.put(None)

    def close(self) -> None:
        with contextlib.suppress(TransportError):  # raised in a forked process
            in_reactor(self.end)


class Connection(TimeoutMixin):  # type: ignore[misc]
    """Mixin for tlspyo's two protocols. `hand_over` and `receive` are for the user's thread.

    Attributes:
        proved: whether the other side has proved to hold its key.
        ended: called back when the connection has ended.
    """

    transport: Any
    send_obj: Any
    send_ack: Any
    _state: str

    def __init__(self, link: TlspyoLink) -> None:
        self.proved = False
        self.ended: defer.Deferred[None] = defer.Deferred()
        self._link = link
        self._options = link.options
        # in place of tlspyo's buffer of bytes, which is copied whenever data arrives
        self._buffer = bytearray()
        self._arrived: deque[memoryview] = deque()
        self._outgoing: deque[bytes | memoryview] = deque()
        self._is_blocked = self._is_leaving = self._is_held = False

    def connectionMade(self) -> None:  # noqa: N802 - Twisted's name, as others here
        self.transport.setTcpNoDelay(True)
        self.transport.registerProducer(self, True)
        self.setTimeout(self._options.handshake_timeout_s)
        super().connectionMade()

    def prove(self) -> None:
        """Note that the other side has proved its key: from now on, both sides show life."""
        self.proved = True
        limits = self._options
        self.setTimeout(limits.silent_after_s)
        self._signs = task.LoopingCall(self.send_ack, 0)
        self._signs.start(min(limits.heartbeat_s, limits.silent_after_s / 4), now=False)

    def connectionLost(self, reason: Any) -> None:  # noqa: N802
        super().connectionLost(reason)
        self.transport.unregisterProducer()
        self.setTimeout(None)
        if self.proved:
            self._signs.stop()
            del self._signs  # breaks a reference cycle
        self.ended.callback(None)
        # a reference cycle with the error that ended it holds 150 kB of OpenSSL memory
        running_reactor().callLater(0, gc.collect, 0)

    def timeoutConnection(self) -> None:  # noqa: N802
        self.transport.abortConnection()

    def _fill(self, messages: deque[Any]) -> float:
        """How full a queue is: 1.0 is the limit of messages or of bytes, whichever is nearer."""
        size_bytes = sum(map(len, messages.copy()))  # another thread may change the queue itself
        return max(
            len(messages) / self._options.queue_messages, size_bytes / self._options.queue_bytes
        )

    # outgoing messages

    def hand_over(self, data: bytes | memoryview) -> bool:
        """Queue a message to send; return False if too much waits already."""
        if self._fill(self._outgoing) >= 1.0:
            return False
        self._outgoing.append(data)
        running_reactor().callFromThread(self._send)
        return True

    def leave(self) -> None:
        """End the connection once pending messages have left."""
        self._is_leaving = True
        self._send()

    def _send(self) -> None:
        while self._outgoing and not self._is_blocked:
            self.send_obj(obj=self._outgoing.popleft())
        if self._is_leaving and not self._outgoing:
            self.transport.unregisterProducer()
            self.transport.loseConnection()

    def pauseProducing(self) -> None:  # noqa: N802
        """Called by Twisted when written data waits for the network."""
        self._is_blocked = True

    def resumeProducing(self) -> None:  # noqa: N802
        """Called by Twisted when the data has left."""
        self._is_blocked = False
        self._send()

    def stopProducing(self) -> None:  # noqa: N802
        """Called by Twisted when nothing can leave any more."""

    # incoming messages

    def dataReceived(self, data: bytes) -> None:  # noqa: N802
        if self._is_leaving:
            return
        try:
            super().dataReceived(data)
        except Exception as problem:
            if self.proved:
                log.warning("cut the connection %s: %s", self, problem)
            self.transport.abortConnection()
        if self.proved:
            self.resetTimeout()
        if self._state == "CLOSED":  # by tlspyo, for data that it does not accept
            self.leave()

    def bounds(self, start: int) -> tuple[int, int]:
        """Return the bounds of the next envelope, which begins after `start` bytes.

        Raises:
            DecodingError: the announced length is invalid or too large.
        """
        if len(self._buffer) < start:
            return 0, len(self._buffer) + 1
        length = bytes(self._buffer[:_HEADER_BYTES])
        limit = self._options.max_message_bytes + _ENVELOPE_BYTES
        if not length.rstrip(b" ").isdigit() or int(length) > limit:
            raise DecodingError(
                f"an envelope with the length {length!r}; at most {limit} bytes are allowed"
            )
        return start, start + int(length)

    def arrive(self, data: memoryview) -> None:
        """Take a received message. While too much waits, reading stops, so that TCP makes the other
        side wait.
        """
        self._options.check_size(len(data))
        self._arrived.append(data)
        self._link.inbox.put(self)
        if not self._is_held and self._fill(self._arrived) >= 1.0:
            self._is_held = True
            self.setTimeout(None)
            self.transport.pauseProducing()
            # `receive` does not call this for messages taken before `_is_held` was set
            self._release()

    def receive(self) -> memoryview:
        """Return the oldest message that has arrived."""
        data = self._arrived.popleft()
        if self._is_held and self._fill(self._arrived) < 0.5:
            running_reactor().callFromThread(self._release)
        return data

    def _release(self) -> None:
        if self._is_held and not self.ended.called and self._fill(self._arrived) < 0.5:
            self._is_held = False
            self.setTimeout(self._options.silent_after_s)
            self.transport.resumeProducing()


def ended(connections: Iterable[Connection]) -> defer.DeferredList:
    """End connections after a moment for pending messages to leave; in the reactor."""
    leaving = list(connections)
    for connection in leaving:
        connection.setTimeout(_FAREWELL_S)
        connection.leave()
    return defer.DeferredList([connection.ended for connection in leaving])


class TlspyoServerLink(TlspyoLink):
    """Listens on one TCP port. See `ServerLink`."""

    def __init__(self, host: str, port: int, folder: KeyFolder, options: TransportOptions) -> None:
        """Bind before returning; raises like `listen`."""
        super().__init__(options)
        self.server_keys = folder.server_keys()
        self.keys = AuthorizedKeys(folder)
        self.is_valid = self.keys.is_valid
        self.numbers = itertools.count(1)
        self.connections: dict[bytes, ServerConnection] = {}
        self.strangers: Strangers[ServerConnection] = Strangers()
        self._reading_keys = task.LoopingCall(self.keys.refresh)
        try:
            self._port = in_reactor(self._listen, host, port)
        except error.CannotListenError as problem:
            why = problem.socketError
            raise cannot_listen(host, port, why.errno == errno.EADDRINUSE, why) from None
        self.address = (host, self._port.getHost().port)

    def _listen(self, host: str, port: int) -> Any:
        certificate = ssl.PrivateCertificate.loadPEM(
            self.server_keys.tls_key + self.server_keys.tls_certificate
        )
        factory = Factory()
        factory.noisy = False
        factory.buildProtocol = lambda address: ServerConnection(self)
        listening = running_reactor().listenSSL(
            port, factory, certificate.options(), _BACKLOG, host
        )
        self._reading_keys.start(KEYS_CHECK_S)
        return listening

    def receive(self, timeout_s: float) -> Incoming | None:
        connection = next_in(self.inbox, timeout_s)
        if not isinstance(connection, ServerConnection):
            return None
        return Incoming(connection.id, connection.identity, connection.receive())

    def send(self, peer: bytes, data: bytes | memoryview) -> bool:
        self.options.check_size(len(data))
        connection = self.connections.get(peer)
        return connection is not None and connection.hand_over(data)

    def forget(self, peer: bytes) -> None:
        """See `ServerLink.forget`: there is no state to discard."""

    def end(self) -> defer.DeferredList:
        if self._reading_keys.running:
            self._reading_keys.stop()
        self._port.stopListening()
        return ended([*self.connections.values(), *self.strangers])


class ServerConnection(Connection, ServerProtocol):  # type: ignore[misc]
    """One connection, with a tlspyo server of its own, so that it cannot address other peers."""

    _link: TlspyoServerLink

    def __init__(self, link: TlspyoServerLink) -> None:
        server = Server(
            port=-1,
            password=" " * PASSWORD_BYTES,  # only its length counts; see `process_header`
            serializer=msgspec.msgpack.encode,
            deserializer=_decode_at_server,
            accepted_groups={GROUP: {"max_count": 1, "max_consumables": None}},
        )
        server.pending_acks = _Unremembered()
        ServerProtocol.__init__(self, server)
        Connection.__init__(self, link)
        self.id = next(link.numbers).to_bytes(8, "big")  # never reused
        self._key = ""

    @property
    def identity(self) -> Identity:
        """The identity of the peer, according to the keys that are valid now."""
        return self._link.keys.identity_of(self._key)

    def connectionMade(self) -> None:  # noqa: N802
        super().connectionMade()
        if surplus := self._link.strangers.add(self, (self.transport.getPeer().host,)):
            surplus[0].transport.abortConnection()

    def connectionLost(self, reason: Any) -> None:  # noqa: N802
        super().connectionLost(reason)
        self._link.strangers.remove(self)
        self._link.connections.pop(self.id, None)

    def process_header(self) -> tuple[int, int, None]:
        """Return the bounds of the next envelope; a peer with a wrong password is denied."""
        if len(self._buffer) >= _ENVELOPE_START and not self.proved:
            password = bytes(self._buffer[_HEADER_BYTES:_ENVELOPE_START])
            self._key = password[:_KEY_BYTES].decode("latin-1")
            if not self._is_right(password):
                self.send_obj(cmd="DENIED")
                self._state = "CLOSED"
                return 0, len(self._buffer) + 1, None
            self.prove()
            self._link.strangers.remove(self)
            self._link.connections[self.id] = self
        return *self.bounds(_ENVELOPE_START), None

    def _is_right(self, password: bytes) -> bool:
        keys = self._link.server_keys
        if self._link.keys.find(self._key) is None:
            return False
        right = password_of(self._key, keys.curve_public, keys.curve_secret)
        return hmac.compare_digest(right.encode(), password)

    def retrieve_consumables(self, groups: Any) -> None:
        """Do nothing: tlspyo's queues are not used."""

    def forward_obj_to_dest(self, obj: Any, dest: Any) -> None:
        """Take a message from the peer; whatever its destination, it is for this server."""
        if not isinstance(obj, memoryview):
            raise DecodingError("not a message")
        self.arrive(obj)

    def __str__(self) -> str:
        return f"of {self.identity.name}"


class TlspyoPeerLink(TlspyoLink):
    """Dials one server, and keeps dialling. See `PeerLink`."""

    logs_itself = False

    def __init__(self, host: str, port: int, folder: KeyFolder, options: TransportOptions) -> None:
        super().__init__(options)
        keys = folder.peer_keys()
        self.where = written(host, port)
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
        self.client.pending_acks = _Unremembered()
        self._dialler = TLSClientFactory(client=self.client)
        self._dialler.noisy = False
        self._dialler.resetDelay()
        self._dialler.buildProtocol = lambda address: PeerConnection(self)
        authority = ssl.Certificate.loadPEM(keys.tls_certificate)
        trusted = ssl.optionsForClientTLS(hostname="default", trustRoot=authority)
        self._dialler.connector = in_reactor(
            running_reactor().connectSSL,
            host,
            port,
            self._dialler,
            trusted,
            options.handshake_timeout_s,
        )

    @property
    def is_lost(self) -> bool:
        return bool(self._dialler.retries)

    # in the reactor

    def heard(self, command: str) -> None:
        """Handle the server's first command: "DENIED" if it refuses the key, else "ACK"."""
        if command == "DENIED":
            self._give_up(key_refused(self.where))
        elif command == "ACK":
            self._ever_proved = True
            self._dialler.resetDelay()

    def gone(self, reason: Any) -> None:
        """Handle the end of the connection, and give up if it was not the right server.

        A wrong certificate proves that it was not; other TLS errors must occur several times: a
        forwarder whose server is away may answer in its place. Neither counts once the right server
        has answered.
        """
        if isinstance(reason.value, OpenSSL.SSL.Error) and not self._ever_proved:
            self._strange_answers += 1
            is_proof = "certificate verify failed" in str(reason.value)
            if is_proof or self._strange_answers >= _STRANGE_ANSWERS_BEFORE_GIVING_UP:
                self._give_up(other_server(self.where))

    def _give_up(self, error: CredentialsError) -> None:
        self._dialler.stopTrying()
        self._error = error
        self.wake()

    # in the user's thread

    def receive(self, timeout_s: float) -> memoryview | None:
        connection = next_in(self.inbox, 0.0 if self._error else timeout_s)
        if connection is not None:
            return connection.receive()
        if self._error:
            raise self._error
        return None

    def send(self, data: bytes) -> bool:
        """See `PeerLink.send`. Also returns False while there is no connection, so that nothing
        piles up.
        """
        self.options.check_size(len(data))
        connection = self.client.to_server
        return connection is not None and connection.proved and connection.hand_over(data)

    def end(self) -> defer.DeferredList:
        self._dialler.stopTrying()
        return ended(filter(None, [self.client.to_server]))


class PeerConnection(Connection, ClientProtocol):  # type: ignore[misc]
    """One connection to the server."""

    _link: TlspyoPeerLink

    def __init__(self, link: TlspyoPeerLink) -> None:
        ClientProtocol.__init__(self, link.client, link.client.password, _HEADER_BYTES, (GROUP,))
        Connection.__init__(self, link)
        link.client.deserializer = self._read

    def connectionLost(self, reason: Any) -> None:  # noqa: N802
        super().connectionLost(reason)
        self._link.gone(reason)

    def process_header(self) -> tuple[int, int]:
        """Return the bounds of the next envelope."""
        return self.bounds(_HEADER_BYTES)

    def _read(self, envelope: bytes) -> tuple[int, str, None]:
        """Decode an envelope and take its message; tlspyo then acknowledges it."""
        stamp, command, data = _decode_at_peer(envelope)
        if data is not None:
            self.arrive(data)
        elif not self.proved:
            if command == "ACK":
                self.prove()
            self._link.heard(command)
        return stamp, command, None

    def __str__(self) -> str:
        return "to the server"
