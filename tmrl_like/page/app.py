"""The page's own server: a page, its figures as they change, and Prometheus' metrics. It answers questions only."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from tmrl_like.base.threads import start_thread
from tmrl_like.errors import AddressInUseError, MissingExtraError, TransportError
from tmrl_like.page.prometheus import exposition
from tmrl_like.page.watcher import Watcher

log = logging.getLogger("tmrl_like.page")

DEFAULT_PORT = 7791
_FILES = {"": "page.html", "page.js": "page.js", "page.css": "page.css"}
_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
_MAX_BROWSERS = 20
_FRESH_S = 1.0  # Prometheus is shown nothing older, where the server answers
_HEADERS = [  # nothing from elsewhere, nothing inside another page, and no other site reads it
    (b"content-security-policy", b"default-src 'self'; img-src data:; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


class Browser:
    """What waits for one browser: of each kind the newest."""

    def __init__(self) -> None:
        self._waiting: dict[str, bytes] = {}
        self._woken = asyncio.Event()
        self._is_over = False

    def put(self, kind: str, data: bytes) -> None:
        """Let it have something."""
        self._waiting[kind] = data
        self._woken.set()

    def end(self) -> None:
        """Let it have nothing more."""
        self._is_over = True
        self._woken.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while not self._is_over:
            await self._woken.wait()
            self._woken.clear()
            waiting, self._waiting = self._waiting, {}
            for kind, data in waiting.items():
                yield b"event: %s\ndata: %s\n\n" % (kind.encode(), data)


class Page:
    """Serves the page from a thread of its own. Use it as a context manager, or call `close`."""

    def __init__(self, watcher: Watcher, bind: str = "127.0.0.1", port: int | None = None) -> None:
        """Start to serve what a watcher sees; it is closed with the page.

        Args:
            watcher: what to show.
            bind: local address to listen on.
            port: TCP port; 0 takes a free one; None: 7791, and a free one where that is taken.

        Raises:
            AddressInUseError: the port is taken.
            TransportError: the address cannot be bound.
            MissingExtraError: starlette or uvicorn is not installed.
        """
        try:
            import uvicorn
        except ImportError:
            raise MissingExtraError("the page needs two packages: pip install 'tmrl_like[page]'") from None
        self._watcher = watcher
        self._socket = _listening(bind, port)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        config = uvicorn.Config(
            application(watcher),
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=1,
            server_header=False,
            date_header=False,
        )
        self._server = uvicorn.Server(config)
        self._closed = asyncio.Event()
        self._server.main_loop = self._closed.wait  # its own looks ten times a second whether it is to end
        self._loop = asyncio.new_event_loop()
        self._thread = start_thread(self._run, "tmrl-page")
        watcher.on_news = self._on_news
        if not ipaddress.ip_address(self.address[0]).is_loopback:
            line = "without a key and unencrypted, anybody who can reach %s sees the workers' names, state and returns"
            log.warning(line, self.url)

    @property
    def url(self) -> str:
        """Where a browser finds it."""
        host, port = self.address
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._server.serve(sockets=[self._socket]))
        finally:
            self._loop.close()

    def _on_news(self, kind: str, data: bytes) -> None:
        """Tell the browsers; the watcher's thread."""
        self._in_loop(lambda browser: browser.put(kind, data))

    def _in_loop(self, act: Callable[[Browser], None]) -> None:
        def act_on_all() -> None:
            for browser in self._watcher.browsers:
                act(browser)

        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(act_on_all)

    def serve_forever(self) -> None:
        """Wait until `close` is called; raises what ended the watcher's connection for good."""
        while self._thread.is_alive():
            self._watcher.session.check()
            self._thread.join(0.5)

    def close(self) -> None:
        """Stop, and free the port. Twice is fine; any thread, or a signal handler."""
        self._in_loop(Browser.end)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._closed.set)

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
        self._thread.join(3.0)
        self._watcher.session.close(0.0)
        self._socket.close()


def _listening(bind: str, port: int | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    try:
        return socket.create_server((bind, DEFAULT_PORT if port is None else port), family=family)
    except OSError as error:
        if port is None:
            return _listening(bind, 0)
        import errno

        if error.errno == errno.EADDRINUSE:
            raise AddressInUseError(f"port {port} on {bind} is taken: give the page another one (--port)") from None
        raise TransportError(f"the page cannot listen on {bind}:{port}: {error.strerror}") from None


def application(watcher: Watcher) -> Any:
    """The ASGI application; in the watcher's `browsers` it has those that are connected."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Route

    async def events(request: Request) -> Any:
        if len(watcher.browsers) >= _MAX_BROWSERS:
            return PlainTextResponse(f"{_MAX_BROWSERS} browsers look at this page already\n", 503)
        browser = Browser()
        watcher.browsers.add(browser)
        watcher.want()

        async def response(*asgi: Any) -> None:
            try:
                await StreamingResponse(browser, media_type="text/event-stream")(*asgi)
            finally:
                watcher.browsers.discard(browser)

        return response

    async def metrics(request: Request) -> Response:
        watcher.want()
        asked = time.monotonic()
        while watcher.session.connected and time.monotonic() < asked + _FRESH_S:
            if watcher.sight is not None and watcher.sight.at > asked - _FRESH_S:
                break
            await asyncio.sleep(0.05)
        text = exposition(watcher.sight, time.monotonic(), watcher.figures.round)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def file(request: Request, content: bytes, media_type: str) -> Response:
        return Response(content, media_type=media_type)

    routes = [Route("/events", events), Route("/metrics", metrics)]
    for path, name in _FILES.items():
        content = (Path(__file__).with_name("static") / name).read_bytes()
        kind = _TYPES[name.rpartition(".")[2]]
        routes.append(Route(f"/{path}", functools.partial(file, content=content, media_type=kind)))
    return Guard(Starlette(routes=routes))


class Guard:
    """Refuses requests that another site had a browser make under a name of its own (DNS rebinding)."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._names = {"localhost", socket.gethostname().lower()}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass on a request whose Host is an address or this machine's own name."""
        if not self._is_ours(dict(scope["headers"]).get(b"host", b"").decode("latin-1")):
            from starlette.responses import PlainTextResponse

            refusal = PlainTextResponse("this page answers to localhost, this machine's name or an address\n", 421)
            await refusal(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def _is_ours(self, host: str) -> bool:
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name.lower() in self._names
        return True
