"""Machines and processes of a simulation: what is scheduled, killed, stopped, and written to a
disk.
"""

import contextlib
import errno
import gc

from kill_lines import Killed, kill_after

from tmrl_like import delivery
from tmrl_like.base import files

PAGE_BYTES = 512  # as small as the files; a machine's are of 4 KiB
MOMENTS = 10


def unmap(segments):
    """What the system does with the maps of a process that was killed."""
    for segment in segments:
        with contextlib.suppress(BufferError, ValueError):  # it was closed before, or is in use
            segment.close()


class Machine:
    """A machine: its disk, and its clock.

    Attributes:
        room_bytes: until the disk is full; None: plenty.
        slow_s: what a write takes at most.
        fails_to_sync: it cannot write what it has taken.
        wall_jump_s: by how much the clock is wrong.
        up_from_s: what `base.clocks.up_s` shows when the simulation begins.
    """

    def __init__(self, world):
        self._world = world
        self.heal()
        self.wall_jump_s = 0.0
        self.boot()

    def heal(self):
        """The disk has room, and is well."""
        self.room_bytes, self.slow_s, self.fails_to_sync = None, 0.0, False

    def boot(self):
        self.up_from_s = next(self._world.boots)

    def write(self, file, data):
        """In the place of `base.files.disk`'s."""
        process = self._world.running
        if process.dies_in_write:
            file.write(data[: self._world.rng.randrange(len(data))])
            self._world.count("killed in a write")
            raise Killed
        self._take(len(data), lambda room: file.write(data[:room]))
        self._pause()
        files.write_whole(file, data)

    def sync(self):
        """In the place of `base.files.disk`'s."""
        if self.fails_to_sync:
            self._world.count("a sync failed")
            raise OSError(errno.EIO, "input/output error")
        self._pause()

    def reserve(self, path, size):
        """In the place of `base.files.reserve`."""
        self._take(size, lambda room: None)
        files.reserve(path, size)

    def _take(self, size, write):
        if self.room_bytes is None:
            return
        if size > self.room_bytes:
            write(self.room_bytes)
            self.room_bytes = 0
            self._world.count("a disk was full")
            raise OSError(errno.ENOSPC, "no space left")
        self.room_bytes -= size

    def _pause(self):
        if self.slow_s:
            self._world.running.wait(self._world.rng.random() * self.slow_s)
            self._world.count("a disk was slow")


class Process:
    """What is scheduled, and killed.

    Attributes:
        is_alive: it may be scheduled.
        dies_after: in its next turn it is killed at this line of the room of delivery; None: it is
            not.
        dies_in_write: it is killed in its next write.
        frozen_until: it is stopped (SIGSTOP), or waits for its disk.
        start_at: when it may be started again.
    """

    def __init__(self, world, name, machine):
        self.world = world
        self.name = name
        self.machine = machine
        self.is_alive = False
        self.start_at = 0.0
        self.spare()

    def spare(self):
        """Nothing is about to befall it."""
        self.dies_after, self.dies_in_write, self.frozen_until = None, False, 0.0

    def begin(self):
        self._clock_from = self.world.rng.random() * 1e5
        self.epoch_s = self.wall() - self.up()
        self.spare()
        self.is_alive = True

    def wall(self):
        """The Unix time as its machine's clock is set now."""
        return 1.7e9 + self.world.now + self.machine.wall_jump_s

    def up(self):
        """In the place of `base.clocks.up_s`."""
        return self.machine.up_from_s + self.world.now

    def unix(self):
        """In the place of `base.clocks.unix_s`."""
        return self.epoch_s + self.up()

    def clock(self):
        """In the place of `time.monotonic`."""
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
            elif kill_after(self.dies_after, call, delivery):
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

    def die(self):
        """Be killed."""
        self.is_alive = False
        self.start_at = self.world.now + self.world.rng.choice((0.0, 0.1, 1.0, 8.0))
        self.world.trace(f"{self.name} dies")


class MappedDisk:
    """The disk under the mapped files of a worker, which nobody syncs: the system writes pages and
    names when it likes.

    After a power cut each page of a file is as it was at some moment since all was written, and so
    are the names.
    """

    def __init__(self, root):
        self._root = root
        self._moments = [({}, {})]  # since all was written: files by name, and what is in them

    def write_all(self):
        """The system has written all there is."""
        self._moments = [self._seen()]

    def write_some(self):
        """The system may write what there is now."""
        self._moments[1:] = [*self._moments[1:], self._seen()][-MOMENTS:]

    def cut(self, rng):
        """Cut the power; nobody may use what was open."""
        share = rng.choice((0.0, 0.5, 0.9, 1.0))  # of names and pages that are as new as can be
        moments = [*self._moments, self._seen()]

        def draw(states):
            return states[-1] if rng.random() < share else rng.choice(states)

        paths = sorted(set().union(*(names for names, _ in moments)))
        left = {path: draw([names.get(path) for names, _ in moments]) for path in paths}
        for path in moments[-1][0]:
            path.unlink()
        placed = {None}
        for path in rng.sample(paths, len(paths)):
            if left[path] not in placed:  # what is renamed has one of its names
                placed.add(left[path])
                states = [contents[left[path]] for _, contents in moments if left[path] in contents]
                path.write_bytes(_left_of(states, left[path] not in moments[0][1], draw, rng))
        self._moments = [self._seen()]

    def _seen(self):
        names = {path: path.stat().st_ino for path in sorted(self._root.rglob("*.rows"))}
        return names, {file: path.read_bytes() for path, file in names.items()}


def _left_of(states, is_new, draw, rng):
    """A file of pages of different moments; what was never written is zeros, or behind its end."""
    size = max(map(len, states))
    whole = [bytes(size)] * is_new + [state.ljust(size, b"\0") for state in states]
    content = b"".join(draw(whole)[at : at + PAGE_BYTES] for at in range(0, size, PAGE_BYTES))
    return (
        content[: rng.randrange(0, size, PAGE_BYTES)] if is_new and rng.random() < 0.3 else content
    )
