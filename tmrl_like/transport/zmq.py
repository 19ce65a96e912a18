"""The default transport: ZeroMQ over TCP with CURVE (Curve25519, XSalsa20-Poly1305).

The I/O runs in libzmq's own thread, outside Python's interpreter lock: handing a message over takes
microseconds whatever the network does. A peer is authenticated before libzmq passes on its first
byte.

TCP keepalives and messages serve as signs of life. libzmq's own heartbeats are not used: they abort
the process if the queue of a connection is full and its other end is gone (version 4.3.5). A peer
that receives nothing for `silent_after_s` dials again.

libzmq allocates as many bytes as a frame announces, up to its limit, even before the handshake.
Frames are therefore small here: a message of more than `_PART_BYTES` is sent as several frames,
which libzmq delivers together or not at all.
"""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import sys
import time
from collections import deque
from typing import Any

import zmq

from tmrl_like.base.budgets import Lines
from tmrl_like.base.threads import expect_threads
from tmrl_like.errors import TransportError
from tmrl_like.transport.addresses import is_address, written
from tmrl_like.transport.base import (
    Incoming,
    TransportOptions,
    cannot_listen,
    key_refused,
    other_server,
)
from tmrl_like.transport.credentials import AuthorizedKeys, KeyFolder
from tmrl_like.transport.gate import Gate

log = logging.getLogger(__name__)

_BROKEN_HANDSHAKES = 3  # before a check whether a server answers there (`_speaks`)
_SPEAKS_WITHIN_S = 3.0
_REDIAL_AFTER_S = 0.3
_BACKLOG = 1024
_SAY_AGAIN_S = 60.0
_PART_BYTES = 516 << 10  # enough for a frame of a policy
_COPY_BELOW_BYTES = 1 << 18  # at a server; a part that is not copied wakes a thread when sent
# libzmq ends the process if it cannot start two, and two that were tried take a moment to end
_THREADS = 4
# limits of Linux; libzmq drops each connection for which a higher number is refused
_MAX_KEEPALIVES, _MAX_KEEPALIVE_S = 127, 32767
_CURVE_BYTES = 33  # added by encryption; libzmq compares the encrypted size with its limit
_NOW = int(zmq.NOBLOCK)  # integers: combining members of an enumeration takes longer than sending
_NOW_AND_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_EVENTS = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class _ZmqLink:
    """Common part of both sides: a ZeroMQ socket, and a pair of plain sockets with which any thread
    can end a poll.
    """

    def __init__(self, kind: int, options: TransportOptions) -> None:
        self._options = options
        self._say = Lines(log, 1, 1 / _SAY_AGAIN_S)
        expect_threads(_THREADS, "zmq")
        self._context = zmq.Context()
        self._socket = sock = self._context.socket(kind)
        sock.linger = 200
        sock.maxmsgsize = min(options.max_message_bytes, _PART_BYTES) + _CURVE_BYTES
        sock.sndhwm = sock.rcvhwm = options.queue_messages
        # without a limit, the system dials an address where nobody answers ever more rarely
        sock.handshake_ivl = sock.connect_timeout = math.ceil(options.handshake_timeout_s * 1000)
        sock.tcp_keepalive = 1
        silent_s = options.silent_after_s
        every_s = math.ceil(max(options.heartbeat_s, silent_s / _MAX_KEEPALIVES))
        every_s = min(every_s, _MAX_KEEPALIVE_S)
        sock.tcp_keepalive_idle = sock.tcp_keepalive_intvl = every_s
        sock.tcp_keepalive_cnt = min(math.ceil(silent_s / every_s), _MAX_KEEPALIVES)
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._poller = zmq.Poller()
        self._poller.register(sock, zmq.POLLIN)
        self._poller.register(self._woken, zmq.POLLIN)

    def _poll(self, timeout_s: float) -> dict[Any, int]:
        """Return the sources that are ready; empty after `timeout_s`. It contains `_woken` after a
        call of `wake`.
        """
        ready: dict[Any, int] = dict(self._poller.poll(math.ceil(max(0.0, timeout_s) * 1000)))
        if self._woken.fileno() in ready:
            with contextlib.suppress(BlockingIOError):
                while self._woken.recv(4096):
                    pass
        return ready

    def _send(self, data: bytes | memoryview, copy_below: int) -> zmq.MessageTracker | None:
        """Send a message; if libzmq accepts its first part, it also accepts the others.

        Returns a tracker that tells when the message has left, or None if it was small and copied.
        """
        sent = None
        view = memoryview(data)
        for start in range(0, max(1, len(view)), _PART_BYTES):
            part = view[start : start + _PART_BYTES]
            flags = _NOW_AND_MORE if start + _PART_BYTES < len(view) else _NOW
            if len(part) < copy_below:
                self._socket.send(part, flags)
            else:
                sent = self._socket.send(part, flags, copy=False, track=True)
        return sent

    def _whole(self, first: zmq.Frame, sender: str) -> bytes | memoryview | None:
        """Return the message that begins with this part, or None if it is above the limit."""
        if not first.more:
            return first.buffer
        parts = [first, *self._socket.recv_multipart(copy=False)]
        size, limit = sum(map(len, parts)), self._options.max_message_bytes
        if size <= limit:
            return b"".join(part.buffer for part in parts)
        line = (
            "a message of %s is dropped: it has %d bytes, and max_message_bytes is %d here; "
            "give all parts of a run the same limit"
        )
        self._say(sender, logging.WARNING, line, sender, size, limit)
        return None

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # full: a wake-up is pending; closed: nobody waits
            self._waker.send(b"w")

    def close(self) -> None:
        if not self._socket.closed:
            self._socket.close()
            self._context.term()
            self._woken.close()
            self._waker.close()


