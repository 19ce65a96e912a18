"""The ends of a worker's delivery in one test: the control loop's logs, the outbox that sends, and
stand-ins for the receiver.
"""

import numpy as np
from kit.clocks import Clock
from kit.episodes import episode
from kit.packets import TIMING

from tmrl_like.delivery.folder import open_folder
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.delivery.outbox import Outbox
from tmrl_like.delivery.sample_log import SampleLog
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import columns_in, decode_body, refuse_misnumbered
from tmrl_like.wire.rows import RESET

STATS = episode(test=True, return_=-5.0)
CLOCK = Clock()


def sample(i=0, size=3):
    return np.zeros(1, np.float32), np.full(size, i, np.float32), 0.0, False, False, {}


class Ends:
    """The sample logs of a worker and their outbox. Other attributes are the outbox's."""

    def __init__(
        self, root=None, incarnation=1, clock=CLOCK, log_bytes=512 << 20, lanes=1, **options
    ):
        self.options = OutboxOptions(**{"max_age_s": 1e9} | options)
        self._clock = clock
        self.folder = open_folder(root, "w")
        self.logs = [SampleLog(self.folder, log_bytes, incarnation + lane) for lane in range(lanes)]
        self.log = self.logs[0]
        self.outbox = self.reader()

    def reader(self, **options):
        incarnations = [log.incarnation for log in self.logs]
        return Outbox(
            self.folder.path,
            "w",
            incarnations,
            self.folder.dead,
            self.options,
            self._clock,
            **options,
        )

    def __getattr__(self, name):
        return getattr(self.outbox, name)

    def append(self, sample, timing=TIMING, is_reset=False, lane=0):
        self.logs[lane].append(sample, *timing, RESET * is_reset)

    def fill(self, *numbers, lane=0, size=3):
        for number in numbers:
            self.append(sample(number, size), lane=lane)

    def end_episode(self, stats=STATS):
        self.log.end_episode(stats)

    def add_break(self):
        self.log.add_break()

    def begin_file(self):
        self.log._next_segment(0)
        self.log._go_on()

    def ack(self, stored, received, again=False):
        self.outbox.on_ack(m.Ack("w", self.log.incarnation, stored, received, again))

    def deliver(self, taker, stored=True):
        """Send all entries, and have the taker acknowledge them."""
        self.pump(taker.send, True, awaits=True)
        taker.acknowledge(self, stored=stored)

    def pumped(self, taker=None, **how):
        """Have the outbox send to a taker (by default a new `Wire`), and return it."""
        taker = taker or Wire()
        self.pump(taker.send, True, **how)
        return taker

    def kill_reader(self):
        """Leave what remains of a killed reader: its files, but no lock."""
        self.outbox._lock.release()
        self.outbox._senders = {}

    def restart_reader(self):
        self.kill_reader()
        self.outbox = self.reader()

    def kill_writer(self):
        self.folder._lock.release()

    def kill(self):
        self.kill_writer()
        self.kill_reader()

    def close(self):
        for log in self.logs:
            log.close()
        self.folder.close()
        self.outbox.close()


class Wire:
    """Accepts the packets that the outbox sends, as long as there is room.

    Attributes:
        packets: the packets, in order.
        numbers: for each packet, the first observations of its samples, which are their numbers.
    """

    def __init__(self, room=10**9):
        self.room = room
        self.packets = []
        self.numbers = []

    def send(self, data):
        if len(self.packets) >= self.room:
            return False
        packet, body = m.decode(data)
        refuse_misnumbered(packet)
        columns = columns_in(data, body)
        self.packets.append(packet)
        rows = decode_body(packet, columns).samples() if packet.samples else []
        self.numbers.append([int(np.ravel(row.obs)[0]) for row in rows])
        return True

    @property
    def spans(self):
        """The first and last entry of each packet."""
        return [(packet.first, packet.last) for packet in self.packets]

    @property
    def all_numbers(self):
        return [number for numbers in self.numbers for number in numbers]


class Taker(Wire):
    """Takes each entry once and in order, as a trainer does.

    Attributes:
        rows: by process, its samples.
        received: by process, the last entry received.
        missing: processes of which a packet came that does not continue the one before.
        gaps: (process, entry before, entry after) for entries that never come.
    """

    def __init__(self, room=10**9):
        super().__init__(room)
        self.rows, self.received, self.missing, self.gaps = {}, {}, set(), []

    def send(self, data):
        if not super().send(data):
            return False
        packet, numbers = self.packets[-1], self.numbers[-1]
        process, received = packet.incarnation, self.received.get(packet.incarnation, 0)
        if packet.oldest > received + 1:
            self.gaps.append((process, received, packet.oldest))
            received = packet.oldest - 1
        if packet.first > received + 1:
            self.missing.add(process)
            return True
        reports = {entry for entry, _ in packet.episodes}
        entries = [entry for entry in range(packet.first, packet.last + 1) if entry not in reports]
        entries = entries[len(entries) - packet.samples :]  # without the break
        new = [number for entry, number in zip(entries, numbers, strict=True) if entry > received]
        self.rows.setdefault(process, []).extend(new)
        self.received[process] = max(received, packet.last)
        return True

    def acknowledge(self, box, incarnation=None, stored=True):
        for process, received in self.received.items():
            if incarnation in (None, process):
                box.on_ack(m.Ack("w", process, received if stored else 0, received))


def nothing(data):
    raise AssertionError("nothing may be sent")
