"""The processes of a simulation: the product's own parts, without threads, under the scheduler of the world."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from auditor import TrainingAudit
from disk import PowerDisk
from kill_lines import Killed
from simulated_machines import Machine, Process, unmap
from simulated_network import SimulatedPeerLink, SimulatedRing, SimulatedServerLink

from tmrl_like.delivery.folder import WorkerFolder
from tmrl_like.delivery.log import lock_folder
from tmrl_like.delivery.outbox import Outbox
from tmrl_like.delivery.sample_log import SampleLog
from tmrl_like.delivery.session import Session
from tmrl_like.errors import CheckpointError, MemoryContractError, RefusedError
from tmrl_like.server.relay import Relay
from tmrl_like.trainer.checkpoints import Checkpoints
from tmrl_like.trainer.freshness import FreshnessLimits
from tmrl_like.trainer.link import TrainerLink
from tmrl_like.trainer.ranks import Alone
from tmrl_like.transport.base import Identity
from tmrl_like.types import EpisodeStats, StepTiming
from tmrl_like.wire import messages as m
from tmrl_like.wire.rows import RESET
from tmrl_like.worker.link import WorkerRole
from tmrl_like.worker.link_messages import State

SPACES = m.Spaces("Box(3)", "Box(1)")
ORPHAN_S = 3.0  # a link whose worker is gone sends for so long what is left
TICK_S, BEAT_S = 0.25, 1.0  # of the server
NO_GATE = SimpleNamespace(verdicts=SimpleNamespace(alarm=""), add=lambda *_: 0)


class ServerProcess(Process):
    """The relay, and the loop around it."""

    def start(self):
        self.begin()
        self.link = SimulatedServerLink(self.world, self.name)
        self.relay = Relay(
            self.link,
            max_workers=len(self.world.workers) + self.world.rng.choice((0, 0, 5)),
            max_waiting_bytes=self.world.options.relay_bytes,
        )
        self._next_tick = self._next_beat = self.clock()

    def turn(self):
        """As `Server._serve`."""
        for _ in range(self.world.rng.randrange(1, 30)):
            if self.link.inbox:
                self.relay.handle(self.link.inbox.popleft(), self.clock())
        self.relay.flush()
        now = self.clock()
        if now >= self._next_tick:
            self._next_tick = now + TICK_S
            self.relay.tick(now)
        if now >= self._next_beat:
            self._next_beat = now + BEAT_S
            self.relay.beat()
        self.world.auditor.look_at_seats(self)

    def die(self):
        super().die()
        self.world.network.drop_server(self)


class LaneOfEnv:
    """One environment: its sample log, and what was appended."""

    def __init__(self, folder, log, life):
        self.folder = folder
        self.log = log
        self.life = life
        self.is_text = False


class EnvProcess(Process):
    """The control loops of a worker: they append numbered samples."""

    def __init__(self, world, worker):
        super().__init__(world, f"{worker.name}-env", worker.machine)
        self.worker = worker

    def start(self):
        """Take the folder of the worker, if no link of a dead process holds it."""
        self.begin()
        world, worker = self.world, self.worker
        self.lanes = []
        root = worker.folder()
        for number in range(worker.num_lanes):
            path = root if not number else worker.folder_of_lane(root, number + 1)
            lock = lock_folder(path, name="worker.lock")
            folder = WorkerFolder(path, worker.name, lock)
            life = world.auditor.begin_life(worker)
            log = SampleLog(folder, max_bytes=world.options.log_bytes, incarnation=life.incarnation)
            self.lanes.append(LaneOfEnv(folder, log, life))

    def append(self):
        """A few samples of one lane, and what comes between samples."""
        rng = self.world.rng
        lane = rng.choice(self.lanes)
        for _ in range(rng.randrange(1, 7)):
            kind = rng.random()
            if kind < 0.03:
                lane.log.add_break()
                lane.life.note_break()
            elif kind < 0.08:
                steps = rng.randrange(100)
                lane.log.end_episode(EpisodeStats(self.worker.name, True, 0.0, steps, True, False, 1e9, 1))
            elif kind < 0.1:
                lane.log.seal()
            else:
                self._append_sample(lane, is_reset=kind < 0.15)

    def _append_sample(self, lane, is_reset):
        life, log, world = lane.life, lane.log, self.world
        number = life.begin_sample()
        obs = np.array((self.worker.number, life.incarnation, number, 0)[: 4 if life.is_misfit else 3])
        if world.rng.random() < 0.02:
            lane.is_text = not lane.is_text
        info = {"said": "x" * (number % 5)} if lane.is_text else {}
        timing = StepTiming(self.wall(), 0.0, 0.0, number + 1)
        lost = log.lost_samples
        log.append((None, obs, 0.0, False, False, info), *timing, RESET * is_reset)
        life.end_sample(number, is_lost=log.lost_samples > lost)
        world.samples += 1

    def append_to_all(self):
        """One sample in each lane."""
        for lane in self.lanes:
            self._append_sample(lane, is_reset=False)

    def refill(self):
        for lane in self.lanes:
            lane.log.refill()

    def seal(self):
        for lane in self.lanes:
            lane.log.seal()

    def leave(self):
        """End in good order."""
        self.is_alive = False
        self.start_at = self.world.now + 0.5
        for lane in self.lanes:
            lane.log.seal()
            lane.log.close()
            lane.folder.close()
        self.worker.note_death()

    def die(self):
        super().die()
        for lane in self.lanes:
            lane.folder._lock.release()
            unmap((*lane.log._used, *lane.log._spare))
        self.worker.note_death()


class LinkProcess(Process):
    """The worker's half of the conversation with the server."""

    def __init__(self, world, worker):
        super().__init__(world, f"{worker.name}-link", worker.machine)
        self.worker = worker
        self.identity = Identity("key of all workers" if world.has_one_key else f"key of {worker.name}", ("worker",))
        self.session = None
        self.outboxes = []

    def start(self):
        """As `Link.__init__`; its worker lives, and no other link holds the folder."""
        world, worker = self.world, self.worker
        self.begin()
        self._lanes = worker.env.lanes
        self.outboxes = []
        self.orphan_until = None
        lanes = [(lane.folder.path, lane.life.incarnation) for lane in worker.env.lanes]
        for path in sorted(worker.root.glob("lane.*")) if worker.spools else []:
            if path not in [known for known, _ in lanes]:
                lanes.append((path, world.auditor.begin_life(worker).incarnation))
        for path, incarnation in lanes:
            outbox = Outbox(path, worker.name, incarnation, world.options.outbox, self.clock)
            self.outboxes.append(outbox)
            if outbox.takes_over:
                world.count("packets of dead processes were taken over")
        servers = [server.name for server in world.servers.values()]
        if len(servers) == 1:
            link = self._dial(servers[0])
        else:
            link = SimulatedRing(world.rng.sample(servers, len(servers)), self._dial, self.clock)
        files = SimpleNamespace(save=lambda *_: None)
        self.role = WorkerRole(self.outboxes, NO_GATE, None, files, State(), lambda word: None, lambda message: None)
        others = [incarnation for _, incarnation in lanes[1:]]
        dead = [incarnation for outbox in self.outboxes for incarnation in outbox.takes_over]
        own = lanes[0][1]
        self.session = Session(link, servers[0], self.role, "worker", worker.name, SPACES, None, own, (*others, *dead))

    def _dial(self, address):
        return SimulatedPeerLink(self.world, address, self, self.identity)

    @property
    def has_worker(self):
        """Whether the process that started it lives."""
        return self.worker.env.is_alive and self.worker.env.lanes is self._lanes

    @property
    def link(self):
        link = self.session._link
        return link.simulated if isinstance(link, SimulatedRing) else link

    def turn(self):
        if not self.has_worker and self.orphan_until is None:
            self.orphan_until = self.clock() + ORPHAN_S
            for outbox in self.outboxes:
                outbox.seal()
        try:
            self.session.turn()
        except RefusedError as error:
            self.world.auditor.on_refused(self, error)
            self.leave()
            self.worker.env.leave()
            return
        self.world.auditor.look_at_link(self)
        if self.orphan_until is not None and (not self.role.pending() or self.clock() > self.orphan_until):
            self.world.count("a link outlived its worker")
            self.leave()

    def leave(self):
        """As the end of `Link.serve`."""
        for outbox in self.outboxes:
            outbox.seal()
        self.session.close(0.0)
        for outbox in self.outboxes:
            outbox.close()
        self.world.auditor.look_at_link(self)
        self.world.auditor.note_end(self)
        self.is_alive = False
        self.start_at = self.world.now
        self.worker.note_death()

    def die(self):
        super().die()
        self.world.auditor.note_end(self)
        if self.session is not None:
            self.world.network.drop_peer(self.link)
        self.session = None
        for outbox in self.outboxes:
            outbox._log._end_segment()
            outbox._log._lock.release()
            unmap(outbox._reader._mapped.values())
        self.worker.note_death()