class ZmqServerLink(_ZmqLink):
    """Listens on one TCP port. See `ServerLink`."""

    def __init__(self, host: str, port: int, folder: KeyFolder, options: TransportOptions) -> None:
        """Bind at once; raises like `listen`."""
        keys = folder.server_keys()
        self._keys = AuthorizedKeys(folder)
        self.is_valid = self._keys.is_valid
        self._waiting: dict[bytes, _Unsent] = {}  # by peer
        self._is_torn = False
        super().__init__(zmq.ROUTER, options)
        try:
            self._socket.backlog = _BACKLOG
            self._socket.ipv6 = True
            self._socket.router_mandatory = True
            self._socket.curve_server = True
            self._socket.curve_publickey = keys.curve_public.encode()
            self._socket.curve_secretkey = keys.curve_secret.encode()
            self._gate = Gate(self._context, self._socket, self._keys)
            self._socket.bind(f"tcp://{written(host, port or '*')}")
        except BaseException as error:
            self.close()
            if isinstance(error, zmq.ZMQError):
                raise cannot_listen(host, port, error.errno == zmq.EADDRINUSE, error) from None
            raise
        endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.address = (host, int(endpoint.rpartition(":")[2]))

    def receive(self, timeout_s: float) -> Incoming | None:
        if self._gate.failure:
            raise self._gate.failure
        while self._is_torn and self._socket.rcvmore:
            self._socket.recv(copy=False)
        # until all parts of a message are taken: memory may run out in between
        self._is_torn = True
        try:
            peer = self._socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            if self._socket not in self._poll(timeout_s):
                self._is_torn = False
                return None
            peer = self._socket.recv(zmq.NOBLOCK)
        first = self._socket.recv(copy=False)
        self._gate.proved.add(first.get(zmq.SRCFD))
        identity = self._keys.identity_of(str(first.get("User-Id")))
        data = self._whole(first, identity.name)
        self._is_torn = False
        return None if data is None else Incoming(peer, identity, data)

    def send(self, peer: bytes, data: bytes | memoryview) -> bool:
        self._options.check_size(len(data))
        waiting = self._waiting.get(peer)
        if waiting is not None and waiting.count() + len(data) > self._options.queue_bytes:
            return False
        try:
            self._socket.send(peer, _NOW_AND_MORE)
        except zmq.Again:
            return False
        except zmq.ZMQError:  # the peer is gone
            self.forget(peer)
            return False
        try:
            sent = self._send(data, _COPY_BELOW_BYTES)
        except (zmq.ZMQError, MemoryError):  # no memory is left
            self._socket.send(b"", _NOW)  # else the next message would be part of this one
            return False
        if sent is not None:
            self._waiting.setdefault(peer, _Unsent()).add(len(data), sent)
        return True

    def forget(self, peer: bytes) -> None:
        self._waiting.pop(peer, None)


