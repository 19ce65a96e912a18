"""What the server does with messages: seats, samples one way, policies the other. No threads, no clock.

Of several trainers that learn as one, the ranks of a *group*, each has a seat. A worker belongs to one of them by its
name (`wire.messages.share_of`), for as long as the group lives: so no sample is taken by two.

The relay holds no samples while there is no trainer: workers keep theirs until they are acknowledged.
While there is one, what waits for it is bounded twice: each worker limits what it has on its way, and
above `max_waiting_bytes` packets of the key that has most of them are dropped here (the trainer sees the gap
and has them sent again). Keys take turns: what one sends holds up no other.

Watchers look, and do nothing else. Each is answered when it asks, a few times a second at most, with what is here
anyway: the workers' newest beats, and the newest reports of the trainer.
"""

from __future__ import annotations

import functools
import itertools
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import msgspec

import tmrl_like
from tmrl_like.base.budgets import Bucket, Buckets, Lines
from tmrl_like.errors import DecodingError
from tmrl_like.transport.base import Identity, Incoming, ServerLink
from tmrl_like.wire import messages as m

log = logging.getLogger("tmrl_like.server")

_ALIVE_WITHIN_S = 2.0
_RETRY_AFTER_S = 2.0
_MALFORMED_BEFORE_REFUSAL = 100
_MAX_POLICIES_ON_THEIR_WAY = 3
_LINES, _LINES_PER_S = 200, 1.0  # of log about one key, at first, and then
_SEATS_PER_S = 10.0  # new ones of one key, when it has taken twice `max_workers`
_PROBE_BYTES, _PROBE_BYTES_PER_S = 8 << 20, 1 << 20  # of one key that are returned, at first, and then
_BEATS, _BEATS_PER_S = 100, 20.0  # of one worker that are passed on, at first, and then
_MAX_WATCHERS = 8
_LOOKS, _LOOKS_PER_S = 10, 4.0  # at one place of a watcher that are answered, at first, and then
_VIEWS_ON_THEIR_WAY = 3  # to one watcher
_KEPT_BYTES = 500  # about; what a message that is kept takes beside its bytes
_SHOWN_BEAT_BYTES, _SHOWN_TEXT = 1000, 200  # of a longer beat so many characters of each text
_MAX_SUCCEEDED = 1000  # trainers that are remembered as such
_SUCCEEDED = "another process goes on with this trainer's run, and has taken its seat: one of them is enough"
_SHARED_FILE = "this {0} and the {1} keep their weights in one file of one machine: give each its own model_path"
_MISFIT = (
    "this worker's samples do not fit those in the trainer's memory: {0}; start both with the same environment and "
    "sample_compressor"
)


@dataclass(slots=True)
class Seat:
    """A peer that was let in. `key` is the name of the key that it proved to hold."""

    peer: bytes
    key: str
    hello: m.Hello
    seen_at: float
    is_inside: bool = False
    policy_cursor: int = 0  # next policy frame this worker is due
    policies_on_their_way: deque[int] = field(default_factory=deque)  # versions begun, and not known to have arrived
    beats: Bucket = field(default_factory=lambda: Bucket(_BEATS, _BEATS_PER_S))
    newest_beat: m.Beat | None = None  # as it is shown to watchers
    beat_at: float = 0.0
    # of a watcher
    looks: Bucket = field(default_factory=lambda: Bucket(_LOOKS, _LOOKS_PER_S))  # of its place
    views_on_their_way: deque[int] = field(default_factory=deque)
    # of a trainer
    waiting: _Waiting = field(default_factory=lambda: _Waiting(0))
    feed: int = 0

    @property
    def rank(self) -> int:
        return self.hello.rank.number

    @property
    def who(self) -> tuple[str, str]:
        return self.hello.role, self.hello.name

    def sends_for(self, message: m.Bundle | m.Ack | m.Dismissal) -> bool:
        """Whether it is the worker that sends the packets of this worker process: its own, or one it took over."""
        own = (self.hello.incarnation, *self.hello.takes_over)
        return self.who == ("worker", message.worker) and message.incarnation in own


@dataclass(slots=True)
class Counters:
    """What the server has seen since it started."""

    samples: int = 0
    packets: int = 0
    policies: int = 0
    malformed: int = 0
    refused: int = 0
    dropped: int = 0


