"""The ends of delivery in one test: the control loop's logs, the outbox that sends, and a
receiver.
"""

import numpy as np
from kit.clocks import Clock
from kit.episodes import episode
from kit.packets import TIMING

from tmrl_like.delivery.folder import open_folder
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.delivery.outbox import Outbox
from tmrl_like.delivery.receiver import Receiver
from tmrl_like.delivery.sample_log import SampleLog
from tmrl_like.wire import messages as m

STATS = episode(test=True, return_=-5.0)


def sample(i=0, size=3):
    return np.zeros(1, np.float32), np.full(size, i, np.float32), 0.0, False, False, {}


class Ends:
    """The sample logs of a worker and their outbox, whose time is that of `clock`. Other attributes
    are the outbox's.
    """

    def __init__(self, root=None, incarnation=1, log_bytes=512 << 20, lanes=1, **options):
        self._options = OutboxOptions(**{"max_age_s": 1e9} | options)
        self.clock = Clock()
        self.folder = open_folder(root, "w")
        self.path, self._dead = self.folder.path, self.folder.dead
        self.logs = [
            SampleLog(self.folder, log_bytes, incarnation + lane, lanes) for lane in range(lanes)
        ]
        self.log = self.logs[0]
        self.outbox = self.reader()

    def reader(self, **options):
        own = [log.incarnation for log in self.logs]
        return Outbox(self.path, "w", own, self._dead, self._options, self.clock, **options)

    def __getattr__(self, name):
        return getattr(self.outbox, name)

    def append(self, sample, lane=0):
        self.logs[lane].append(sample, *TIMING)

    def spool_bytes(self, incarnation=""):
        """Return the size of all files, or of those of one process."""
        return sum(path.stat().st_size for path in self.path.glob(f"*{incarnation}-*.entries"))

    def fill(self, *numbers, lane=0, size=3):
        for number in numbers:
            self.append(sample(number, size), lane=lane)

    def end_episode(self):
        self.log.end_episode(STATS)

    def ack(self, stored, received, again=False):
        self.outbox.on_ack(m.Ack("w", self.log.incarnation, stored, received, again))

    def pumped(self, taker=None, awaits=False):
        """Have the outbox send what is due to a taker (by default a new one), and return it."""
        taker = taker or Taker()
        self.pump(taker.send, True, awaits)
        return taker

    def emptied(self, taker=None):
        """Have the outbox send all entries."""
        return self.pumped(taker, awaits=True)

    def deliver(self, taker):
        """Send all entries, and have the taker acknowledge them as stored."""
        self.emptied(taker).acknowledge(self)

    def kill_reader(self):
        """Leave what remains of a killed reader: its files, but no lock."""
        self.outbox = None

    def restart_reader(self):
        self.kill_reader()
        self.outbox = self.reader()

    def kill_writer(self):
        self.folder = None

    def kill(self):
        self.kill_writer()
        self.kill_reader()

    def close(self):
        for log in self.logs:
            log.close()
        for part in filter(None, (self.folder, self.outbox)):
            part.close()


class Taker:
    """A trainer's receiver whose memory takes everything, as long as there is room for packets.

    Attributes:
        receiver: the receiver.
        packets: the packets, in order.
        samples: the samples in the memory; the first observation of a sample is its number.
        rows: by process, the numbers of the samples in the memory.
        stretches: the first entry of each stretch without a gap.
    """

    def __init__(self, room=10**9):
        self.room = room
        self.receiver = Receiver()
        self.packets, self.samples = [], []
        self.rows, self.stretches = {}, []

    def send(self, data):
        if len(self.packets) >= self.room:
            return False
        packet, body = m.decode(data)
        self.packets.append(packet)
        for delivery in self.receiver.take(packet, body, data, 0.0, lambda packet: True):
            samples = delivery.buffer.memory
            self.samples += samples
            self.rows.setdefault(packet.incarnation, []).extend(numbers_of(samples))
            first = int(delivery.buffer.stream.rpartition("/")[2])
            if first not in self.stretches[-1:]:
                self.stretches.append(first)
            self.receiver.confirm([delivery.receipt])
        return True

    @property
    def spans(self):
        """The first and last entry of each packet."""
        return [(packet.first, packet.last) for packet in self.packets]

    @property
    def all_numbers(self):
        return numbers_of(self.samples)

    def acknowledge(self, box, stored=True):
        for worker, process, entry in self.receiver.receipts:
            box.on_ack(m.Ack(worker, process, entry if stored else 0, entry))


def numbers_of(samples):
    return [int(np.ravel(sample.obs)[:1].sum()) for sample in samples]


def nothing(data):
    raise AssertionError("nothing may be sent")
