"""A worker of a simulation: the package's own parts without threads, under the scheduler of the
world.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from simulated_machines import MappedDisk, Process
from simulated_network import SimulatedPeerLink

from tmrl_like.base.files import lock_folder
from tmrl_like.delivery.folder import WorkerFolder
from tmrl_like.delivery.outbox import Outbox
from tmrl_like.delivery.sample_log import SampleLog
from tmrl_like.session.session import Session
from tmrl_like.transport.base import Identity
from tmrl_like.types import EpisodeStats, StepTiming
from tmrl_like.wire import messages as m
from tmrl_like.wire.condition import Condition
from tmrl_like.wire.rows import RESET
from tmrl_like.worker.link import WorkerRole
from tmrl_like.worker.link_messages import Trained

SPACES = m.Spaces("Box(3)", "Box(1)")
ORPHAN_S = 3.0  # how long a link without its robot continues to send what is left
NO_GATE = SimpleNamespace(verdicts=SimpleNamespace(alarm=""), add=lambda *_: 0)
NO_FILES = SimpleNamespace(add=lambda *_: None)


class Lane:
    """A lane: its sample log, and the audited life of what it appended."""

    def __init__(self, log, life):
        self.log = log
        self.life = life
        self.is_text = False


class RobotProcess(Process):
    """The process with a worker's control loops, which append numbered samples."""

    def __init__(self, world, worker):
        super().__init__(world, f"{worker.name}-robot")
        self.worker = worker
        self.lanes = []

    def start(self):
        """Lock the worker's folder, which no other process of the worker holds, and open its
        logs.
        """
        self.begin()
        world, worker = self.world, self.worker
        self.lanes, lock = [], lock_folder(worker.folder(), name="worker.lock")
        self.let_go.append(lock.release)
        self.folder = WorkerFolder(worker.root, worker.name, lock)
        lanes = world.rng.choice(world.options.lanes)
        for _ in range(lanes):
            life = world.auditor.begin_life(worker)
            log = SampleLog(
                self.folder,
                max_bytes=world.options.log_bytes,
                incarnation=life.incarnation,
                logs=lanes,
            )
            self.lanes.append(Lane(log, life))

    def append(self):
        """Append a few samples of one lane, and perhaps breaks or reports of episodes."""
        rng = self.world.rng
        lane = rng.choice(self.lanes)
        for _ in range(rng.randrange(1, 7)):
            kind = rng.random()
            if self.worker.is_in_lockstep and lane.life.holds_still:
                self.world.count("a lane waited for training")
            elif kind < 0.03:
                lane.log.add_break()
                lane.life.note_break()
            elif kind < 0.08:
                steps = rng.randrange(100)
                lane.log.end_episode(
                    EpisodeStats(self.worker.name, True, 0.0, steps, True, False, 1e9, 1)
                )
            else:
                self._append_sample(lane, is_reset=kind < 0.13)

    def _append_sample(self, lane, is_reset):
        life, log, world = lane.life, lane.log, self.world
        number = life.begin_sample()
        obs = np.array((self.worker.number, life.incarnation, number))
        if world.rng.random() < 0.02:
            lane.is_text = not lane.is_text
        info = {"said": "x" * (number % 5)} if lane.is_text else {}
        timing = StepTiming(world.now, 0.0, 0.0, number + 1)
        log.append((None, obs, 0.0, False, False, info), *timing, RESET * is_reset)
        life.end_sample(number, log.entries, log.lost_samples)

    def append_to_all(self):
        """Append a sample in each lane that does not wait for training."""
        for lane in self.lanes:
            if not (self.worker.is_in_lockstep and lane.life.holds_still):
                self._append_sample(lane, is_reset=False)

    def refill(self):
        for lane in self.lanes:
            lane.log.refill()

    def leave(self):
        """Shut down in good order."""
        self.is_alive = False
        self.start_at = self.world.now + 0.5
        for lane in self.lanes:
            lane.log.close()
        self.folder.close()
        self.worker.note_death()

    def die(self):
        super().die()
        self.worker.note_death()