@dataclass(slots=True)
class _Policy:
    """The newest policy, as far as it is here."""

    version: int = 0
    frames: list[bytes | memoryview] = field(default_factory=list)
    num_frames: int = 1
    size_bytes: int = 0

    @property
    def is_whole(self) -> bool:
        return len(self.frames) == self.num_frames


class _Waiting:
    """Messages for the trainer, of several keys, which take turns; those of a key stay in order."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.clear()

    def clear(self) -> None:
        self.samples = 0
        self.size_bytes = 0
        self._bytes: dict[str, int] = {}  # of each key that has any
        self._queues: dict[str, deque[bytes | memoryview]] = {}
        self._turns: deque[str] = deque()

    def add(self, key: str, data: bytes | memoryview) -> int:
        """Append a message; returns how many were dropped for it: the newest of the key that has most, maybe itself."""
        dropped, size_bytes = 0, len(data) + _KEPT_BYTES
        own_bytes = self._bytes.get(key, 0) + size_bytes
        while self.size_bytes + size_bytes > self._max_bytes:
            largest = max(self._bytes, key=self._bytes.__getitem__, default=key)
            if own_bytes >= self._bytes.get(largest, 0):
                return dropped + 1
            self._take(largest, self._queues[largest].pop())
            dropped += 1
        if key not in self._queues:
            self._queues[key], self._bytes[key] = deque(), 0
            self._turns.append(key)
        self._queues[key].append(data)
        self._bytes[key] += size_bytes
        self.size_bytes += size_bytes
        return dropped

    def send(self, send: Callable[[bytes | memoryview], bool]) -> bool:
        """Send what waits; False as soon as `send` takes no more."""
        while self._turns:
            key = self._turns[0]
            if not send(self._queues[key][0]):
                return False
            self._turns.rotate(-1)
            self._take(key, self._queues[key].popleft())
        return True

    def _take(self, key: str, data: bytes | memoryview) -> None:
        self._bytes[key] -= len(data) + _KEPT_BYTES
        self.size_bytes -= len(data) + _KEPT_BYTES
        if not self._queues[key]:
            del self._queues[key], self._bytes[key]
            self._turns.remove(key)


class Relay:
    """Routes between one trainer, or the ranks of one group, and any number of workers.

    Attributes:
        ranks: seats of the trainers that are here; one that is alone is rank 0.
    """

    def __init__(
        self,
        link: ServerLink,
        min_samples_per_server_packet: int = 1,
        max_workers: int = 1000,
        silent_after_s: float = 5.0,
        max_policy_bytes: int = 1 << 30,
        max_waiting_bytes: int = 512 << 20,
    ) -> None:
        self._link = link
        self._min_samples = min_samples_per_server_packet
        self._max_workers = max_workers
        self._silent_after_s = silent_after_s
        self._max_policy_bytes = max_policy_bytes
        self._max_waiting_bytes = max_waiting_bytes
        self._seats: dict[bytes, Seat] = {}
        self._workers: dict[str, Seat] = {}  # those of workers, by name
        self.ranks: dict[int, Seat] = {}
        self._probes = Buckets(_PROBE_BYTES, _PROBE_BYTES_PER_S)
        self._new_seats = Buckets(2 * max_workers + 10, _SEATS_PER_S)
        self._say = Lines(log, _LINES, _LINES_PER_S, lambda: self._now)
        self._now = 0.0  # of the message or the look at the clock that is being dealt with
        self._policy = _Policy()
        self._malformed = Buckets(_MALFORMED_BEFORE_REFUSAL - 1, 0.0)  # by connection
        self._unsaid = Buckets(1, 0.0)  # what the log has not got yet: refusals, and whose message was malformed
        self._names: dict[str, str] = {}  # worker -> key that used this name first; the oldest first
        self._succeeded: dict[int, None] = {}  # incarnations of trainers whose seats their successors took
        self._places = [Bucket(_LOOKS, _LOOKS_PER_S) for _ in range(_MAX_WATCHERS)]  # of the watchers
        self._views = self._report = self._report_bytes = 0  # numbers of the newest; size of those that are kept
        self._reports: deque[bytes] = deque()
        self.counters = Counters()

    @property
    def trainer(self) -> Seat | None:
        """The trainer's seat, or that of the first rank that is here; None: there is none."""
        return min(self.ranks.values(), key=lambda seat: seat.rank, default=None)

    @property
    def workers(self) -> list[Seat]:
        return list(self._workers.values())

    @property
    def _watchers(self) -> list[Seat]:
        return [seat for seat in self._seats.values() if seat.hello.role == "watcher"]

    def handle(self, incoming: Incoming, now: float) -> None:
        """Act on one message from a peer whose key is, or was, valid."""
        self._now = now
        if not incoming.identity.roles:
            self._dismiss_revoked(incoming.peer)
            return
        try:
            message, body = m.decode(incoming.data)
        except DecodingError as error:
            self._refuse_malformed(incoming, error)
            return
        seat = self._seat_of(incoming)
        if isinstance(message, m.Hello):
            self._hello(incoming.peer, incoming.identity, message, now)
        elif isinstance(message, m.Probe):
            self._return_probe(incoming, body)
        elif seat is None:
            self._tell(incoming.peer, m.HelloWanted())
        else:
            seat.seen_at = now
            handle = self._HANDLERS.get((seat.hello.role, type(message)))
            if handle is not None:
                handle(self, seat, message, incoming.data)
            else:
                what = f"a {seat.hello.role} does not send {type(message).__name__}"
                if seat.hello.role == "watcher":
                    self._refuse_malformed_from(seat, what)
                else:
                    self._refuse_malformed(incoming, DecodingError(what))

    def _return_probe(self, incoming: Incoming, body: memoryview) -> None:
        key = incoming.identity
        if len(body) <= m.MAX_PROBE_BYTES and self._probes.take(key.name, 1024 + len(body), self._now):
            answer = m.Probe(time.time(), tmrl_like.__version__, key.name, key.roles)
            self._link.send(incoming.peer, m.encode(answer, body))

    def _seat_of(self, incoming: Incoming) -> Seat | None:
        """The seat of this connection, if it is still the same key's and the key may still play the role."""
        seat = self._seats.get(incoming.peer)
        if seat is None:
            return None
        if seat.key != incoming.identity.name:
            self._leave(seat)
            return None
        if not _may_be(incoming.identity, seat.hello.role):
            self._dismiss(seat, _not_for(incoming.identity, seat.hello.role))
            return None
        return seat

    def tick(self, now: float) -> bool:
        """Free seats of the silent, then `flush`. Call it a few times a second."""
        self._now = now
        for seat in [s for s in self._seats.values() if now - s.seen_at > self._silent_after_s]:
            line = "%s %s has been silent for %.0f s: its seat is free"
            self._say(seat.key, logging.WARNING, line, *seat.who, self._silent_after_s)
            self._leave(seat)
        return self.flush()

    def beat(self) -> None:
        """Tell every peer that the server lives."""
        for peer in self._seats:
            self._tell(peer, m.Beat())

    def flush(self) -> bool:
        """Send what waits; True when nothing is left that could be sent."""
        return self._flush_samples() & self._flush_policy()

    def _dismiss_revoked(self, peer: bytes) -> None:
        seat = self._seats.get(peer)
        self._tell(peer, m.Refusal("the server refuses this machine's key: it was revoked"))
        if seat is not None:
            self._say(seat.key, logging.WARNING, "%s %s leaves: its key was revoked", *seat.who)
            self._names = {name: key for name, key in self._names.items() if key != seat.key}
            self._leave(seat)

    def _hello(self, peer: bytes, identity: Identity, hello: m.Hello, now: float) -> None:
        namesakes = [seat for seat in self._seats.values() if _same_process(seat.hello, hello)]
        if not namesakes and not self._new_seats.take(identity.name, 1, now):
            return  # it asks again
        refusal = self._reason_to_refuse(identity, hello, now)
        if refusal is not None:
            self._refuse(identity.name, hello, refusal, peer)
            self._link.forget(peer)
            return
        for old in namesakes:
            if old.peer != peer:
                self._forget(old)
        sitting = self._seats.get(peer)
        if sitting is not None and sitting in namesakes:  # it asked more than once
            sitting.seen_at = now
            self._welcome(sitting)
            return
        if sitting is not None:
            self._leave(sitting)
        seat = self._seats[peer] = Seat(peer, identity.name, hello, now, identity.is_inside)
        if hello.role == "trainer":
            self._seat_trainer(seat)
        elif hello.role == "watcher":
            taken = [watcher.looks for watcher in self._watchers]
            seat.looks = next(place for place in self._places if place not in taken)  # with what is left of it
        else:
            self._workers[hello.name] = seat
            self._bind_name(hello.name, identity.name)
        self._welcome(seat)
        if not seat.is_inside:
            self._say(identity.name, logging.INFO, "%s %s is here (key %s)", *seat.who, identity.name)

    def _refuse(self, key: str, hello: m.Hello, refusal: m.Refusal, peer: bytes) -> None:
        self.counters.refused += 1
        if self._unsaid.take(f"{hello.name}: {refusal.reason}", 1, self._now):
            self._say(key, logging.WARNING, "refused %s %s: %s", hello.role, hello.name, refusal.reason)
        self._tell(peer, refusal)

    def _bind_name(self, name: str, key: str) -> None:
        """A worker's name belongs to the key that uses it first, for as long as this server runs.

        A key holds as many names as there are seats; for another one it gives up the oldest that is not in use.
        """
        if name in self._names:
            return
        own = [n for n, k in self._names.items() if k == key]
        if len(own) >= self._max_workers:
            in_use = {worker.hello.name for worker in self.workers}
            del self._names[next(n for n in own if n not in in_use)]
        self._names[name] = key

    def _reason_to_refuse(self, identity: Identity, hello: m.Hello, now: float) -> m.Refusal | None:
        if hello.role not in ("worker", "trainer", "watcher"):
            return m.Refusal(f"there is no role {hello.role!r:.40}; expected worker, trainer or watcher")
        if not _may_be(identity, hello.role):
            return _not_for(identity, hello.role)
        if hello.role == "watcher":
            is_full = len(self._watchers) >= _MAX_WATCHERS
            return m.Refusal(f"the server has its {_MAX_WATCHERS} watchers", _RETRY_AFTER_S) if is_full else None
        if hello.role == "trainer":
            return self._reason_to_refuse_trainer(identity, hello, now)
        if _share_file(self.trainer, hello):
            return m.Refusal(_SHARED_FILE.format("worker", "trainer"))
        owner = self._names.get(hello.name, identity.name)
        if owner != identity.name:
            return m.Refusal(
                f"the name {hello.name} belongs to the workers of the key {owner!r}, and this one's is "
                f"{identity.name!r}: give it another name (--name), or restart the server",
                _RETRY_AFTER_S,
            )
        namesake = self._workers.get(hello.name)
        if self._is_taken(namesake, identity, hello, now):
            return m.Refusal(
                f"a worker named {hello.name} is connected already: give this one another name (--name)", _RETRY_AFTER_S
            )
        if len(self._workers) - (hello.name in self._workers) >= self._max_workers:
            return m.Refusal(
                f"the server has its {self._max_workers} workers; raise server.max_workers, or wait until one leaves",
                _RETRY_AFTER_S,
            )
        return self._reason_for_spaces(hello)

    def _reason_to_refuse_trainer(self, identity: Identity, hello: m.Hello, now: float) -> m.Refusal | None:
        if hello.incarnation in self._succeeded:  # it was frozen or cut off, and comes back
            return m.Refusal(_SUCCEEDED)
        if any(_share_file(worker, hello) for worker in self.workers):
            return m.Refusal(_SHARED_FILE.format("trainer", "worker"))
        group = hello.rank.group
        others = [seat for seat in self.ranks.values() if not group or seat.hello.rank.group != group]
        if group and hello.rank.number in self.ranks:
            others.append(self.ranks[hello.rank.number])
        for other in others:
            if other.peer in self._seats and self._is_taken(other, identity, hello, now):
                return m.Refusal(
                    f"a trainer is connected already ({other.hello.name}): stop it, or give this one its own server",
                    _RETRY_AFTER_S,
                )
        return None

    def _is_taken(self, sitting: Seat | None, identity: Identity, hello: m.Hello, now: float) -> bool:
        """Whether another process holds a seat and shows signs of life; a silent one loses it."""
        if sitting is None:
            return False
        if sitting.key == identity.name:
            if _same_process(sitting.hello, hello):
                return False
            if _goes_on_with(hello, sitting.hello):
                self._succeed(sitting)
                return False
            dead = sitting.hello.incarnation in hello.takes_over  # else its successor could not know
            if dead or (sitting.hello.name == hello.name and not self._tell(sitting.peer, m.Beat())):
                self._leave(sitting)
                return False
        idle_s = now - sitting.seen_at
        if idle_s <= _ALIVE_WITHIN_S:
            return True
        line = "%s %s is silent for %.1f s: another one takes its seat"
        self._say(sitting.key, logging.WARNING, line, *sitting.who, idle_s)
        self._leave(sitting)
        return False

    def _succeed(self, sitting: Seat) -> None:
        """Take the seat of a trainer, dead or frozen, for its successor; it gets it back no more."""
        self._succeeded[sitting.hello.incarnation] = None
        if len(self._succeeded) > _MAX_SUCCEEDED:
            del self._succeeded[next(iter(self._succeeded))]
        self._say(sitting.key, logging.INFO, "%s %s has a successor, which takes its seat", *sitting.who)
        self._tell(sitting.peer, m.Refusal(_SUCCEEDED))
        self._leave(sitting)

    def _reason_for_spaces(self, worker: m.Hello) -> m.Refusal | None:
        trainer = self.trainer.hello.spaces if self.trainer else None
        if trainer is None or worker.spaces is None or trainer == worker.spaces:
            return None
        what, own, other = worker.spaces.difference(trainer)
        return m.Refusal(
            f"this worker's {what} space is {own:.300}, the trainer's is {other:.300}: start both with the same "
            "environment",
            _RETRY_AFTER_S,
        )

    def _seat_trainer(self, seat: Seat) -> None:
        self.ranks[seat.rank] = seat
        seat.feed = secrets.randbits(62) + 1
        seat.waiting = _Waiting(self._max_waiting_bytes // seat.hello.rank.size)
        for worker in self.workers:
            if seat.rank == 0:
                worker.policies_on_their_way.clear()  # another trainer may count its versions from 1 again
            refusal = self._reason_for_spaces(worker.hello)
            if refusal is not None:
                self._dismiss(worker, refusal)
            elif self._trainer_of(worker.hello.name) is seat:
                self._welcome(worker)

    def _dismiss(self, seat: Seat, refusal: m.Refusal) -> None:
        self._refuse(seat.key, seat.hello, refusal, seat.peer)
        self._leave(seat)

    def _welcome(self, seat: Seat) -> None:
        if seat.hello.role == "trainer":
            self._tell(seat.peer, m.Welcome(seat.feed, seat.rank == 0 and not self._policy.is_whole))
            return
        trainer = self._trainer_of(seat.hello.name)
        self._tell(seat.peer, m.Welcome(trainer.feed if trainer is not None else 0))

    def _trainer_of(self, worker: str) -> Seat | None:
        """The trainer that a worker's samples go to; None: it is not here."""
        anyone = next(iter(self.ranks.values()), None)
        return anyone and self.ranks.get(m.share_of(worker, anyone.hello.rank.size))

    def _leave(self, seat: Seat) -> None:
        self._forget(seat)
        if self.ranks.get(seat.rank) is seat:
            own = [worker for worker in self.workers if self._trainer_of(worker.hello.name) is seat]
            del self.ranks[seat.rank]
            for worker in own:
                self._welcome(worker)

    def _forget(self, seat: Seat) -> None:
        self._seats.pop(seat.peer, None)
        if self._workers.get(seat.hello.name) is seat:
            del self._workers[seat.hello.name]
        self._link.forget(seat.peer)

    def _on_samples(self, seat: Seat, message: m.Bundle, data: bytes | memoryview) -> None:
        if not seat.sends_for(message):
            self._refuse_malformed_from(seat, f"it sent samples in the name of {message.worker:.60}")
            return
        trainer = self._trainer_of(message.worker)
        if trainer is None:
            return  # the worker keeps them, and sends them again when there is a trainer
        at_once = message.awaits or not message.samples  # finished episodes do not wait either
        self.counters.dropped += trainer.waiting.add(seat.key, data)  # it notices the gap and asks for it again
        trainer.waiting.samples += self._min_samples if at_once else message.samples
        self.counters.samples += message.samples
        self.counters.packets += 1
        self._flush_samples()

    def _flush_samples(self) -> bool:
        is_sent = True
        for trainer in self.ranks.values():
            if trainer.waiting.samples >= self._min_samples:
                if trainer.waiting.send(functools.partial(self._link.send, trainer.peer)):
                    trainer.waiting.samples = 0
                else:
                    is_sent = False
        return is_sent

    def _on_policy(self, seat: Seat, message: m.PolicyFrame, data: bytes | memoryview) -> None:
        if seat.rank:
            self._refuse_malformed_from(seat, f"it is rank {seat.rank}, and rank 0 publishes")
            return
        if message.index == 0:
            if message.version < self._policy.version:  # another trainer, behind an engine, counts from 1 again
                for worker in self.workers:
                    worker.policies_on_their_way.clear()
            self._policy = _Policy(message.version, [], message.frames)
            for worker in self.workers:
                worker.policy_cursor = 0
        policy = self._policy
        if message.index != len(policy.frames):
            return  # the rest of a policy whose beginning was lost with a connection; the next one follows
        policy.size_bytes += len(data) + _KEPT_BYTES
        if policy.size_bytes > self._max_policy_bytes:
            self._refuse_malformed_from(seat, f"its policy is larger than {self._max_policy_bytes} bytes")
            return
        policy.frames.append(data)
        self.counters.policies += message.index == message.frames - 1
        self._flush_policy()

    def _flush_policy(self) -> bool:
        sent = [self._send_policy(worker) for worker in self.workers]
        return all(sent)

    def _send_policy(self, worker: Seat) -> bool:
        """Send a worker the frames that it is due; False as soon as its queue is full."""
        for frame in self._policy.frames[worker.policy_cursor :]:
            is_first = worker.policy_cursor == 0
            if is_first and len(worker.policies_on_their_way) >= _MAX_POLICIES_ON_THEIR_WAY:
                break  # a slow link gets fewer policies, and so newer ones
            if not self._link.send(worker.peer, frame):
                return False
            if is_first:
                worker.policies_on_their_way.append(self._policy.version)
            worker.policy_cursor += 1
        return True

    def _on_ack(self, seat: Seat, message: m.Ack, data: bytes | memoryview) -> None:
        worker = self._spoken_to(seat, message)
        if worker is not None:
            self._link.send(worker.peer, data)

    def _spoken_to(self, trainer: Seat, message: m.Ack | m.Dismissal) -> Seat | None:
        """The worker that a trainer answers; None: it is not here, or belongs to another rank."""
        worker = self._workers.get(message.worker)
        if worker is None or self._trainer_of(message.worker) is not trainer:
            return None
        return worker if worker.sends_for(message) else None

    def _on_dismissal(self, seat: Seat, message: m.Dismissal, data: bytes | memoryview) -> None:
        worker = self._spoken_to(seat, message)
        if worker is None:
            return
        if worker.hello.incarnation == message.incarnation:
            self._dismiss(worker, m.Refusal(_MISFIT.format(message.reason)))
        else:
            self._link.send(worker.peer, data)

    def _on_worker_beat(self, seat: Seat, message: m.Beat, data: bytes | memoryview) -> None:
        while seat.policies_on_their_way and seat.policies_on_their_way[0] <= message.policy_received:
            seat.policies_on_their_way.popleft()
        is_due = seat.beats.take(1, self._now)
        if is_due and message.worker == seat.hello.name:
            if len(data) > _SHOWN_BEAT_BYTES:
                texts = {name: getattr(message, name)[:_SHOWN_TEXT] for name in ("alarm", "ended")}
                message = msgspec.structs.replace(message, **texts)
            seat.newest_beat, seat.beat_at = message, self._now
            own = self._trainer_of(seat.hello.name)
            for rank, trainer in self.ranks.items():
                if rank == 0 or trainer is own:
                    self._link.send(trainer.peer, data)

    def _on_report(self, seat: Seat, message: m.Report, data: bytes | memoryview) -> None:
        _, record = m.decode(data)
        if len(record) > m.MAX_REPORT_BYTES:
            return
        self._report += 1
        self._report_bytes += max(len(record), _KEPT_BYTES)
        self._reports.append(bytes(record))
        while self._report_bytes > m.MAX_REPORTS_BYTES:
            self._report_bytes -= max(len(self._reports.popleft()), _KEPT_BYTES)

    def _on_look(self, seat: Seat, message: m.Look, data: bytes | memoryview) -> None:
        """Answer, unless it asks too often, or has not got the last answers yet."""
        while seat.views_on_their_way and seat.views_on_their_way[0] <= message.view:
            seat.views_on_their_way.popleft()
        if len(seat.views_on_their_way) >= _VIEWS_ON_THEIR_WAY or not seat.looks.take(1, self._now):
            return
        workers = [(self._now - w.beat_at, w.newest_beat) for w in self._workers.values() if w.newest_beat]
        before = self._report - len(self._reports)
        reports = list(itertools.islice(self._reports, max(0, message.report - before), None))
        trainers = [trainer.hello.name for trainer in self.ranks.values()]
        sight = m.Sight(trainers, asdict(self.counters), msgspec.json.encode(workers), reports)
        view = m.View(self._views + 1, self._report)
        if self._link.send(seat.peer, m.encode(view, msgspec.msgpack.encode(sight))):
            self._views += 1
            seat.views_on_their_way.append(self._views)

    def _on_bye(self, seat: Seat, message: m.Bye, data: bytes | memoryview) -> None:
        if not seat.is_inside:
            self._say(seat.key, logging.INFO, "%s %s leaves", *seat.who)
        self._leave(seat)

    _HANDLERS: dict[tuple[str, type], Callable[..., None]] = {  # noqa: RUF012
        ("worker", m.Bundle): _on_samples,
        ("worker", m.Beat): _on_worker_beat,
        ("worker", m.Bye): _on_bye,
        ("trainer", m.PolicyFrame): _on_policy,
        ("trainer", m.Ack): _on_ack,
        ("trainer", m.Dismissal): _on_dismissal,
        ("trainer", m.Beat): lambda *_: None,  # a trainer's sign of life is for the server alone
        ("trainer", m.Report): _on_report,
        ("trainer", m.Bye): _on_bye,
        ("watcher", m.Look): _on_look,
        ("watcher", m.Beat): lambda *_: None,
        ("watcher", m.Bye): _on_bye,
    }

    def _refuse_malformed(self, incoming: Incoming, error: DecodingError) -> None:
        """Count; say it once to both sides; after many, show the peer the door."""
        self.counters.malformed += 1
        peer, key = incoming.peer, incoming.identity.name
        reason = f"the server does not understand a message: {error}"
        if isinstance(error, m.WireVersionError):
            newer, older = ("server", "peer") if error.found < m.WIRE_VERSION else ("peer", "server")
            reason = (
                f"this peer speaks wire version {error.found}, the server {m.WIRE_VERSION}: upgrade tmrl_like on the "
                f"{older} to that of the {newer}"
            )
        is_first = self._unsaid.take(peer.hex(), 1, self._now)
        if is_first:
            line = "refused a message (key %s): %s; more of the kind are only counted"
            self._say(key, logging.WARNING, line, key, error)
        is_too_many = not self._malformed.take(peer.hex(), 1, self._now)
        if is_too_many:
            is_first = self._unsaid.take(f"{peer.hex()} goes", 1, self._now)
        if is_first and (is_too_many or isinstance(error, m.WireVersionError)):
            self._tell(peer, m.Refusal(reason))
            if seat := self._seats.get(peer):
                self._leave(seat)

    def _refuse_malformed_from(self, seat: Seat, why: str) -> None:
        self.counters.malformed += 1
        self._say(seat.key, logging.WARNING, "refused %s %s: %s", *seat.who, why)
        self._tell(seat.peer, m.Refusal(f"the server refuses this peer: {why}"))
        self._leave(seat)

    def _tell(self, peer: bytes, message: m.AnyMessage) -> bool:
        return self._link.send(peer, m.encode(message))


def _may_be(identity: Identity, role: str) -> bool:
    """Whether a key may play a role; who may be a trainer sees everything anyway."""
    return role in identity.roles or (role == "watcher" and "trainer" in identity.roles)


def _not_for(identity: Identity, role: str) -> m.Refusal:
    return m.Refusal(
        f"the key {identity.name!r} is not for a {role}; on the server's machine run "
        f"`tmrl-like keys invite NAME --role {role}`"
    )


def _share_file(seat: Seat | None, hello: m.Hello) -> bool:
    return seat is not None and hello.model_file != "" and seat.hello.model_file == hello.model_file


def _goes_on_with(hello: m.Hello, before: m.Hello) -> bool:
    """Whether a trainer goes on with what an earlier one has stored; what a dead one said may arrive behind it."""
    return hello.run != "" and hello.run == before.run and hello.began_up_s > before.began_up_s


def _same_process(one: m.Hello, other: m.Hello) -> bool:
    return (one.role, one.name, one.incarnation) == (other.role, other.name, other.incarnation)
