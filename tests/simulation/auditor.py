"""Checks the promises of docs/delivery.md against events of a simulation, as they happen."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter

from tmrl_like.delivery.source import Source
from tmrl_like.wire import messages as m


class Life:
    """One incarnation of a lane, with the samples that it has appended, numbered 0, 1, 2, …

    Attributes:
        kept: rows that the sample log has taken.
        dropped: rows for which the log had no room.
        maybe: the row that was being appended when the process was killed.
        breaks: numbers of samples that do not continue the one before.
        made: number of samples, kept or not.
        trained: training steps have been made up to this entry, as far as its worker has been told.
        is_gone: whether its files were removed with its worker.
        is_cut: whether the power of its machine was cut; then only rows in `safe` must be found.
        safe: rows that the system had written to the disk.
    """

    def __init__(self, auditor, worker, incarnation):
        self._auditor = auditor
        self.worker = worker.name
        self.incarnation = incarnation
        self.kept, self.dropped, self.maybe, self.safe = set(), set(), set(), set()
        self.breaks = set()
        self.made = self.trained = 0
        self.is_gone = self.is_cut = False
        self._entries, self._rows = [], []  # of kept samples

    @property
    def process(self):
        return self.worker, self.incarnation

    @property
    def holds_still(self):
        """Whether training steps for its newest sample are outstanding; in lockstep it waits for
        them.
        """
        return bool(self._entries) and self.trained < self._entries[-1]

    def begin_sample(self):
        number = self.made
        self.made += 1
        self.maybe = {(*self.process, number)}
        return number

    def end_sample(self, number, entry, lost_samples):
        row = (*self.process, number)
        self.maybe = set()
        if lost_samples == self.made - len(self._rows):
            self.dropped.add(row)
            self.breaks.add(number + 1)
            self._auditor.count("a sample log was full")
        else:
            self.kept.add(row)
            self._entries.append(entry)
            self._rows.append(row)

    def note_break(self):
        self.breaks.add(self.made)

    def rows_between(self, after, last):
        """Return the rows whose entries come after entry `after`, up to entry `last`."""
        return self._rows[bisect_right(self._entries, after) : bisect_right(self._entries, last)]

    def note_trained(self, entry):
        """Note that its worker was told that the training steps up to an entry are made."""
        self.trained = max(self.trained, entry)
        made = self._auditor.trained[self.process]
        assert entry <= made, f"{self.process} goes on behind entry {entry}, training is at {made}"


class MemoryAudit:
    """The memory of one process of a trainer.

    Attributes:
        rows: list of (worker, incarnation, number), in order of arrival.
        known: the same rows as a set.
    """

    def __init__(self, auditor, training):
        self._auditor = auditor
        self._training = training
        self.rows = []
        self.known = set()
        self._streams = {}  # by name: (process, number of its newest sample)
        self._newest = {}  # number of each process's newest sample

    def add(self, stream, rows):
        """Check and note samples that enter this memory; no other rank may have them."""
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
    """The samples of one training, over all its ranks.

    Attributes:
        rows: set of all rows in the memories of live ranks.
    """

    def __init__(self, auditor, training):
        self._auditor = auditor
        self._training = training
        self._memories = []
        self._acked = {}  # by rank and process: newest entry acknowledged as stored
        self._is_whole = False
        self.rows = set()
        # rows that were in a memory, and that a trainer acknowledged as stored
        self._stored = set()
        self._before = set()  # rows in memories of dead ranks
        self._recent = set()  # the newest of these, which their stores must contain

    @property
    def joins_stores(self):
        """Whether the stores of former ranks are being read, one after the other."""
        return len(self._training.sizes) > 1 and not self._is_whole

    def begin(self):
        """Begin with new trainers; the former ones are dead."""
        if self._is_whole:  # otherwise the former ones had not finished reading their stores
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
        """Check, after all stores were read, that each sample acknowledged as stored was found.
        `receipts`: those of all ranks.
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
        self._auditor.excused |= lost  # removed to make room, or there was no store
        self._stored -= lost

    def note_unsynced_cut(self):
        """Excuse samples lost in a power cut because the user chose to sync less often."""
        self._auditor.excused |= self._stored | self.rows
        self._stored, self._before, self._recent = set(), set(), set()
        self._is_whole, self.rows = False, set()

    def note_ack(self, ack, rank):
        """Note a trainer's acknowledgement of stored samples."""
        process = ack.worker, ack.incarnation
        before = self._acked.get((rank, process), 0)
        rows = self._auditor.lives[process].rows_between(before, ack.stored)
        self._stored |= self._memories[rank].known.intersection(rows)
        self._acked[rank, process] = max(before, ack.stored)
        # the next trainer will not learn of these entries
        self._auditor.note_steps_made((*process, ack.stored))


class Auditor:
    """Records what was appended, acknowledged and stored; raises AssertionError if a promise is
    broken.
    """

    def __init__(self, world):
        self._world = world
        self.count = world.count
        self.lives = {}  # by process
        self.trainings = {}  # by name
        # by process: the entry up to which training steps were made, by any trainer
        self.trained = Counter()
        self.excused = set()  # rows that may be lost

    # -- workers -----------------------------------------------------------------------------------

    def begin_life(self, worker):
        incarnation = len(self.lives) + 1
        life = self.lives[worker.name, incarnation] = Life(self, worker, incarnation)
        return life

    def note_write_back(self, worker):
        """Note that all files of a worker's folder were written to its disk."""
        for life in self.lives.values():
            if life.worker == worker.name and not life.is_cut:
                life.safe = set(life.kept)

    def note_worker_cut(self, worker):
        """Note that the power of a worker's machine was cut."""
        for life in self.lives.values():
            life.is_cut |= life.worker == worker.name

    # -- the wire ----------------------------------------------------------------------------------

    def on_sent(self, data, process=None):
        """Check and count a message sent by a peer (`process`) or by the server."""
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

    def note_steps_made(self, receipt):
        """Note that the training steps for all samples up to an entry were made."""
        worker, incarnation, entry = receipt
        self.trained[worker, incarnation] = max(entry, self.trained[worker, incarnation])

    # -- the server --------------------------------------------------------------------------------

    def look_at_server(self, server):
        """Check that what waits at a server is within its limit."""
        for seat in server.relay.ranks.values():
            assert seat.waiting.size_bytes <= self._world.options.relay_bytes

    # -- the end -----------------------------------------------------------------------------------

    def settle(self):
        """Check at the end that each sample is in a memory or was counted as lost."""
        present = set(self.excused)
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
        """Check the end state of a live lane."""
        assert not (worker.is_in_lockstep and life.holds_still), (
            f"{life.process} waits for training, which is done"
        )
        source = Source(worker.root, worker.name, life.incarnation)
        source.ends_at(0)  # it looks at all files
        said = source.lost_samples
        source.close()
        lost = len(life.dropped)
        assert said == lost, f"{life.process} has lost {lost} samples, and says {said}"
