"""The trainer's connection to an engine. To the session it is a link to a server.

A thread of its own (`EngineConnection`) holds the seat, reads the stream and publishes; the
session's thread receives and sends whole messages. Each new consumer reads the stream in order,
from its first message. All of it is passed on: the trainer recognises entries by their numbers and
takes none twice.

The setup of nodes and users is described in docs/guide/engine.md. The trainer creates everything
else: the run's stream and the bucket with its seat. An existing stream is used as it is, and
differences are logged.
"""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import secrets
import time
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from tmrl_like.base.budgets import Lines
from tmrl_like.base.text import one_line
from tmrl_like.engine.backlog import Backlog, Process
from tmrl_like.engine.connection import EngineConnection, first_of, hear, wait
from tmrl_like.engine.seat import SeatKeeper, in_copies
from tmrl_like.engine.stream_pass import StreamPass
from tmrl_like.engine.subjects import (
    ANSWERS,
    BEATS,
    GATEWAYS,
    POLICIES,
    SAMPLES,
    GatewayState,
    feed_of,
    stream_name,
    subject_of,
    token,
)
from tmrl_like.errors import ConfigError, DecodingError
from tmrl_like.transport.base import next_in
from tmrl_like.wire import messages as m

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription
    from nats.js import JetStreamContext

    from tmrl_like.engine.options import EngineOptions

log = logging.getLogger("tmrl_like.engine")

_TURN_S = 0.1
_SEAT_KEPT_S = 15.0  # without confirmation: nobody can take it while its stream has no leader
_REFUSED_FOR_S = 1.0
_MAX_OUTGOING = 64  # messages; a frame of a policy has half a MiB
_AGAIN_S = 0.2
_BEAT_S = 1.0
_MAX_WORKERS = 4096
# while more waits for the session, what is not read from the stream is dropped
_MAX_WAITING, MAX_WAITING_BYTES = 10_000, 64 << 20  # more than the window of a backlog
# error codes: the stream differs; JetStream is not enabled for this account, or at this node
_OTHER_CONFIG, _NOT_ENABLED = 10058, (10039, 10076)

_state_decoder = msgspec.msgpack.Decoder(GatewayState)


