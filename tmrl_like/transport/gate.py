"""Who gets past libzmq's listener: the questions about keys that it asks, and an end to what it does not limit.

libzmq accepts whoever dials, and keeps a connection that proves nothing for the whole handshake time. This
thread hears of every connection that is accepted or ends (a socket monitor), learns from the server which ones
have delivered a message (nobody can without a valid key), and of the others cuts some when there are too many
(`Strangers`): they all dial again, and those that have a key are through in milliseconds.
"""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import struct
import threading
import time
from collections.abc import Iterator

import zmq
from zmq.utils import z85

from tmrl_like.base.threads import start_thread
from tmrl_like.errors import ShortageError
from tmrl_like.transport.credentials import KEYS_CHECK_S, AuthorizedKeys
from tmrl_like.transport.strangers import Strangers

log = logging.getLogger(__name__)

_ZAP = "inproc://zeromq.zap.01"  # libzmq asks here
_MONITOR = "inproc://tmrl-like-gate"
_EVENTS_PER_TURN = 100


class Gate:
    """Guards one ROUTER, in a thread of its own, until the context is terminated."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], router: zmq.Socket[bytes], keys: AuthorizedKeys):
        """Begin; ShortageError: there is no thread for it."""
        self.refused = 0
        self.failure: BaseException | None = None
        self._keys = keys
        self._strangers: Strangers[int] = Strangers()  # by descriptor
        self._proved: set[int] = set()
        self._lock = threading.Lock()
        self._said: set[str] = set()
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

    def proved(self, descriptor: int) -> None:
        """A message came from this connection, perhaps before it is known here that there is one. Any thread."""
        if descriptor not in self._proved:
            with self._lock:
                self._proved.add(descriptor)
                self._strangers.remove(descriptor)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._zap, zmq.POLLIN)
        poller.register(self._events, zmq.POLLIN)
        next_refresh = time.monotonic() + KEYS_CHECK_S
        try:
            while True:
                ready = dict(poller.poll(math.ceil(max(0.0, next_refresh - time.monotonic()) * 1000)))
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
        key = z85.encode(credentials[0]).decode() if mechanism == b"CURVE" else ""
        if self._keys.find(key):
            self._zap.send_multipart([b"1.0", request, b"200", b"OK", key.encode(), b""])
            return
        self._zap.send_multipart([b"1.0", request, b"400", b"unknown key", b"", b""])
        self._refuse("refused a connection with an unknown key; `tmrl-like keys invite` makes a valid one")

    def _refuse(self, why: str) -> None:
        self.refused += 1
        if why not in self._said:
            self._said.add(why)
            log.warning(why)

    def _watch(self) -> None:
        for _ in range(_EVENTS_PER_TURN):
            try:
                event, descriptor = struct.unpack("=hi", self._events.recv_multipart(zmq.NOBLOCK)[0])
            except zmq.Again:
                return
            surplus = None
            with self._lock:
                self._strangers.remove(descriptor)
                if event == zmq.EVENT_DISCONNECTED:
                    self._proved.discard(descriptor)
                elif descriptor not in self._proved:
                    with contextlib.suppress(OSError), _borrowed(descriptor) as connection:
                        surplus = self._strangers.add(descriptor, connection.getpeername())
            if surplus:
                with contextlib.suppress(OSError), _borrowed(surplus[0]) as connection:
                    if connection.getpeername() == surplus[1]:  # the descriptor has not passed to another one
                        connection.shutdown(socket.SHUT_RDWR)
                self._refuse("more connections than usual prove no key; some of them are cut")


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """A connection of libzmq's, which goes on owning it; OSError: it is gone."""
    connection = socket.socket(fileno=descriptor)
    try:
        yield connection
    finally:
        connection.detach()
