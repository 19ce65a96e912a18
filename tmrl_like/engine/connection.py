"""One connection to the nodes of an engine, and its asyncio loop, in a thread of its own.

Who this machine is to them is in its file of credentials; a permission that its user lacks is an error.

nats-py speaks the protocol; who dials, and when a connection is over, is decided here. Its own way back keeps what was
not sent and sends it later, behind what its owner has begun again by then; and it waits half a minute for the goodbye
of a node that is frozen. So each connection is a client of its own, and what belongs to it ends with it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import random
import re
import ssl
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tmrl_like.base.budgets import Lines
from tmrl_like.base.threads import is_shortage, start_thread
from tmrl_like.engine.options import EngineOptions
from tmrl_like.engine.subjects import inbox
from tmrl_like.errors import ConfigError, CredentialsError, MissingExtraError, TmrlLikeError

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

log = logging.getLogger("tmrl_like.engine")

_DIAL_WITHIN_S, _MAX_DIAL_WITHIN_S = 2.0, 10.0
_REDIAL_S, _MAX_REDIAL_S = 0.1, 2.0
_PING_S, _MAX_PINGS = 1.0, 2  # a node that leaves more unanswered, and sends nothing else, is given up
_MAX_BEHIND_PINGS = 10  # … whatever it sends: their answers lie behind a backlog that is still being read
_LOOK_S = 0.1
_COMPLAIN_AFTER_S = 3.0
_CLOSE_WITHIN_S = 1.0
_MIN_PAYLOAD_BYTES = 1 << 20  # a frame of a policy has half of it
_PENDING_BYTES = 32 << 20  # beyond, `publish` waits until the node has taken them
_ERRORS, _ERRORS_PER_S = 10, 0.1  # lines of log
_NOBODY = "local"
_RIGHTS = "docs/guide/engine.md has the rights of each role"


class _Claims(msgspec.Struct, frozen=True):
    """What is read of a user's JWT."""

    name: str


def user_name(credentials: str | None) -> str:
    """The name of the user that a file of credentials is for, as its JWT says; without a file "local".

    Raises:
        CredentialsError: there is no such file, or it is none of credentials.
    """
    if credentials is None:
        return _NOBODY
    try:
        text = Path(credentials).expanduser().read_text("ascii")
        found = re.search(r"BEGIN NATS USER JWT-+\s+[\w-]+\.([\w-]+)\.[\w-]+\s[^$]*BEGIN USER NKEY SEED-+\s+S", text)
        claims = found[1] if found else ""
        name = msgspec.json.decode(base64.urlsafe_b64decode(claims + "==="), type=_Claims).name
    except OSError as error:
        raise CredentialsError(
            f"cannot read the engine's credentials {credentials}: {error.strerror}; server.engine_credentials names "
            "the .creds file of this machine's user"
        ) from None
    except ValueError:
        raise CredentialsError(
            f"{credentials} is no file of credentials: expected a user's JWT and its key, as `nsc generate creds` "
            "writes them"
        ) from None
    return name or _NOBODY


