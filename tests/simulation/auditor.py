"""Holds the promises of docs/architecture.md against what happens in a simulation, while it happens."""

from __future__ import annotations

from collections import Counter

from tmrl_like.delivery.log import Segment, entries_of
from tmrl_like.wire import messages as m
from tmrl_like.wire.records import unseal


class Life:
    """One incarnation of a lane: which samples it has appended.

    Attributes:
        kept: numbers of samples that the sample log has taken.
        dropped: that it had no room for.
        maybe: it was killed while it appended this one.
        breaks: numbers of samples that do not continue the one before.
        is_misfit: its samples do not fit the trainers' memories.
        made_at: when each sample was appended, by the world's clock.
        is_gone: its files went with its worker.
        is_cut: the power of its machine was cut; of its rows only those that are `safe` must be found.
        safe: rows that the system had written, in sealed packets or after the process had ended.
        counted: samples that its worker says were lost.
    """

    def __init__(self, worker, incarnation, is_misfit):
        self.worker = worker.name
        self.spools = worker.spools
        self.incarnation = incarnation
        self.is_misfit = is_misfit
        self.kept = set()
        self.dropped = set()
        self.maybe = set()
        self.breaks = set()
        self.next = 0
        self.made_at = []
        self.is_gone = self.is_refused = self.is_cut = False
        self.safe = set()
        self.counted = 0
        self.told = 0  # of those that were dropped before they were sealed: known to its link
        self.packets = {}  # sequence: (first sample, samples, breaks, reports)

    @property
    def process(self):
        return self.worker, self.incarnation

    def begin_sample(self, now):
        self.next += 1
        self.made_at.append(now)
        self.maybe.add(self.next - 1)
        return self.next - 1

    def end_sample(self, number, is_lost):
        self.maybe.discard(number)
        (self.dropped if is_lost else self.kept).add(number)
        if is_lost:
            self.breaks.add(number + 1)

    def note_break(self):
        self.breaks.add(self.next)


class MemoryAudit:
    """What one life of a trainer has in its memory.

    Attributes:
        rows: (worker, incarnation, number), in order.
        known: the same.
    """

    def __init__(self, auditor, training, rank):
        self._auditor = auditor
        self._training = training
        self.rank = rank
        self.rows = []
        self.known = set()
        self._streams = {}  # name: (process, number of its newest sample)
        self._newest = {}  # of each process

    def add(self, stream, rows):
        """Samples enter the memory, and that of no other rank."""
        process, newest = self._streams.get(stream, (None, None))
        for worker, incarnation, number in rows:
            own = (f"w{worker}", incarnation)
            life = self._auditor.lives[own]
            assert stream.startswith(f"{own[0]}/{incarnation}/"), f"{stream} holds a sample of {own}"
            assert number in life.kept or number in life.maybe, f"{own} has appended no sample {number}"
            row = (*own, number)
            assert row not in self.known, f"{row} comes twice"
            before = self._newest.get(own, -1)
            assert number > before or self._training.joins_logs, f"{own}: sample {number} comes after {before}"
            if newest is not None:
                assert process == own, f"{stream} holds samples of {process} and of {own}"
                assert number == newest + 1, f"{stream} joins sample {newest} to {number}"
                assert number not in life.breaks, f"{stream} goes on behind a break, at {number}"
            process, newest = own, number
            self._newest[own] = max(number, before)
            self.known.add(row)
            assert row not in self._training.rows, f"two ranks have {row}"
            self._training.rows.add(row)
            self.rows.append(row)
        if rows:
            self._streams[stream] = (process, newest)


class TrainingAudit:
    """What a training has, in all its ranks.

    Attributes:
        rows: in the memories of the ranks that live.
        stored: rows that were in a memory, and acknowledged as stored.
    """

    def __init__(self, auditor, training):
        self._auditor = auditor
        self._training = training
        self._memories = []
        self._acked = {}  # by rank and process: packets that are acknowledged as stored
        self._is_whole = False
        self.rows = set()
        self.stored = set()
        self._recent = set()  # of those that live no more: the newest, which their logs have to have

    @property
    def joins_logs(self):
        """Whether logs of ranks that are no more are being read, one after the other."""
        return len(self._training.sizes) > 1 and not self._is_whole

    def begin(self):
        """A trainer, or several, begin; those before are dead."""
        if self._is_whole:  # else those before did not come so far
            size = self._training.memory_size
            self._recent = set().union(*(memory.rows[-size:] for memory in self._memories))
        self._is_whole = False
        self._memories = []
        self.rows = set()

    def begin_memory(self, rank):
        self._memories.append(MemoryAudit(self._auditor, self, rank))
        return self._memories[-1]

    def end_replay(self):
        """All logs are in the memories: what was acknowledged as stored must be, too."""
        self._is_whole = True
        lost = self.stored - self.rows
        if self._training.path is not None:
            late = sorted(lost & self._recent)
            assert not late, f"{len(late)} samples were acknowledged as stored and are lost: {late[:5]}"
        self._auditor.excused |= lost  # they made room, or there was no log
        self.stored -= lost

    def note_power_cut(self):
        """The last samples were not on the disk."""
        self._auditor.excused |= self.stored
        self.stored = set()

    def note_stored(self, ack, rank):
        """A trainer acknowledges packets as stored."""
        life = self._auditor.lives[ack.worker, ack.incarnation]
        name = rank, life.process
        before = self._acked.get(name, 0)
        for sequence in range(before + 1, ack.stored + 1):
            self.stored |= self._auditor.rows_of(life.process, sequence) & self._memories[rank].known
        self._acked[name] = max(before, ack.stored)


