"""The default transport: ZeroMQ over TCP with CURVE (Curve25519, XSalsa20-Poly1305).

The I/O runs in libzmq's own thread, outside Python's interpreter lock: handing a message over costs
microseconds whatever the network does. A peer is authenticated before libzmq gives us its first byte.

Signs of life are TCP's, and messages: libzmq's own heartbeats abort the process where they meet a connection whose
queue is full and whose other end is gone (version 4.3.5). A peer that hears nothing for `silent_after_s` dials again.

libzmq allocates what a frame announces, up to its limit, before the handshake, too. So frames are small here: a
message of more than `_PART_BYTES` travels as several, which libzmq delivers together or not at all.
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

from tmrl_like.base.threads import expect_threads
from tmrl_like.errors import TransportError
from tmrl_like.transport.base import REVOKED, Incoming, TransportOptions, cannot_listen, key_refused, other_server
from tmrl_like.transport.credentials import AuthorizedKeys, KeyFolder
from tmrl_like.transport.gate import Gate

log = logging.getLogger(__name__)

_BROKEN_HANDSHAKES = 3  # before it is asked whether anybody speaks there; and again as many, before a line says so
_GIVES_UP_AFTER_S = 60.0  # of them: a server that very many dial at once breaks some, see `Gate`
_REDIAL_AFTER_S = 0.3
_BACKLOG = 1024
_PART_BYTES = 516 << 10  # a frame of a policy in one
_COPY_BELOW_BYTES = 1 << 18  # at a server; what is not copied wakes a thread when it has left
_THREADS = 4  # libzmq ends the process where it does not get two; and two that were tried take a moment to go
_CURVE_BYTES = 33  # what encryption adds to a message; libzmq compares the sum with its limit


class _ZmqLink:
    """What both sides have: a socket of one kind, and a pair of plain ones that lets any thread end a poll."""

    def __init__(self, kind: int, options: TransportOptions) -> None:
        self._options = options
        expect_threads(_THREADS, "zmq")
        self._context = zmq.Context()
        self._socket = sock = self._context.socket(kind)
        self._closed = False
        sock.linger = 200
        sock.maxmsgsize = min(options.max_message_bytes, _PART_BYTES) + _CURVE_BYTES
        sock.sndhwm = sock.rcvhwm = options.queue_messages
        sock.handshake_ivl = int(options.handshake_timeout_s * 1000)
        sock.ipv6 = True
        sock.tcp_keepalive = 1
        sock.tcp_keepalive_idle = sock.tcp_keepalive_intvl = math.ceil(options.heartbeat_s)
        sock.tcp_keepalive_cnt = math.ceil(options.silent_after_s / options.heartbeat_s)
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._poller = zmq.Poller()
        self._poller.register(sock, zmq.POLLIN)
        self._poller.register(self._woken, zmq.POLLIN)

    def _poll(self, timeout_s: float) -> dict[Any, int]:
        """Which sources have something; nothing after `timeout_s`. `_woken` is there if `wake` was called."""
        ready: dict[Any, int] = dict(self._poller.poll(math.ceil(max(0.0, timeout_s) * 1000)))
        if self._woken.fileno() in ready:
            with contextlib.suppress(BlockingIOError):
                while self._woken.recv(4096):
                    pass
        return ready

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # full: a wake-up is pending; closed: nobody waits
            self._waker.send(b"w")

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._socket.close(linger=200)
            self._context.term()
            self._woken.close()
            self._waker.close()


class ZmqServerLink(_ZmqLink):
    """Listens on one TCP port. See `ServerLink`."""

    def __init__(self, host: str, port: int, keys: KeyFolder, options: TransportOptions) -> None:
        """Bind at once; raises as `listen`."""
        server = keys.server_keys()
        self._keys = AuthorizedKeys(keys)
        self._waiting: dict[bytes, _Waiting] = {}
        self._is_torn = False
        super().__init__(zmq.ROUTER, options)
        try:
            self._socket.backlog = _BACKLOG
            self._socket.router_mandatory = True
            self._socket.curve_server = True
            self._socket.curve_publickey = server.curve_public.encode()
            self._socket.curve_secretkey = server.curve_secret.encode()
            self._gate = Gate(self._context, self._socket, self._keys)
            self._socket.bind(f"tcp://{_bracketed(host)}:{port or '*'}")
        except BaseException as error:
            self.close()
            if isinstance(error, zmq.ZMQError):
                raise cannot_listen(host, port, error.errno == zmq.EADDRINUSE, error) from None
            raise
        self.address = (host, int(self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2]))

    def receive(self, timeout_s: float) -> Incoming | None:
        if self._gate.failure:
            raise self._gate.failure
        while self._is_torn and self._socket.rcvmore:
            self._socket.recv(copy=False)
        self._is_torn = True  # until a message was taken whole: memory may run out between its parts
        try:
            peer = self._socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            if self._socket not in self._poll(timeout_s):
                self._is_torn = False
                return None
            peer = self._socket.recv(zmq.NOBLOCK)
        body = self._socket.recv(copy=False)
        self._gate.proved(body.get(zmq.SRCFD))
        data = _whole(self._socket, body, self._options)
        self._is_torn = False
        identity = self._keys.identities.get(str(body.get("User-Id")), REVOKED)
        return None if data is None else Incoming(peer, identity, data)

    def send(self, peer: bytes, data: bytes | memoryview) -> bool:
        self._options.check_size(len(data))
        waiting = self._waiting.get(peer)
        if waiting is not None and not waiting.has_room_for(len(data)):
            return False
        try:
            self._socket.send(peer, zmq.SNDMORE | zmq.NOBLOCK)
            sent = _send(self._socket, data)
        except zmq.Again:
            return False
        except zmq.ZMQError:  # nobody there
            self._waiting.pop(peer, None)
            return False
        if sent is not None:
            self._waiting.setdefault(peer, _Waiting(self._options.queue_bytes)).add(len(data), sent)
        return True

    def forget(self, peer: bytes) -> None:
        """Drop what is kept about a connection that is gone."""
        self._waiting.pop(peer, None)


class ZmqPeerLink(_ZmqLink):
    """Dials one server and goes on dialling. See `PeerLink`."""

    def __init__(self, host: str, port: int, folder: KeyFolder, options: TransportOptions) -> None:
        keys = folder.peer_keys()
        super().__init__(zmq.DEALER, options)
        self._where = f"{host}:{port}"
        self._socket.immediate = 1  # else a queue that is full when the connection is another one aborts the process
        self._heard_at = math.inf
        self._socket.curve_serverkey = keys.server_curve_public.encode()
        self._socket.curve_publickey = keys.curve_public.encode()
        self._socket.curve_secretkey = keys.curve_secret.encode()
        self._socket.reconnect_ivl = 100
        self._socket.reconnect_ivl_max = 1000
        self._monitor = self._socket.get_monitor_socket(
            zmq.EVENT_CONNECTED
            | zmq.EVENT_CONNECT_RETRIED
            | zmq.EVENT_DISCONNECTED
            | zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        )
        self.is_lost = False
        self._proved = False  # a handshake succeeded: key and server are right, later failures are restarts
        self._broken_handshakes = 0
        self._broken_since = 0.0
        self._knock: zmq.Socket[bytes] | None = None
        self._somebody_speaks = self._is_doubted = False
        self._dead_since: float | None = None
        self._poller.register(self._monitor, zmq.POLLIN)
        try:
            self._endpoint = f"tcp://{_bracketed(host)}:{port}"
            self._socket.connect(self._endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise TransportError(f"{self._where} is not an address to connect to: {error}") from None

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
            if self._knock in ready:
                self._listen()
            if self._socket in ready:
                return self._received()
            if not ready or self._woken.fileno() in ready:
                return None

    def _received(self) -> bytes | memoryview | None:
        first = self._socket.recv(zmq.NOBLOCK, copy=False)
        self._heard_at = time.monotonic()
        return _whole(self._socket, first, self._options)

    def _watch_connection(self) -> None:
        while self._monitor.poll(0):
            event = int.from_bytes(self._monitor.recv_multipart()[0][:2], sys.byteorder)  # pyzmq's way loads asyncio
            if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                raise key_refused(self._where)
            self.is_lost = event in (zmq.EVENT_DISCONNECTED, zmq.EVENT_CONNECT_RETRIED)
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._proved, self._heard_at = True, time.monotonic()
                self._end_knock()
            elif event == zmq.EVENT_DISCONNECTED:
                self._dead_since = time.monotonic()
                if not self._proved:
                    self._broken_since = self._broken_since if self._broken_handshakes else self._dead_since
                    self._broken_handshakes += 1
            else:  # connected, or trying to
                self._dead_since = None
        if self._broken_handshakes < _BROKEN_HANDSHAKES:
            return
        if self._somebody_speaks:
            if time.monotonic() - self._broken_since > _GIVES_UP_AFTER_S:
                raise other_server(self._where)
            if not self._is_doubted:
                self._is_doubted = True
                line = "what listens at %s breaks off each handshake: is it the server that this machine's key is for? "
                log.warning(line + "Trying on", self._where)
        elif self._knock is None:
            try:
                self._knock = self._context.socket(zmq.STREAM)
            except zmq.ZMQError:  # no descriptor is left: later
                return
            self._knock.linger = 0
            self._knock.connect(self._endpoint)
            self._poller.register(self._knock, zmq.POLLIN)

    def _listen(self) -> None:
        """Find out whether what accepts connections there says anything; a forwarder whose server is away does not."""
        assert self._knock
        connection, said = self._knock.recv_multipart()
        if said:
            self._somebody_speaks = True
            self._broken_handshakes = 0
            self._end_knock()
        else:  # connected, or cut
            with contextlib.suppress(zmq.ZMQError):
                self._knock.send_multipart([connection, b"\r\n\r\n"], zmq.NOBLOCK)  # for those that do not speak first

    def _end_knock(self) -> None:
        if self._knock:
            self._poller.unregister(self._knock)
            self._knock.close()
            self._knock = None

    def _redial_if_dead(self) -> None:
        """Libzmq reconnects after a lost connection, but not after one that broke the protocol, or is silent."""
        now = time.monotonic()
        is_silent = now - self._heard_at > self._options.silent_after_s
        if is_silent or (self._dead_since is not None and now - self._dead_since > _REDIAL_AFTER_S):
            self._dead_since, self._heard_at, self.is_lost = None, math.inf, True
            with contextlib.suppress(zmq.ZMQError):
                self._socket.disconnect(self._endpoint)
            self._socket.connect(self._endpoint)

    def send(self, data: bytes) -> bool:
        self._options.check_size(len(data))
        try:
            _send(self._socket, data, copy_below=_PART_BYTES + 1)
        except zmq.Again:
            return False
        return True

    def close(self) -> None:
        if not self._closed:
            self._end_knock()
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
        super().close()


class _Waiting:
    """The messages for one peer that lie in libzmq and were not copied there: small ones are bounded by number."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._messages: deque[tuple[int, zmq.MessageTracker]] = deque()
        self._size_bytes = 0

    def has_room_for(self, size_bytes: int) -> bool:
        while self._messages and self._messages[0][1].done:
            self._size_bytes -= self._messages.popleft()[0]
        return self._size_bytes + size_bytes <= self._limit_bytes

    def add(self, size_bytes: int, sent: zmq.MessageTracker) -> None:
        self._messages.append((size_bytes, sent))
        self._size_bytes += size_bytes


