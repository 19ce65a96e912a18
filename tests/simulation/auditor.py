"""Holds the promises of docs/delivery.md against what happens in a simulation, while it happens."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter

from tmrl_like.wire import messages as m


class Life:
    """One incarnation of a lane: which samples it has appended, each with its number, 0, 1, 2, …

    Attributes:
        kept: rows that the sample log has taken.
        dropped: rows that it had no room for, or that its worker gave up: too many waited.
        maybe: the row that it was killed at while it appended it.
        counted: how many samples its worker has to say are lost.
        breaks: numbers of samples that do not continue the one before.
        made_at: when each sample was appended, by the world's clock.
        trained: the training steps are made up to this entry, its worker says.
        is_gone: its files went with its worker.
        is_cut: the power of its machine was cut; of its rows only those that are `safe` must be
            found.
        safe: rows that the system had written.
    """

    def __init__(self, auditor, worker, incarnation):
        self._auditor = auditor
        self.worker = worker.name
        self.incarnation = incarnation
        self.kept, self.dropped, self.maybe, self.safe = set(), set(), set(), set()
        self.breaks = set()
        self.made_at = []
        self.trained = self.counted = 0
        self.is_gone = self.is_cut = False
        self._entries, self._rows = [], []  # of samples that were taken

    @property
    def process(self):
        return self.worker, self.incarnation

    @property
    def holds_still(self):
        """In lockstep: the training steps for its newest sample are not made."""
        return bool(self._entries) and self.trained < self._entries[-1]

    def begin_sample(self, now):
        self.made_at.append(now)
        number = len(self.made_at) - 1
        self.maybe = {(*self.process, number)}
        return number

    def end_sample(self, number, entry, lost_samples):
        row = (*self.process, number)
        self.maybe = set()
        if lost_samples == len(self.made_at) - len(self._rows):
            self.dropped.add(row)
            self.counted += 1
            self.breaks.add(number + 1)
            self._auditor.count("a sample log was full")
        else:
            self.kept.add(row)
            self._entries.append(entry)
            self._rows.append(row)

    def note_break(self):
        self.breaks.add(len(self.made_at))

    def rows_between(self, after, last):
        """Those whose entries lie behind `after`, up to `last`."""
        return self._rows[bisect_right(self._entries, after) : bisect_right(self._entries, last)]

    def note_trained(self, entry):
        """Its worker hears that the training steps up to an entry are made."""
        self.trained = max(self.trained, entry)
        made = self._auditor.trained[self.process]
        assert entry <= made, f"{self.process} goes on behind entry {entry}, training is at {made}"


class MemoryAudit:
    """What one life of a trainer has in its memory.

    Attributes:
        rows: (worker, incarnation, number), in order.
        known: the same.
    """

    def __init__(self, auditor, training):
        self._auditor = auditor
        self._training = training
        self.rows = []
        self.known = set()
        self._streams = {}  # name: (process, number of its newest sample)
        self._newest = {}  # of each process

    def add(self, stream, rows):
        """Samples enter the memory, and that of no other rank."""
        process, newest = self._streams.get(stream, (None, None))
        for worker, incarnation, number in rows:
            own = (f"w{worker}", incarnation)
            row = (*own, number)
            life = self._auditor.lives[own]
            assert stream.startswith(f"{own[0]}/{incarnation}/"), (
                f"{stream} holds a sample of {own}"
            )
            assert row in life.kept or row in life.maybe, f"{own} has appended no sample {number}"
            assert row not in self.known, f"{row} comes twice"
            before = self._newest.get(own, -1)
            assert number > before or self._training.joins_stores, (
                f"{own}: sample {number} comes after {before}"
            )
            if newest is not None:
                assert process == own, f"{stream} holds samples of {process} and of {own}"
                assert number == newest + 1, f"{stream} joins sample {newest} to {number}"
                assert number not in life.breaks, f"{stream} goes on behind a break, at {number}"
            assert row not in self._training.rows, f"two ranks have {row}"
            process, newest = own, number
            self._newest[own] = max(number, before)
            self.known.add(row)
            self._training.rows.add(row)
            self.rows.append(row)
        if rows:
            self._streams[stream] = (process, newest)


class TrainingAudit:
    """What a training has, in all its ranks.

    Attributes:
        rows: in the memories of the ranks that live.
    """

    def __init__(self, auditor, training):
        self._auditor = auditor
        self._training = training
        self._memories = []
        self._acked = {}  # by rank and process: entries that are acknowledged as stored
        self._is_whole = False
        self.rows = set()
        # rows that were in a memory, and of which it was said that they are stored
        self._stored = set()
        self._before = set()  # rows that were in memories of those that live no more
        self._recent = set()  # the newest of them, which their stores have to have

    @property
    def joins_stores(self):
        """Whether stores of ranks that are no more are being read, one after the other."""
        return len(self._training.sizes) > 1 and not self._is_whole

    def begin(self):
        """A trainer, or several, begin; those before are dead."""
        if self._is_whole:  # else those before did not come so far
            size = self._training.memory_size
            self._recent = set().union(*(memory.rows[-size:] for memory in self._memories))
        self._is_whole = False
        self._memories = []
        self._before |= self.rows
        self.rows = set()

    def begin_memory(self):
        self._memories.append(MemoryAudit(self._auditor, self))
        return self._memories[-1]

    def end_replay(self, receipts):
        """All stores are in the memories: what was acknowledged as stored must be, too. `receipts`:
        of all ranks.
        """
        self._is_whole = True
        for worker, incarnation, entry in receipts:
            known = self._auditor.lives[worker, incarnation].rows_between(0, entry)
            self._stored |= self._before.intersection(known)
            self._auditor.note_steps_made((worker, incarnation, entry))
        lost = self._stored - self.rows
        if self._training.path is not None:
            late = sorted(lost & self._recent)
            assert not late, f"{len(late)} samples were stored and are lost: {late[:5]}"
        self._auditor.excused |= lost  # they made room, or there was no store
        self._stored -= lost

    def note_unsynced_cut(self):
        """The newest samples were not on the disk, as its user wanted."""
        self._auditor.excused |= self._stored | self.rows
        self._stored, self._before, self._recent = set(), set(), set()
        self._is_whole, self.rows = False, set()

    def note_ack(self, ack, rank):
        """A trainer says what it has stored."""
        process = ack.worker, ack.incarnation
        before = self._acked.get((rank, process), 0)
        rows = self._auditor.lives[process].rows_between(before, ack.stored)
        self._stored |= self._memories[rank].known.intersection(rows)
        self._acked[rank, process] = max(before, ack.stored)
        # who trains next will not hear of them
        self._auditor.note_steps_made((*process, ack.stored))


class Auditor:
    """Knows what was appended, acknowledged and stored; raises AssertionError where a promise is
    broken.
    """

    def __init__(self, world):
        self._world = world
        self.count = world.count
        self.lives = {}  # by process
        self.trainings = {}  # by name
        # by process: the training steps up to this entry are made, somewhere
        self.trained = Counter()
        self.excused = set()  # rows that nobody has to have any more
        self._stale = set()
        self._seated = {}  # by server: the training that has the seat, or had it last

    # -- workers -----------------------------------------------------------------------------------

    def begin_life(self, worker):
        incarnation = len(self.lives) + 1
        life = self.lives[worker.name, incarnation] = Life(self, worker, incarnation)
        return life

    def note_dropped(self, process, first, last, received, said):
        """A worker gives up entries `first` to `last`, and says how many samples are lost; None: it
        was killed.
        """
        life = self.lives[process]
        lost = len(life.rows_between(max(first - 1, received), last))
        is_sure = said is not None and not (life.maybe or life.is_cut)
        assert said == lost or not is_sure, (
            f"{process} gives up {lost} samples that no trainer has, counts {said}"
        )
        life.counted += lost
        life.dropped.update(life.rows_between(first - 1, last))
        self.note_steps_made((*process, last))  # nobody waits for what is given up
        self.count("samples were dropped")

    def look_at_link(self, link):
        """After each turn of a worker's link."""
        limit = self._world.options.outbox.window_bytes + (128 << 10)
        in_flight = link.outbox._in_flight_bytes
        assert in_flight <= limit, f"{in_flight} bytes of {link.name} on their way"

    def note_write_back(self, worker):
        """All that is in the folder of a worker is on its disk."""
        for life in self.lives.values():
            if life.worker == worker.name and not life.is_cut:
                life.safe = set(life.kept)

    def note_worker_cut(self, worker):
        """The power of a worker's machine was cut."""
        for life in self.lives.values():
            life.is_cut |= life.worker == worker.name

    # -- the wire ----------------------------------------------------------------------------------

    def on_sent(self, data, process=None):
        """A peer (`process`) or the server hands a message over."""
        self._world.trace(data)
        message, _ = m.decode(data)
        self._world.counts[type(message).__name__] += 1
        if self._world.lines is not None and not isinstance(message, m.Beat):
            self._world.note(f"    {process.name if process else 'server'}: {message!r:.300}")
        if isinstance(message, m.Ack) and process is not None:
            assert message.stored <= message.received, f"stored before it is received: {message}"
            process.training.audit.note_ack(message, process.rank)
            if message.again:
                self.count("entries were asked for again")

    # -- trainers ----------------------------------------------------------------------------------

    def note_stale(self, packet, is_told):
        """Samples came too late; `is_told`: the trainer has heard of their worker's clock."""
        life = self.lives[packet.worker, packet.incarnation]
        rows = life.rows_between(packet.first - 1, packet.last)
        if (
            rows
            and is_told
            and any(lane.life is life for robot in self._world.robots for lane in robot.lanes)
        ):
            age_s = self._world.now - life.made_at[rows[0][2]]
            assert age_s > self._world.options.max_age_s - 0.01, (
                f"samples {age_s:.2f} s old were dropped as too old"
            )
            self.count("samples came too late, by their worker's clock")
        self._stale.update(rows)
        self.count("samples came too late")

    def note_steps_made(self, receipt):
        """The training steps are made that samples up to this entry allow."""
        worker, incarnation, entry = receipt
        self.trained[worker, incarnation] = max(entry, self.trained[worker, incarnation])

    # -- the server --------------------------------------------------------------------------------

    def look_at_server(self, server):
        relay = server.relay
        names = Counter(seat.who for seat in relay._seats.values())
        doubled = [who for who, count in names.items() if count > 1 and who[0] == "worker"]
        assert not doubled, f"two seats of {doubled}"
        trainers = [seat for seat in relay._seats.values() if seat.hello.role == "trainer"]
        if trainers and (training := trainers[0].hello.name[:2]) != self._seated.setdefault(
            server.name, training
        ):
            self._seated[server.name] = training
            self.count("another training took the seat")
        groups = {(seat.hello.rank.group, seat.hello.rank.number) for seat in trainers}
        assert len(groups) == len(trainers), "two trainers have one seat"
        assert len({seat.hello.rank.group for seat in trainers}) <= 1, "two groups have seats"
        for seat in relay.ranks.values():
            assert seat.waiting.size_bytes <= self._world.options.relay_bytes

    # -- the end -----------------------------------------------------------------------------------

    def settle(self):
        """All has arrived that could: each sample is in a memory, or was counted as lost."""
        present = self.excused | self._stale
        for training in self.trainings.values():
            present |= training.rows
        for life in self.lives.values():
            owed = set() if life.is_gone else life.safe if life.is_cut else life.kept
            lost = sorted(owed - present - life.dropped)
            assert not lost, (
                f"{life.process} has lost {len(lost)} of {len(life.kept)} samples: {lost[:5]}"
            )
        for robot in self._world.robots:
            for lane in robot.lanes:
                self._settle_lane(lane.life, robot.worker)

    @staticmethod
    def _settle_lane(life, worker):
        """Of a robot that lives."""
        assert not (worker.is_in_lockstep and life.holds_still), (
            f"{life.process} waits for training, which is done"
        )
        said = worker.link.outbox._senders[life.incarnation].source.lost_samples
        assert said == life.counted, (
            f"{life.process} has lost {life.counted} samples, and says {said}"
        )
