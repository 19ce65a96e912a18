"""The server's logic: assigns seats, and relays samples to trainers and policies to workers. It has
no threads and no clock.

If several trainers learn as one (the ranks of a *group*), each has a seat. Each worker belongs to
one of them, chosen by its name (`wire.messages.share_of`), for as long as the group lives, so that
no sample is taken by two trainers.

Without a trainer the relay holds no samples: workers keep theirs until they are acknowledged. With
a trainer, two limits apply to the packets that wait for it: each worker limits what it has in
flight, and above `max_waiting_bytes` the relay drops packets (`server.waiting`). The trainer
notices the gap and asks for them again.
"""

from __future__ import annotations

import functools
import logging
import time
from collections import deque
from dataclasses import asdict, dataclass

import msgspec

import tmrl_like
from tmrl_like.base.budgets import Buckets, Lines
from tmrl_like.errors import DecodingError, OversizeError
from tmrl_like.server.newest_policy import NewestPolicy
from tmrl_like.server.seats import (
    SEATS,
    Seat,
    TrainerSeat,
    WatcherSeat,
    WorkerSeat,
    later,
    may_be,
    not_for,
    other_version,
)
from tmrl_like.server.watchers import Reports
from tmrl_like.transport.base import Identity, Incoming, ServerLink
from tmrl_like.wire import messages as m

log = logging.getLogger("tmrl_like.server")

_ALIVE_WITHIN_S = 2.0
_MALFORMED_BEFORE_REFUSAL = 100
_LINES, _LINES_PER_S = 200, 1.0  # log lines about one key: burst, and rate
_SEATS_PER_S = 10.0  # new seats of one key, after a burst of twice `max_workers`
# bytes of probes of one key that are returned: burst, and rate
_PROBE_BYTES, _PROBE_BYTES_PER_S = 8 << 20, 1 << 20
# sent with fewer samples, too: workers wait when they have much more in flight
_ENOUGH_BYTES = 4 << 20
_MAX_WATCHERS = 8
_LOOKS, _LOOKS_PER_S = 80, 32.0  # looks of one key that are answered: burst, and rate
_MAX_SUCCEEDED = 1000  # trainers that are remembered as succeeded by another
_SUCCEEDED = (
    "another process has resumed this trainer's run and taken its seat: stop one of the two"
)
_SHARED_FILE = (
    "this {0} and the {1} keep their weights in one file of one machine: give each its own "
    "model_path"
)


@dataclass(slots=True)
class Counters:
    """Counts of what the server has relayed, refused and dropped since it started."""

    samples: int = 0
    packets: int = 0
    policies: int = 0
    malformed: int = 0
    refused: int = 0
    dropped: int = 0