class Worker:
    """A machine with a worker: two processes, a disk, a folder."""

    def __init__(self, world, number, spools):
        self.world = world
        self.number = number
        self.name = f"w{number}"
        self.spools = spools
        self.machine = Machine(world)
        self.num_lanes = 1
        self._privates = 0
        self.root = world.folder / self.name
        self.env = EnvProcess(world, self)
        self.env_folder = None
        self.link = LinkProcess(world, self)

    def folder(self):
        """Of the next process."""
        if not self.spools:
            self._privates += 1
            self.root = self.world.folder / f"tmrl_like.{self.name}.{self._privates}"
        return self.root

    def folder_of_lane(self, root, number):
        return root / f"lane.{number}" if self.spools else root.with_name(f"{root.name}.lane{number}")

    def note_death(self):
        """Without a spool the samples of a worker go with its second process."""
        if not self.spools and not self.env.is_alive and not self.link.is_alive:
            for lane in self.env.lanes:
                lane.life.is_gone = True

    def start(self):
        """Start what is due."""
        now = self.world.now
        if not self.env.is_alive and now >= self.env.start_at and (not self.link.is_alive or self.spools):
            if self.link.is_alive:
                self.world.count("a worker came back while its old link lived")
            self.num_lanes = self.world.rng.choice(self.world.options.lanes)
            self.env.run(self.env.start)
        elif self.env.is_alive and not self.link.is_alive and now >= self.link.start_at:
            self.link.run(self.link.start)


