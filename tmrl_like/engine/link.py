"""The trainer's way to an engine: what the session takes for the link to a server.

A thread of its own (`EngineConnection`) holds the seat, reads the stream and publishes; the session's thread takes and
hands over whole messages. What was taken and what may be purged is counted in `progress`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import queue
import secrets
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from tmrl_like.base.budgets import Lines
from tmrl_like.engine import jetstream
from tmrl_like.engine.connection import EngineConnection, hear
from tmrl_like.engine.jetstream import JetStreamError
from tmrl_like.engine.progress import Progress, StreamProgress
from tmrl_like.engine.subjects import (
    PARTS,
    SEATS,
    GatewayState,
    TrainerSeat,
    beats_of_part,
    gateway_subject,
    part_of,
    samples_of_part,
    stream_name,
    token,
)
from tmrl_like.errors import ConfigError, DecodingError
from tmrl_like.transport.base import next_in
from tmrl_like.wire import messages as m
from tmrl_like.wire.records import newest_in

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from tmrl_like.engine.options import EngineOptions

log = logging.getLogger("tmrl_like.engine")

_TURN_S = 0.1
_SEAT_TTL_S = 5
_SEAT_S = 1.0  # between two looks at it
_SEAT_KEPT_S = 15.0  # unconfirmed: nobody else can take it while its stream has no leader
_REFUSED_FOR_S = 1.0
_OUTGOING_BYTES = 16 << 20
_BATCH, _LOW = 256, 128  # messages asked for at a time, and below which more are
_SILENT_AFTER_S = 1.5
_BATCH_BYTES = 9 << 20  # one message alone may have 8 MiB
_AGAIN_S = 0.2
_DIRECT_S = 10.0
_UNHEARD_S = 1.5
_READ_AGAIN_S = 5.0
_PURGE_S, _LAST_PURGE_S = 1.0, 0.3
_REPEAT_AFTER_S = 3.0
_COMPLAIN_AFTER_S = 3.0
_SITE_AWAY_S = 2.5
_LONELY_AFTER_S = 10.0
_POLICY_AGAIN_S = 2.0
_MAX_WORKERS = 4096
_MAX_BEATS = 10_000  # that may wait
_NS = 1_000_000_000

_PULL = msgspec.json.encode(
    {"batch": _BATCH, "max_bytes": _BATCH_BYTES, "expires": 30 * _NS, "idle_heartbeat": _NS // 2}
)
_state_decoder = msgspec.msgpack.Decoder(GatewayState)


@dataclass(eq=False, slots=True)
class _Answer:
    """The newest that is to be said to a worker process."""

    data: bytes
    said_at: float = 0.0
    times: int = 0


class _Stream(StreamProgress):
    """The stream, as it is read."""

    def __init__(self, parts: list[int] | None = None) -> None:
        super().__init__(parts)
        self.is_made = False
        self.heard_at = self.read_again_at = self.direct_until = 0.0
        self.begin_consumer()

    def begin_consumer(self) -> None:
        """Nothing has come of the newest consumer."""
        self.asked = self.asked_bytes = 0  # messages that may still come of what was asked for, and at most their bytes
        self.consumed = 0
        self.is_broken = False
        self.wanted = asyncio.Event()

    def hear(self, message: Msg) -> tuple[int, int] | None:
        """(sequence, how many follow) of a message that is the next one; None: it is none, or one is missing."""
        self.heard_at, self.is_silent = time.monotonic(), False
        if message.headers is not None and (status := message.headers.get("Status")) is not None:
            left = message.headers.get("Nats-Pending-Messages", "")
            if status != "100":  # a heartbeat; all else ends a request, or the consumer
                self.is_broken |= not left.isdecimal()
                self.asked -= int(left) if left.isdecimal() else 0
                self.wanted.set()
            return None
        self.asked -= 1
        self.asked_bytes -= len(message.data)
        self.consumed += 1
        numbers = message.reply.split(".")[5:]  # $JS.ACK.STREAM.CONSUMER.DELIVERED.SEQUENCE.CONSUMED.TIME.LEFT
        is_next = len(numbers) == 4 and all(map(str.isdecimal, numbers)) and int(numbers[1]) == self.consumed
        self.is_broken |= not is_next or min(self.asked, self.asked_bytes) < 0  # else nobody asked for it
        if self.asked < _LOW:
            self.wanted.set()
        return None if self.is_broken else (int(numbers[0]), int(numbers[3]))


class EngineLink:
    """A trainer's connection to an engine. Implements `PeerLink`.

    The first message, `Hello`, says which rank it is. Rank 0 takes the trainer's seat of the run, makes the stream and
    publishes. A rank reads the parts whose number is its own modulo the number of ranks, once its group has the seat.

    Attributes:
        says_itself: the log has from here whether there is a connection; the session is silent about it.
    """

    says_itself = True

    def __init__(self, options: EngineOptions) -> None:
        """Start the thread; does not wait for a node.

        Raises:
            CredentialsError, ConfigError: the files that the options name cannot be read.
            MissingExtraError: nats-py is not installed.
        """
        self._options = options
        self._subject = f"tmrl.{token(options.run)}"
        self._seat_subject = f"$KV.{SEATS}.{token(options.run)}"
        self._inbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._outgoing: deque[tuple[m.Ack | m.Dismissal | m.PolicyFrame, bytes]] = deque()
        self._taken_bytes = self._said_bytes = 0  # each is changed by one thread
        self._hello: m.Hello | None = None
        self._answered: m.Hello | None = None
        self._feed = secrets.randbits(62) + 1
        self._is_seated = self._had_seat = False
        self._revision = 0  # of the seat, where this one wrote it last
        self._seat_at = 0.0
        self._progress = Progress()
        self._stream = self._progress.stream = _Stream()
        self._direct: list[Subscription] = []
        self._unheard_until = 0.0  # a gateway said that no node leads the stream; a consumer may not notice
        self._sites: dict[str, str] = {}  # of each worker, as a token
        self._answers: dict[str, dict[int, _Answer]] = {}  # by worker and incarnation
        self._heard_of: dict[str, float] = {}  # when each site's gateway was
        self._rank = 0
        self._parts: list[int] | None = None  # of the samples; None: all
        self._policy_at = 0.0  # when one went out, or was asked for
        self._replicas = 3
        self._lines = Lines(log, 1, 0.1)
        self._closing, self._woken, self._seat_wanted = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._connection = EngineConnection(options, self._attend, self.wake)

    # -- the session's thread ------------------------------------------------------------------------

    def receive(self, timeout_s: float) -> bytes | None:
        self._connection.check()
        return next_in(self._inbox, timeout_s)

    def send(self, data: bytes) -> bool:
        message, _ = m.decode(data)
        if isinstance(message, m.Hello):
            self._hello = message
            self._connection.call(self._seat_wanted.set)
        elif isinstance(message, m.Ack | m.Dismissal | m.PolicyFrame):
            waiting_bytes = self._taken_bytes - self._said_bytes
            if not (self._is_seated and self._connection.connected) or waiting_bytes > _OUTGOING_BYTES:
                return False
            self._outgoing.append((message, data))
            self._taken_bytes += len(data)
            self._connection.call(self._woken.set)
        return True  # all else is for a server

    def wake(self) -> None:
        self._inbox.put(None)

    def close(self) -> None:
        self._connection.call(self._closing.set)
        self._connection.close()

    # -- the connection's thread ---------------------------------------------------------------------

    async def _attend(self, client: Client) -> None:
        """What is done for as long as a connection lasts."""
        for answers in self._answers.values():
            for answer in answers.values():
                answer.times = 0  # the last ones may not have arrived
        work = (self._closing.wait(), self._say(client), self._sit(client), self._work(client), self._tend(client))
        tasks = [asyncio.ensure_future(part) for part in work]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            await self._say_what_waits(client)
            await self._purge(client, _LAST_PURGE_S)
            await self._stand_up(client)
            await client.flush(1)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._direct.clear()
            self._stream.is_silent = True

    # -- the seat

    async def _sit(self, client: Client) -> None:
        """Take the seat, and keep it; of ranks other than 0, see that their group has it."""
        has_bucket, began_at = False, time.monotonic()
        while True:
            try:
                if self._hello is not None and self._hello.rank.number:
                    self._answer(self._hello, await self._sitting(client))
                elif self._hello is not None:
                    if not has_bucket:
                        await self._make_bucket(client)
                        has_bucket = True
                    await self._take_seat(client, self._hello)
            except (JetStreamError, TimeoutError) as error:
                has_bucket = False
                self._complain("the trainer's seat", max(self._seat_at, began_at), error)
            self._is_seated &= time.monotonic() - self._seat_at < _SEAT_KEPT_S
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._seat_wanted.wait(), _SEAT_S)
            self._seat_wanted.clear()

    async def _make_bucket(self, client: Client) -> None:
        await self._make(
            client,
            f"KV_{SEATS}",
            subjects=[f"$KV.{SEATS}.>"],
            max_msgs_per_subject=1,
            max_age=_SEAT_TTL_S * _NS,
            allow_rollup_hdrs=True,
        )

    async def _take_seat(self, client: Client, hello: m.Hello) -> None:
        value = msgspec.msgpack.encode(TrainerSeat(hello.name, hello.incarnation, hello.rank.group))
        expected = {"Nats-Expected-Last-Subject-Sequence": str(self._revision)}
        try:
            written = await jetstream.store(client, self._seat_subject, value, headers=expected)
            self._revision = written.seq
            self._answer(hello, TrainerSeat(hello.name, hello.incarnation, hello.rank.group))
        except JetStreamError as refused:
            if refused.code != jetstream.WRONG_LAST_SEQUENCE:
                raise
            sitting = await self._sitting(client)
            if sitting is not None and sitting.incarnation != hello.incarnation:
                self._answer(hello, sitting)
            else:  # it was lost, or the answer was, and `_revision` is known now
                self._seat_wanted.set()

    async def _sitting(self, client: Client) -> TrainerSeat | None:
        """Who has the seat; None: nobody, or somebody who is no trainer."""
        self._revision = 0
        try:
            answer = await jetstream.ask(client, f"STREAM.MSG.GET.KV_{SEATS}", last_by_subj=self._seat_subject)
        except JetStreamError as error:
            if error.code in (jetstream.NO_MESSAGE, jetstream.NO_STREAM):
                return None
            raise
        message = answer.message or jetstream.Message(0)
        try:
            seat = msgspec.msgpack.decode(message.data, type=TrainerSeat)
        except msgspec.MsgspecError:  # a site can have the broker's answers written there
            self._revision = message.seq
            return None
        if self._hello is not None and seat.incarnation == self._hello.incarnation:
            self._revision = message.seq
        return seat

    def _answer(self, hello: m.Hello, seat: TrainerSeat | None) -> None:
        """Tell the session who has the seat, where it asked or that is new."""
        rank = hello.rank
        is_own = seat is not None and (
            seat.incarnation == hello.incarnation or (rank.number > 0 and seat.group == rank.group)
        )
        answer: m.Welcome | m.Refusal
        if is_own:
            if not (self._had_seat or rank.number):
                log.info("trainer of the run as %s", hello.name)
            self._is_seated = self._had_seat = True
            self._seat_at = time.monotonic()
            answer = m.Welcome(self._feed)
        elif seat is None or rank.number:
            return
        elif self._had_seat:
            answer = m.Refusal(f"another trainer ({seat.name}) has taken this one's seat: stop one of them")
        else:
            reason = f"a trainer is connected already ({seat.name}): stop it, or give this one another run_name"
            answer = m.Refusal(reason, _REFUSED_FOR_S)
        if self._answered is not hello or (self._had_seat and not is_own):
            self._answered = hello
            self._inbox.put(m.encode(answer))

    async def _stand_up(self, client: Client) -> None:
        if self._is_seated and self._revision:
            with contextlib.suppress(JetStreamError, TimeoutError):
                await jetstream.ask(
                    client, f"STREAM.PURGE.KV_{SEATS}", 0.5, filter=self._seat_subject, seq=self._revision + 1
                )

    async def _make(self, client: Client, name: str, **config: Any) -> None:
        """Make a stream where there is none; one that differs is used as it is, and a line says so."""
        kept = {"retention": "limits", "discard": "new", "storage": "file", "num_replicas": self._replicas}
        wanted = config | kept
        try:
            await jetstream.ask(client, f"STREAM.CREATE.{name}", name=name, duplicate_window=_NS // 10, **wanted)
        except JetStreamError as error:
            if error.code in jetstream.NOT_ENABLED:
                raise ConfigError(f"the engine keeps no streams: enable JetStream for its account ({error})") from None
            if error.code == jetstream.NO_CLUSTER and self._replicas > 1:
                self._replicas = 1
                await self._make(client, name, **config)
                return
            if error.code != jetstream.STREAM_DIFFERS:
                raise
            found = (await jetstream.ask(client, f"STREAM.INFO.{name}")).config
            pairs = ((key, found.get(key), value) for key, value in wanted.items())
            differ = [f"{key} is {there}, expected {value}" for key, there, value in pairs if there != value]
            self._lines(name, logging.WARNING, "the stream %s is used as it is: %s", name, "; ".join(differ))

    # -- what goes out

    async def _say(self, client: Client) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            await self._say_what_waits(client)

    async def _say_what_waits(self, client: Client) -> None:
        while self._outgoing:
            message, data = self._outgoing[0]
            if isinstance(message, m.PolicyFrame):
                self._policy_at = time.monotonic()
                await client.publish(f"{self._subject}.p", data)
            else:
                said = data
                if isinstance(message, m.Dismissal):
                    self._progress.on_dismissal((message.worker, message.incarnation))
                elif (ack := self._progress.on_ack(message, time.monotonic())) is not message:
                    said = m.encode(ack)
                answers = self._answers[message.worker] = self._answers.pop(message.worker, {})
                answers[message.incarnation] = answer = _Answer(said)
                if len(self._answers) > _MAX_WORKERS:
                    del self._answers[next(iter(self._answers))]
                await self._tell(client, message.worker, answer)
            self._outgoing.popleft()
            self._said_bytes += len(data)

    async def _tell(self, client: Client, worker: str, answer: _Answer) -> None:
        """Say it where the worker is; it waits where that is not known."""
        if (site := self._sites.get(worker)) is not None:
            answer.said_at = time.monotonic()
            answer.times += 1
            await client.publish(f"{self._subject}.a.{site}", answer.data)

    def _note_site(self, worker: str, site: str) -> None:
        if self._sites.get(worker) != site:
            self._sites.pop(worker, None)
            self._sites[worker] = site
            if len(self._sites) > _MAX_WORKERS:
                del self._sites[next(iter(self._sites))]
            self._say_again(worker)

    def _say_again(self, worker: str) -> None:
        for answer in self._answers.get(worker, {}).values():
            answer.times = 0

    async def _tend(self, client: Client) -> None:
        """What is due by the clock."""
        looked_at, lonely_at = -1e9, time.monotonic() + _LONELY_AFTER_S
        while True:
            await asyncio.sleep(_TURN_S)
            now = time.monotonic()
            if now > lonely_at and self._is_seated and not (self._rank or self._heard_of):
                lonely_at = math.inf
                log.warning("no server gives this engine samples of the run: start it with --server.engine, too")
            for ack in self._progress.asks(now):
                await self._tell(client, ack.worker, _Answer(m.encode(ack)))
            if now - looked_at > _PURGE_S:
                looked_at = now
                if self._is_seated:
                    self._inbox.put(m.encode(m.Beat()))
                for worker, answers in list(self._answers.items()):
                    for answer in answers.values():  # once more: nobody says that he heard it
                        if answer.times == 0 or (answer.times == 1 and now - answer.said_at > _REPEAT_AFTER_S):
                            await self._tell(client, worker, answer)
                await self._purge(client)

    async def _purge(self, client: Client, within_s: float = 1.0) -> None:
        request = f"STREAM.PURGE.{stream_name(self._options.run)}"
        for part, below in list(self._progress.purges()):
            which = {} if part is None else {"filter": samples_of_part(self._options.run, part)}
            try:
                await jetstream.ask(client, request, within_s, seq=below, **which)
            except (JetStreamError, TimeoutError):
                return  # with the next look
            self._stream.note_purged(part, below)

    # -- what comes in

    async def _work(self, client: Client) -> None:
        """Once this one has its seat, read."""
        while not self._is_seated:
            await asyncio.sleep(_TURN_S)
        assert self._hello is not None
        rank = self._hello.rank
        if self._parts is None and rank.size > 1:
            self._rank = rank.number
            self._parts = [part for part in range(PARTS) if part % rank.size == rank.number]
            self._stream = self._progress.stream = _Stream(self._parts)
        for part in (self._parts or ()) if rank.number else (None,):
            await hear(client, beats_of_part(self._options.run, part), self._on_beat)
        await hear(client, gateway_subject(self._options.run), self._on_state)
        await self._read(client)

    async def _read(self, client: Client) -> None:
        """Read the stream from its first message on, with one consumer after the other."""
        name, stream, began_at = stream_name(self._options.run), self._stream, time.monotonic()
        while True:
            if stream.heard_at > 0:  # it was read before: its leader may be gone
                await self._hear_directly(client)
            try:
                if not (stream.is_made or self._rank):
                    limits = {"subjects": [samples_of_part(self._options.run)], "max_bytes": self._options.max_bytes}
                    await self._make(client, name, **limits)
                    stream.is_made = True
                await self._consume(client)
            except (JetStreamError, TimeoutError) as error:
                stream.is_made &= getattr(error, "code", 0) != jetstream.NO_STREAM
                self._complain(f"the stream {name}", max(stream.heard_at, began_at), error)
            stream.is_silent = True
            await asyncio.sleep(_AGAIN_S)

    async def _hear_directly(self, client: Client) -> None:
        """Until the stream has been read for a while, hear what gateways publish."""
        self._stream.direct_until = time.monotonic() + _DIRECT_S
        if not self._direct:
            for part in self._parts or (None,):
                subject = samples_of_part(self._options.run, part)
                self._direct.append(await hear(client, subject, self._on_sample))

    async def _consume(self, client: Client) -> None:
        """Read with a new consumer until that is silent, or has left something out."""
        stream, name, number = self._stream, stream_name(self._options.run), secrets.token_hex(8)
        stream.begin_consumer()

        def take(message: Msg) -> None:
            found = stream.hear(message)
            if found is not None:
                self._on_sample(message, *found)

        consumer, inbox = f"{name}.{number}", client.new_inbox()
        subscription = await hear(client, inbox, take)
        config = {
            "name": number,
            "deliver_policy": "all",
            "ack_policy": "none",
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": 10 * _NS,
            "filter_subjects": [samples_of_part(self._options.run, part) for part in self._parts or ()],
        }
        try:
            made = await jetstream.ask(client, f"CONSUMER.CREATE.{consumer}", 1.0, stream_name=name, config=config)
            self._progress.begin(made.num_pending)
            asked_at = time.monotonic()
            while not stream.is_broken:
                now = time.monotonic()
                if stream.asked < _LOW and self._progress.has_room(now):
                    asked_at = asked_at if stream.asked else now
                    stream.asked_bytes = _BATCH_BYTES + (stream.asked_bytes if stream.asked else 0)
                    stream.asked += _BATCH
                    await client.publish(jetstream.subject(f"CONSUMER.MSG.NEXT.{consumer}"), _PULL, inbox)
                elif stream.asked and now - max(asked_at, stream.heard_at) > _SILENT_AFTER_S:
                    return
                if self._progress.read_again and now - stream.read_again_at > _READ_AGAIN_S:
                    stream.read_again_at = now
                    return
                if now < self._unheard_until:
                    await self._hear_directly(client)
                if now > stream.direct_until:
                    for direct in self._direct:
                        await direct.unsubscribe()
                    self._direct.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stream.wanted.wait(), _TURN_S)
                stream.wanted.clear()
        finally:
            with contextlib.suppress(Exception):  # the connection may be gone
                await subscription.unsubscribe()
                await client.publish(jetstream.subject(f"CONSUMER.DELETE.{consumer}"))

    def _on_sample(self, message: Msg, sequence: int = 0, left: int = 0) -> None:
        """Pass a bundle on, if it is one of the site that sent it, and the next of its process.

        `sequence` is that of the stream; 0: it was heard directly, as is a gateway's check, which is empty.
        """
        subject = message.subject.split(".")
        *_, part, site, worker = subject if len(subject) == 6 else ("", "", "")
        if sequence:
            self._stream.note(sequence, int(part) if part.isdecimal() else 0, left)
        elif not message.data:
            return
        try:
            bundle, body = m.decode(message.data)
            if not isinstance(bundle, m.Bundle):
                raise DecodingError("it is no bundle")
            last = newest_in(body)[1]
            if token(bundle.worker) != worker or str(part_of(bundle.worker)) != part:
                raise DecodingError("it is of another worker")
        except DecodingError as error:
            self._lines(site, logging.WARNING, "a message of site %s is passed over: %s", site, error)
            return
        self._note_site(bundle.worker, site)
        size_bytes = len(message.data)
        if self._progress.offer(bundle, last, size_bytes, time.monotonic(), sequence):
            self._inbox.put(message.data)
        elif self._progress.has_stored((bundle.worker, bundle.incarnation), last):
            self._say_again(bundle.worker)

    def _on_beat(self, message: Msg) -> None:
        site, worker = message.subject.split(".")[4:]
        try:
            beat, _ = m.decode(message.data)
        except DecodingError:
            return
        if isinstance(beat, m.Beat) and token(beat.worker) == worker and self._inbox.qsize() < _MAX_BEATS:
            self._note_site(beat.worker, site)
            self._inbox.put(message.data)

    def _on_state(self, message: Msg) -> None:
        """What a site's gateway says of itself."""
        site, now = message.subject.rpartition(".")[2], time.monotonic()
        try:
            state = _state_decoder.decode(message.data)
        except msgspec.MsgspecError:
            return
        if now - self._heard_of.get(site, now) > _SITE_AWAY_S:
            for worker in [worker for worker, there in self._sites.items() if there == site]:
                self._say_again(worker)
        self._heard_of[site] = now
        if state.unheard:
            self._unheard_until = now + _UNHEARD_S
        if state.policy_wanted and now - self._policy_at > _POLICY_AGAIN_S and not self._rank:
            self._policy_at = now
            self._inbox.put(m.encode(m.Welcome(self._feed, policy_wanted=True)))

    def _complain(self, what: str, since: float, error: Exception) -> None:
        if (away_s := time.monotonic() - since) > _COMPLAIN_AFTER_S:
            why = str(error) or "no answer"
            self._lines(what, logging.WARNING, "%s has been away for %.0f s: %s; trying on", what, away_s, why)