class Relay:
    """Routes between one trainer, or the ranks of one group, and any number of workers.

    Attributes:
        workers: seats of the connected workers, by name.
        ranks: seats of the connected trainers, by rank; a single trainer is rank 0.
        counters: counts of what was relayed, refused and dropped.
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
        self._silent_after_s = max(silent_after_s, _ALIVE_WITHIN_S)  # peers beat twice a second
        self._max_waiting_bytes = max_waiting_bytes
        self.counters = Counters()
        self.workers: dict[str, WorkerSeat] = {}
        self.ranks: dict[int, TrainerSeat] = {}
        self._seats: dict[bytes, Seat] = {}  # all, by connection
        self._policy = NewestPolicy(max_policy_bytes)
        self._reports = Reports()
        self._looks = Buckets(_LOOKS, _LOOKS_PER_S)  # by key
        self._newest_view = 0
        # name of a worker -> key that used this name first; oldest first
        self._owners: dict[str, str] = {}
        # incarnations of trainers that have a successor
        self._succeeded = deque[int](maxlen=_MAX_SUCCEEDED)
        self._now = 0.0  # time of the current call
        self._new_seats = Buckets(2 * max_workers + 10, _SEATS_PER_S)  # by key
        self._probes = Buckets(_PROBE_BYTES, _PROBE_BYTES_PER_S)  # by key
        self._unsaid = Buckets(1, 0.0)  # refusals that were not logged yet
        self._say = Lines(log, _LINES, _LINES_PER_S, lambda: self._now)

    @property
    def trainer(self) -> TrainerSeat | None:
        """The seat of the trainer, or of the lowest connected rank; None without a trainer."""
        return self.ranks[min(self.ranks)] if self.ranks else None

    def handle(self, incoming: Incoming, now: float) -> None:
        """Handle one message from a peer whose key is, or was, valid."""
        self._now = now
        if not incoming.identity.roles:
            self._dismiss_revoked(incoming.peer)
            return
        try:
            message, body = m.decode(incoming.data)
        except DecodingError as error:
            self._on_malformed(incoming, error)
            return
        seat = self._seat_of(incoming)
        if isinstance(message, m.Hello):
            self._on_hello(incoming.peer, incoming.identity, message)
        elif isinstance(message, m.Probe):
            self._return_probe(incoming, body)
        elif seat is None:
            self._tell(incoming.peer, m.HelloWanted())
        else:
            seat.seen_at = now
            self._route(seat, message, body, incoming.data)

    def tick(self, now: float) -> None:
        """Free the seats of silent peers. Call this a few times a second."""
        self._now = now
        for seat in list(self._seats.values()):
            if now - seat.seen_at > self._silent_after_s:
                line = "%s %s has been silent for %.0f s: its seat is free"
                self._say(seat.key, logging.WARNING, line, *seat.who, self._silent_after_s)
                self._leave(seat)

    def beat(self) -> None:
        """Send every peer a sign of life."""
        for peer in self._seats:
            self._tell(peer, m.Beat())

    def flush(self) -> bool:
        """Send pending messages; return True if nothing is left that could be sent now."""
        are_sent = [self._send_samples(trainer) for trainer in self.ranks.values()]
        are_sent += [self._send_policy(worker) for worker in self.workers.values()]
        return all(are_sent)

    # -- routes ------------------------------------------------------------------------------------

    def _route(
        self, seat: Seat, message: m.AnyMessage, body: memoryview, data: bytes | memoryview
    ) -> None:
        match seat, message:
            case WorkerSeat(), m.SamplePacket():
                self._on_samples(seat, message, data)
            case WorkerSeat(), m.Beat():
                self._on_beat(seat, message, data)
            case TrainerSeat(), m.Answer():
                self._answer_worker(seat, message.worker, data)
            case TrainerSeat(), m.PolicyFrame():
                self._on_policy(seat, message, data)
            case TrainerSeat(), m.Report():
                self._reports.add(body)
            case WatcherSeat(), m.Look():
                self._on_look(seat, message)
            case _, m.Beat():
                pass  # a sign of life for the server alone
            case _, m.Bye():
                self._say(seat.key, logging.INFO, "%s %s leaves", *seat.who)
                self._leave(seat)
            case _:
                self._expel(seat, f"a {seat.hello.role} does not send {type(message).__name__}")

    def _on_samples(
        self, seat: WorkerSeat, packet: m.SamplePacket, data: bytes | memoryview
    ) -> None:
        if packet.worker != seat.hello.name:
            self._expel(seat, f"it sent samples in the name of {packet.worker:.60}")
            return
        trainer = self._trainer_of(packet.worker)
        if trainer is None:
            return  # the worker keeps them, and sends them again when there is a trainer
        is_urgent = packet.awaits or not packet.samples  # finished episodes do not wait either
        max_bytes = self._max_waiting_bytes // trainer.hello.rank.size
        self.counters.dropped += trainer.waiting.add(seat.key, data, max_bytes)
        trainer.waiting.samples += self._min_samples if is_urgent else packet.samples
        self.counters.samples += packet.samples
        self.counters.packets += 1
        self._send_samples(trainer)

    def _send_samples(self, trainer: TrainerSeat) -> bool:
        waiting = trainer.waiting
        if waiting.samples < self._min_samples and waiting.size_bytes < _ENOUGH_BYTES:
            return True
        return waiting.send(functools.partial(self._link.send, trainer.peer))

    def _on_beat(self, seat: WorkerSeat, beat: m.Beat, data: bytes | memoryview) -> None:
        """Pass a heartbeat on to the worker's own rank and to rank 0, which writes the metrics."""
        seat.policy.on_received(beat.policy_received)
        if beat.worker != seat.hello.name or not seat.beats.take(1, self._now):
            return
        seat.newest_beat, seat.beat_at = beat, self._now
        own = self._trainer_of(seat.hello.name)
        for rank, trainer in self.ranks.items():
            if rank == 0 or trainer is own:
                self._link.send(trainer.peer, data)

    def _answer_worker(self, trainer: TrainerSeat, name: str, data: bytes | memoryview) -> None:
        """Pass a trainer's message on to one of its own workers."""
        worker = self.workers.get(name)
        if worker is not None and self._trainer_of(name) is trainer:
            self._link.send(worker.peer, data)

    def _on_policy(self, seat: TrainerSeat, frame: m.PolicyFrame, data: bytes | memoryview) -> None:
        if rank := seat.hello.rank.number:
            self._expel(seat, f"it is rank {rank}, and rank 0 publishes")
            return
        try:
            is_taken = self._policy.add(frame, data)
        except OversizeError as error:
            self._expel(seat, str(error))
            return
        if is_taken:
            self.counters.policies += self._policy.is_whole
            for worker in self.workers.values():
                self._send_policy(worker)

    def _send_policy(self, worker: WorkerSeat) -> bool:
        return self._policy.send(self._link, worker.peer, worker.policy)

    def _on_look(self, seat: WatcherSeat, look: m.Look) -> None:
        """Answer a watcher, unless its previous answer is still on the way or it asks too often."""
        if look.view < seat.newest_view or not self._looks.take(seat.key, 1, self._now):
            return
        sight = m.Sight(
            trainers=[trainer.hello.name for trainer in self.ranks.values()],
            counters=asdict(self.counters),
            workers=[
                (self._now - w.beat_at, w.newest_beat)
                for w in self.workers.values()
                if w.newest_beat
            ],
            reports=self._reports.after(look.report),
        )
        view = m.View(self._newest_view + 1, self._reports.newest)
        if self._link.send(seat.peer, m.encode(view, msgspec.msgpack.encode(sight))):
            self._newest_view = seat.newest_view = view.number

    def _return_probe(self, incoming: Incoming, body: memoryview) -> None:
        key = incoming.identity
        if len(body) <= m.MAX_PROBE_BYTES and self._probes.take(
            key.name, 1024 + len(body), self._now
        ):
            answer = m.Probe(time.time(), tmrl_like.__version__, key.name, key.roles)
            self._link.send(incoming.peer, m.encode(answer, body))

    def _trainer_of(self, worker: str) -> TrainerSeat | None:
        """Return the trainer that a worker's samples go to, or None if it is not connected."""
        for anyone in self.ranks.values():
            return self.ranks.get(m.share_of(worker, anyone.hello.rank.size))
        return None

    # -- seats -------------------------------------------------------------------------------------

    def _seat_of(self, incoming: Incoming) -> Seat | None:
        """Return the seat of this connection, or None.

        A seat is freed if the connection's key has changed, or may no longer play the role.
        """
        seat, identity = self._seats.get(incoming.peer), incoming.identity
        if seat is not None and (
            seat.key != identity.name or not may_be(identity, seat.hello.role)
        ):
            self._leave(seat)
            return None
        return seat

    def _on_hello(self, peer: bytes, identity: Identity, hello: m.Hello) -> None:
        seat = SEATS[hello.role](peer, identity.name, hello, self._now)
        own = next(filter(seat.is_of_process, self._seats.values()), None)
        if own is not None and own.peer == peer:  # the peer has sent more than one hello
            own.seen_at = self._now
            self._welcome(own)
            return
        if own is not None:
            self._leave(own)
        elif not self._new_seats.take(seat.key, 1, self._now):
            return  # the peer will ask again
        refusal = self._refusal_of(seat, identity)
        if refusal is not None:
            self._refuse(seat, refusal)
            self._link.forget(peer)
            return
        if peer in self._seats:
            self._leave(self._seats[peer])
        self._sit_down(seat)

    def _sit_down(self, seat: Seat) -> None:
        self._seats[seat.peer] = seat
        if isinstance(seat, WorkerSeat):
            self.workers[seat.hello.name] = seat
            self._bind_name(seat.hello.name, seat.key)
        elif isinstance(seat, TrainerSeat):
            self.ranks[seat.hello.rank.number] = seat
            self._welcome_workers_of(seat)
        self._welcome(seat)
        self._say(seat.key, logging.INFO, "%s %s is here (key %s)", *seat.who, seat.key)

    def _welcome_workers_of(self, trainer: TrainerSeat) -> None:
        """Welcome a trainer's workers again, so that they send what it has not stored; dismiss
        those whose spaces differ.
        """
        for worker in list(self.workers.values()):
            refusal = self._refusal_for_spaces(worker)
            if refusal is not None:
                self._dismiss(worker, refusal)
            elif self._trainer_of(worker.hello.name) is trainer:
                self._welcome(worker)

    def _welcome(self, seat: Seat) -> None:
        trainer = seat if isinstance(seat, TrainerSeat) else self._trainer_of(seat.hello.name)
        feed = trainer.feed if trainer is not None else 0
        wants_policy = seat is self.ranks.get(0) and not self._policy.is_whole
        self._tell(seat.peer, m.Welcome(feed, wants_policy))

    def _leave(self, seat: Seat) -> None:
        del self._seats[seat.peer]
        self._link.forget(seat.peer)
        if isinstance(seat, WorkerSeat):
            del self.workers[seat.hello.name]
        elif isinstance(seat, TrainerSeat):
            own = [
                worker
                for worker in self.workers.values()
                if self._trainer_of(worker.hello.name) is seat
            ]
            del self.ranks[seat.hello.rank.number]
            for worker in own:
                self._welcome(worker)

    def _bind_name(self, name: str, key: str) -> None:
        """Bind a worker's name to the first key that uses it, for as long as this server runs and
        the key is valid.

        A key can hold as many names as there are seats; for a further one it loses the oldest name
        that is not in use.
        """
        if self._owners.pop(name, None) == key:
            self._owners[name] = key
            return
        own = [known for known, owner in self._owners.items() if owner == key]
        if len(own) >= self._max_workers:
            del self._owners[next(known for known in own if known not in self.workers)]
        self._owners[name] = key

    # -- admission ---------------------------------------------------------------------------------

    def _refusal_of(self, seat: Seat, identity: Identity) -> m.Refusal | None:
        """Return why a peer cannot have a seat, or None; frees the seats of those it succeeds."""
        if not may_be(identity, seat.hello.role):
            return not_for(identity, seat.hello.role)
        if isinstance(seat, WorkerSeat):
            return self._refusal_of_worker(seat)
        if isinstance(seat, TrainerSeat):
            return self._refusal_of_trainer(seat)
        watchers = sum(isinstance(other, WatcherSeat) for other in self._seats.values())
        if watchers >= _MAX_WATCHERS:
            return later(f"the server has its {_MAX_WATCHERS} watchers")
        return None

    def _refusal_of_worker(self, worker: WorkerSeat) -> m.Refusal | None:
        name, key = worker.hello.name, worker.key
        if self.trainer is not None and worker.shares_file_with(self.trainer):
            return m.Refusal(_SHARED_FILE.format("worker", "trainer"))
        owner = self._owners.get(name, key)
        if owner != key and self._link.is_valid(owner):
            return later(
                f"the name {name} belongs to the workers of the key {owner!r}, and this one's is "
                f"{key!r}: give it another name (--name), or restart the server"
            )
        namesake = self.workers.get(name)
        if namesake is not None and not self._makes_room(namesake, worker):
            return later(
                f"a worker named {name} is connected already: give this one another name (--name)"
            )
        if len(self.workers) >= self._max_workers:
            return later(
                f"the server has its {self._max_workers} workers; raise server.max_workers, or "
                "wait until one leaves"
            )
        return self._refusal_for_spaces(worker)

    def _refusal_for_spaces(self, worker: WorkerSeat) -> m.Refusal | None:
        own = worker.hello.spaces
        trainers = self.trainer.hello.spaces if self.trainer else None
        if own is None or trainers is None or own == trainers:
            return None
        what, of_worker, of_trainer = own.difference(trainers)
        return later(
            f"this worker's {what} space is {of_worker:.300}, the trainer's is {of_trainer:.300}: "
            "start both with the same environment"
        )

    def _refusal_of_trainer(self, trainer: TrainerSeat) -> m.Refusal | None:
        if trainer.hello.incarnation in self._succeeded:  # it was frozen or cut off, and is back
            return m.Refusal(_SUCCEEDED)
        if any(map(trainer.shares_file_with, self.workers.values())):
            return m.Refusal(_SHARED_FILE.format("trainer", "worker"))
        for other in list(self.ranks.values()):
            if not trainer.sits_beside(other) and not self._makes_room(other, trainer):
                return later(
                    f"a trainer is connected already ({other.hello.name}): stop it, or give this "
                    "one its own server"
                )
        return None

    def _makes_room(self, sitting: Seat, successor: Seat) -> bool:
        """Free a seat if its process is dead or silent, or if another one succeeds it.

        Returns whether the seat was freed.
        """
        is_own = sitting.key == successor.key
        is_silent = self._now - sitting.seen_at > _ALIVE_WITHIN_S
        if is_own and successor.hello.goes_on_with(sitting.hello):
            # dead or frozen: it must not get its seat back
            self._succeeded.append(sitting.hello.incarnation)
            self._tell(sitting.peer, m.Refusal(_SUCCEEDED))
        elif not is_silent and not (is_own and self._is_dead(sitting, successor.hello)):
            return False
        line = "%s %s is gone or silent: another one takes its seat"
        self._say(sitting.key, logging.WARNING, line, *sitting.who)
        self._leave(sitting)
        return True

    def _is_dead(self, sitting: Seat, successor: m.Hello) -> bool:
        """Whether the process of a seat is dead: the successor takes over its incarnation, or has
        its name while its own connection is broken.
        """
        if sitting.hello.incarnation in successor.takes_over:
            return True
        return sitting.hello.name == successor.name and not self._tell(sitting.peer, m.Beat())

    # -- refusals ----------------------------------------------------------------------------------

    def _refuse(self, seat: Seat, refusal: m.Refusal) -> None:
        self.counters.refused += 1
        if self._unsaid.take(f"{seat.hello.name}: {refusal.reason}", 1, self._now):
            self._say(seat.key, logging.WARNING, "refused %s %s: %s", *seat.who, refusal.reason)
        self._tell(seat.peer, refusal)

    def _dismiss(self, seat: Seat, refusal: m.Refusal) -> None:
        self._refuse(seat, refusal)
        self._leave(seat)

    def _dismiss_revoked(self, peer: bytes) -> None:
        refusal = m.Refusal("the server refuses this machine's key: it was revoked")
        if seat := self._seats.get(peer):
            self._dismiss(seat, refusal)
        else:
            self._tell(peer, refusal)

    def _expel(self, seat: Seat, why: str) -> None:
        """Refuse a peer that breaks the protocol."""
        self.counters.malformed += 1
        self._dismiss(seat, m.Refusal(f"the server refuses this peer: {why}"))

    def _on_malformed(self, incoming: Incoming, error: DecodingError) -> None:
        """Count a malformed message, log it once, and dismiss a peer that has sent many."""
        self.counters.malformed += 1
        peer, key = incoming.peer, incoming.identity.name
        if self._unsaid.take(peer.hex(), 1, self._now):
            line = "refused a message (key %s): %s; more of the kind are only counted"
            self._say(key, logging.WARNING, line, key, error)
        seat = self._seats.get(peer)
        if isinstance(error, m.WireVersionError):
            self._tell(peer, other_version(error.found))
        elif seat is not None:
            seat.malformed += 1
            if seat.malformed >= _MALFORMED_BEFORE_REFUSAL:
                self._dismiss(seat, m.Refusal(f"the server does not understand a message: {error}"))

    def _tell(self, peer: bytes, message: m.AnyMessage) -> bool:
        return self._link.send(peer, m.encode(message))
