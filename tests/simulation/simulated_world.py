"""One seed, one world: server, workers and trainers, what befalls them, and an auditor.

A step is one event of the scheduler: a part takes a turn, messages arrive, a sample is appended, something breaks. Time
passes by steps. Whatever decides is drawn from one generator, so a seed is a history, to the byte.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import random
import secrets
import shutil
import tempfile
import warnings
import zlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from auditor import Auditor
from simulated_machines import Machine
from simulated_network import SimulatedNetwork
from simulated_parts import ServerProcess, Training, Worker

from tmrl_like.base.files import disk
from tmrl_like.delivery import outbox, sample_log, sender, session
from tmrl_like.delivery.folder import shared_memory
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.trainer import checkpoints, fleet
from tmrl_like.trainer import link as trainer_link
from tmrl_like.worker import link as worker_link

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
}
FAULTS = {
    "kill_server": 0.25,
    "kill_env": 0.3,
    "kill_link": 0.6,
    "kill_worker": 0.3,
    "kill_trainer": 0.5,
    "kill_in_write": 0.6,
    "leave": 0.3,
    "cut": 0.8,
    "partition": 0.5,
    "double": 1.0,
    "freeze": 0.3,
    "fill_disk": 0.3,
    "free_disk": 0.6,
    "slow_disk": 0.3,
    "fail_sync": 1.0,
    "cut_power": 0.6,
    "jump_clock": 0.3,
    "pass_time": 0.3,
}
SETTLE_ROUNDS = 1500


class Broken(AssertionError):
    """What a seed has found."""


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
        trainings = [(name, 1) for name in names]
        if rng.random() < 0.2:
            trainings.append((names[0], 2))  # one seat, and two who want it
        sizes = rng.choice(((1,), (1,), (1,), (2,), (1, 2, 3)))
        self.trainings = [
            Training(
                self,
                number,
                name,
                sizes=sizes,
                wants_all=rng.random() < 0.2,
                keeps=sizes != (1,) or rng.random() < 0.85,
                memory_size=rng.choice((30, 10**9, 10**9)),
            )
            for number, (name, _) in enumerate(trainings)
        ]
        chosen = {name: weight for name, weight in FAULTS.items() if rng.random() < 0.6}
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
            kind = rng.choices(self._faults, cum_weights=self._fault_weights)[0]
        else:
            kind = rng.choices(self._work, cum_weights=self._weights)[0]
        self.trace(kind)
        getattr(self, kind)()

    def _one(self, processes):
        processes = [process for process in processes if process.may_run]
        return self.rng.choice(processes) if processes else None

    @property
    def _envs(self):
        return [worker.env for worker in self.workers]

    @property
    def _links(self):
        return [worker.link for worker in self.workers]

    @property
    def _trainers(self):
        return [rank for training in self.trainings for rank in training.ranks]

    @property
    def _all(self):
        return [*self._envs, *self._links, *self._trainers, *self.servers.values()]

    def _have_one(self, processes, what):
        process = self._one(processes)
        if process is not None:
            process.run(getattr(process, what))

    def append(self):
        self._have_one(self._envs, "append")

    def refill(self):
        self._have_one([worker.env for worker in self.workers if worker.link.is_alive], "refill")

    def link_turn(self):
        self._have_one(self._links, "turn")

    def server_turn(self):
        self._have_one(self.servers.values(), "turn")

    def trainer_turn(self):
        self._have_one(self._trainers, "turn")

    def train(self):
        self._have_one(self._trainers, "train")

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

    # -- faults ----------------------------------------------------------------------------------------

    def _kill(self, processes, what):
        process = self._one(processes)
        if process is None:
            return
        self.count(what)
        if self.rng.random() < 0.5:
            process.die()
        else:
            process.dies_after = int(1.5 ** self.rng.uniform(0, 20))

    def kill_server(self):
        server = self._one(self.servers.values())
        if server is not None:
            self.count("a server was killed")
            server.die()

    def kill_env(self):
        self._kill(self._envs, "an environment was killed")

    def kill_link(self):
        self._kill(self._links, "a link was killed")

    def kill_trainer(self):
        self._kill(self._trainers, "a trainer was killed")

    def kill_worker(self):
        worker = self.rng.choice(self.workers)
        if worker.env.is_alive and worker.link.is_alive:
            self.count("a worker was killed")
            for process in self.rng.sample((worker.env, worker.link), 2):
                process.die()

    def kill_in_write(self):
        process = self._one([*self._links, *self._trainers])
        if process is not None:
            process.dies_in_write = True

    def leave(self):
        process = self._one([*self._envs, *self._trainers])
        if process is not None:
            self.count("a part left in good order")
            process.run(process.leave)

    def cut(self):
        if self.network.connections:
            connection = self.rng.choice(self.network.connections)
            notices = [self.rng.choice((0.0, 0.0, self.rng.uniform(0.0, 8.0))) for _ in range(2)]
            if self.network.cut(connection, *notices):
                self.count("messages were lost with their connection")

    def partition(self):
        if self.network.connections:
            connection = self.rng.choice(self.network.connections)
            until = self.now + self.rng.choice((0.5, 3.0, 12.0))
            directions = self.rng.choice(((0,), (1,), (0, 1)))
            for direction in directions:
                connection.held_until[direction] = until
            self.count("a connection was cut in two" if len(directions) == 2 else "one direction was held up")

    def double(self):
        self.deliver(doubles=self.rng.choice((1, 1, 3)))

    def freeze(self):
        process = self._one(self._all)
        if process is not None:
            process.wait(self.rng.choice((0.3, 3.0, 9.0)))
            self.count("a process was stopped")

    @property
    def _machines(self):
        return [part.machine for part in (*self.workers, *self.trainings)]

    def fill_disk(self):
        self.rng.choice(self._machines).room_bytes = self.rng.randrange(3000)

    def free_disk(self):
        for machine in self._machines:
            machine.room_bytes, machine.slow_s, machine.fails_to_sync = None, 0.0, False

    def slow_disk(self):
        self.rng.choice(self._machines).slow_s = self.rng.choice((0.1, 3.0))

    def fail_sync(self):
        self.rng.choice(self._machines).fails_to_sync = True

    def cut_power(self):
        training = self.rng.choice(self.trainings)
        if training.power is not None and training.is_alive:
            training.cut_power_in(self.rng.randrange(10))

    def jump_clock(self):
        self.rng.choice(self._machines).wall_jump_s += self.rng.choice((-3600.0, -1.0, 1.0, 3600.0))
        self.count("a clock jumped")

    def pass_time(self):
        """Nobody gets a turn for a while: a suspended machine."""
        self.now += self.rng.choice((3.0, 30.0, 300.0))
        self.count("time passed")

    # -- the end ---------------------------------------------------------------------------------------

    def settle(self):
        """Faults stop; then all must arrive. Trainers that keep a log are killed, and must have it all from there."""
        self._heal()
        self._round()
        for env in self._envs:
            if env.is_alive:
                env.run(env.append_to_all)  # so that it says what it had no room for
        self._pass_until(lambda: not any(link.is_alive and link.orphan_until is not None for link in self._links))
        self._pass_until(self._is_quiet)
        for training in self.trainings:
            if training.path is not None:
                training.note_death()
                for rank in training.ranks:
                    rank.start_at = self.now
                training.start()
        set_aside = set()
        for link in self._links:
            for box in link.outboxes:
                turns = {backlog.incarnation for backlog in box._sender._turns}
                set_aside |= {(link.worker.name, i) for i in box._sender._backlogs if i not in turns}
        self.auditor.settle(set_aside, [lane.life for env in self._envs for lane in env.lanes])

    def close(self):
        for process in self._all:
            if process.is_alive:
                process.die()
        for file in self.files:
            file.close()

    def _heal(self):
        self.free_disk()
        self.network.queue_messages = 1000
        for machine in self._machines:
            machine.wall_jump_s = 0.0
        for connection in self.network.connections:
            connection.held_until = [0.0, 0.0]
        for training in self.trainings:
            if training.power is not None:
                training.power.before = lambda number: None
        for process in self._all:
            process.dies_after, process.dies_in_write = None, False
            process.frozen_until = min(process.frozen_until, self.now)

    def _pass_until(self, is_done):
        for _ in range(SETTLE_ROUNDS):
            self._round()
            if is_done():
                return
        raise AssertionError(f"it does not settle: {self._unsettled()}")

    def _round(self):
        """Each part takes its turns; 0.3 s pass."""
        self.now += 0.3
        for process in self._all:
            process.start_at = min(process.start_at, self.now)
        self.start()
        for link in list(self.network.links):
            if link.may_dial:
                self.network.connect(link)
        for env in self._envs:
            if env.is_alive:
                env.run(env.refill)
                env.run(env.seal)
        for parts, turns in (
            (self._links, ("turn",)),
            (self.servers.values(), ("turn",)),
            (self._trainers, ("turn", "train", "turn")),
            (self.servers.values(), ("turn",)),
        ):
            for process in parts:
                for turn in turns:
                    if process.is_alive:
                        process.run(getattr(process, turn))
            for connection in list(self.network.connections):
                self.network.deliver(connection, True, 1000)
                self.network.deliver(connection, False, 1000)

    def _is_quiet(self):
        return not self._unsettled()

    def _unsettled(self):
        """What is not as it should be."""
        found = [process.name for process in (*self._envs, *self._links, *self._trainers) if not process.is_alive]
        for link in self._links:
            if link.is_alive:
                found += [f"{link.name} keeps {box.unacknowledged_samples()}" for box in link.outboxes if _keeps(box)]
        return found


def _keeps(box):
    """Whether anything waits that a trainer would take."""
    sender = box._sender
    return box._reader.has_unread or any(backlog.samples for backlog in sender._turns) or box.pending()


@contextlib.contextmanager
def world(seed):
    """A world of this seed, in a folder in memory, and the package's parts made small."""
    folder = Path(tempfile.mkdtemp(prefix="simulation.", dir=shared_memory()))
    logger = logging.getLogger("tmrl_like")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)  # formatting what nobody reads takes half the time
    draw = random.Random(f"names of {seed}")
    try:
        with contextlib.ExitStack() as patches:
            patches.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore", ResourceWarning)  # who is killed closes nothing
            made = World(seed, folder)

            def patch(owner, name, value):
                patches.enter_context(mock.patch.object(owner, name, value))

            patch(secrets, "randbits", draw.getrandbits)
            patch(secrets, "token_hex", lambda size: f"{draw.getrandbits(8 * size):0{2 * size}x}")
            patch(disk, "write", lambda file, data: made.running.machine.write(file, data))
            patch(disk, "sync", lambda file: made.running.machine.sync())
            patch(disk, "sync_folder", lambda path: None)
            for training in made.trainings:
                if training.power is not None:
                    patches.enter_context(training.power)
            patch(sample_log, "reserve", lambda path, size: made.running.machine.reserve(path, size))
            clock = SimpleNamespace(time=lambda: made.running.wall(), monotonic=lambda: made.now)
            for module in (worker_link, trainer_link, fleet):
                patch(module, "time", clock)
            patch(session, "unknown_host", lambda addresses: "")
            patch(sample_log, "_SEGMENT_BYTES", 4096)
            patch(sample_log, "_ROWS", 4)
            patch(outbox, "_LOG_SEGMENT_BYTES", 2000)
            patch(sender, "_BUNDLE_PACKETS", 4)
            patch(checkpoints, "_SEGMENT_BYTES", 3000)
            patch(checkpoints, "shared", lambda training, extra, ranks: dict(extra))
            drop = sender.Sender._drop

            def note(self, backlog, packet, now):
                has_arrived = packet.sequence <= backlog.received_up_to
                made.auditor.note_dropped((self._worker, backlog.incarnation), packet.sequence, has_arrived)
                drop(self, backlog, packet, now)

            patch(sender.Sender, "_drop", note)
            made.start()
            try:
                yield made
            finally:
                made.close()
                gc.collect()
    finally:
        logger.setLevel(level)
        shutil.rmtree(folder, ignore_errors=True)


def live(seed, steps, lines=None, change=None):
    """Live through one seed; the world that was.

    `lines` takes what happened in words; `change` is called with the world before its first step.

    Raises:
        Broken: a promise was, or a part of the product raised; the message says how to see it again.
    """
    with world(seed) as made:
        made.lines = lines
        if change is not None:
            change(made)
        try:
            for _ in range(steps):
                made.step()
            made.settle()
        except Exception as error:
            again = f"python tests/simulation/simulate.py {seed} --steps {steps} --trace"
            raise Broken(f"{again}: in step {made.steps}: {type(error).__name__}: {error}") from error
    return made