class Auditor:
    """Knows what was appended, acknowledged and stored; raises AssertionError where a promise is broken."""

    def __init__(self, world):
        self._world = world
        self.lives = {}  # by process
        self.trainings = {}  # by name
        self.excused = set()  # rows that nobody has to have any more
        self._stale = set()
        self._seated = {}  # by server: the training that has the seat, or had it last
        self._dropped = []  # packets that an outbox gave up: (process, sequence)
        self._in_memory_alone = Counter()  # by worker: samples that a full disk had not taken when their link ended
        self._recounted = set()  # workers whose links have ended: the next may find, and drop, the same

    # -- workers ---------------------------------------------------------------------------------------

    def begin_life(self, worker):
        incarnation = len(self.lives) + 1
        is_misfit = self._world.rng.random() < self._world.options.misfits
        life = self.lives[worker.name, incarnation] = Life(worker, incarnation, is_misfit)
        return life

    def look_at_link(self, link):
        """After each turn of a worker's link."""
        limits = self._world.options.outbox
        for outbox in link.outboxes:
            life = self.lives[link.worker.name, outbox.incarnation]
            lost = outbox.lost_samples
            assert lost >= life.counted, f"{life.process} has lost {life.counted} samples, and now {lost}"
            if lost > life.counted:
                self._world.count("samples were dropped")
            sender = outbox._sender
            life.counted, life.told = lost, sender.lost_before
            largest = max((packet.size_bytes for b in sender._backlogs.values() for packet in b), default=0)
            in_memory = [packet for packet in sender._own if packet.record is not None]
            memory_bytes = sum(packet.size_bytes for packet in in_memory)
            assert memory_bytes <= limits.max_bytes + largest, f"{memory_bytes} bytes in the memory of {link.name}"
            held = sum(packet.samples for packet in in_memory)
            assert held <= limits.max_held_samples + limits.max_samples, f"{held} samples in memory of {link.name}"
            in_flight = sender.in_flight_bytes
            assert in_flight <= limits.window_bytes + (128 << 10), f"{in_flight} bytes of {link.name} on their way"
            if not outbox._log.alarm and link.worker.spools:
                size = sum(p.size_bytes for b in sender._backlogs.values() for p in b if p.place is not None)
                lives = 1 + len(sender.predecessors)  # what each has left counts from the next packet on
                limit = lives * limits.spool_max_bytes + largest
                assert size <= limit, f"{size} bytes on the disk of {link.name}"

    def on_refused(self, link, error):
        """A worker process ends because the server said so."""
        lives = [self.lives[link.worker.name, outbox.incarnation] for outbox in link.outboxes]
        assert "do not fit" in str(error), f"{link.name} is refused: {error}"
        assert any(life.is_misfit for life in lives), f"{link.name} is rejected, and its samples fit: {error}"
        for life in lives:
            life.is_refused = True
        self._world.count("a misfit was told to leave")

    def note_end(self, link):
        """A link was killed, or ends."""
        worker = link.worker.name
        self._recounted.add(worker)
        for outbox in link.outboxes:
            not_in_log = outbox._sender._not_in_log
            self._in_memory_alone[worker] += sum(packet.samples for packet in not_in_log if not packet.is_gone)

    def note_write_back(self, worker):
        """All that is in the folder of a worker is on its disk."""
        alive = [lane.life for lane in worker.env.lanes] if worker.env.is_alive else ()
        for life in self.lives.values():
            if life.worker == worker.name:
                is_whole = not life.is_cut and life not in alive
                life.safe = {(*life.process, number) for number in life.kept} if is_whole else set()
        for path in worker.root.rglob("*.log"):
            for entry in entries_of(Segment(path)):
                if isinstance(packet := entry.message, m.SamplePacket):
                    life = self.lives[packet.worker, packet.incarnation]
                    life.safe |= {(*life.process, packet.policy_version - 1 + i) for i in range(packet.samples)}

    def note_worker_cut(self, worker):
        """The power of a worker's machine was cut."""
        for life in self.lives.values():
            life.is_cut |= life.worker == worker.name

    def note_dropped(self, process, sequence, has_arrived):
        """An outbox gives a packet up; the memory that has it may go before its log does."""
        if has_arrived:
            self.excused |= self.rows_of(process, sequence)
        else:
            self._dropped.append((process, sequence))

    def rows_of(self, process, sequence):
        """Of a packet, if it was ever sent."""
        first, samples, *_ = self.lives[process].packets.get(sequence, (0, 0))
        return {(*process, first + i) for i in range(samples)}

    # -- the wire --------------------------------------------------------------------------------------

    def on_sent(self, data, process=None):
        """A peer (`process`) or the server hands a message over."""
        self._world.trace(data)
        message, body = m.decode(data)
        self._world.counts[type(message).__name__] += 1
        if self._world.lines is not None and not isinstance(message, m.Beat):
            self._world.note(f"    {process.name if process else 'server'}: {message!r:.300}")
        if isinstance(message, m.Bundle) and process is not None:
            self._on_bundle(message, body)
        elif isinstance(message, m.Ack) and process is not None:
            self.trainings[process.training.name].note_stored(message, process.rank)
            if message.again:
                self._world.count("packets were asked for again")

    def _on_bundle(self, bundle, body):
        life = self.lives[bundle.worker, bundle.incarnation]
        previous = 0
        for _, content in unseal(body):
            packet, _ = m.decode(content)
            assert packet.sequence > previous, f"packet {packet.sequence} of {life.process} behind {previous}"
            previous = packet.sequence
            known = packet.policy_version - 1, packet.samples, packet.breaks, packet.episodes  # bytes may be compressed
            before = life.packets.setdefault(packet.sequence, known)
            if life.is_cut and known != before:
                life.packets[packet.sequence] = _common(before, known)
            else:
                assert known == before, f"packet {packet.sequence} of {life.process} was {before}, and is now {known}"

    def note_stale(self, packet, is_told):
        """Samples came too late; `is_told`: the trainer has heard of their worker's clock."""
        first, life = packet.policy_version - 1, self.lives[packet.worker, packet.incarnation]
        if is_told and any(lane.life is life for worker in self._world.workers for lane in worker.env.lanes):
            age_s = self._world.now - life.made_at[first]
            assert age_s > self._world.options.max_age_s - 0.01, f"samples {age_s:.2f} s old were dropped as too old"
            self._world.count("samples came too late, by their worker's clock")
        self._stale.update((packet.worker, packet.incarnation, first + i) for i in range(packet.samples))
        self._world.count("samples came too late")

    # -- trainers --------------------------------------------------------------------------------------

    def look_at_trainer(self, trainer):
        receiver = trainer.checkpoints.receiver
        waiting = sum(w.size_bytes for w in receiver._waiting)
        assert waiting <= 2 * receiver.limits.total_bytes, f"{waiting} bytes wait for the log of {trainer.name}"

    # -- the server ------------------------------------------------------------------------------------

    def look_at_seats(self, server):
        relay = server.relay
        names = Counter(seat.who for seat in relay._seats.values())
        doubled = [who for who, count in names.items() if count > 1 and who[0] == "worker"]
        assert not doubled, f"two seats of {doubled}"
        assert {id(seat) for seat in relay.workers} <= {id(seat) for seat in relay._seats.values()}
        trainers = [seat for seat in relay._seats.values() if seat.hello.role == "trainer"]
        if trainers and (training := trainers[0].hello.name[:2]) != self._seated.setdefault(server.name, training):
            self._seated[server.name] = training
            self._world.count("another training took the seat")
        groups = {(seat.hello.rank.group, seat.rank if seat.hello.rank.group else 0) for seat in trainers}
        assert len(groups) == len(trainers), "two trainers have one seat"
        assert len({seat.hello.rank.group for seat in trainers}) <= 1, "two groups have seats"
        for seat in relay.ranks.values():
            assert seat.waiting.size_bytes <= self._world.options.relay_bytes

    # -- the end ---------------------------------------------------------------------------------------

    def settle(self, set_aside, alive):
        """All has arrived that could: each sample is in a memory, or counted as lost.

        `set_aside` are processes that trainers have rejected; `alive` those that are not dead, which have told all.
        """
        present = self.excused | self._stale
        for training in self.trainings.values():
            present |= training.rows
        missing, counted, doubtful, is_known = Counter(), Counter(), Counter(), dict.fromkeys(self._workers, True)
        for life in self.lives.values():
            counted[life.worker] += life.counted
            if life.is_gone or life.is_misfit or life.process in set_aside:
                is_known[life.worker] = False
            elif life.is_cut:
                is_known[life.worker] = False
                missing[life.worker] += len(life.safe - present)
            else:
                own = {(*life.process, number) for number in life.kept}
                missing[life.worker] += len(own - present) + (len(life.dropped) if life in alive else life.told)
        for process, sequence in self._dropped:
            doubtful[process[0]] += len(self.rows_of(process, sequence) & present)
        for worker in self._workers:
            lost, said = missing[worker], counted[worker]
            unknown = self._in_memory_alone[worker]
            assert lost <= said + unknown, f"{worker} has lost {lost} samples, and counted {said}"
            if is_known[worker] and worker not in self._recounted:
                assert said <= lost + doubtful[worker], f"{worker} counted {said} lost samples, and has lost {lost}"

    @property
    def _workers(self):
        return sorted({life.worker for life in self.lives.values()})


def _common(before, now):
    """The samples that a packet has either way: after a power cut others may be in it."""
    first = max(before[0], now[0])
    return first, max(0, min(before[0] + before[1], now[0] + now[1]) - first), *now[2:]
