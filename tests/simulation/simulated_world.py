"""One seed, one world: server, workers and trainers, what befalls them, and an auditor.

A step is one event of the scheduler: a part takes a turn, messages arrive, a sample is appended, something breaks. Time
passes by steps. Whatever decides is drawn from one generator, so a seed is a history, to the byte.
"""

from __future__ import annotations

import itertools
import random
import zlib
from collections import Counter
from dataclasses import dataclass

from auditor import Auditor
from simulated_faults import FAULTS
from simulated_machines import Machine
from simulated_network import SimulatedNetwork
from simulated_server import ServerProcess
from simulated_trainer import Training
from simulated_worker import Worker

from tmrl_like.delivery.options import OutboxOptions

WORK = {
    "append": 16,
    "refill": 1,
    "link_turn": 16,
    "server_turn": 12,
    "trainer_turn": 10,
    "train": 6,
    "deliver": 30,
    "dial": 4,
    "start": 3,
    "wait": 2,
    "write_back": 5,
}


@dataclass
class Options:
    """What is drawn for one world."""

    outbox: OutboxOptions
    log_bytes: int
    relay_bytes: int
    lanes: tuple[int, ...]
    misfits: float
    max_age_s: float


class World:
    """All parts of one simulation, and the scheduler."""

    def __init__(self, seed, folder):
        self.seed = seed
        self.folder = folder
        self._name = folder.name.encode()
        self.rng = rng = random.Random(seed)
        self.has_one_key = seed % 2 == 0  # all workers have the same
        self.now = 100.0
        self.steps = self.samples = 0
        self.counts = Counter()
        self.hash = 0
        self.lines = None  # a list: what happened, in words
        self.running = None
        self.boots = itertools.count(1e5, 1e5)
        self.files = set()  # that processes have written
        self.auditor = Auditor(self)
        is_small = rng.random() < 0.3
        self.options = Options(
            outbox=OutboxOptions(
                max_samples=rng.choice((1, 5, 20)),
                max_packet_bytes=rng.choice((300, 1 << 18)),
                max_age_s=rng.choice((0.0, 0.1, 0.5)),
                max_bytes=20_000 if is_small else 512 << 20,
                max_held_samples=rng.choice((60, 10_000_000)) if is_small else 10_000_000,
                spool_max_bytes=20_000 if is_small else 2 << 30,
                window_bytes=rng.choice((1000, 32 << 20)),
            ),
            log_bytes=rng.choice((1 << 15, 512 << 20)),
            relay_bytes=rng.choice((30_000, 512 << 20)),
            lanes=rng.choice(((1,), (1,), (2,), (1, 2))),
            misfits=0.15 if rng.random() < 0.15 else 0.0,
            max_age_s=2.0 if rng.random() < 0.15 else float("inf"),
        )
        self.network = SimulatedNetwork(self, rng.choice((8, 1000)), rng.random() < 0.5)
        self.workers = [Worker(self, i, rng.random() < 0.6) for i in range(rng.choice((1, 1, 2, 3)))]
        names = ["a:1", "b:2"][: rng.choice((1, 1, 1, 2))]
        self.servers = {name: ServerProcess(self, name, Machine(self)) for name in names}
        trainings = list(names)
        if rng.random() < 0.2:
            trainings.append(names[0])  # one seat, and two who want it
        sizes = rng.choice(((1,), (1,), (1,), (2,), (1, 2, 3)))
        self.trainings = [
            Training(
                self,
                number,
                name,
                sizes=sizes,
                keeps=sizes != (1,) or rng.random() < 0.85,
                memory_size=rng.choice((30, 10**9, 10**9)),
            )
            for number, name in enumerate(trainings)
        ]
        chosen = {fault: weight for fault, weight in FAULTS.items() if rng.random() < 0.6}
        self._work = list(WORK)
        self._weights = list(itertools.accumulate(WORK.values()))
        self._faults = list(chosen)
        self._fault_weights = list(itertools.accumulate(chosen.values()))
        fewest, most = rng.choice(((0.0, 0.01), (0.01, 0.05), (0.03, 0.1)))
        self._troubles = rng.uniform(fewest, most)

    def only(self, fault, share):
        """Have one kind of fault, in so many of all steps."""
        self._faults, self._fault_weights, self._troubles = [fault], [1.0], share

    # -- what happened ---------------------------------------------------------------------------------

    def note(self, what):
        """For whoever reads what happened."""
        if self.lines is not None:
            self.lines.append(f"{self.steps:6d} {self.now:10.3f} {what}")

    def count(self, what):
        self.counts[what] += 1
        self.note(what)

    def trace(self, what):
        data = what.encode() if isinstance(what, str) else bytes(what).replace(self._name, b"")  # an alarm may name it
        self.hash = zlib.crc32(data, self.hash)
        if isinstance(what, str):
            self.note(what)

    # -- the scheduler ---------------------------------------------------------------------------------

    def step(self):
        self.steps += 1
        rng = self.rng
        self.now += rng.random() * 0.02
        if self._faults and rng.random() < self._troubles:
            fault = rng.choices(self._faults, cum_weights=self._fault_weights)[0]
            self.trace(fault.__name__)
            fault(self)
        else:
            kind = rng.choices(self._work, cum_weights=self._weights)[0]
            self.trace(kind)
            getattr(self, kind)()

    def one(self, processes):
        processes = [process for process in processes if process.may_run]
        return self.rng.choice(processes) if processes else None

    @property
    def envs(self):
        return [worker.env for worker in self.workers]

    @property
    def links(self):
        return [worker.link for worker in self.workers]

    @property
    def trainers(self):
        return [rank for training in self.trainings for rank in training.ranks]

    @property
    def processes(self):
        return [*self.envs, *self.links, *self.trainers, *self.servers.values()]

    @property
    def machines(self):
        return [part.machine for part in (*self.workers, *self.trainings)]

    def _have_one(self, processes, what):
        process = self.one(processes)
        if process is not None:
            process.run(getattr(process, what))

    def append(self):
        self._have_one(self.envs, "append")

    def refill(self):
        self._have_one([worker.env for worker in self.workers if worker.link.is_alive], "refill")

    def link_turn(self):
        self._have_one(self.links, "turn")

    def server_turn(self):
        self._have_one(self.servers.values(), "turn")

    def trainer_turn(self):
        self._have_one(self.trainers, "turn")

    def train(self):
        self._have_one(self.trainers, "train")

    def wait(self):
        self.now += self.rng.random() * 0.5

    def deliver(self, doubles=0):
        busy = [c for c in self.network.connections if c.up or c.down]
        if busy:
            connection = self.rng.choice(busy)
            is_up = self.rng.random() < 0.5
            arrived = self.network.deliver(connection, is_up, self.rng.choice((1, 2, 10, 1000)), doubles)
            if arrived and doubles:
                self.count("a message was doubled")

    def write_back(self):
        """The system of a worker writes what is in its spool: some of it, or all."""
        for worker in self.workers:
            if worker.spools and self.rng.random() < 0.9:
                worker.machine.spool.write_some()
            elif worker.spools:
                worker.machine.spool.write_all()
                self.auditor.note_write_back(worker)

    def dial(self):
        links = [link for link in self.network.links if link.may_dial]
        if links:
            self.network.connect(self.rng.choice(links))

    def start(self):
        """Start what is dead and due."""
        for server in self.servers.values():
            if not server.is_alive and self.now >= server.start_at:
                server.run(server.start)
        for part in self.rng.sample([*self.workers, *self.trainings], len(self.workers) + len(self.trainings)):
            part.start()

    # -- the end ---------------------------------------------------------------------------------------

    def close(self):
        for process in self.processes:
            if process.is_alive:
                process.die()
        for file in self.files:
            file.close()