class EngineConnection:
    """Dials the nodes in turn, for ever, and has one connection at a time attended to.

    Attributes:
        user: the name of who this is.
    """

    def __init__(
        self,
        options: EngineOptions,
        attend: Callable[[Client], Awaitable[None]],
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the thread, which may attend before this returns; does not wait for a node.

        Args:
            options: where its nodes are, and this machine's credentials.
            attend: run with each connection, in the thread's loop, and cancelled when that one breaks. A client is used
                for one connection, and nothing that was given to an earlier one is sent. When it returns, all is over.
                What it raises because the connection broke is passed over; all else ends this one, and surfaces in
                `check`.
            wake: called when this one has failed. Any thread.

        Raises:
            CredentialsError: the file of credentials cannot be read.
            ConfigError: the certificate cannot be read.
            MissingExtraError: nats-py is not installed.
        """
        try:
            import nats.aio.client
            import nkeys  # noqa: F401  (with which it proves that the credentials are ours)
        except ImportError:
            raise MissingExtraError("an engine needs more packages: pip install 'tmrl_like[engine]'") from None
        self._new_client = nats.aio.client.Client
        self.user = user_name(options.credentials)
        self._credentials = None if options.credentials is None else Path(options.credentials).expanduser()
        self._tls = _tls_context(options.ca)
        self._nodes = random.sample(options.nodes, len(options.nodes))
        self._attend = attend
        self._wake = wake
        self._client: Client | None = None
        self._failure: BaseException | None = None
        self._say = Lines(log, _ERRORS, _ERRORS_PER_S)
        self._away_since = time.monotonic()
        self._complained = False
        self._goodbyes: set[asyncio.Task[None]] = set()
        self._closing, self._over = asyncio.Event(), asyncio.Event()
        self._flush_s = 0.0
        logging.getLogger("asyncio").addFilter(_is_no_goodbye)
        started = threading.Event()
        self._thread = start_thread(lambda: asyncio.run(self._run(started)), "tmrl-engine")
        started.wait()

    @property
    def connected(self) -> bool:
        """Whether a node let this user in, and answers."""
        return self._client is not None and self._client.is_connected

    def check(self) -> None:
        """Raise what ended this connection for good, if anything did.

        Raises:
            CredentialsError: each node refuses this user, or is one of another engine; or the user lacks a permission.
            ConfigError: a node takes only small messages.
            Exception: what else `attend`, or what it subscribed to, raised.
        """
        if self._failure is not None:
            raise self._failure

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Have a function called in the loop, soon; never, if that has ended. Any thread."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)

    def close(self, flush_s: float = 1.0) -> None:
        """Give who attends so long to end, and hang up. Twice is fine."""
        self._flush_s = flush_s
        self.call(self._end)
        self._thread.join(flush_s + 3 * _CLOSE_WITHIN_S)

    # -- the thread ----------------------------------------------------------------------------------

    def _end(self) -> None:
        self._closing.set()
        self._loop.call_later(self._flush_s, self._over.set)

    async def _run(self, started: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        started.set()
        over = asyncio.ensure_future(self._over.wait())
        refusals: dict[str, CredentialsError] = {}
        wait_s, within_s, turn = _REDIAL_S, _DIAL_WITHIN_S, 0
        try:
            while not self._closing.is_set() and self._failure is None:
                node = self._nodes[turn % len(self._nodes)]
                turn += 1
                try:
                    dialling = asyncio.ensure_future(self._dial(node, within_s))
                    await asyncio.wait({dialling, over}, return_when=asyncio.FIRST_COMPLETED)
                    while self._over.is_set() and not dialling.done():
                        dialling.cancel()  # which Python 3.11 misses where a connection is made at that moment
                        await asyncio.wait({dialling}, timeout=_LOOK_S)
                    client = dialling.result()
                except asyncio.CancelledError:
                    break
                except CredentialsError as error:
                    refusals[node] = error
                    if len(refusals) == len(self._nodes):
                        raise
                    self._complain(node, error)
                except (TimeoutError, OSError, RuntimeError) as error:
                    if isinstance(error, RuntimeError) and not is_shortage(error):  # a name is looked up in a thread
                        raise
                    refusals.pop(node, None)
                    self._complain(node, next(iter(refusals.values()), error))
                else:
                    refusals.clear()
                    wait_s, within_s = _REDIAL_S, _DIAL_WITHIN_S
                    await self._stay(client, node)
                    continue
                if turn % len(self._nodes) == 0:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._closing.wait(), wait_s)
                    wait_s, within_s = min(2 * wait_s, _MAX_REDIAL_S), min(2 * within_s, _MAX_DIAL_WITHIN_S)
        except BaseException as error:
            self._fail(error)
        if self._goodbyes:
            await asyncio.wait(self._goodbyes, timeout=_CLOSE_WITHIN_S)

    async def _dial(self, node: str, within_s: float) -> Client:
        """A client that is connected to this node; on a long way each step takes a while.

        Raises:
            CredentialsError: it refuses this user, or is none of the engine's.
            ConfigError: it takes only small messages.
            TimeoutError, OSError: there is no connection.
        """
        import nats.errors

        client, reasons = self._new_client(), []

        async def note(error: Exception) -> None:
            if client.is_connected:
                self._on_error(error)
            else:
                reasons.append(error)

        try:
            await asyncio.wait_for(
                client.connect(
                    [node],
                    error_cb=note,
                    name=self.user,
                    allow_reconnect=False,
                    max_reconnect_attempts=1,
                    reconnect_time_wait=0,
                    connect_timeout=within_s,  # type: ignore[arg-type]
                    ping_interval=_PING_S,  # type: ignore[arg-type]
                    max_outstanding_pings=_MAX_BEHIND_PINGS,
                    pending_size=_PENDING_BYTES,
                    inbox_prefix=inbox(self.user),
                    tls=self._tls,
                    user_credentials=self._credentials,
                ),
                within_s,
            )
            if not client.is_connected:
                raise ConnectionResetError("it hangs up")
            if node.startswith("tls:") and not client._server_info.get("tls_required"):  # whoever says so
                raise OSError("it speaks in the clear, and tls:// was asked for")
            if client.max_payload < _MIN_PAYLOAD_BYTES:
                raise ConfigError(
                    f"the engine's node {node} takes messages of {client.max_payload:,} bytes at most, expected "
                    f"{_MIN_PAYLOAD_BYTES:,} or more: set max_payload in its configuration"
                )
            return client
        except ConfigError:
            self._hang_up(client)
            raise
        except asyncio.CancelledError:
            self._hang_up(client)
            raise
        except (nats.errors.Error, OSError, TimeoutError) as error:
            self._hang_up(client)
            why = [error, *reasons]
            if any(isinstance(e, ssl.SSLCertVerificationError) for e in why):
                raise CredentialsError(
                    f"the certificate of what listens at {node} is not one to trust: check the address, and that "
                    "server.engine_ca names the certificate that signed the nodes' own"
                ) from None
            if any("auth" in str(e).lower() for e in why if isinstance(e, nats.errors.Error)):
                which = "who shows no credentials"
                if self._credentials is not None:
                    which = f"the user {self.user} of {self._credentials}"
                raise CredentialsError(
                    f"the engine at {node} refuses {which}: check server.engine_credentials, and that its account "
                    "still has that user"
                ) from None
            raise OSError(str(reasons[-1] if reasons else error) or "it does not answer") from None

    async def _stay(self, client: Client, node: str) -> None:
        """Have a connection attended to for as long as it lasts."""
        import nats.errors

        self._client = client
        log.info("connected to the engine at %s%s", node, " again" if self._complained else "")
        self._complained = False
        attending = asyncio.ensure_future(self._attend(client))
        try:
            heard, heard_at = 0, time.monotonic()
            while client.is_connected and not attending.done() and self._failure is None and not self._over.is_set():
                await asyncio.wait({attending}, timeout=_LOOK_S)
                if client.stats["in_msgs"] != heard:
                    heard, heard_at = client.stats["in_msgs"], time.monotonic()
                elif client._pings_outstanding > _MAX_PINGS and time.monotonic() - heard_at > _MAX_PINGS * _PING_S:
                    break
            self._client = None
            self._away_since = time.monotonic()
            attending.cancel()
            try:
                await attending
                self._closing.set()  # it has done what it was for
            except asyncio.CancelledError:
                pass
            except (nats.errors.Error, OSError, TimeoutError) as error:
                if client.is_connected:
                    self._on_error(error)
                    await asyncio.sleep(_REDIAL_S)
        finally:
            self._client = None
            self._hang_up(client)

    def _hang_up(self, client: Client) -> None:
        """Close it beside all else: a node that is frozen does not say goodbye."""

        async def close() -> None:
            with contextlib.suppress(Exception):  # it is given up, whatever it says
                await asyncio.wait_for(client.close(), _CLOSE_WITHIN_S)

        task = asyncio.ensure_future(close())
        self._goodbyes.add(task)
        task.add_done_callback(self._goodbyes.discard)

    def _complain(self, node: str, error: BaseException) -> None:
        if not self._complained and time.monotonic() - self._away_since > _COMPLAIN_AFTER_S:
            self._complained = True
            if isinstance(error, CredentialsError):  # for good, once all nodes say so
                log.error("%s; trying the other nodes", error)
                return
            log.warning("no node of the engine answers, the last one asked is %s: %s; trying on", node, error)

    def _on_error(self, error: Exception) -> None:
        """What a connection reports: a request that was not allowed, a function that raised."""
        import nats.errors

        if denied := re.search(r"permissions violation for (publish|subscription) to (\S+)", str(error).lower()):
            what = "publish" if denied[1] == "publish" else "subscribe"
            line = f"the engine does not allow its user {self.user} to {what} to {denied[2]}: {_RIGHTS}"
            self._fail(CredentialsError(line))
        elif isinstance(error, nats.errors.Error | OSError):
            if not isinstance(error, nats.errors.UnexpectedEOF):  # it is away, which is said where that lasts
                self._say(str(error)[:100], logging.WARNING, "the engine says: %s", error)
        else:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
            if not isinstance(error, TmrlLikeError):
                log.error("the engine's thread failed", exc_info=error)
            else:
                log.error("the connection to the engine ends: %s", error)
            self._wake()


async def hear(client: Client, subject: str, take: Callable[[Msg], None]) -> Subscription:
    """Subscribe: `take` is called in the loop with each message; however many wait, none is dropped."""

    async def take_soon(message: Msg) -> None:
        take(message)

    return await client.subscribe(subject, cb=take_soon, pending_msgs_limit=0, pending_bytes_limit=0)


def _tls_context(ca: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca and str(Path(ca).expanduser()))
    except OSError as error:  # what it says of a file that is none names no file
        raise ConfigError(f"cannot read the engine's certificate {ca}: {error.strerror or error}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _is_no_goodbye(line: logging.LogRecord) -> bool:
    """False for what asyncio says of each TLS connection that the other side closes."""
    return not str(line.msg).startswith("returning true from eof_received")
