"""Access control for a libzmq listener: answers its questions about keys, and limits connections.

libzmq accepts every connection, and keeps one that proves no key for the whole handshake time. The
thread of a `Gate` observes every connection that is accepted or ends (with a socket monitor), and
learns from the server which ones have delivered a message, which needs a valid key. If there are
too many others, it cuts some of them (`Strangers`). Peers that are cut dial again, and those with a
key complete their handshake within milliseconds.
"""

from __future__ import annotations

import contextlib
import math
import socket
import struct
import time
from collections.abc import Iterator

import zmq
from zmq.utils import z85

from tmrl_like.base.threads import start_thread
from tmrl_like.errors import ShortageError
from tmrl_like.transport.credentials import KEYS_CHECK_S, AuthorizedKeys
from tmrl_like.transport.strangers import Strangers

_ZAP = "inproc://zeromq.zap.01"  # where libzmq sends its requests
_MONITOR = "inproc://tmrl-like-gate"
_EVENTS_PER_TURN = 100


class Gate:
    """Guards one ROUTER socket, in a thread of its own, until the context is terminated.

    Attributes:
        proved: descriptors of connections that have delivered a message. A descriptor may be added
            before the monitor reports its connection. Any thread may add to it.
        failure: the error that ended the thread, or None.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        router: zmq.Socket[bytes],
        keys: AuthorizedKeys,
    ):
        """Start the thread; raise ShortageError if the system has none for it."""
        self.proved: set[int] = set()
        self.failure: BaseException | None = None
        self._keys = keys
        self._strangers: Strangers[int] = Strangers()  # by descriptor
        self._zap = context.socket(zmq.REP)
        self._zap.bind(_ZAP)
        router.zap_domain = b"tmrl_like"
        router.zap_enforce_domain = True  # refuse everyone unless something answers at `_ZAP`
        router.monitor(_MONITOR, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._events = context.socket(zmq.PAIR)
        self._events.rcvhwm = 0  # no limit: libzmq blocks if a monitor's queue is full
        self._events.connect(_MONITOR)
        try:
            start_thread(self._run, "tmrl-zmq-gate")
        except ShortageError:
            self._close()
            raise

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._zap, zmq.POLLIN)
        poller.register(self._events, zmq.POLLIN)
        next_refresh = time.monotonic() + KEYS_CHECK_S
        try:
            while True:
                ready = dict(
                    poller.poll(math.ceil(max(0.0, next_refresh - time.monotonic()) * 1000))
                )
                if self._zap in ready:
                    self._judge()
                if self._events in ready:
                    self._watch()
                if time.monotonic() >= next_refresh:
                    next_refresh = time.monotonic() + KEYS_CHECK_S
                    self._keys.refresh()
        except zmq.ContextTerminated:
            pass
        except BaseException as error:
            self.failure = error
        finally:
            self._close()

    def _close(self) -> None:
        self._zap.close(linger=0)
        self._events.close(linger=0)

    def _judge(self) -> None:
        """Answer libzmq's request whether a public key may connect (ZeroMQ RFC 27)."""
        _, request, _, _, _, mechanism, *credentials = self._zap.recv_multipart()
        key = z85.encode(credentials[0]) if mechanism == b"CURVE" else b""
        known = self._keys.find(key.decode()) is not None
        status = [b"200", b"OK", key] if known else [b"400", b"unknown key", b""]
        self._zap.send_multipart([b"1.0", request, *status, b""])

    def _watch(self) -> None:
        for _ in range(_EVENTS_PER_TURN):
            try:
                event, descriptor = struct.unpack(
                    "=hi", self._events.recv_multipart(zmq.NOBLOCK)[0]
                )
            except zmq.Again:
                return
            self._strangers.remove(descriptor)
            if event == zmq.EVENT_DISCONNECTED:
                self.proved.discard(descriptor)
            elif descriptor not in self.proved:
                with contextlib.suppress(OSError):
                    self._add_stranger(descriptor)

    def _add_stranger(self, descriptor: int) -> None:
        for known in [stranger for stranger in self._strangers if stranger in self.proved]:
            self._strangers.remove(known)
        with _borrowed(descriptor) as connection:
            surplus = self._strangers.add(descriptor, connection.getpeername())
        if surplus:
            with _borrowed(surplus[0]) as connection:
                # the descriptor still belongs to the same connection
                if connection.getpeername() == surplus[1]:
                    connection.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """Yield a connection that libzmq owns, and keeps owning; raise OSError if it is gone."""
    connection = socket.socket(fileno=descriptor)
    try:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            raise OSError("the descriptor is another socket's by now")
        yield connection
    finally:
        connection.detach()
