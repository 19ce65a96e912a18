"""A worker whose processes are killed at any line of delivery: what `append` returned from arrives once, in order."""

import gc
import random

import numpy as np
import pytest
from both_ends import CLOCK, STATS, TIMING, Ends, nothing
from kill_lines import kill_after

import tmrl_like.delivery
from tmrl_like.delivery import outbox, sample_log
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import decode_body
from tmrl_like.wire.records import unseal

OPTIONS = {"max_samples": 7, "max_packet_bytes": 50_000}


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr(sample_log, "_SEGMENT_BYTES", 4096)  # so that packets lie in several
    monkeypatch.setattr(sample_log, "_ROWS", 4)
    monkeypatch.setattr(outbox, "_LOG_SEGMENT_BYTES", 1)  # so that what is stored is gone


class Trainer:
    """Takes each packet once, in order; what it has of each process, with the breaks before."""

    def __init__(self):
        self.received = {}
        self.sizes = {}
        self.rows = {}
        self.reports = 0

    def send(self, data):
        bundle, body = m.decode(data)
        for _, message in unseal(body):
            packet, content = m.decode(message)
            received = self.received.get(bundle.incarnation, 0)
            name = (bundle.incarnation, packet.sequence)
            assert self.sizes.setdefault(name, packet.samples) == packet.samples, "another packet of the same name"
            assert packet.sequence <= received + 1, "a packet is missing"
            if packet.sequence == received + 1:
                self.received[bundle.incarnation] = packet.sequence
                self.reports += len(packet.episodes)
                for row in decode_body(packet, content).samples():
                    found = (packet.breaks, int(row.obs[0]), row.info.is_reset)
                    self.rows.setdefault(bundle.incarnation, []).append(found)
        return True


class World:
    """One worker, its successors, and a trainer."""

    def __init__(self, root):
        self.root = root
        self.trainer = Trainer()
        self.appended = {}
        self.reports = 0
        self.count = 0
        self.incarnation = 0
        self.begin()

    def begin(self):
        self.incarnation += 1
        self.breaks = 0
        self.ends = Ends(self.root, self.incarnation, CLOCK, **OPTIONS)

    def append(self, kind):
        self.count += 1
        size = {"small": 3, "large": 200, "huge": 20_000}.get(kind, 3)
        obs = np.zeros(size, np.float32)
        obs[0] = self.count
        info = {"said": "x" * (self.count % 5)} if kind == "text" else {}
        self.ends.append((None, obs, 0.0, False, False, info), TIMING, kind == "reset")
        self.appended.setdefault(self.incarnation, []).append((self.breaks, self.count, kind == "reset"))

    def begin_file(self):
        self.ends.begin_file()

    def add_break(self):
        self.ends.add_break()
        self.breaks += 1

    def report(self):
        self.ends.end_episode(STATS)
        self.reports += 1

    def seal(self):
        self.ends.seal()

    def pump(self):
        self.ends.pump(self.trainer.send, True)

    def acknowledge(self):
        for incarnation, received in self.trainer.received.items():
            self.ends.on_ack(m.Ack("w", incarnation, received, received))

    def kill_reader(self, lines, call="pump"):
        if kill_after(lines, getattr(self, call), tmrl_like.delivery):
            self.restart(lines)

    def restart(self, lines):
        self.ends.kill_reader()
        while kill_after(lines, self._new_reader, tmrl_like.delivery):
            lines = 2 * lines + 50
            gc.collect()  # a lock that it has just taken

    def _new_reader(self):
        self.ends.outbox = self.ends._reader()

    def kill_all(self, lines):
        self.ends.kill()
        self.incarnation += 1
        self.breaks = 0
        self.ends = Ends(self.root, self.incarnation, CLOCK, **OPTIONS)
        self.restart(lines)

    def settle(self):
        self.ends.seal()
        self.ends.pump(nothing, False)
        self.ends.retransmit(from_the_start=False)
        self.pump()
        for incarnation, appended in self.appended.items():
            rows = self.trainer.rows[incarnation]
            assert [row[1:] for row in rows] == [row[1:] for row in appended]
            more = [row[0] - own[0] for row, own in zip(rows, appended, strict=True)]
            assert more == sorted(more), "a break too many"
            assert max(more) <= (incarnation != self.incarnation), "what a dead process left has one break more at most"
        assert len(self.trainer.rows) == len(self.appended)
        assert self.trainer.reports == self.reports
        self.acknowledge()
        assert not self.ends.pending()
        assert self.ends.unacknowledged_samples() == 0
        self.ends.close()


def operations(rng, count):
    """Random ones; each with its arguments."""
    for _ in range(count):
        yield from [("append", rng.choice(["small", "small", "reset", "large", "text", "huge"]))] * rng.choice(
            [1, 2, 9]
        )
        yield rng.choice(
            [
                *[(name,) for name in ("add_break", "report", "seal", "pump", "acknowledge")],
                *[("kill_reader", rng.randrange(800), call) for call in ("pump", "pump", "pump", "acknowledge")],
                ("restart", rng.randrange(800)),
                ("kill_all", rng.randrange(800)),
            ]
        )


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what is killed closes no files
@pytest.mark.parametrize("is_private", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_killed_when(seed, is_private, tmp_path):
    gc.freeze()  # what is there is not looked at again each time
    world = World(None if is_private else tmp_path)
    try:
        for name, *arguments in operations(random.Random(seed), 60):
            if name != "kill_all" or not is_private:  # no shared memory outlives both processes
                getattr(world, name)(*arguments)
        world.settle()
    finally:
        gc.unfreeze()
        world.ends.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("lines", range(0, 800, 8))
def test_a_packet_that_lies_in_several_files_is_the_same_after_a_kill(lines, tmp_path):
    world = World(tmp_path)
    for _ in range(3):
        world.append("large")
        world.begin_file()
    world.append("small")
    world.seal()
    is_killed = kill_after(lines, world.pump, tmrl_like.delivery)
    world.append("small")  # what comes meanwhile is in another packet
    if is_killed:
        world.restart(10_000)
    world.pump()
    world.acknowledge()
    world.restart(10_000)
    world.append("small")
    world.settle()


def test_a_packet_that_ends_with_a_file_has_a_name_that_no_other_gets(tmp_path):
    world = World(tmp_path)
    world.append("small")
    world.begin_file()
    world.ends.outbox.seal()
    world.pump()
    world.acknowledge()
    world.restart(10_000)
    world.append("small")
    world.settle()
