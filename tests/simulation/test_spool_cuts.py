"""The power of a worker's machine is cut, often: no sample comes twice, damaged, or where it does not belong."""

import random
from unittest import mock

import numpy as np
import pytest
from simulated_machines import unmap
from simulated_spool import SpoolDisk

from tmrl_like.delivery import sample_log
from tmrl_like.delivery.folder import open_folder
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.delivery.outbox import Outbox
from tmrl_like.delivery.receiver import Receiver
from tmrl_like.delivery.sample_log import SampleLog
from tmrl_like.wire import messages as m


class Trainer:
    """Has a memory that looks at what comes."""

    def __init__(self):
        self.receiver = Receiver()
        self.rows = set()
        self._newest = {}  # of each stream
        self._now = 0.0

    def take(self, data):
        bundle, body = m.decode(data)
        self._now += 1.0
        for delivery in self.receiver.take(bundle, memoryview(body), self._now, lambda packet: True):
            columns = [segment.tree()[1] for block in delivery.buffer.blocks for segment in block.segments]
            for row in (tuple(row[:2]) for column in columns for row in column.tolist()):
                assert row not in self.rows, f"{row} comes twice"
                newest = self._newest.setdefault(delivery.buffer.stream, row)
                assert row in (newest, (newest[0], newest[1] + 1)), f"{delivery.buffer.stream} joins {newest} to {row}"
                self._newest[delivery.buffer.stream] = row
                self.rows.add(row)
            self.receiver.confirm([delivery.receipt])
        return True

    def acks(self):
        self.receiver.write(self._now)
        return [ack for ack in self.receiver.due() if isinstance(ack, m.Ack)]


class Life:
    """One start of a worker, until the power of its machine is cut."""

    def __init__(self, folder, incarnation, options, log_bytes):
        self.folder = open_folder(folder, "w")
        self.incarnation = incarnation
        self.number = 0
        self.log = SampleLog(self.folder, max_bytes=log_bytes, incarnation=incarnation)
        self.box = Outbox(self.folder.path, "w", incarnation, options, lambda: 0.0)

    def append(self, rng, size):
        for _ in range(rng.randrange(1, 4)):
            obs = np.full(size, self.number)
            obs[:2] = self.incarnation, self.number
            self.log.append((None, obs, 0.0, False, False, {}), 1e9, 0.0, 0.0, 1, 0)
            self.number += 1

    def end(self):
        self.folder._lock.release()
        self.box._log._end_segment()
        self.box._log._lock.release()
        unmap((*self.box._reader._mapped.values(), *self.log._used, *self.log._spare))


def live(seed, folder):
    rng = random.Random(seed)
    spool, trainer = SpoolDisk(folder), Trainer()
    options = OutboxOptions(max_samples=rng.choice((3, 10)), max_age_s=1e9)
    size, log_bytes = rng.choice((3, 30, 200)), rng.choice((1 << 15, 1 << 20))
    with spool.power, mock.patch.object(sample_log, "_SEGMENT_BYTES", 4096), mock.patch.object(sample_log, "_ROWS", 4):
        for incarnation in range(1, 4):
            life = Life(folder, incarnation, options, log_bytes)
            for _ in range(rng.randrange(5, 80)):
                spool.write_some()
                what = rng.random()
                if what < 0.4:
                    life.append(rng, size)
                elif what < 0.5:
                    life.log.seal()
                elif what < 0.6:
                    life.log.refill()
                else:
                    life.box.pump(trainer.take, rng.random() < 0.8)
                if what > 0.8:
                    for ack in trainer.acks():
                        life.box.on_ack(ack)
            life.end()
            spool.cut(rng)
    return trainer


@pytest.mark.fault(
    "disk", "the power of a worker with a spool is cut", "no sample comes twice, damaged, or where it does not belong"
)
@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.chaos) for n in range(100, 2000, 100))])
def test_after_power_cuts_of_a_worker_no_sample_comes_twice_or_joins_what_it_does_not_follow(tmp_path, first):
    assert sum(len(live(seed, tmp_path / str(seed)).rows) for seed in range(first, first + 30)) > 1000
