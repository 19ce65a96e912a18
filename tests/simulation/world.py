"""The world of a seed: workers, servers and trainers, the faults that hit them, and an auditor that
knows the promises.

A step is one event of the scheduler: an item of `WORK` is done or, now and then, one of `FAULTS`
happens. Time advances with steps. All choices are drawn from one generator, so a seed determines
the history, to the byte.

    robot ==mapped files== link ==network== server ==network== trainer, or 2 or 3 ranks ==disk==

Robots append numbered samples, reports and breaks to the package's sample log; links run the
package's outbox, servers its relay, trainers its link, receiver and store. Only threads, sockets,
clocks and disks are simulated. Each world has 1 to 3 workers of 1 or 2 lanes, with a spool or a
private folder, in lockstep or not; 1 or 2 servers, with a training each; perhaps one more training
that competes for the same seat; and random limits, some of them small.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from types import SimpleNamespace

import simulated_faults as faults
from auditor import Auditor
from simulated_network import SimulatedNetwork
from simulated_server import ServerProcess
from simulated_trainer import Training
from simulated_worker import Worker

from tmrl_like.delivery.options import OutboxOptions

TURNS = {  # of which processes one does what
    "append": "robots",  # it appends samples, perhaps a report or a break
    "refill": "tended_robots",  # its other thread prepares files
    "link_turn": "links",
    "server_turn": "servers",
    "trainer_turn": "trainers",
    "train": "trainers",  # its training thread takes arrived samples, and makes training steps
    "store": "trainers",  # its other thread writes to its store
}
WORK = {  # turns and methods of `World`, and their relative frequencies
    "append": 16,
    "refill": 1,
    "link_turn": 16,
    "server_turn": 12,
    "trainer_turn": 10,
    "train": 6,
    "store": 6,
    "deliver": 30,  # messages of one connection and direction arrive
    "dial": 4,  # a peer gets a connection
    "start": 3,  # dead processes restart; a group of trainers perhaps with another size
    "wait": 2,  # time passes
    "write_back": 5,  # the system writes pages of mapped files
}
FAULTS = {  # relative frequencies among the faults drawn for a world
    faults.kill_server: 0.25,
    faults.kill_robot: 0.3,  # at once, or at any line of delivery; likewise links and trainers
    faults.kill_link: 0.6,
    faults.kill_worker: 0.3,
    faults.kill_trainer: 0.5,
    faults.leave: 0.3,
    faults.cut_connection: 0.8,
    faults.hold_up: 0.5,
    faults.lose: 1.0,
    faults.double: 1.0,
    faults.freeze: 0.3,
    faults.cut_trainer_power: 0.6,
    faults.cut_worker_power: 0.6,
    faults.pass_time: 0.3,
}


class World:
    """All parts of one simulation, and the scheduler."""

    def __init__(self, seed, folder):
        self.seed = seed
        self.folder = folder
        self._name = folder.name.encode()
        self.rng = rng = random.Random(seed)
        self.has_one_key = seed % 2 == 0  # all workers have the same
        self.now = 100.0
        self.steps = 0
        self.counts = Counter()
        self.hash = 0
        self.lines = None  # a list for descriptions of events, or None
        self.running = None  # the process whose turn it is
        self.auditor = Auditor(self)
        self.options = SimpleNamespace(
            outbox=OutboxOptions(
                max_samples=rng.choice((1, 5, 20)),
                max_packet_bytes=rng.choice((300, 1 << 18)),
                max_age_s=rng.choice((0.0, 0.1, 0.5)),
                window_bytes=rng.choice((1000, 32 << 20)),
            ),
            log_bytes=rng.choice((1 << 14, 512 << 20)),
            relay_bytes=rng.choice((30_000, 512 << 20)),
            lanes=rng.choice(((1,), (1,), (2,), (1, 2))),
        )
        self.network = SimulatedNetwork(self, rng.choice((8, 1000)), rng.random() < 0.5)
        self.workers = [Worker(self, number) for number in range(rng.choice((1, 1, 2, 3)))]
        names = ["a:1", "b:2"][: rng.choice((1, 1, 1, 2))]
        self.servers = [ServerProcess(self, name) for name in names]
        seats = names + names[:1] * (rng.random() < 0.2)  # perhaps two for the first seat
        sizes = rng.choice(((1,), (1,), (1,), (2,), (1, 2, 3)))
        self.trainings = [Training(self, number, name, sizes) for number, name in enumerate(seats)]
        self._faults = {fault: weight for fault, weight in FAULTS.items() if rng.random() < 0.6}
        fewest, most = rng.choice(((0.0, 0.01), (0.01, 0.05), (0.03, 0.1)))
        self._troubles = rng.uniform(fewest, most)  # the share of steps that are faults

    def only(self, fault, share):
        """Allow only one kind of fault, in a `share` of all steps."""
        self._faults, self._troubles = {fault: 1.0}, share

    # -- what happened -----------------------------------------------------------------------------

    def note(self, what):
        """Append a description to `lines`, if events are to be described."""
        if self.lines is not None:
            self.lines.append(f"{self.steps:6d} {self.now:10.3f} {what}")

    def count(self, what):
        self.counts[what] += 1
        self.note(what)

    def trace(self, what):
        # an alarm may contain the folder's name, which differs from run to run
        data = what.encode() if isinstance(what, str) else bytes(what).replace(self._name, b"")
        self.hash = zlib.crc32(data, self.hash)
        if isinstance(what, str):
            self.note(what)

    # -- the parts ---------------------------------------------------------------------------------

    def server_at(self, address):
        return next(server for server in self.servers if server.name == address)

    @property
    def robots(self):
        return [worker.robot for worker in self.workers]

    @property
    def tended_robots(self):
        return [worker.robot for worker in self.workers if worker.link.is_alive]

    @property
    def links(self):
        return [worker.link for worker in self.workers]

    @property
    def trainers(self):
        return [rank for training in self.trainings for rank in training.ranks]

    @property
    def processes(self):
        return [*self.robots, *self.links, *self.trainers, *self.servers]

    # -- the scheduler -----------------------------------------------------------------------------

    def step(self):
        self.steps += 1
        rng = self.rng
        self.now += rng.random() * 0.02
        if self._faults and rng.random() < self._troubles:
            fault = self._draw(self._faults)
            self.trace(fault.__name__)
            fault(self)
        else:
            kind = self._draw(WORK)
            self.trace(kind)
            if kind in TURNS:
                self._give_turn(getattr(self, TURNS[kind]), kind.rpartition("_")[2])
            else:
                getattr(self, kind)()

    def _draw(self, weights):
        return self.rng.choices(list(weights), weights.values())[0]

    def one(self, processes):
        processes = [process for process in processes if process.may_run]
        return self.rng.choice(processes) if processes else None

    def _give_turn(self, processes, what):
        process = self.one(processes)
        if process is not None:
            process.run(getattr(process, what))

    def wait(self):
        self.now += self.rng.random() * 0.5

    def deliver(self, doubles=0):
        busy = [
            connection
            for connection in self.network.connections
            if connection.up or connection.down
        ]
        if busy:
            connection = self.rng.choice(busy)
            to_server = self.rng.random() < 0.5
            arrived = self.network.deliver(
                connection, to_server, self.rng.choice((1, 2, 10, 1000)), doubles
            )
            if arrived and doubles:
                self.count("a message was doubled")

    def write_back(self):
        for worker in self.workers:
            if worker.spools:
                worker.write_back(all_of_it=self.rng.random() < 0.1)

    def dial(self):
        links = [link for link in self.network.links if link.may_dial]
        if links:
            self.network.connect(self.rng.choice(links))

    def start(self):
        """Restart dead processes that are due."""
        for server in self.servers:
            if not server.is_alive and self.now >= server.start_at:
                server.run(server.start)
        parts = [*self.workers, *self.trainings]
        for part in self.rng.sample(parts, len(parts)):
            part.start()

    # -- the end -----------------------------------------------------------------------------------

    def close(self):
        for process in self.processes:
            if process.is_alive:
                process.die()
