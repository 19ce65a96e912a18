"""One connection to the nodes of an engine, with its asyncio loop in a thread of its own.

nats-py dials the nodes in turn, and again when a connection breaks. The credentials file determines
this machine's user; a permission that the user lacks is an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tmrl_like.base.budgets import Lines
from tmrl_like.base.threads import is_shortage, start_thread
from tmrl_like.engine.options import EngineOptions
from tmrl_like.engine.subjects import inbox
from tmrl_like.engine.user import EngineUser
from tmrl_like.errors import ConfigError, CredentialsError, MissingExtraError, TmrlLikeError

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

log = logging.getLogger("tmrl_like.engine")

_DIAL_WITHIN_S, _REDIAL_S = 2, 0.2
_MISSED_PINGS = 2  # a node that misses one more is given up
_SAY_AGAIN_S = 60.0
_CLOSE_WITHIN_S = 1.0
_MIN_PAYLOAD_BYTES = 1 << 20  # twice a frame of a policy
_PENDING_BYTES = 1 << 20  # beyond this, `publish` waits until the node has taken them


class EngineConnection:
    """Keeps one client connected to any of the nodes, until it is closed or fails for good.

    Attributes:
        user: name of this machine's user.
    """

    def __init__(
        self,
        options: EngineOptions,
        attend: Callable[[Client], Awaitable[None]],
        wake: Callable[[], None] = lambda: None,
        closing: asyncio.Event | None = None,
        ping_s: float = 1.0,
    ) -> None:
        """Start the thread, without waiting for a node; `attend` may run before this returns.

        Args:
            options: addresses of the nodes, and this machine's credentials.
            attend: coroutine function that runs in the thread's loop with a connected client, which
                reconnects by itself. When it returns, the connection ends. If it raises an error of
                nats-py or an OSError, this is logged, and it is run again; any other error ends the
                connection, and is raised by `check`.
            wake: called when the connection has failed, from the connection's thread.
            closing: event that is set in the loop when `attend` should return.
            ping_s: interval of pings, in seconds; a node that is silent for three of them is given
                up.

        Raises:
            CredentialsError: the credentials file cannot be read.
            ConfigError: the certificate cannot be read.
            MissingExtraError: nats-py is not installed.
        """
        try:
            import nkeys  # noqa: F401  (needed to prove that the credentials are ours)

            from tmrl_like.engine.client import NodeClient
        except ImportError:
            raise MissingExtraError(
                "an engine needs more packages: pip install 'tmrl_like[engine]'"
            ) from None
        user = EngineUser.of(options.credentials) if options.credentials else EngineUser()
        self.user = user.name
        self._where = ", ".join(options.nodes)
        self._options, self._ping_s = options, ping_s
        self._tls = _tls_context(options.ca)
        self._client: Client = NodeClient(options.credentials)
        self._attend = attend
        self._wake = wake
        self._failure: BaseException | None = None
        self._closing, self._ended = closing or asyncio.Event(), asyncio.Event()
        self._say = Lines(log, 1, 1 / _SAY_AGAIN_S)
        self._refusals = 0  # consecutive
        self._loop = asyncio.new_event_loop()
        self._thread = start_thread(self._run, "tmrl-engine")

    @property
    def connected(self) -> bool:
        """Whether a node has accepted this user and still answers."""
        return self._client.is_connected

    def check(self) -> None:
        """Raise the error that ended this connection for good, if any.

        Raises:
            CredentialsError: every node refuses this user or has an untrusted certificate, or the
                user lacks a permission.
            ConfigError: a node accepts only small messages.
            Exception: any other error that `attend` or one of its subscriptions raised.
        """
        if self._failure is not None:
            raise self._failure

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Call a function in the loop soon, unless the loop has ended. Any thread."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)

    def close(self, flush_s: float = 1.0) -> None:
        """Set `closing`, give `attend` at most `flush_s` to return, and close the connection.

        Calling it twice is fine.
        """
        self.call(self._closing.set)
        self.call(self._loop.call_later, flush_s, self._ended.set)
        self._thread.join(flush_s + 3 * _CLOSE_WITHIN_S)

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._work_until_the_end())

    async def _work_until_the_end(self) -> None:
        try:
            await first_of(self._work(), self._ended.wait())
        except Exception as error:  # said before the loop's other tasks end, which may take long
            self._fail(error)

    async def _work(self) -> None:
        """Connect a client and run `attend` with it; if a node closes it for good, connect another
        one.
        """
        import nats.errors

        from tmrl_like.engine.client import NodeClient

        while True:
            self._client = NodeClient(self._options.credentials)
            hung_up = asyncio.Event()
            try:
                await self._connect(hung_up)
                await first_of(self._attend(self._client), hung_up.wait())
                if not hung_up.is_set():
                    await self._client.flush()  # closing sends nothing more
                    return
            except (nats.errors.Error, OSError) as error:
                await self._on_error(error)
            finally:
                with contextlib.suppress(Exception):  # the client is given up in any case
                    await asyncio.wait_for(self._client.close(), _CLOSE_WITHIN_S)
            if self._closing.is_set():
                return
            await asyncio.sleep(_REDIAL_S)

    async def _connect(self, hung_up: asyncio.Event) -> None:
        """Connect the client; `hung_up` is set once a node has closed it for good."""

        async def on_closed() -> None:
            hung_up.set()

        await self._client.connect(
            list(self._options.nodes),
            error_cb=self._on_error,
            reconnected_cb=self._on_connected,
            closed_cb=on_closed,
            name=self.user,
            connect_timeout=_DIAL_WITHIN_S,
            reconnect_time_wait=_REDIAL_S,  # type: ignore[arg-type]
            max_reconnect_attempts=-1,
            ping_interval=self._ping_s,  # type: ignore[arg-type]
            max_outstanding_pings=_MISSED_PINGS,
            pending_size=_PENDING_BYTES,
            inbox_prefix=inbox(self.user),
            tls=self._tls,
        )
        await self._on_connected()

    async def _on_connected(self) -> None:
        self._refusals = 0
        log.info(
            "connected to the engine at %s",
            self._client.connected_url and self._client.connected_url.netloc,
        )
        if self._client.max_payload < _MIN_PAYLOAD_BYTES:
            self._fail(
                ConfigError(
                    f"the engine's nodes take messages of {self._client.max_payload:,} bytes at "
                    f"most, expected {_MIN_PAYLOAD_BYTES:,} or more: set max_payload in their "
                    "configuration"
                )
            )

    async def _on_error(self, error: Exception) -> None:
        """Handle an error that nats-py reports: no connection, a forbidden request, or an exception
        of one of our callbacks.
        """
        import nats.errors

        if denied := re.search(
            r"permissions violation for (publish|subscription) to (\S+)", str(error).lower()
        ):
            what = "publish" if denied[1] == "publish" else "subscribe"
            self._fail(
                CredentialsError(
                    f"the engine does not allow its user {self.user} to {what} to {denied[2]}: "
                    "docs/guide/engine.md has the rights of each role"
                )
            )
        elif not isinstance(error, nats.errors.Error | OSError) and not is_shortage(error):
            self._fail(error)
        elif not self.connected:
            refusal = self._refusal_of(error)
            self._refusals = self._refusals + 1 if refusal else 0
            if refusal and self._refusals >= len(self._client.servers):
                self._fail(CredentialsError(refusal))
            why = refusal or str(error) or "it does not answer"
            self._say(
                why,
                logging.WARNING,
                "no connection to the engine at %s: %s; still trying",
                self._where,
                why,
            )

    def _refusal_of(self, error: Exception) -> str:
        """Return why a node refuses this user, or its certificate is refused; empty: neither."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return (
                f"what listens at {self._where} has no trusted certificate: check the address, and "
                "that server.engine_ca names the certificate that signed those of the nodes"
            )
        if isinstance(error, OSError) or "auth" not in str(error).lower():
            return ""
        credentials = self._options.credentials
        who = (
            f"the user {self.user} of {credentials}" if credentials else "users without credentials"
        )
        return (
            f"the engine at {self._where} refuses {who}: check server.engine_credentials, and that "
            "its account still has that user"
        )

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
            if isinstance(error, TmrlLikeError):
                log.error("the connection to the engine ends: %s", error)
            else:
                log.error("the engine's thread failed", exc_info=error)
            self._ended.set()
            self._wake()


async def first_of(*work: Awaitable[object]) -> None:
    """Do several things until one of them has ended, and end the others; raise what it has
    raised.
    """
    tasks = [asyncio.ensure_future(part) for part in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await end(*tasks)


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks until they have ended; nats-py and Python 3.11 sometimes lose a
    cancellation.
    """
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=2 * _CLOSE_WITHIN_S)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # marks it as retrieved


async def wait(event: asyncio.Event, within_s: float) -> None:
    """Wait for an event, for at most `within_s`, and clear it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await event.wait()
    event.clear()


async def hear(client: Client, subject: str, take: Callable[[Msg], None]) -> Subscription:
    """Subscribe to a subject: `take` is called in the loop with each message. No message is
    dropped, however many wait.
    """

    async def take_soon(message: Msg) -> None:
        take(message)

    return await client.subscribe(
        subject, cb=take_soon, pending_msgs_limit=0, pending_bytes_limit=0
    )


def _tls_context(ca: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca and str(Path(ca).expanduser()))
    except OSError as error:  # its own message does not name the file
        raise ConfigError(
            f"cannot read the engine's certificate {ca}: {error.strerror or error}"
        ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