class Reader:
    """A trainer's connection to an engine. Implements `PeerLink`.

    After the first message, `Hello`, it takes the run's trainer seat, creates the stream, reads the
    samples and publishes.

    The connection logs its state itself.
    """

    logs_itself = True

    def __init__(
        self,
        options: EngineOptions,
        seat_s: float = 1.0,
        lonely_after_s: float = 10.0,
        policy_again_s: float = 5.0,
    ) -> None:
        """Start the thread, without waiting for a node.

        Args:
            options: addresses of the nodes, the run, and this machine's credentials.
            seat_s: interval between two checks of the seat, in seconds.
            lonely_after_s: time after which it is logged that no server sends samples.
            policy_again_s: minimum interval between two publications of the same policy.

        Raises:
            CredentialsError, ConfigError: the files that the options name cannot be read.
            MissingExtraError: nats-py is not installed.
        """
        self.where = ", ".join(options.nodes)
        self._run, self._max_bytes = options.run, options.max_bytes
        self._name = stream_name(options.run)
        self._samples = subject_of(options.run, SAMPLES, None, None)
        self._seat_s, self._lonely_after_s = seat_s, lonely_after_s
        self._policy_again_s = policy_again_s
        self._inbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._put_bytes = self._received_bytes = 0  # each counted by one thread
        self._outgoing: deque[tuple[m.Answer | m.PolicyFrame, bytes]] = deque()
        self._hello: m.Hello | None = None
        self._answered: m.Hello | None = None
        self._feed = secrets.randbits(62) + 1
        self._seat_at = -math.inf
        self._backlog = Backlog()
        self._direct: Subscription | None = None  # used while the stream cannot be read
        # the token of the site from which a process's packets came last, or a worker's beats
        self._sites: dict[Process | str, str] = {}
        self._has_gateway = False
        # version and time of the newest policy that was published
        self._policy: tuple[int, float] | None = None
        self._policy_at = -math.inf  # when one was last published or requested
        self._lines = Lines(log, 1, 0.1)
        self._woken, self._greeted, self._closing = (
            asyncio.Event(),
            asyncio.Event(),
            asyncio.Event(),
        )
        self._connection = EngineConnection(options, self._attend, self.wake, self._closing)

    # -- the session's thread ----------------------------------------------------------------------

    def receive(self, timeout_s: float) -> bytes | None:
        self._connection.check()
        data = next_in(self._inbox, timeout_s)
        self._received_bytes += len(data or b"")
        return data

    def send(self, data: bytes) -> bool:
        message, _ = m.decode(data)
        if isinstance(message, m.Hello):
            self._hello = message
            self._connection.call(self._greeted.set)
        elif isinstance(message, m.Answer | m.PolicyFrame):
            if (
                not (self._is_seated and self._connection.connected)
                or len(self._outgoing) > _MAX_OUTGOING
            ):
                return False
            self._outgoing.append((message, data))
            self._connection.call(self._woken.set)
        return True  # all else is meant for a server only

    @property
    def is_lost(self) -> bool:
        return False  # the connection dials the next node by itself

    def wake(self) -> None:
        self._inbox.put(None)

    def close(self) -> None:
        self._connection.close()

    # -- the connection's thread -------------------------------------------------------------------

    async def _attend(self, client: Client) -> None:
        while self._hello is None:
            if self._closing.is_set():
                return
            await wait(self._greeted, _TURN_S)
        stream = client.jetstream(timeout=2.0)
        seat = SeatKeeper(self._run, self._hello, stream)
        await first_of(
            self._leave(client, seat, stream),
            self._tend(seat, stream),
            self._say(client),
            self._read(client, stream),
        )

    async def _leave(self, client: Client, seat: SeatKeeper, stream: JetStreamContext) -> None:
        """Wait until the link is closed, then publish what waits and free the seat."""
        await self._closing.wait()
        await self._say_what_waits(client)
        await self._purge(stream)
        await seat.leave()

    async def _tend(self, seat: SeatKeeper, stream: JetStreamContext) -> None:
        """Keep the seat; purge stored messages from the stream."""
        import nats.errors

        while True:
            try:
                self._on_seat(await seat.sitting())
                await self._purge(stream)
            except (nats.errors.Error, OSError) as error:
                self._complain("the trainer's seat", error)
            await wait(self._greeted, self._seat_s)

    @property
    def _is_seated(self) -> bool:
        return time.monotonic() - self._seat_at < _SEAT_KEPT_S

    def _on_seat(self, seat: m.Hello | None) -> None:
        """Tell the session who has the seat, if it has said hello or that has changed."""
        hello, had_seat = self._hello, self._seat_at > 0
        answer: m.Welcome | m.Refusal
        if seat is None or hello is None:
            return
        if seat.incarnation == hello.incarnation:
            if not had_seat:
                log.info("trainer of the run as %s", hello.name)
            self._seat_at = time.monotonic()
            answer = m.Welcome(self._feed)
        elif had_seat:
            self._answered = None
            answer = m.Refusal(
                f"another trainer ({seat.name}) has taken this one's seat: stop one of them"
            )
        else:
            reason = (
                f"a trainer is connected already ({seat.name}): stop it, or give this one another "
                "run_name"
            )
            answer = m.Refusal(reason, _REFUSED_FOR_S)
        if self._answered is not hello:
            self._answered = hello
            self._put(m.encode(answer))

    async def _purge(self, stream: JetStreamContext) -> None:
        if below := self._backlog.purge(time.monotonic()):
            try:
                await stream.purge_stream(self._name, seq=below, subject=self._samples)
            except BaseException:
                self._backlog.purge_again()
                raise

    # outgoing messages

    async def _say(self, client: Client) -> None:
        """Publish the session's messages, and give it a sign of life each second while
        connected.
        """
        beat_at, lonely_at = -math.inf, time.monotonic() + self._lonely_after_s
        while True:
            await wait(self._woken, _TURN_S)
            now = time.monotonic()
            if self._is_seated and client.is_connected and now - beat_at > _BEAT_S:
                beat_at = now
                self._put(m.encode(m.Beat()))
                await self._say_who_trains(client)
                if now > lonely_at and not self._has_gateway:
                    lonely_at = math.inf
                    log.warning(
                        "no server sends samples of the run to this engine: start it with "
                        "--server.engine, too"
                    )
            if self._outgoing and client.is_connected:
                # a gateway must know the training before it learns what is stored
                await self._say_who_trains(client)
                await self._say_what_waits(client)

    async def _say_who_trains(self, client: Client) -> None:
        if self._is_seated and self._hello is not None:
            training = feed_of(self._hello.run) or self._feed
            await client.publish(subject_of(self._run, POLICIES), m.encode(m.Welcome(training)))

    async def _say_what_waits(self, client: Client) -> None:
        while self._outgoing and client.is_connected:
            message, data = self._outgoing.popleft()
            if isinstance(message, m.PolicyFrame):
                self._policy, self._policy_at = (
                    (message.version, message.published_at_s),
                    time.monotonic(),
                )
                await client.publish(subject_of(self._run, POLICIES), data)
                continue
            if isinstance(message, m.Ack):
                data = m.encode(self._backlog.on_ack(message))
            elif isinstance(message, m.Dismissal):
                self._backlog.on_dismissal(message)
            process = message.worker, message.incarnation
            # a site may beat in the name of another's worker
            if site := self._sites.get(process) or self._sites.get(message.worker):
                await client.publish(f"{subject_of(self._run, ANSWERS)}.{site}", data)

    # incoming messages

    async def _read(self, client: Client, stream: JetStreamContext) -> None:
        """Wait for the seat, then read the stream from its first message, with one consumer after
        the other.
        """
        import nats.errors

        # an earlier client's subscription and pass over the stream have ended with it
        self._direct = None
        self._backlog.begin()
        while not self._is_seated:
            await asyncio.sleep(_TURN_S)
        await hear(client, subject_of(self._run, BEATS, None, None), self._on_heard)
        await hear(client, subject_of(self._run, GATEWAYS, None), self._on_state)
        while True:
            try:
                await self._provide(stream)
                await self._read_once(client, stream)
            except (nats.errors.Error, OSError) as error:
                self._complain(f"the stream {self._name}", error)
            self._backlog.begin()
            await self._hear_directly(client)
            await asyncio.sleep(_AGAIN_S)

    async def _hear_directly(self, client: Client) -> None:
        """Until the stream can be read again, subscribe to the messages sent to it: it may have no
        leader for some seconds.
        """
        if self._direct is None:
            self._direct = await hear(client, self._samples, self._on_heard)

    async def _provide(self, stream: JetStreamContext) -> None:
        """Create the run's stream if there is none; log the differences of an existing one.

        Raises:
            ConfigError: JetStream is not enabled for this account.
            nats.errors.Error, TimeoutError: the stream cannot be created now.
        """
        from nats.js.api import DiscardPolicy, StreamConfig
        from nats.js.errors import APIError

        name = self._name
        limits = {"subjects": [self._samples], "max_bytes": self._max_bytes}
        wanted = StreamConfig(name, discard=DiscardPolicy.NEW, **limits)  # type: ignore[arg-type]
        try:
            await in_copies(lambda copies: stream.add_stream(wanted, num_replicas=copies))
        except APIError as error:
            if error.err_code in _NOT_ENABLED:
                raise ConfigError(
                    f"the engine keeps no streams: enable JetStream for its account ({error})"
                ) from None
            if error.err_code != _OTHER_CONFIG:
                raise
            found, expected = (await stream.stream_info(name)).config.as_dict(), wanted.as_dict()
            differ = [key for key in expected if expected[key] not in (None, found.get(key))]
            said = "; ".join(
                f"{key} is {found.get(key)}, expected {expected[key]}" for key in differ
            )
            self._lines(name, logging.WARNING, "the stream %s is used as it is: %s", name, said)

    async def _read_once(self, client: Client, stream: JetStreamContext) -> None:
        """Read until a message is skipped, or the stream is to be read again."""
        reading = StreamPass(client, stream, self._name, self._on_sample)
        await reading.open(self._samples)
        try:
            while not self._backlog.is_over and not reading.is_broken:
                if not self._backlog.has_room(time.monotonic()):
                    await asyncio.sleep(_TURN_S)
                elif not await reading.pull():  # there is no message, no consumer, or no leader
                    await self._hear_directly(client)
                    if await reading.has_missed_some():
                        return
                elif self._direct is not None:
                    await self._direct.unsubscribe()
                    self._direct = None
        finally:
            await reading.close()

    def _on_sample(self, message: Msg) -> None:
        packet, place = self._of_worker(message), message.metadata
        if isinstance(packet, m.SamplePacket):
            self._backlog.add(packet, place.sequence.stream, len(message.data), time.monotonic())
            self._put(message.data)
        self._backlog.note(place.sequence.stream, place.num_pending)

    def _on_heard(self, message: Msg) -> None:
        """Take a sign of life, or a packet on its way to the stream, unless much waits already."""
        waiting_bytes = self._put_bytes - self._received_bytes
        if waiting_bytes >= MAX_WAITING_BYTES or self._inbox.qsize() >= _MAX_WAITING:
            line = "too much waits for the trainer: what comes beside the stream is dropped for now"
            self._lines("dropped messages", logging.WARNING, line)
        elif message.data and self._of_worker(message) is not None:
            self._put(message.data)

    def _put(self, data: bytes) -> None:
        self._put_bytes += len(data)
        self._inbox.put(data)

    def _of_worker(self, message: Msg) -> m.SamplePacket | m.Beat | None:
        """Decode a worker's message from a site; None if it is malformed, or not of the worker that
        its subject names.
        """
        site, named = message.subject.split(".")[3:]
        try:
            said, _ = m.decode(message.data)
            if not isinstance(said, m.SamplePacket | m.Beat) or token(said.worker) != named:
                raise DecodingError("it is of another worker")
        except DecodingError as error:
            self._lines(
                site, logging.WARNING, "a message of site %s is passed over: %s", site, error
            )
            return None
        if len(self._sites) > _MAX_WORKERS:
            self._sites.clear()
        who = said.receipt[:2] if isinstance(said, m.SamplePacket) else said.worker
        self._sites[who] = site
        return said

    def _on_state(self, message: Msg) -> None:
        """Handle the state of a site's gateway: if it lacks the newest policy, ask the session to
        publish it again.
        """
        try:
            state = _state_decoder.decode(message.data)
        except msgspec.MsgspecError:
            return
        self._has_gateway = True
        now = time.monotonic()
        is_old = self._policy is not None and (state.version, state.published_at_s) != self._policy
        if is_old and now - self._policy_at > self._policy_again_s:
            self._policy_at = now
            self._put(m.encode(m.Welcome(self._feed, policy_wanted=True)))

    def _complain(self, what: str, error: Exception) -> None:
        from nats.js.errors import APIError, ServiceUnavailableError

        described = isinstance(error, APIError) and error.description
        why = one_line(str(described or error), 200) or "no answer"
        if isinstance(error, ServiceUnavailableError) and error.err_code is None:
            why = (
                "nothing answers for JetStream: enable it at the nodes, and for this user's account"
            )
        self._lines(what, logging.WARNING, "%s is away: %s; still trying", what, why)
