"""The game's side of telemetry, for games of the tests."""

import contextlib
import socket


class Teller:
    """Listens on a port, and sends each record to whoever has connected."""

    def __init__(self, port):
        self._server = socket.create_server(("127.0.0.1", port))
        self._server.setblocking(False)
        self._listeners = []

    def tell(self, record):
        with contextlib.suppress(BlockingIOError):
            self._listeners.append(self._server.accept()[0])
        for listener in list(self._listeners):
            try:
                listener.sendall(record)
            except OSError:
                self._listeners.remove(listener)
