"""A worker of a simulation: the product's own parts, without threads, under the scheduler of the world."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from simulated_machines import SPACES, Machine, Process, unmap
from simulated_network import SimulatedPeerLink, SimulatedRing
from simulated_spool import SpoolDisk

from tmrl_like.delivery.folder import WorkerFolder
from tmrl_like.delivery.log import lock_folder
from tmrl_like.delivery.outbox import Outbox
from tmrl_like.delivery.sample_log import SampleLog
from tmrl_like.delivery.session import Session
from tmrl_like.errors import RefusedError
from tmrl_like.transport.base import Identity
from tmrl_like.types import EpisodeStats, StepTiming
from tmrl_like.wire.rows import RESET
from tmrl_like.worker.link import WorkerRole
from tmrl_like.worker.link_messages import State

ORPHAN_S = 3.0  # a link whose worker is gone sends for so long what is left
NO_GATE = SimpleNamespace(verdicts=SimpleNamespace(alarm=""), add=lambda *_: 0)


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
        self.lanes, self._locks = [], []
        root = worker.folder()
        for number in range(worker.num_lanes):
            path = root if not number else worker.folder_of_lane(root, number + 1)
            lock = lock_folder(path, name="worker.lock")
            self._locks.append(lock)  # it may die before the lane is there
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
        number = life.begin_sample(world.now)
        obs = np.array((self.worker.number, life.incarnation, number, 0)[: 4 if life.is_misfit else 3])
        if world.rng.random() < 0.02:
            lane.is_text = not lane.is_text
        info = {"said": "x" * (number % 5)} if lane.is_text else {}
        timing = StepTiming(self.unix(), 0.0, 0.0, number + 1)
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
        for lock in self._locks:
            lock.release()
        for lane in self.lanes:
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
            outbox = Outbox(path, worker.name, incarnation, world.options.outbox, self.clock, worker.env.epoch_s)
            self.outboxes.append(outbox)
            if outbox.takes_over:
                world.count("packets of dead processes were taken over")
        servers = [server.name for server in world.servers.values()]
        if len(servers) == 1:
            link = self._dial(servers[0])
        else:
            link = SimulatedRing(world.rng.sample(servers, len(servers)), self._dial, self.clock)
        files = SimpleNamespace(add=lambda *_: None)
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
            if self.worker.env.is_alive:
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
    """A machine with a worker: two processes, a disk, a folder.

    Attributes:
        is_cut: its power is cut as soon as one of its processes dies.
    """

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
        self.link = LinkProcess(world, self)
        self.is_cut = False
        if spools:
            self.machine.spool = SpoolDisk(self.root)

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
        if self.is_cut:
            self.cut_power()
        if not self.spools and not self.env.is_alive and not self.link.is_alive:
            for lane in self.env.lanes:
                lane.life.is_gone = True

    def cut_power(self):
        """Cut the power of its machine."""
        self.is_cut = False
        for process in (self.env, self.link):
            if process.is_alive:
                process.die()
            process.start_at = self.world.now
        self.world.count("the power of a worker was cut")
        self.machine.spool.cut(self.world.rng)
        self.machine.up_from_s = next(self.world.boots)  # of a machine up for seconds no trainer sees that it was cut
        self.world.auditor.note_worker_cut(self)

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
