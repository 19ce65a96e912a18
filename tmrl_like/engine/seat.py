"""A server's way to an engine: one more peer of its link, which sits where the trainer would.

    worker == zmq, CURVE ==> Server: Relay, EngineSeat ==> stream ==> trainer

The relay passes the workers' bundles and signs of life to that peer as it would to a trainer. Bundles go to the stream
(`Ledger`), and the stream's confirmation goes back as *received*; *stored* is what the trainer says. Policies come as
they are published. While no node answers, all that changes is that `send` says no when enough is kept.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
import time
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from tmrl_like.base.budgets import Lines
from tmrl_like.engine.connection import EngineConnection, hear, user_name
from tmrl_like.engine.ledger import Ledger
from tmrl_like.engine.options import EngineOptions
from tmrl_like.engine.subjects import (
    GatewayState,
    acks_subject,
    beats_subject,
    gateway_subject,
    policy_subject,
    samples_subject,
)
from tmrl_like.errors import DecodingError
from tmrl_like.transport.base import Identity, Incoming, ServerLink
from tmrl_like.wire import messages as m

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

log = logging.getLogger("tmrl_like.engine")

ENGINE = b"the engine"
"""The peer; a transport's ids are shorter or longer."""
_IDENTITY = Identity("the engine", ("trainer",), is_inside=True)
_MAX_BYTES, _MAX_BUNDLES = 64 << 20, 16_384  # kept here; then `send` says no
_BEAT_S = 1.0
_HELLO_AGAIN_S = 2.0
_STATE_S = 1.0
_TICK_S = 0.05
_POLICY_STUCK_S = 3.0
_COMPLAIN_AFTER_S = 10.0
_CHECK = {"Nats-Expected-Stream": "none"}
"""Of a message that no stream takes: a missing right to publish is said at once, and not with the first sample."""


class _Answer(msgspec.Struct):
    """What a stream says to a message."""

    seq: int = 0
    error: dict[str, object] | None = None


_answers = msgspec.json.Decoder(_Answer)
_samples_subject = functools.lru_cache(10_000)(samples_subject)
_beats_subject = functools.lru_cache(10_000)(beats_subject)