class LinkProcess(Process):
    """The link process: a worker's half of the conversation with the server."""

    def __init__(self, world, worker):
        super().__init__(world, f"{worker.name}-link")
        self.worker = worker
        self.identity = Identity(
            "key of all workers" if world.has_one_key else f"key of {worker.name}", ("worker",)
        )
        self.session = self.outbox = self.peer = None

    def start(self):
        """Begin as `Link.__init__` does; the robot is alive, and no other link holds the folder."""
        world, worker = self.world, self.worker
        self.begin()
        self.orphan_until = self.session = self.outbox = self.peer = None
        self._lanes = worker.robot.lanes
        own = [lane.life.incarnation for lane in self._lanes]
        self.outbox = Outbox(
            worker.root,
            worker.name,
            own,
            worker.robot.folder.dead,
            world.options.outbox,
            self.clock,
        )
        if self.outbox.takes_over:
            world.count("entries of dead processes were taken over")
        server = world.rng.choice(world.servers).name
        self.peer = SimulatedPeerLink(world, server, self, self.identity)
        condition = Condition(awaits=worker.is_in_lockstep)
        self.role = WorkerRole(self.outbox, NO_GATE, NO_FILES, condition, self._tell)
        taken_over = self.outbox.takes_over
        hello = m.Hello("worker", worker.name, own[0], "", SPACES, takes_over=taken_over)
        self.session = Session(self.peer, self.role, hello, self.clock)

    def _tell(self, message):
        """Pass a message on to the control loop."""
        if isinstance(message, Trained):
            for lane in self._lanes:
                if lane.life.incarnation == message.incarnation:
                    lane.life.note_trained(message.entry)

    @property
    def has_robot(self):
        """Whether the robot that started this link is still alive."""
        return self.worker.robot.is_alive and self.worker.robot.lanes is self._lanes

    def turn(self):
        if not self.has_robot and self.orphan_until is None:
            self.orphan_until = self.clock() + ORPHAN_S
            self.outbox.hasten()
        self.session.conversation.turn(0.0)
        if self.orphan_until is not None and (
            not self.role.pending() or self.clock() > self.orphan_until
        ):
            self.world.count("a link outlived its robot")
            self.leave()

    def leave(self):
        """Shut down as at the end of `Link.serve`."""
        self.outbox.hasten()
        self.session.close(0.0)
        self.outbox.close()
        self.is_alive = False
        self.start_at = self.world.now
        self.worker.note_death()

    def die(self):
        super().die()
        if self.peer is not None:
            self.world.network.drop_peer(self.peer)
        self.worker.note_death()


class Worker:
    """A machine with a worker: two processes, and a spool on a disk or a private folder.

    Attributes:
        is_cut: the power is cut as soon as one of its processes dies.
    """

    def __init__(self, world, number):
        self.world = world
        self.number = number
        self.name = f"w{number}"
        self.spools = world.rng.random() < 0.6
        self.is_in_lockstep = world.rng.random() < 0.2
        self.robot = RobotProcess(world, self)
        self.link = LinkProcess(world, self)
        self.is_cut = False
        self.root = world.folder / self.name
        self.root.mkdir()
        self.disk = MappedDisk(self.root)
        self._privates = 0

    def folder(self):
        """Return the folder for the next robot."""
        if not self.spools:
            self._privates += 1
            self.root = self.world.folder / f"tmrl_like.{self.name}.{self._privates}"
        return self.root

    def note_death(self):
        """Note a death; without a spool, samples are gone once both processes are dead."""
        if self.is_cut:
            self.cut_power()
        if not self.spools and not self.robot.is_alive and not self.link.is_alive:
            for lane in self.robot.lanes:
                lane.life.is_gone = True

    def write_back(self, all_of_it):
        """Let the system write pages of the folder's files, or all of them."""
        if all_of_it:
            self.disk.write_all()
            self.world.auditor.note_write_back(self)
        else:
            self.disk.write_some()

    def cut_power(self):
        """Cut the power of the machine."""
        self.is_cut = False
        for process in (self.robot, self.link):
            if process.is_alive:
                process.die()
            process.start_at = self.world.now
        self.world.count("the power of a worker was cut")
        self.disk.cut(self.world.rng)
        self.world.auditor.note_worker_cut(self)

    def start(self):
        """Start the processes that are due."""
        now = self.world.now
        if (
            not self.robot.is_alive
            and now >= self.robot.start_at
            and (not self.link.is_alive or self.spools)
        ):
            if self.link.is_alive:
                self.world.count("a robot came back while its old link lived")
            self.robot.run(self.robot.start)
        elif self.robot.is_alive and not self.link.is_alive and now >= self.link.start_at:
            self.link.run(self.link.start)
