"""The two ends of a worker's delivery in one test: the control loop's, and the one that sends."""

import contextlib

import numpy as np
from kit.clocks import Clock
from kit.episodes import episode
from kit.packets import TIMING

from tmrl_like.delivery.folder import open_folder
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.delivery.outbox import Outbox
from tmrl_like.delivery.sample_log import SampleLog
from tmrl_like.wire import messages as m
from tmrl_like.wire.records import unseal
from tmrl_like.wire.rows import RESET

STATS = episode(test=True, return_=-5.0)


CLOCK = Clock()


class Ends:
    """A sample log and its outbox; what is not here is the outbox's."""

    def __init__(self, root=None, incarnation=1, clock=CLOCK, log_bytes=512 << 20, **options):
        self.options = OutboxOptions(**{"max_age_s": 1e9} | options)
        self._clock = clock
        self.folder = open_folder(root, "w")
        self.log = SampleLog(self.folder, max_bytes=log_bytes, incarnation=incarnation)
        self.outbox = self._reader()

    def _reader(self):
        return Outbox(self.folder.path, "w", self.log.incarnation, self.options, self._clock)

    def __getattr__(self, name):
        return getattr(self.outbox, name)

    def append(self, sample, timing=TIMING, is_reset=False):
        self.log.append(sample, *timing, RESET * is_reset)

    def end_episode(self, stats=STATS):
        self.log.end_episode(stats)

    def add_break(self):
        self.log.add_break()

    def seal(self):
        self.log.seal()

    def begin_file(self):
        self.log._next_segment(0)
        self.log._go_on()

    def kill_reader(self):
        """What is left of a process that is killed: its files, and no lock."""
        self.outbox._log._end_segment()
        self.outbox._log._lock.release()

    def restart_reader(self):
        self.kill_reader()
        self.outbox = self._reader()

    def kill_writer(self):
        self.folder._lock.release()

    def kill(self):
        self.kill_writer()
        self.kill_reader()

    def close(self):
        self.log.close()
        self.folder.close()
        self.outbox.close()


@contextlib.contextmanager
def opened_ends():
    """Makes both ends; those that a test leaves open are closed at its end."""
    made = []

    def make(*args, **kwargs):
        made.append(Ends(*args, **kwargs))
        return made[-1]

    try:
        yield make
    finally:
        for ends in made:
            ends.close()


class Wire:
    """Takes what the outbox sends."""

    def __init__(self, room=10**9):
        self.room = room
        self.packets = []
        self.bundles = []

    def send(self, data):
        if len(self.bundles) >= self.room:
            return False
        bundle, body = m.decode(data)
        self.bundles.append(bundle)
        self.packets += [m.decode(message) for _, message in unseal(body)]
        return True

    @property
    def sequences(self):
        return [header.sequence for header, _ in self.packets]


def sample(i=0):
    return (np.zeros(1, np.float32), np.full(3, i, np.float32), 0.0, False, False, {})


def nothing(data):
    raise AssertionError("nothing may be sent")
