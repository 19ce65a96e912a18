"""The trainers of a simulation: the product's own parts, without threads, under the scheduler of the world."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
from auditor import TrainingAudit
from disk import PowerDisk
from kill_lines import Killed
from simulated_machines import SPACES, Machine, Process
from simulated_network import SimulatedPeerLink

from tmrl_like.errors import CheckpointError, MemoryContractError
from tmrl_like.trainer.checkpoints import Checkpoints
from tmrl_like.trainer.freshness import FreshnessLimits
from tmrl_like.trainer.link import TrainerLink
from tmrl_like.trainer.ranks import Alone
from tmrl_like.transport.base import Identity
from tmrl_like.wire import messages as m


class SimulatedRanks(Alone):
    """One of several trainers, whose collectives others have answered before.

    Attributes:
        receipts: what each has stored; None: they are still building.
    """

    def __init__(self, rank, size, run):
        self.rank = rank
        self.size = size
        self.run = run
        self.receipts = None

    def gather(self, data):
        return [data, self.run.encode()] if self.receipts is None else self.receipts

    def sum(self, *numbers):
        return [number + bool(self.run) for number in numbers]


class Memory:
    """Rows (worker, incarnation, number), in the order in which they came; each is audited."""

    def __init__(self, audit, memory_size):
        self.memory_size = memory_size
        self._audit = audit

    def __len__(self):
        return len(self._audit.rows)

    def append(self, buffer):
        columns = [segment.tree()[1] for block in buffer.blocks for segment in block.segments]
        if any(column.shape[1] != 3 for column in columns):
            raise MemoryContractError("the observation is too long")
        rows = [tuple(row) for column in columns for row in column.tolist()]
        self._audit.add(buffer.stream, rows)


class Freshness(FreshnessLimits):
    """Tells the auditor what is too old."""

    def __init__(self, world, max_age_s):
        super().__init__(max_age_s)
        self._world = world

    def admit(self, packet, now_s, newest_version, ahead_s=0.0):
        is_admitted = super().admit(packet, now_s, newest_version, ahead_s)
        if not is_admitted:
            self._world.auditor.note_stale(packet, is_told=ahead_s != 0.0)
        return is_admitted


class TrainerProcess(Process):
    """One trainer, or one of several: connection and training thread take turns."""

    def __init__(self, world, training, rank, machine):
        super().__init__(world, f"{training.name}-{rank}", machine)
        self.training = training
        self.rank = rank
        self.identity = Identity("key of the trainers", ("trainer",))
        self.session = self.checkpoints = None

    def start(self):
        """As `Trainer.__init__`: bring back what the log holds; `connect` follows when all have done so."""
        self.begin()
        world, training = self.world, self.training
        size = len(training.ranks)
        audit = world.auditor.trainings[training.name].begin_memory(self.rank)
        self.ranks = SimulatedRanks(self.rank, size, training.run)
        self.checkpoints = Checkpoints(training.path, None, None, self.ranks, training.sync_every_s, in_one_thread=True)
        self.memory = Memory(audit, training.memory_size)
        pacer = SimpleNamespace(recorded_samples=0, before_samples=lambda *_: None)
        made = SimpleNamespace(memory=self.memory, pacer=pacer, total_samples=0, total_updates=0, epoch=0)
        self.session = None
        try:
            self.checkpoints.build(lambda: made, "all")
        except CheckpointError:
            if not self.machine.fails_to_sync:
                raise
            self.die()
            return
        training.run = self.checkpoints.receiver.run

    def connect(self):
        world, training = self.world, self.training
        self.ranks.receipts = [msgspec.msgpack.encode(rank.checkpoints.receiver.receipts) for rank in training.ranks]
        self.checkpoints.gather_receipts(m.share_of)
        link = SimulatedPeerLink(world, training.server, self, self.identity)
        freshness = Freshness(world, world.options.max_age_s)
        size = len(training.ranks)
        rank = m.ALONE if size == 1 else m.Rank(self.rank, size, training.group)
        self.link = TrainerLink(
            link, training.server, self.name, SPACES, self.checkpoints.receiver, freshness, rank=rank
        )
        self.session = self.link.session

    def turn(self):
        self.link.session.turn()
        self.world.auditor.look_at_trainer(self)

    def train(self):
        """As `TrainingOffline._update_buffer`."""
        taken, rejected = [], set()
        for delivery in self.link.retrieve():
            process = delivery.receipt[:2]
            if process in rejected:
                continue
            try:
                if len(delivery.buffer):
                    self.memory.append(delivery.buffer)
            except MemoryContractError as error:
                self.link.reject(delivery.receipt, str(error))
                rejected.add(process)
                self.world.count("a worker was rejected")
            else:
                taken.append(delivery)
        if taken:
            self.link.confirm(taken)

    def leave(self):
        """End in good order."""
        self.train()
        self.link.close(0.0)
        self.checkpoints.close()
        self.is_alive = False
        self.start_at = self.world.now
        self.session = None
        self.training.note_death()

    def die(self):
        super().die()
        if self.session is not None:
            self.world.network.drop_peer(self.link.session._link)
        self.session = None
        for packet_log in (self.checkpoints._log, *self.checkpoints._left):
            if packet_log is not None:
                packet_log._end_segment()
                packet_log._lock.release()
        self.training.note_death()


class Training:
    """One trainer, or several that learn as one; what it keeps is on one disk.

    Attributes:
        power: of the disk; None: nothing is kept.
    """

    def __init__(self, world, number, server, sizes, keeps, memory_size):
        self.world = world
        self.name = f"t{number}"
        self.server = server
        self.path = world.folder / self.name if keeps else None
        self.memory_size = memory_size
        self.run = ""
        self.group = 0
        self.machine = Machine(world)
        self.sync_every_s = world.rng.choice((0.0, 0.1, 0.25))
        self.power = None
        self.is_cut = False
        if keeps:
            self.path.mkdir()
            self.power = PowerDisk(self.path, really_syncs=True)
        self.sizes = sizes
        self.ranks = []
        world.auditor.trainings[self.name] = TrainingAudit(world.auditor, self)

    @property
    def is_alive(self):
        return any(rank.is_alive for rank in self.ranks)

    def note_death(self):
        """Of a group that has lost one nobody goes on."""
        for rank in self.ranks:
            if rank.is_alive:
                rank.die()
        if self.is_cut:
            self.is_cut = False
            self.world.count("the power was cut")
            self.power.before = lambda number: None
            self.power.cut(self.world.rng)
            if not self.sync_every_s:
                self.world.auditor.trainings[self.name].note_power_cut()

    def cut_power_in(self, operations):
        """Cut the power of the machine at one of its next writes."""

        def before(number):
            if number >= last:
                self.is_cut = True
                raise Killed

        last = len(self.power.operations) + operations
        self.power.before = before

    def start(self):
        """Start a group again, perhaps of another size."""
        if self.is_alive or any(self.world.now < rank.start_at for rank in self.ranks):
            return
        rng = self.world.rng
        self.group = rng.getrandbits(40) + 1
        self.ranks = [TrainerProcess(self.world, self, rank, self.machine) for rank in range(rng.choice(self.sizes))]
        audit = self.world.auditor.trainings[self.name]
        audit.begin()
        for do in ("start", "connect"):
            for rank in self.ranks:
                rank.run(getattr(rank, do))
                if not rank.is_alive:
                    self.note_death()
                    return
        audit.end_replay()
