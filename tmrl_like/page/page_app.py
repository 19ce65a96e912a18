"""The page's own HTTP server: the page, its changing figures, and metrics for Prometheus. It only
answers requests.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer

from tmrl_like.base.threads import is_shortage, no_thread, start_thread
from tmrl_like.errors import AddressInUseError, ConfigError, TransportError
from tmrl_like.page.prometheus import exposition
from tmrl_like.page.watcher import Watcher
from tmrl_like.transport.addresses import host_and_port, is_address, written

log = logging.getLogger("tmrl_like.page")

DEFAULT_PORT = 7791
_STATIC = Path(__file__).with_name("static")
_FILES = {
    "/": ("page.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
_MAX_THREADS = 100
_SLOW_S = 10.0  # a connection that sends or takes nothing for this long is closed
_HEADERS = {  # load nothing from elsewhere, allow no embedding, and let no other site read it
    "content-security-policy": "default-src 'self'; img-src data:; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
}


class Page:
    """Serves the page in threads of its own. Use it as a context manager, or call `close`."""

    def __init__(self, watcher: Watcher, bind: str = "127.0.0.1", port: int | None = None) -> None:
        """Start to serve what a watcher sees; the watcher is closed with the page.

        Args:
            watcher: what to show.
            bind: local address to listen on.
            port: TCP port; 0: a free one; None: 7791, or a free one if that is taken.

        Raises:
            AddressInUseError: the port is taken.
            TransportError: the address cannot be bound.
        """
        self._watcher = watcher
        self._server = _listening(watcher, bind, port)
        self.address: tuple[str, int] = self._server.socket.getsockname()[:2]
        self._thread = start_thread(self._server.serve_forever, "tmrl-page")
        if not ipaddress.ip_address(self.address[0]).is_loopback:
            line = (
                "without a key and unencrypted, anybody who can reach %s sees the workers' names, "
                "state and returns"
            )
            log.warning(line, self.url)

    @property
    def url(self) -> str:
        """The address for a browser."""
        return f"http://{written(*self.address)}/"

    def serve_forever(self) -> None:
        """Wait until `close` is called; raises the error that permanently ended the watcher's
        connection.
        """
        while self._thread.is_alive():
            self._watcher.session.check()
            self._thread.join(0.5)

    def close(self) -> None:
        """Stop serving. Calling it twice is fine. Any thread, or a signal handler."""
        self._server.shutdown()

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
        self._watcher.session.close(0.0)
        self._server.server_close()


def _listening(watcher: Watcher, bind: str, port: int | None) -> _Server:
    try:
        return _Server(watcher, bind, DEFAULT_PORT if port is None else port)
    except OSError as error:
        if port is None:
            return _listening(watcher, bind, 0)
        if error.errno == errno.EADDRINUSE:
            raise AddressInUseError(
                f"port {port} on {bind} is taken: give the page another one (--port)"
            ) from None
        raise TransportError(f"the page cannot listen on {bind}:{port}: {error.strerror}") from None


class _Server(ThreadingTCPServer):
    """Starts a thread for each connection, up to a limit."""

    allow_reuse_address = os.name == "posix"
    daemon_threads = True

    def __init__(self, watcher: Watcher, bind: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        self.watcher = watcher
        super().__init__((bind, port), _Answer)

    def verify_request(self, *request: object) -> bool:
        """Whether a further thread may answer this connection."""
        return threading.active_count() < _MAX_THREADS

    def handle_error(self, *request: object) -> None:
        error = sys.exception()
        if isinstance(error, RuntimeError) and is_shortage(error):
            log.warning("%s", no_thread("of the page's answer", error))
        elif not isinstance(error, OSError):  # an OSError means that the client is gone
            log.exception("a request to the page could not be answered")


class _Answer(BaseHTTPRequestHandler):
    """Answers one request."""

    server: _Server
    timeout = _SLOW_S

    def do_GET(self) -> None:
        """Answer if Host is an address or this machine's own name, not a name that another site
        points to it.
        """
        path, watcher = self.path.partition("?")[0], self.server.watcher
        if not _is_ours(self.headers.get("host", "")):
            self._say(421, b"this page answers to localhost, this machine's name or an address\n")
        elif path == "/run":
            self._say(200, watcher.run(), "application/json")
        elif path == "/workers":
            self._say(200, watcher.workers(), "application/json")
        elif path == "/metrics":
            silent_s = time.monotonic() - watcher.seen_at
            text = exposition(watcher.sight, silent_s, watcher.history.round)
            self._say(200, text.encode(), "text/plain; version=0.0.4")
        elif path in _FILES:
            file, media_type = _FILES[path]
            self._say(200, (_STATIC / file).read_bytes(), media_type)
        else:
            self._say(404, b"there is no such page\n")

    def _say(self, status: int, content: bytes, media_type: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("content-type", f"{media_type}; charset=utf-8")
        self.end_headers()
        self.wfile.write(content)

    def end_headers(self) -> None:
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def version_string(self) -> str:
        return "tmrl_like"

    def log_message(self, *line: object) -> None:
        """Do not log requests."""


def _is_ours(host: str) -> bool:
    """Whether a Host is an address or a name of this machine. If not, another site made a browser
    send the request (DNS rebinding).
    """
    try:
        name, _ = host_and_port(host.lower())
    except ConfigError:
        return False
    return is_address(name) or name in ("localhost", socket.gethostname().lower())
