"""Who gets past libzmq's listener: the questions about keys that it asks, and an end to what it
does not limit.

libzmq accepts whoever dials, and keeps a connection that proves nothing for the whole handshake
time. This thread hears of every connection that is accepted or ends (a socket monitor), learns from
the server which ones have delivered a message (nobody can without a valid key), and of the others
cuts some when there are too many (`Strangers`): they all dial again, and those that have a key are
through in milliseconds.
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

_ZAP = "inproc://zeromq.zap.01"  # libzmq asks here
_MONITOR = "inproc://tmrl-like-gate"
_EVENTS_PER_TURN = 100


class Gate:
    """Guards one ROUTER, in a thread of its own, until the context is terminated.

    Attributes:
        proved: descriptors of connections from which a message came, perhaps before it is known
            here that there is one. Any thread adds to them.
        failure: what ended the thread.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        router: zmq.Socket[bytes],
        keys: AuthorizedKeys,
    ):
        """Begin; ShortageError: there is no thread for it."""
        self.proved: set[int] = set()
        self.failure: BaseException | None = None
        self._keys = keys
        self._strangers: Strangers[int] = Strangers()  # by descriptor
        self._zap = context.socket(zmq.REP)
        self._zap.bind(_ZAP)
        router.zap_domain = b"tmrl_like"
        router.zap_enforce_domain = True  # nobody gets in while nobody answers at `_ZAP`
        router.monitor(_MONITOR, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._events = context.socket(zmq.PAIR)
        self._events.rcvhwm = 0  # libzmq waits where a monitor does not take its events
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
        """Answer whether a public key may connect (ZeroMQ RFC 27)."""
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
                # the descriptor has not passed to another one
                if connection.getpeername() == surplus[1]:
                    connection.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """A connection of libzmq's, which goes on owning it; OSError: it is gone."""
    connection = socket.socket(fileno=descriptor)
    try:
        yield connection
    finally:
        connection.detach()