def _send(
    sock: zmq.Socket[bytes], data: bytes | memoryview, copy_below: int = _COPY_BELOW_BYTES
) -> zmq.MessageTracker | None:
    """Send a message; once its first part is taken, libzmq takes the others, too.

    Returns what tells when the message has left, unless it was small and copied.
    """
    sent = None
    view = memoryview(data)
    for start in range(0, max(1, len(view)), _PART_BYTES):
        part = view[start : start + _PART_BYTES]
        more = zmq.SNDMORE if start + _PART_BYTES < len(view) else 0
        if len(part) < copy_below:
            sock.send(part, zmq.NOBLOCK | more)
        else:
            sent = sock.send(part, zmq.NOBLOCK | more, copy=False, track=True)
    return sent


def _whole(sock: zmq.Socket[bytes], first: zmq.Frame, options: TransportOptions) -> bytes | memoryview | None:
    """A message whose first part is given; None for one above the limit."""
    if not first.more:
        return first.buffer
    parts, size_bytes = [first.buffer], len(first)
    while sock.rcvmore:
        part = sock.recv(copy=False)
        size_bytes += len(part)
        if size_bytes <= options.max_message_bytes:
            parts.append(part.buffer)
    return b"".join(parts) if size_bytes <= options.max_message_bytes else None


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