class ZmqPeerLink(_ZmqLink):
    """Dials one server, and keeps dialling. See `PeerLink`."""

    logs_itself = False

    def __init__(self, host: str, port: int, folder: KeyFolder, options: TransportOptions) -> None:
        keys = folder.peer_keys()
        super().__init__(zmq.DEALER, options)
        self.is_lost = False
        self._address = host, port
        self.where = written(host, port)
        self._endpoint = f"tcp://{self.where}"
        self._is_name = not is_address(host)
        # of a name, libzmq knows one address: of IPv4, or if this is set of IPv6
        self._socket.ipv6 = self._next_ipv6 = ":" in host
        # else a full queue would abort the process after a reconnect
        self._socket.immediate = 1
        self._socket.curve_serverkey = keys.server_curve_public.encode()
        self._socket.curve_publickey = keys.curve_public.encode()
        self._socket.curve_secretkey = keys.curve_secret.encode()
        # a name is dialled again here, at its other address
        self._socket.reconnect_ivl = 1000 if self._is_name else 100
        self._socket.reconnect_ivl_max = 1000
        self._monitor = self._socket.get_monitor_socket(_EVENTS)
        self._poller.register(self._monitor, zmq.POLLIN)
        self._heard_at = self._dead_since = self._gives_up_at = math.inf
        # a handshake has succeeded: key and server are right, so later failures are restarts
        self._proved = False
        self._broken_handshakes = 0
        try:
            self._socket.connect(self._endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise TransportError(f"{self.where} is not an address to connect to: {error}") from None

    def receive(self, timeout_s: float) -> bytes | memoryview | None:
        try:
            return self._received()
        except zmq.Again:
            pass
        self._redial_if_dead()
        until = time.monotonic() + timeout_s
        while True:
            ready = self._poll(until - time.monotonic())
            if self._monitor in ready:
                self._watch_connection()
            if self._socket in ready:
                return self._received()
            if not ready or self._woken.fileno() in ready:
                return None

    def _received(self) -> bytes | memoryview | None:
        first = self._socket.recv(zmq.NOBLOCK, copy=False)
        self._heard_at = time.monotonic()
        return self._whole(first, f"the server at {self.where}")

    def _watch_connection(self) -> None:
        while self._monitor.poll(0):
            # without pyzmq's own parser, which imports asyncio
            event = int.from_bytes(self._monitor.recv_multipart()[0][:2], sys.byteorder)
            if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                raise key_refused(self.where)
            now = time.monotonic()
            self.is_lost = event in (zmq.EVENT_DISCONNECTED, zmq.EVENT_CONNECT_RETRIED)
            self._dead_since = now if event == zmq.EVENT_DISCONNECTED else math.inf
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._proved, self._heard_at = True, now
            elif event == zmq.EVENT_DISCONNECTED and not self._proved:
                self._doubt(now)
            elif event == zmq.EVENT_CONNECT_RETRIED and self._is_name:
                self._next_ipv6, self._dead_since = not self._socket.ipv6, now

    def _doubt(self, now: float) -> None:
        """Handle another handshake that was broken off while none has succeeded yet.

        It may not be the right server, or no server at all.
        """
        self._broken_handshakes += 1
        if now > self._gives_up_at:
            raise other_server(self.where)
        if self._broken_handshakes < _BROKEN_HANDSHAKES or self._gives_up_at < math.inf:
            return
        self._broken_handshakes = 0
        if _speaks(self._address):
            # a server that many peers dial at once breaks off handshakes, see `Gate`
            self._gives_up_at = now + self._options.gives_up_after_s
            line = (
                "what listens at %s breaks off each handshake: is it the server that this "
                "machine's key is for? Still trying"
            )
            log.warning(line, self.where)

    def _redial_if_dead(self) -> None:
        """Redial if needed: libzmq itself reconnects after a lost connection, but not after one
        that broke the protocol or is silent, and never at another address of a name.
        """
        now = time.monotonic()
        if (
            now - self._heard_at > self._options.silent_after_s
            or now - self._dead_since > _REDIAL_AFTER_S
        ):
            self._dead_since = self._heard_at = math.inf
            self.is_lost = True
            with contextlib.suppress(zmq.ZMQError):
                self._socket.disconnect(self._endpoint)
            self._socket.ipv6 = self._next_ipv6
            self._socket.connect(self._endpoint)

    def send(self, data: bytes) -> bool:
        self._options.check_size(len(data))
        try:
            self._send(data, _PART_BYTES + 1)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        if not self._socket.closed:
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
        super().close()


def _speaks(address: tuple[str, int]) -> bool:
    """Whether the program that accepts connections at an address sends anything; a forwarder whose
    server is away does not.
    """
    with (
        contextlib.suppress(OSError),
        socket.create_connection(address, _SPEAKS_WITHIN_S) as connection,
    ):
        connection.sendall(b"\r\n\r\n")  # for protocols in which the server does not speak first
        return bool(connection.recv(1))
    return False


class _Unsent:
    """Large messages that were passed to libzmq without a copy and may not have left yet.

    Small messages are limited by their number.
    """

    def __init__(self) -> None:
        # size, and the tracker that tells whether it has left
        self._messages: deque[tuple[int, zmq.MessageTracker]] = deque()
        self._size_bytes = 0

    def add(self, size_bytes: int, sent: zmq.MessageTracker) -> None:
        self._messages.append((size_bytes, sent))
        self._size_bytes += size_bytes

    def count(self) -> int:
        """Return the total bytes of the messages that have not left."""
        while self._messages and self._messages[0][1].done:
            self._size_bytes -= self._messages.popleft()[0]
        return self._size_bytes
