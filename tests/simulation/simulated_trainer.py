"""The trainers of a simulation: the package's own parts without threads, under the scheduler of the
world.
"""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
from auditor import TrainingAudit
from disk import PowerDisk
from kill_lines import Killed
from kit.executors import Beside
from simulated_machines import Process
from simulated_network import SimulatedPeerLink
from simulated_worker import SPACES

from tmrl_like.trainer.checkpoint_file import Kept
from tmrl_like.trainer.checkpoints import Checkpoints
from tmrl_like.trainer.options import Schedule
from tmrl_like.trainer.pacing import Pacer
from tmrl_like.trainer.ranks import Alone
from tmrl_like.trainer.trainer_link import TrainerLink
from tmrl_like.transport.base import Identity
from tmrl_like.wire import messages as m


class SimulatedRanks(Alone):
    """One rank of a group of trainers, whose collectives return at once with answers collected
    before.

    Attributes:
        receipts: what each rank has stored; None: ranks are still being built.
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
    """A memory of rows (worker, incarnation, number) in order of arrival; each is audited."""

    def __init__(self, audit, memory_size):
        self.memory_size = memory_size
        self._audit = audit

    def __len__(self):
        return len(self._audit.rows)

    def append(self, buffer):
        columns = [segment.tree()[1] for block in buffer.blocks for segment in block.segments]
        self._audit.add(
            buffer.stream, [tuple(row) for column in columns for row in column.tolist()]
        )


class TrainerProcess(Process):
    """A trainer, or one rank of several; its connection and its training thread take turns."""

    def __init__(self, world, training, rank):
        super().__init__(world, f"{training.name}-{rank}")
        self.training = training
        self.rank = rank
        self.identity = Identity("key of the trainers", ("trainer",))
        self.session = self.checkpoints = self.peer = None
        self._awaited = []

    def start(self):
        """Load what the store holds, as `Trainer.__init__` does; `connect` follows when all ranks
        are done.
        """
        self.begin()
        training = self.training
        self.beside = Beside()
        self.ranks = SimulatedRanks(self.rank, len(training.ranks), training.run)
        self.checkpoints = Checkpoints(
            *(training.path, None, None, self.ranks, training.sync_every_s),
            beside=lambda name: self.beside,
        )
        self.memory = Memory(training.audit.begin_memory(), training.memory_size)
        pacer = Pacer(Schedule())
        counts = {"total_samples": 0, "total_updates": 0, "epoch": 0, "elapsed_s": 0.0}
        made = SimpleNamespace(memory=self.memory, pacer=pacer, kept=Kept(), **counts)
        self.checkpoints.build(lambda: made, "all")
        training.run = self.checkpoints.receiver.run

    def connect(self):
        training, size = self.training, len(self.training.ranks)
        receiver = self.checkpoints.receiver
        self.ranks.receipts = [
            msgspec.msgpack.encode(rank.checkpoints.receiver.receipts) for rank in training.ranks
        ]
        self.checkpoints.gather_receipts()
        self.peer = SimulatedPeerLink(self.world, training.server, self, self.identity)
        rank = m.ALONE if size == 1 else m.Rank(self.rank, size, training.group)
        self.link = TrainerLink(self.peer, self.name, SPACES, receiver, rank=rank, clock=self.clock)
        self.session = self.link.session

    def turn(self):
        self.session.conversation.turn(0.0)

    def store(self):
        self.beside.work()

    def train(self):
        """Do a turn of the training thread: put arrived samples into the memory at once, and make
        their training steps bit by bit.
        """
        self._make_steps()
        taken = self.link.retrieve()
        for delivery in taken:
            if len(delivery.buffer):
                self.memory.append(delivery.buffer)
        self._awaited += [delivery.receipt for delivery in taken if delivery.awaits]
        if taken:
            self.link.confirm(taken)

    def _make_steps(self):
        for _ in range(min(len(self._awaited), self.world.rng.randrange(4))):
            receipt = self._awaited.pop(0)
            self.world.auditor.note_steps_made(receipt)
            self.link.note_trained(receipt)

    def leave(self):
        """Shut down in good order."""
        self.train()
        self.link.close(0.0)
        self.checkpoints.close()
        self.is_alive = False
        self.start_at = self.world.now
        self.session = None
        self.training.note_death()

    def die(self):
        super().die()
        if self.peer is not None:
            self.world.network.drop_peer(self.peer)
        self.session = None
        self.training.note_death()


class Training:
    """A trainer, or several that learn as one, with one disk.

    Attributes:
        path: where it keeps its state; None: nothing is kept, and all is lost with its process.
        power: the `PowerDisk` below `path`; None: nothing is kept.
        is_cut: the power of its machine is cut as soon as one of its processes dies.
    """

    def __init__(self, world, number, server, sizes):
        rng = world.rng
        self.world = world
        self.name = f"t{number}"
        self.server = server
        self.sizes = sizes
        self.memory_size = rng.choice((30, 10**9, 10**9))
        self.sync_every_s = rng.choice((0.0, 0.1, 0.25))
        self.run = ""
        self.group = 0
        self.ranks = []
        self.path = self.power = None
        self.is_cut = False
        if sizes != (1,) or rng.random() < 0.85:
            self.path = world.folder / self.name
            self.path.mkdir()
            self.power = PowerDisk(self.path)
        self.audit = world.auditor.trainings[self.name] = TrainingAudit(world.auditor, self)

    @property
    def is_alive(self):
        return any(rank.is_alive for rank in self.ranks)

    def note_death(self):
        """End all ranks of a group that has lost one."""
        for rank in self.ranks:
            if rank.is_alive:
                rank.die()
        if self.is_cut:
            self.is_cut = False
            self.world.count("the power of a trainer was cut")
            self.power.before = lambda number: None
            self.power.cut(self.world.rng)
            if not self.sync_every_s:
                self.audit.note_unsynced_cut()

    def cut_power_in(self, operations):
        """Cut the power of the machine before the given number of further operations is done."""

        def before(number):
            if number >= last:
                self.is_cut = True
                raise Killed

        last = len(self.power.operations) + operations
        self.power.before = before

    def start(self):
        """Restart a group, perhaps with another size."""
        if self.is_alive or any(self.world.now < rank.start_at for rank in self.ranks):
            return
        rng, size = self.world.rng, len(self.ranks)
        self.group = rng.getrandbits(40) + 1
        self.ranks = [
            TrainerProcess(self.world, self, rank) for rank in range(rng.choice(self.sizes))
        ]
        if size not in (0, len(self.ranks)):
            self.world.count("a group changed its size")
        self.audit.begin()
        for do in ("start", "connect"):
            for rank in self.ranks:
                rank.run(getattr(rank, do))
                if not rank.is_alive:
                    self.note_death()
                    return
        self.audit.end_replay(
            [receipt for rank in self.ranks for receipt in rank.checkpoints.receiver.receipts]
        )
