"""A TCP proxy that, on command, cuts, freezes, refuses or corrupts its connections."""

import asyncio
import contextlib
import math
import os
import random
import socket
import threading

_CHUNK_BYTES = 1 << 16
_WITHIN_S = 10.0


class LinkProxy:
    """Listens on a local port and forwards each connection to a target. Use it as a context
    manager.

    Each method affects all connections, present and future, and has taken effect when it returns.
    Any thread may call them.

    Attributes:
        accepted: number of connections accepted so far.
        port: the port it listens on.
    """

    def __init__(self, target_host, target_port):
        """Listen on a free port of 127.0.0.1 (see `address`); dial the target for each new
        connection.
        """
        self._target = target_host, target_port
        self.accepted = 0
        self._noise = _Noise()
        self._connections = {}
        self._thawed = asyncio.Event()
        self._thawed.set()
        listener = _bound(0)
        self.port = listener.getsockname()[1]
        self._loop = asyncio.SelectorEventLoop()  # `_refuse` needs its `remove_reader`
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="tmrl-link-proxy", daemon=True
        )
        self._thread.start()
        self._order(self._listen(listener))

    @property
    def address(self):
        """The host and port it listens on."""
        return "127.0.0.1", self.port

    def cut(self):
        """Break all connections; continue to accept new ones."""
        self._order(self._cut())

    def freeze(self):
        """Forward nothing: connections stay open, and new ones are accepted but get no answer."""
        self._order(self._set_thawed(False))

    def thaw(self):
        """Resume after `freeze`; nothing is lost."""
        self._order(self._set_thawed(True))

    def refuse(self):
        """Break all connections and refuse new ones, until `allow`."""
        self._order(self._refuse())

    def allow(self):
        """Accept connections again."""
        self._order(self._listen(self._refusing))

    def corrupt(self, every_bytes, seed=None):
        """Flip single bits at random places.

        Args:
            every_bytes: mean distance of two flips, over all connections; `math.inf`: no flips.
            seed: seed of the places; None draws one.
        """
        self._noise = _Noise(every_bytes, seed)

    def close(self):
        """Break all connections and free the port. Calling it twice is fine."""
        if self._thread.is_alive():
            self._order(self._refuse())
            self._refusing.close()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_WITHIN_S)
            self._loop.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def _order(self, work):
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_WITHIN_S)

    # -- the proxy's thread ------------------------------------------------------------------------

    async def _listen(self, listener):
        self._server = await asyncio.start_server(self._accept, sock=listener)

    async def _refuse(self):
        for listener in self._server.sockets:
            self._loop.remove_reader(listener)
        await self._cut()  # asyncio leaves open what it accepts in the turn in which it closes
        self._server.close()
        self._refusing = _bound(self.port)

    async def _cut(self):
        for _ in range(5):  # asyncio needs some turns to accept and to close
            await asyncio.sleep(0.002)
        connections = dict(self._connections)
        for task, writer in connections.items():
            task.cancel()
            writer.transport.abort()
        await asyncio.gather(*connections, return_exceptions=True)
        await asyncio.sleep(0)

    async def _set_thawed(self, is_thawed):
        if is_thawed:
            self._thawed.set()
        else:
            self._thawed.clear()

    def _accept(self, reader, writer):
        self.accepted += 1
        task = self._loop.create_task(self._serve(reader, writer))
        self._connections[task] = writer
        task.add_done_callback(self._connections.pop)

    async def _serve(self, reader, writer):
        """Serve one connection until one of its sides ends it."""
        writers, parts = [writer], []
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            writers.append(far_writer)
            for source, sink in ((reader, far_writer), (far_reader, writer)):
                parts.append(asyncio.ensure_future(self._forward(source, sink)))
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        except (OSError, asyncio.CancelledError):
            pass  # the target does not answer, or the proxy cuts
        finally:
            for part in parts:
                part.cancel()
            for each in writers:
                each.transport.abort()

    async def _forward(self, source, sink):
        """Forward one direction until its sender ends it."""
        sink.transport.set_write_buffer_limits(0)
        data = b"any"
        while data:
            data = b""
            with contextlib.suppress(OSError):
                data = await source.read(_CHUNK_BYTES)
            await self._thawed.wait()
            with contextlib.suppress(OSError):
                sink.write(self._noise.on(data))
                await sink.drain()


class _Noise:
    """Flips single bits, on average one in `every_bytes` bytes."""

    def __init__(self, every_bytes=math.inf, seed=None):
        self._every_bytes = every_bytes
        self._random = random.Random(seed)
        self._to_go = self._distance()

    def _distance(self):
        if self._every_bytes == math.inf:
            return math.inf
        return 1 + int(self._random.expovariate(1 / self._every_bytes))

    def on(self, data):
        noisy = bytearray(data)
        at = self._to_go
        while at <= len(data):
            noisy[int(at) - 1] ^= 1 << self._random.randrange(8)
            at += self._distance()
        self._to_go = at - len(data)
        return bytes(noisy)


def _bound(port):
    """Return a socket that reserves the port; until it listens, it refuses connections."""
    sock = socket.socket()
    if os.name == "posix":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.setblocking(False)
    return sock