class SimulatedRanks(Alone):
    """One of several trainers, whose collectives others have answered before."""

    def __init__(self, rank, size, run):
        self.rank = rank
        self.size = size
        self.run = run

    def gather(self, data):
        return [data, self.run.encode()]

    def sum(self, *numbers):
        return [number + bool(self.run) for number in numbers]


class Memory:
    """Rows (worker, incarnation, number), in the order in which they came; each is audited."""

    def __init__(self, audit, memory_size):
        self.memory_size = memory_size
        self.takes_own = False  # not from the log, nor what another rank counts
        self._audit = audit

    def __len__(self):
        return len(self._audit.rows)

    def append(self, buffer):
        columns = [segment.tree()[1] for block in buffer.blocks for segment in block.segments]
        if any(column.shape[1] != 3 for column in columns):
            raise MemoryContractError("the observation is too long")
        rows = [tuple(row) for column in columns for row in column.tolist()]
        self._audit.add(buffer.stream, rows, self.takes_own)


class Freshness(FreshnessLimits):
    """Tells the auditor what is too old."""

    def __init__(self, world, max_age_s):
        super().__init__(max_age_s)
        self._world = world

    def admit(self, packet, now_s, newest_version):
        is_admitted = super().admit(packet, now_s, newest_version)
        if not is_admitted:
            self._world.auditor.note_stale(packet)
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
        """As `Trainer.__init__`: bring back what the log holds, then connect."""
        self.begin()
        world, training = self.world, self.training
        size = len(training.ranks)
        audit = world.auditor.trainings[training.name].begin_memory(self.rank)
        ranks = SimulatedRanks(self.rank, size, training.run)
        self.checkpoints = Checkpoints(training.path, None, None, ranks, training.sync_every_s, in_one_thread=True)
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
        link = SimulatedPeerLink(world, training.server, self, self.identity)
        freshness = Freshness(world, world.options.max_age_s)
        rank = m.ALONE if size == 1 else m.Rank(self.rank, size, training.group, training.wants_all)
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
            self.memory.takes_own = not delivery.is_copy
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

    def __init__(self, world, number, server, sizes, wants_all, keeps, memory_size):
        self.world = world
        self.name = f"t{number}"
        self.server = server
        self.path = world.folder / self.name if keeps else None
        self.memory_size = memory_size
        self.run = ""
        self.group = 0
        self.wants_all = wants_all
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
        """Start a group anew, perhaps of another size."""
        if self.is_alive or any(self.world.now < rank.start_at for rank in self.ranks):
            return
        rng = self.world.rng
        self.group = rng.getrandbits(40) + 1
        self.ranks = [TrainerProcess(self.world, self, rank, self.machine) for rank in range(rng.choice(self.sizes))]
        audit = self.world.auditor.trainings[self.name]
        audit.begin()
        for rank in self.ranks:
            rank.run(rank.start)
            if not rank.is_alive:
                self.note_death()
                return
        audit.end_replay()
