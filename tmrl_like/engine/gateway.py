"""A server's connection to an engine. To the relay it is one more peer, in the trainer's seat.

    worker == zmq, CURVE ==> Server: Relay, Gateway ==> stream ==> trainer

The relay passes the workers' packets and signs of life to this peer as it would to a trainer.
Packets are published to the stream as they come. The stream's confirmation is returned to the
worker as *received*, the trainer's acknowledgement as *stored*. Workers send again what the stream
does not take, so that nothing is kept here except packets in flight. Policies are passed on as they
are published.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from tmrl_like.base.budgets import Lines
from tmrl_like.engine.connection import EngineConnection, end, hear, wait
from tmrl_like.engine.options import EngineOptions
from tmrl_like.engine.subjects import (
    ANSWERS,
    BEATS,
    GATEWAYS,
    POLICIES,
    SAMPLES,
    GatewayState,
    subject_of,
)
from tmrl_like.engine.tracks import Tracks
from tmrl_like.errors import DecodingError
from tmrl_like.transport.base import Identity, Incoming, ServerLink
from tmrl_like.wire import messages as m

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

log = logging.getLogger("tmrl_like.engine")

ENGINE = b"the engine"
"""The id of this peer; those of transports have other lengths."""
_IDENTITY = Identity("the engine", ("trainer",))
# limit of bytes in flight to the stream; bytes that a packet counts for in addition to its own
_WINDOW_BYTES, _PACKET_BYTES = 4 << 20, 8 << 10
_PATIENCE_S, _PAUSE_S = 5.0, 0.5  # for the stream's answer; after a packet was not taken
_HELLO_S = 1.0
_STATE_S = 1.0
_TICK_S = 0.05
_SAY_AGAIN_S = 60.0
_CHECK = {"Nats-Expected-Stream": "none"}
"""Headers of a message that no stream accepts: it reveals a missing right to publish at once, and
not only with the first sample.
"""
_NOBODY = "the run has no stream, or it has no leader: start a trainer with --server.engine"


class Gateway:
    """A `ServerLink` whose peers are those of another link, and the engine."""

    def __init__(self, inner: ServerLink, options: EngineOptions) -> None:
        """Begin to dial the nodes, without waiting for one. `close` also closes `inner`.

        Raises:
            CredentialsError, ConfigError: the files that the options name cannot be read.
            MissingExtraError: the extra `engine` is not installed.
        """
        self._inner = inner
        self._run = options.run
        self.forget = inner.forget
        self.is_valid = inner.is_valid
        self.wake = inner.wake
        name = f"the engine, --server.engine {','.join(options.nodes)}"[: m.MAX_NAME]
        self._hello = m.Hello.of_this_process("trainer", name)
        self._hello_at = 0.0
        self._down: deque[bytes] = deque()  # for the relay
        # bytes of packets from the relay; each counter is changed by one thread
        self._taken_bytes = self._done_bytes = 0
        self._resumes_at = 0.0
        # the engine's thread
        self._client: Client | None = None
        self._tasks: set[asyncio.Task[bool]] = set()  # one for each message in flight
        self._tracks = Tracks()
        self._policy = (0, 0.0)  # version and time of the newest complete policy
        self._next = (self._policy, 0)  # policy and index of the frame that comes next
        self._feed = 0  # of the trainer; 0: unknown yet
        self._say = Lines(log, 1, 1 / _SAY_AGAIN_S)
        self._awake, self._closing = asyncio.Event(), asyncio.Event()
        self._connection = EngineConnection(options, self._attend, self.wake, self._closing)

    # -- the server's thread -----------------------------------------------------------------------

    @property
    def address(self) -> tuple[str, int]:
        return self._inner.address

    def receive(self, timeout_s: float) -> Incoming | None:
        """See `ServerLink.receive`. The engine's hello is repeated, as the relay frees the seats of
        silent peers, and a node may be away for long.
        """
        self._connection.check()
        now = time.monotonic()
        if now >= self._hello_at:
            self._hello_at = now + _HELLO_S
            self._down.append(m.encode(self._hello))
        if not self._down:
            incoming = self._inner.receive(timeout_s)
            if incoming is not None or not self._down:
                return incoming
        return Incoming(ENGINE, _IDENTITY, self._down.popleft())

    def send(self, peer: bytes, data: bytes | memoryview) -> bool:
        if peer != ENGINE:
            return self._inner.send(peer, data)
        message, _ = m.decode(data)
        if isinstance(message, m.SamplePacket):
            is_full = self._taken_bytes - self._done_bytes > _WINDOW_BYTES
            if is_full or not self._connection.connected or time.monotonic() < self._resumes_at:
                return False
            self._taken_bytes += len(data) + _PACKET_BYTES
            self._connection.call(self._start, message, data)
        elif isinstance(message, m.Beat) and message.worker:
            self._connection.call(self._start, message, data)
        elif isinstance(message, m.Refusal):
            self._say(
                "server",
                logging.WARNING,
                "the server refuses what comes from the engine: %s",
                message.reason,
            )
        return True

    def close(self) -> None:
        self._connection.close()
        self._inner.close()

    # -- the engine's thread -----------------------------------------------------------------------

    async def _attend(self, client: Client) -> None:
        """Pass acknowledgements of the stream and the trainer to the workers, and report the policy
        that is here to the trainer.
        """
        run, site = self._run, client.options["name"]
        # subscribed first: which training it is must be known before what it has stored
        await hear(client, subject_of(run, POLICIES), self._on_policy)
        await hear(client, subject_of(run, ANSWERS, site), self._on_word)
        for kind in (SAMPLES, BEATS):
            await client.publish(subject_of(run, kind, site, "check"), headers=_CHECK)
        self._client = client
        stated_at = 0.0
        while self._tasks or not self._closing.is_set():
            await wait(self._awake, _TICK_S)
            if not client.is_connected:
                await end(*self._tasks)  # messages without an answer may never have left
            for ack in self._tracks.words():
                self._deliver(m.encode(ack))
            if client.is_connected and time.monotonic() - stated_at > _STATE_S:
                stated_at = time.monotonic()
                await client.publish(
                    subject_of(run, GATEWAYS, site),
                    msgspec.msgpack.encode(GatewayState(*self._policy)),
                )

    def _start(self, message: m.SamplePacket | m.Beat, data: bytes | memoryview) -> None:
        """Start to pass a message on; messages are started in the order in which they came."""
        task = asyncio.ensure_future(self._pass_up(message, bytes(data)))
        self._tasks.add(task)
        task.add_done_callback(partial(self._on_passed_up, message, len(data)))

    async def _pass_up(self, message: m.SamplePacket | m.Beat, data: bytes) -> bool:
        """Publish a message, a packet only if none before it is missing; return whether the nodes
        have taken it.
        """
        import nats.errors
        from nats.js.errors import APIError

        client = self._client
        if client is None:
            return False
        run, site = self._run, client.options["name"]
        try:
            if isinstance(message, m.Beat):
                await client.publish(subject_of(run, BEATS, site, message.worker), data)
                return True
            if self._tracks.begins(message):
                where = subject_of(run, SAMPLES, site, message.worker)
                await client.jetstream().publish(where, data, timeout=_PATIENCE_S)
                return True
        except nats.errors.MaxPayloadError:
            reason = (
                f"a packet takes {len(data):,} bytes, and the engine's nodes take "
                f"{client.max_payload:,} at most: raise max_payload in their configuration"
            )
            if isinstance(message, m.SamplePacket):
                self._deliver(m.encode(m.Dismissal(message.worker, message.incarnation, reason)))
        except (nats.errors.Error, OSError) as error:
            why = (isinstance(error, APIError) and error.description) or _NOBODY
            self._resumes_at = time.monotonic() + _PAUSE_S
            self._say(
                why, logging.WARNING, "the engine takes no samples, the workers keep them: %s", why
            )
        return False

    def _on_passed_up(
        self, message: m.SamplePacket | m.Beat, size_bytes: int, task: asyncio.Task[bool]
    ) -> None:
        """Note how passing a message on has ended; it may have been cancelled before it began."""
        self._tasks.discard(task)
        if isinstance(message, m.Beat):
            return
        is_taken = False
        try:
            is_taken = not task.cancelled() and task.result()
        finally:
            self._done_bytes += size_bytes + _PACKET_BYTES
            self._tracks.ends(message, is_taken)
            self._awake.set()

    def _on_word(self, msg: Msg) -> None:
        """Handle the trainer's answer to a worker."""
        message = _decoded(msg)
        if isinstance(message, m.Ack):
            self._tracks.on_ack(message)
            self._awake.set()
        elif isinstance(message, m.Answer):
            self._deliver(msg.data)

    def _on_policy(self, msg: Msg) -> None:
        """Pass on frames that come in order and belong to a policy that is not here yet."""
        frame = _decoded(msg)
        if isinstance(frame, m.Welcome):
            self._on_trainer(frame.feed)
        if not isinstance(frame, m.PolicyFrame):
            return
        policy = (frame.version, frame.published_at_s)
        is_next = frame.index == 0 or self._next == (policy, frame.index)
        if policy == self._policy or not is_next:
            return
        self._next = (policy, frame.index + 1)
        if frame.index + 1 == frame.frames:
            self._policy = policy
        self._deliver(msg.data)

    def _on_trainer(self, feed: int) -> None:
        """If another training takes the samples, present it to the workers as another trainer at
        their server.
        """
        if self._feed not in (0, feed):
            before = self._hello
            self._hello = m.Hello.of_this_process(
                "trainer", before.name, takes_over=(before.incarnation,)
            )
            self._hello_at = 0.0
            self.wake()
        self._feed = feed

    def _deliver(self, data: bytes) -> None:
        self._down.append(data)
        if len(self._down) == 1:
            self.wake()


def _decoded(msg: Msg) -> m.AnyMessage | None:
    try:
        return m.decode(msg.data)[0]
    except DecodingError:
        return None