class EngineSeat:
    """A `ServerLink` whose peers are another one's, and the engine."""

    def __init__(self, inner: ServerLink, options: EngineOptions) -> None:
        """Begin to dial the nodes; does not wait for one. `close` closes `inner`.

        Raises:
            CredentialsError, ConfigError: the files that the options name cannot be read.
            MissingExtraError: the extra `engine` is not installed.
        """
        self._inner = inner
        self._options = options
        self._site = user_name(options.credentials)
        self.forget = inner.forget
        self.wake = inner.wake
        self._down: deque[bytes | memoryview] = deque()  # for the relay
        self._up: deque[tuple[m.Bundle | m.Beat, memoryview, bytes | memoryview]] = deque()  # from it
        self._up_in = self._up_out = 0  # bytes of what went through `_up`; each is one thread's
        self._beat_at = 0.0
        self._hello_at: float | None = 0.0
        # the engine's thread
        self._ledger = Ledger()
        self._policies = _Policies()
        self._gateway = secrets.randbits(62) + 1
        self._is_idle = False
        self._is_said = False  # that the stream takes nothing
        self._why_refused = ""
        self._is_unheard = False  # no node leads the stream; the trainer may listen itself
        self._say = Lines(log, 10, 0.1)
        self._closing = asyncio.Event()
        self._connection = EngineConnection(options, self._attend, self.wake)

    # -- the server's thread -------------------------------------------------------------------------

    @property
    def address(self) -> tuple[str, int]:
        return self._inner.address

    def receive(self, timeout_s: float) -> Incoming | None:
        self._connection.check()
        now = time.monotonic()
        if self._hello_at is not None and now >= self._hello_at:
            self._hello_at = None
            self._down.append(self._hello())
        elif now >= self._beat_at:  # the relay lets silent peers go; this one waits for its node, however long
            self._beat_at = now + _BEAT_S
            self._down.append(m.encode(m.Beat()))
        if not self._down:
            incoming = self._inner.receive(timeout_s)
            if incoming is not None or not self._down:
                return incoming
        return Incoming(ENGINE, _IDENTITY, self._down.popleft())

    def _hello(self) -> bytes:
        name = f"the engine: start the trainer with --server.engine {','.join(self._options.nodes)}"
        return m.encode(m.Hello("trainer", name[: m.MAX_NAME], self._gateway, ""))

    def send(self, peer: bytes, data: bytes | memoryview) -> bool:
        if peer != ENGINE:
            return self._inner.send(peer, data)
        message, body = m.decode(data)
        if isinstance(message, m.Bundle | m.Beat):
            return self._send_up(message, body, data)
        if isinstance(message, m.Welcome) and message.policy_wanted:
            self._policies.whole = None
        elif isinstance(message, m.HelloWanted):
            self._hello_at = 0.0
        elif isinstance(message, m.Refusal):
            log.warning("the server refuses what comes from the engine: %s", message.reason)
            self._hello_at = time.monotonic() + _HELLO_AGAIN_S
        return True

    def _send_up(self, message: m.Bundle | m.Beat, body: memoryview, data: bytes | memoryview) -> bool:
        if isinstance(message, m.Beat) and not (message.worker and self._connection.connected):
            return True  # the server's own, or of no use later
        if self._up_in - self._up_out + self._ledger.held_bytes > _MAX_BYTES:
            return False
        if len(self._up) + self._ledger.held > _MAX_BUNDLES:
            return False
        self._up_in += len(data)
        self._up.append((message, body, data))
        if self._is_idle:
            self._is_idle = False
            self._connection.call(self._awake.set)
        return True

    def close(self) -> None:
        self._connection.call(self._closing.set)
        self._connection.close(flush_s=1.0)
        self._inner.close()

    # -- the engine's thread -------------------------------------------------------------------------

    async def _attend(self, client: Client) -> None:
        """Publish what comes from the workers; what comes from the engine wakes this one as well."""
        self._awake = asyncio.Event()
        answers, run, site = client.new_inbox(), self._options.run, self._site
        await hear(client, f"{answers}.*", self._on_answer)
        await hear(client, acks_subject(run, site), self._on_word)
        await hear(client, policy_subject(run), self._on_policy)
        for subject_of in (_samples_subject, _beats_subject):
            await client.publish(subject_of(run, site, "check"), reply=f"{answers}.0", headers=_CHECK)
        self._ledger.begin(client.max_payload)
        self._policies.is_wanted = True
        ticks = asyncio.ensure_future(self._tick())
        state_at, said_unheard = 0.0, False
        try:
            while True:
                self._awake.clear()
                now = time.monotonic()
                for beat, data in self._take(now):
                    await client.publish(_beats_subject(run, site, beat.worker), data)  # type: ignore[arg-type]
                for number, worker, payload in self._ledger.due(now):
                    subject = _samples_subject(run, site, worker)
                    await client.publish(subject, payload, reply=f"{answers}.{number}")  # type: ignore[arg-type]
                for word in self._ledger.words():
                    self._deliver(m.encode(word))
                self._is_unheard &= self._ledger.refused_since is not None
                if now >= state_at or (self._is_unheard and not said_unheard):
                    state_at, said_unheard = now + _STATE_S, self._is_unheard
                    wanted = self._policies.is_wanted_now(now)
                    state = msgspec.msgpack.encode(GatewayState(wanted, self._is_unheard))
                    await client.publish(gateway_subject(run, site), state)
                self._complain(now)
                if self._closing.is_set() and not self._ledger.held and not self._up:
                    return
                self._is_idle = True
                if not self._up:
                    await self._awake.wait()
                self._is_idle = False
        finally:
            self._is_idle = False
            ticks.cancel()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._awake.set()

    def _take(self, now: float) -> list[tuple[m.Beat, bytes | memoryview]]:
        """Take what the relay has passed on; returns the signs of life in it."""
        beats = []
        while self._up:
            message, body, data = self._up.popleft()
            if isinstance(message, m.Beat):
                beats.append((message, data))
            else:
                try:
                    self._ledger.take(message, body, data, now)
                except DecodingError as error:
                    self._say(
                        message.worker, logging.WARNING, "refused samples of worker %s: %s", message.worker, error
                    )
            self._up_out += len(data)
        return beats

    def _complain(self, now: float) -> None:
        """Say once that the stream takes nothing, and once that it does again."""
        since = self._ledger.refused_since
        if since is None and self._is_said:
            log.info("the engine takes samples again")
            self._is_said = False
        elif since is not None and not self._is_said and now - since > _COMPLAIN_AFTER_S:
            log.warning("the engine takes no samples, the workers keep them: %s", self._why_refused)
            self._is_said = True

    def _on_answer(self, msg: Msg) -> None:
        now, number = time.monotonic(), int(msg.subject.rpartition(".")[2])
        if number == 0:  # the check, which no stream keeps
            return
        try:
            answer = _answers.decode(msg.data) if msg.data else _Answer()
        except msgspec.MsgspecError:
            return
        if answer.seq:
            self._ledger.on_stored(number, answer.seq, now)
            if self._ledger.is_lost:
                self._sit_down_again()
        else:
            error = answer.error or {}
            self._is_unheard = not error
            why = "the run has no stream, or nobody leads it: start a trainer with --server.engine"
            self._why_refused = str(error.get("description", why))
            self._ledger.on_refused(number, now)
        self._awake.set()

    def _sit_down_again(self) -> None:
        log.warning("the engine has lost samples that it had confirmed: the workers send again what is not stored")
        self._ledger.start_over()
        self._deliver(m.encode(m.Bye()))
        self._hello_at = 0.0

    def _on_word(self, msg: Msg) -> None:
        """An acknowledgement or a dismissal by the trainer."""
        try:
            message, _ = m.decode(msg.data)
        except DecodingError:
            return
        if isinstance(message, m.Dismissal):
            self._ledger.on_dismissal(message)
            self._deliver(msg.data)
        elif isinstance(message, m.Ack):
            if not self._ledger.on_ack(message, time.monotonic()):  # the stream may not hold what it has received
                self._deliver(m.encode(msgspec.structs.replace(message, received=message.stored)))
            self._awake.set()

    def _on_policy(self, msg: Msg) -> None:
        try:
            message, _ = m.decode(msg.data)
        except DecodingError:
            return
        if isinstance(message, m.PolicyFrame) and self._policies.takes(message, time.monotonic()):
            self._deliver(msg.data)

    def _deliver(self, data: bytes) -> None:
        self._down.append(data)
        if len(self._down) == 1:
            self.wake()


class _Policies:
    """Which policy is here, and whether one is wanted.

    Attributes:
        whole: version and time of the one that is here; None: none is.
        is_wanted: none has come whole since the connection was made, or the server has none.
    """

    def __init__(self) -> None:
        self.whole: tuple[int, float] | None = None
        self.is_wanted = True
        self._arriving: tuple[int, float] | None = None
        self._next = 0
        self._heard_at = -1e9

    def takes(self, frame: m.PolicyFrame, now: float) -> bool:
        """Whether it goes on to the workers: in order, and not if the policy is here already."""
        policy = (frame.version, frame.published_at_s)
        if policy == self.whole:
            self.is_wanted = False
            return False
        if frame.index == 0:
            self._arriving, self._next = policy, 0
        if policy != self._arriving or frame.index != self._next:
            self._arriving = None
            self.is_wanted = True
            return False
        self._next += 1
        self._heard_at = now
        if self._next == frame.frames:
            self.whole, self._arriving, self.is_wanted = policy, None, False
        return True

    def is_wanted_now(self, now: float) -> bool:
        """Whether one is wanted, and none is on its way."""
        return self.is_wanted and (self._arriving is None or now - self._heard_at > _POLICY_STUCK_S)
