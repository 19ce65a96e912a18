"""A link that misbehaves on command: a TCP proxy that cuts, freezes, refuses, delays and corrupts."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import random
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

_CHUNK_BYTES = 1 << 16
_MAX_WAITING_BYTES = 1 << 20
_END_WITHIN_S = 5.0
_BACKLOG = 128


class LinkProxy:
    """Listens on a port of this machine and passes every connection on to a target. Use it as a context manager.

    Each method works on all connections, those that stand and those to come, and has taken effect when it
    returns. Any thread may call them. What waits in the proxy is bounded by 1 MiB per direction of a connection;
    a sender that is faster waits, as on a slow link.
    """

    def __init__(self, target_host: str, target_port: int) -> None:
        """Listen on a free port of 127.0.0.1 (see `address`); the target is dialled when somebody connects.

        Raises:
            OSError: there is no free port.
        """
        self._target = (target_host, target_port)
        self._selector = selectors.DefaultSelector()
        self._listener = _listening(0)
        self._pairs: list[_Pair] = []
        self._frozen = False
        self._refusing = False
        self._link = _Quality()
        self._accepted = 0
        self._orders: queue.SimpleQueue[tuple[Callable[[], object], threading.Event]] = queue.SimpleQueue()
        self._waker, self._alarm = socket.socketpair()
        self._waker.setblocking(False)
        self._alarm.setblocking(False)
        self._selector.register(self._waker, selectors.EVENT_READ, self._woken)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="tmrl-link-proxy", daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on."""
        host, port = self._listener.getsockname()
        return host, port

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self.address[1]

    @property
    def accepted(self) -> int:
        """How many connections were made through it so far."""
        return self._accepted

    @property
    def corrupted(self) -> int:
        """How many bits it has flipped since the last `corrupt`."""
        return self._link.noise.flips

    def cut(self) -> None:
        """Break all connections; new ones are accepted."""
        self._order(self._cut)

    def freeze(self) -> None:
        """Pass nothing on and say nothing: connections stay open, new ones are made and get no answer."""
        self._order(lambda: setattr(self, "_frozen", True))

    def thaw(self) -> None:
        """Go on where `freeze` stopped; nothing was lost in between."""
        self._order(lambda: setattr(self, "_frozen", False))

    def refuse(self) -> None:
        """Break all connections and refuse new ones, until `allow`."""
        self._order(self._refuse)

    def allow(self) -> None:
        """Accept connections again."""
        self._order(self._allow)

    def delay(self, seconds: float) -> None:
        """Let every byte that arrives from now on take so much longer, per direction; 0: none."""
        self._order(lambda: setattr(self._link, "delay_s", seconds))

    def limit(self, bytes_per_s: float) -> None:
        """Pass on no more than this, per direction of each connection; `math.inf`: all there is."""
        self._order(lambda: setattr(self._link, "bytes_per_s", bytes_per_s))

    def corrupt(self, every_bytes: float, seed: int | None = None) -> None:
        """Flip single bits at random places.

        Args:
            every_bytes: mean distance between two flips, over all connections; `math.inf`: none.
            seed: of the places; None: other ones each time.
        """
        self._order(lambda: setattr(self._link, "noise", _Noise(every_bytes, seed)))

    def close(self) -> None:
        """Break all connections and free the port. Twice is fine."""
        self._closing = True
        self._wake()
        self._thread.join(_END_WITHIN_S)

    def __enter__(self) -> LinkProxy:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- the proxy's thread --------------------------------------------------------------------------

    def _order(self, action: Callable[[], object]) -> None:
        done = threading.Event()
        self._orders.put((action, done))
        self._wake()
        while not done.wait(0.1) and self._thread.is_alive():
            pass

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: a wake-up is pending; closed: nobody waits
            self._alarm.send(b"w")

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._waker.recv(4096)

    def _run(self) -> None:
        try:
            while not self._closing:
                self._obey()
                for key, _ in self._selector.select(self._arrange(time.monotonic())):
                    key.data()
        finally:
            self._cut()
            self._obey()
            for sock in (self._listener, self._waker, self._alarm):
                sock.close()
            self._selector.close()

    def _obey(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                action, done = self._orders.get_nowait()
                action()
                done.set()

    def _arrange(self, now: float) -> float | None:
        """Say what each socket waits for; returns after how many seconds something held back is due."""
        accepts = not (self._frozen or self._refusing)
        self._watch(self._listener, accepts * selectors.EVENT_READ, self._accept)
        due = math.inf
        for pair in self._pairs:
            for sock, mask in pair.wishes(now):
                self._watch(sock, 0 if self._frozen else mask, partial(self._serve, pair))
            for flow in (pair.there, pair.back):
                if flow.waiting and flow.waiting[0][0] > now:
                    due = min(due, flow.waiting[0][0])
        return None if self._frozen or due == math.inf else due - now

    def _watch(self, sock: socket.socket, mask: int, call: Callable[[], None]) -> None:
        known = self._selector.get_map().get(sock)
        if known is None:
            if mask:
                self._selector.register(sock, mask, call)
        elif not mask:
            self._selector.unregister(sock)
        elif known.events != mask:
            self._selector.modify(sock, mask, call)

    def _accept(self) -> None:
        try:
            near, _ = self._listener.accept()
        except OSError:
            return
        self._accepted += 1
        far = socket.socket()
        for sock in (near, far):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        far.connect_ex(self._target)
        self._pairs.append(_Pair(near, far))

    def _serve(self, pair: _Pair) -> None:
        if pair in self._pairs and not pair.pass_on(self._link, time.monotonic()):
            self._drop(pair)

    def _drop(self, pair: _Pair) -> None:
        self._pairs.remove(pair)
        for sock in (pair.there.source, pair.back.source):
            self._watch(sock, 0, self._accept)
        pair.close()

    def _cut(self) -> None:
        for pair in list(self._pairs):
            self._drop(pair)

    def _refuse(self) -> None:
        self._cut()
        port = self.port
        self._watch(self._listener, 0, self._accept)
        self._listener.close()
        self._listener = _bound(port)
        self._refusing = True

    def _allow(self) -> None:
        self._listener.listen(_BACKLOG)
        self._refusing = False


class _Pair:
    """One connection through the proxy: two sockets, a flow each way."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.there = _Flow(near, far)
        self.back = _Flow(far, near)
        self.dialling = True

    def wishes(self, now: float) -> tuple[tuple[socket.socket, int], ...]:
        """What to wait for, per socket; the far one is writable when the target has answered."""
        wishes = []
        for flow, other in ((self.there, self.back), (self.back, self.there)):
            write = other.is_due(now) or (self.dialling and flow is self.back)
            wishes.append((flow.source, flow.wants_more() * selectors.EVENT_READ | write * selectors.EVENT_WRITE))
        return tuple(wishes)

    def pass_on(self, link: _Quality, now: float) -> bool:
        """Read and write what can be; False: the connection is over."""
        try:
            if self.dialling and not self._has_answered():
                return True
            for flow in (self.there, self.back):
                flow.read(link, now)
                flow.write(now)
        except OSError:
            return False
        return not (self.there.is_over or self.back.is_over)

    def _has_answered(self) -> bool:
        error = self.back.source.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, "the target does not answer")
        try:
            self.back.source.getpeername()
        except OSError:
            return False
        self.dialling = False
        return True

    def close(self) -> None:
        self.there.source.close()
        self.back.source.close()


class _Flow:
    """What goes from `source` to `sink`."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source = source
        self.sink = sink
        self.waiting: deque[tuple[float, bytes]] = deque()  # when each piece is due
        self._waiting_bytes = 0
        self._free_at = 0.0  # when a limited link has passed on what it has
        self._ended = False

    @property
    def is_over(self) -> bool:
        return self._ended and not self.waiting

    def wants_more(self) -> bool:
        return not self._ended and self._waiting_bytes < _MAX_WAITING_BYTES

    def is_due(self, now: float) -> bool:
        return bool(self.waiting) and self.waiting[0][0] <= now

    def read(self, link: _Quality, now: float) -> None:
        if not self.wants_more():
            return
        try:
            data = self.source.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._ended = True
            return
        self._free_at = max(now, self._free_at) + len(data) / link.bytes_per_s
        self.waiting.append((self._free_at + link.delay_s, link.noise.on(data)))
        self._waiting_bytes += len(data)

    def write(self, now: float) -> None:
        while self.is_due(now):
            due, data = self.waiting.popleft()
            try:
                sent = self.sink.send(data)
            except BlockingIOError:
                sent = 0
            self._waiting_bytes -= sent
            if sent < len(data):
                self.waiting.appendleft((due, data[sent:]))
                return


class _Noise:
    """Flips bits, `every_bytes` apart on average."""

    def __init__(self, every_bytes: float = math.inf, seed: int | None = None) -> None:
        self.flips = 0
        self._every_bytes = every_bytes
        self._random = random.Random(seed)
        self._to_go = self._distance()

    def _distance(self) -> float:
        if self._every_bytes == math.inf:
            return math.inf
        return 1 + int(self._random.expovariate(1 / self._every_bytes))

    def on(self, data: bytes) -> bytes:
        if self._to_go > len(data):
            self._to_go -= len(data)
            return data
        noisy = bytearray(data)
        at = 0.0
        while at + self._to_go <= len(data):
            at += self._to_go
            noisy[int(at) - 1] ^= 1 << self._random.randrange(8)
            self.flips += 1
            self._to_go = self._distance()
        self._to_go -= len(data) - at
        return bytes(noisy)


@dataclass
class _Quality:
    """How good the link is."""

    delay_s: float = 0.0
    bytes_per_s: float = math.inf
    noise: _Noise = field(default_factory=_Noise)


def _listening(port: int) -> socket.socket:
    listener = _bound(port)
    listener.listen(_BACKLOG)
    return listener


def _bound(port: int) -> socket.socket:
    """A socket that keeps the port; it refuses connections until it listens."""
    sock = socket.socket()
    if os.name == "posix":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.setblocking(False)
    return sock
