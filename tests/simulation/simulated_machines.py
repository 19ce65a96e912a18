"""Machines and processes of a simulation: what is scheduled, killed, stopped, and written to a disk."""

import contextlib
import errno
import gc

from kill_lines import Killed, kill_after

import tmrl_like
from tmrl_like.base import files
from tmrl_like.wire import messages as m

SPACES = m.Spaces("Box(3)", "Box(1)")


def unmap(segments):
    """What the system does with the maps of a process that was killed."""
    for segment in segments:
        with contextlib.suppress(BufferError, ValueError):  # it was closed before, or is in use
            segment.close()


class Machine:
    """A machine: its disk, and its clock.

    Attributes:
        room_bytes: until it is full; None: plenty.
        slow_s: what a write takes.
        fails_to_sync: it cannot write what it has taken.
        wall_jump_s: by how much the clock is wrong.
        up_from_s: what `base.clocks.up_s` shows when the simulation begins.
        spool: the disk under a worker's folder; None: it has none.
    """

    def __init__(self, world):
        self._world = world
        self.room_bytes = None
        self.slow_s = 0.0
        self.fails_to_sync = False
        self.wall_jump_s = 0.0
        self.up_from_s = next(world.boots)
        self.spool = None

    def write(self, file, data):
        """In the place of `base.files.disk`'s."""
        process = self._world.running
        self._world.files.add(file)
        if process.dies_in_write:
            file.write(data[: self._world.rng.randrange(len(data))])
            self._world.count("killed in a write")
            raise Killed
        self._take(len(data), lambda room: file.write(data[:room]))
        if self.slow_s:
            process.wait(self._world.rng.random() * self.slow_s)
            self._world.count("a write took long")
        files.write_whole(file, data)

    def sync(self):
        """In the place of `base.files.disk`'s."""
        if self.fails_to_sync:
            self._world.count("a sync failed")
            raise OSError(errno.EIO, "input/output error")
        if self.slow_s:
            self._world.running.wait(self._world.rng.random() * self.slow_s)

    def reserve(self, path, size):
        """In the place of `base.files.reserve`."""
        self._take(size, lambda room: None)
        files.reserve(path, size)
        if self.spool is not None:
            self.spool.note_new(path)

    def _take(self, size, write):
        if self.room_bytes is None:
            return
        if size > self.room_bytes:
            write(self.room_bytes)
            self.room_bytes = 0
            self._world.count("a disk was full")
            raise OSError(errno.ENOSPC, "no space left")
        self.room_bytes -= size


class Process:
    """What is scheduled, and killed.

    Attributes:
        is_alive: it may be scheduled.
        dies_after: in its next turn it is killed at this line; None: it is not.
        dies_in_write: it is killed in its next write.
        frozen_until: it is stopped (SIGSTOP), or waits for its disk.
    """

    def __init__(self, world, name, machine):
        self.world = world
        self.name = name
        self.machine = machine
        self.is_alive = False
        self.dies_after = None
        self.dies_in_write = False
        self.frozen_until = 0.0
        self.start_at = 0.0
        self._clock_from = 0.0

    def wall(self):
        """The Unix time."""
        return 1.7e9 + self.world.now + self.machine.wall_jump_s

    def up(self):
        """In the place of `base.clocks.up_s`."""
        return self.machine.up_from_s + self.world.now

    def unix(self):
        """In the place of `base.clocks.unix_s`."""
        return self.epoch_s + self.up()

    def clock(self):
        return max(self.world.now, self.frozen_until) + self._clock_from

    def wait(self, seconds):
        self.frozen_until = max(self.world.now, self.frozen_until) + seconds

    @property
    def may_run(self):
        return self.is_alive and self.world.now >= self.frozen_until

    def run(self, call):
        """Have this process do something; it may be killed in it."""
        before, self.world.running = self.world.running, self
        try:
            if self.dies_after is None:
                call()
            elif kill_after(self.dies_after, call, tmrl_like):
                self.world.count("killed at a line")
                self._die_within()
            elif self.is_alive:
                self.world.count("killed between turns")
                self.die()
        except Killed:
            self._die_within()
        finally:
            self.world.running = before

    def _die_within(self):
        """Be killed in a call: what it had half made holds locks, perhaps in cycles."""
        gc.collect()
        self.die()

    def begin(self):
        self._clock_from = self.world.rng.random() * 1e5
        self.epoch_s = self.wall() - self.up()
        self.dies_after, self.dies_in_write, self.frozen_until = None, False, 0.0
        self.is_alive = True

    def die(self):
        """Be killed."""
        self.is_alive = False
        self.start_at = self.world.now + self.world.rng.choice((0.0, 0.1, 1.0, 8.0))
        self.world.trace(f"{self.name} dies")
