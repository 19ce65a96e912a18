"""Processes of a simulation, which are scheduled, killed and stopped, and a disk for mapped
files.
"""

import contextlib
import gc

from kill_lines import Killed, kill_after

from tmrl_like import delivery
from tmrl_like.delivery.segments import SUFFIX

PAGE_BYTES = 512  # small like the files of a simulation; a real page has 4 KiB
MOMENTS = 10


class Process:
    """A simulated process, which is scheduled and killed.

    Attributes:
        is_alive: whether it may be scheduled.
        dies_after: number of lines of `tmrl_like.delivery` after which it is killed in its next
            turn; None: it is not killed.
        frozen_until: until then it is stopped (SIGSTOP).
        start_at: when it may be restarted.
        let_go: lets go of each file that it has mapped and each lock that it holds.
    """

    def __init__(self, world, name):
        self.world = world
        self.name = name
        self.is_alive = False
        self.start_at = 0.0
        self.spare()

    def spare(self):
        """Cancel faults that are about to hit it."""
        self.dies_after, self.frozen_until = None, 0.0

    def begin(self):
        self._clock_from = self.world.rng.random() * 1e5
        self.spare()
        self.let_go = []
        self.is_alive = True

    def clock(self):
        """Replace `time.monotonic`."""
        return max(self.world.now, self.frozen_until) + self._clock_from

    def wait(self, seconds):
        self.frozen_until = max(self.world.now, self.frozen_until) + seconds

    @property
    def may_run(self):
        return self.is_alive and self.world.now >= self.frozen_until

    def run(self, call):
        """Run a call as this process, which may be killed in it."""
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
        """Die in a call: half-made objects, perhaps in reference cycles, must release their
        locks.
        """
        gc.collect()
        self.die()

    def die(self):
        """Die as if killed: the system unmaps its files and releases its locks."""
        self.is_alive = False
        for let_go in self.let_go:
            with contextlib.suppress(BufferError, ValueError):  # it is already closed, or in use
                let_go()
        self.start_at = self.world.now + self.world.rng.choice((0.0, 0.1, 1.0, 8.0))
        self.world.trace(f"{self.name} dies")


class MappedDisk:
    """The disk below a worker's mapped files. They are never synced: the system writes pages and
    names at any time.

    After a power cut, each page and each name is as it was at some moment since everything was last
    written.
    """

    def __init__(self, root):
        self._root = root
        self._moments = [({}, {})]  # since all was written: files by name, contents by file

    def write_all(self):
        """Note that the system has written everything."""
        self._moments = [self._seen()]

    def write_some(self):
        """Note a moment whose pages and names the system may have written."""
        self._moments[1:] = [*self._moments[1:], self._seen()][-MOMENTS:]

    def cut(self, rng):
        """Cut the power. Files that were open must not be used any more."""
        share = rng.choice((0.0, 0.5, 0.9, 1.0))  # of names and pages that have their newest state
        moments = [*self._moments, self._seen()]

        def draw(states):
            return states[-1] if rng.random() < share else rng.choice(states)

        paths = sorted(set().union(*(names for names, _ in moments)))
        left = {path: draw([names.get(path) for names, _ in moments]) for path in paths}
        for path in moments[-1][0]:
            path.unlink()
        placed = {None}
        for path in rng.sample(paths, len(paths)):
            if left[path] not in placed:  # a renamed file keeps only one of its names
                placed.add(left[path])
                states = [contents[left[path]] for _, contents in moments if left[path] in contents]
                path.write_bytes(_left_of(states, left[path] not in moments[0][1], draw, rng))
        self._moments = [self._seen()]

    def _seen(self):
        names = {path: path.stat().st_ino for path in sorted(self._root.rglob(f"*{SUFFIX}"))}
        return names, {file: path.read_bytes() for path, file in names.items()}


def _left_of(states, is_new, draw, rng):
    """Return a file with pages from different moments; where nothing was written, it holds zeros or
    ends early.
    """
    size = max(map(len, states))
    whole = [bytes(size)] * is_new + [state.ljust(size, b"\0") for state in states]
    content = b"".join(draw(whole)[at : at + PAGE_BYTES] for at in range(0, size, PAGE_BYTES))
    return (
        content[: rng.randrange(0, size, PAGE_BYTES)] if is_new and rng.random() < 0.3 else content
    )
