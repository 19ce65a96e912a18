"""Sender and receiver over a link that loses, doubles, reorders, delays and cuts; either end is killed at any time."""

import random
from pathlib import Path

import numpy as np
import pytest

from tmrl_like.delivery.log import PacketLog, lock_folder
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.delivery.receiver import Receiver
from tmrl_like.delivery.sender import Sender
from tmrl_like.types import Receipt, StepTiming
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import Compressor, PacketWriter
from tmrl_like.wire.records import packet_pieces

ACTIONS = (
    *("produce",) * 6,
    *("send",) * 4,
    *("to trainer",) * 6,
    *("train",) * 3,
    *("to worker",) * 4,
    *("lose", "double", "swap", "cut", "wait", "fill disk", "free disk", "kill trainer", "kill worker"),
)


def everything(packet):
    return True


@pytest.fixture(autouse=True)
def small_bundles(monkeypatch) -> None:
    monkeypatch.setattr("tmrl_like.delivery.sender._BUNDLE_PACKETS", 2)


class World:
    """One worker, one trainer, and what is on its way between them."""

    def __init__(self, root: Path, seed: int, keeps_folder: bool, options: OutboxOptions) -> None:
        self.root, self.rng, self.keeps_folder, self.options = root, random.Random(seed), keeps_folder, options
        self.now = 100.0
        self.incarnation = 0
        self.produced: list[tuple[int, int]] = []  # (incarnation, sequence), in order
        self.lost = 0
        self.up: list[bytes] = []
        self.down: list[bytes] = []
        self.sender = self.log = None
        self.worker_logs: list[PacketLog] = []
        self.start_worker()
        self.start_trainer()

    def start_worker(self) -> None:
        self.incarnation += 1
        self.sequence = 0
        folder = self.root / ("w" if self.keeps_folder else f"tmrl_like.{self.incarnation}")
        self.worker_logs.append(PacketLog(folder, lock_folder(folder)))
        self.sender = Sender("w", self.incarnation, self.options, self.worker_logs[-1], self.now)

    def start_trainer(self) -> None:
        self.log = PacketLog(self.root / "log", lock_folder(self.root / "log"), segment_bytes=700)
        self.receiver = Receiver(self.log, "run", keep_samples=10**9)
        self.memory = [(stream, row) for buffer in self.receiver.replay() for stream, row in rows_of(buffer)]
        self.inbox = []

    def act(self, action: str) -> None:
        self.now += 0.2
        getattr(self, action.replace(" ", "_"))()

    def produce(self) -> None:
        self.sequence += 1
        writer = PacketWriter()
        for k in range(2):
            obs = np.array([self.incarnation, self.sequence, k], np.int64)
            writer.append((np.zeros(1), obs, 0.0, False, False, {}), StepTiming(1e9, 0.0, 0.0, 1))
        record = packet_pieces(Receipt("w", self.incarnation, self.sequence), 0, writer.rows(), (), Compressor())
        self.sender.add(self.sequence, 2, record, self.now)
        self.produced.append((self.incarnation, self.sequence))

    def send(self) -> None:
        room = self.rng.randrange(4)
        self.sender.send(
            lambda data: len(self.up) < 40 and (self.up.append(data) or self.rng.random() < room), self.now
        )

    def to_trainer(self) -> None:
        if self.up:
            bundle, body = m.decode(self.up.pop(0))
            self.inbox += self.receiver.take(bundle, body, self.now, everything)

    def train(self, everything: bool = False) -> None:
        count = len(self.inbox) if everything else self.rng.randrange(len(self.inbox) + 1)
        taken, self.inbox = self.inbox[:count], self.inbox[count:]
        for delivery in taken:
            self.memory += rows_of(delivery.buffer)
        self.receiver.confirm([delivery.receipt for delivery in taken])
        self.receiver.write(self.now)
        self.down += [m.encode(message) for message in self.receiver.due()]

    def to_worker(self) -> None:
        if self.down:
            message, _ = m.decode(self.down.pop(0))
            self.sender.on_ack(message, self.now)

    def lose(self) -> None:
        for link in (self.up, self.down):
            if link and self.rng.random() < 0.5:
                link.pop(self.rng.randrange(len(link)))

    def double(self) -> None:
        if self.up:
            self.up.insert(self.rng.randrange(len(self.up) + 1), self.rng.choice(self.up))

    def swap(self) -> None:
        self.rng.shuffle(self.up)
        self.rng.shuffle(self.down)

    def cut(self) -> None:
        self.up.clear()
        self.down.clear()
        self.sender.retransmit(from_the_start=False)

    def wait(self) -> None:
        self.now += 70.0

    def fill_disk(self) -> None:
        self.log.append = lambda *_: None

    def free_disk(self) -> None:
        vars(self.log).pop("append", None)

    def kill_trainer(self) -> None:
        self.log._end_segment()  # a kill leaves the files as they are
        self.log._lock.release()
        self.start_trainer()
        self.sender.retransmit(from_the_start=True)

    def kill_worker(self) -> None:
        if self.keeps_folder:
            self.worker_logs[-1]._end_segment()
            self.worker_logs[-1]._lock.release()
            self.start_worker()

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *error: object) -> None:
        self.log.close()
        for log in self.worker_logs:
            log.close()

    def settle(self) -> None:
        self.free_disk()
        for _ in range(200):
            self.now += 3.0
            self.sender.send(lambda data: self.up.append(data) or True, self.now)
            while self.up:
                self.to_trainer()
            self.train(everything=True)
            while self.down:
                self.to_worker()
            if not self.sender.pending and not self.sender.samples:
                return
        raise AssertionError("it does not settle")


def rows_of(buffer):
    return [(buffer.stream, tuple(sample.obs.tolist())) for sample in buffer]


def live(world: World, steps: int) -> None:
    for action in world.rng.choices(ACTIONS, k=steps):
        world.act(action)
    world.settle()


@pytest.mark.fault(
    "network", "packets are lost, doubled, delayed and out of order", "each is in the memory once, in order"
)
@pytest.mark.parametrize("seed", range(40))
def test_every_packet_is_in_the_memory_once_and_in_order(seed, tmp_path) -> None:
    with World(tmp_path, seed, seed % 2 == 0, OutboxOptions()) as world:
        live(world, 400)
        world.kill_trainer()
        expected = [(i, s, k) for i, s in world.produced for k in range(2)]
        assert sorted(row for _, row in world.memory) == sorted(expected)
        for incarnation in {i for i, _ in world.produced}:
            own = [(stream, row) for stream, row in world.memory if row[0] == incarnation]
            assert [row for _, row in own] == sorted(row for _, row in own)
            assert len({stream for stream, _ in own}) == 1, "nothing was lost, so it is one stream"


@pytest.mark.parametrize("seed", range(20))
def test_what_a_full_outbox_drops_is_counted_and_joined_to_nothing(seed, tmp_path) -> None:
    with World(tmp_path, seed, False, OutboxOptions(max_held_samples=12)) as world:
        live(world, 400)
        stored = [row for _, row in world.memory]
        assert len(stored) == len(set(stored))
        assert len(stored) < 2 * len(world.produced) <= len(stored) + world.sender.lost_samples
        streams: dict[str, list[int]] = {}
        for stream, (_, sequence, _) in world.memory:
            streams.setdefault(stream, []).append(sequence)
        for sequences in streams.values():
            assert sequences == [s for s in range(sequences[0], sequences[-1] + 1) for _ in range(2)]


def test_a_segment_goes_when_the_memory_does_not_hold_its_samples_any_more(tmp_path) -> None:
    with World(tmp_path, 0, False, OutboxOptions()) as world:
        world.receiver._keep_samples = 4
        for _ in range(40):
            world.produce()
            world.settle()
        world.produce()
        world.send()
        late = list(world.up)
        world.settle()
        world.start_worker()
        for _ in range(40):
            world.produce()
            world.settle()
        world.kill_trainer()
        assert 4 <= len(world.memory) < 20
        assert world.receiver.samples == 162
        before = list(world.memory)
        world.up += late
        world.settle()
        assert world.memory == before, "the receipts of removed packets are in the heads"


def test_the_last_packets_are_sent_again_when_nobody_answers(tmp_path) -> None:
    with World(tmp_path, 0, False, OutboxOptions()) as world:
        world.produce()
        world.sender.send(lambda data: True, world.now)  # lost on its way
        world.sender.send(lambda data: world.up.append(data) or True, world.now + 4.0)
        assert world.up == []
        world.sender.send(lambda data: world.up.append(data) or True, world.now + 6.0)
        world.settle()
        assert len(world.memory) == 2


def test_packets_of_a_process_that_was_rejected_are_neither_logged_nor_acknowledged(tmp_path) -> None:
    with World(tmp_path, 0, False, OutboxOptions()) as world:
        world.produce()
        world.sender.send(lambda data: world.up.append(data) or True, world.now)
        world.to_trainer()
        world.receiver.write(world.now)
        world.receiver.reject(world.inbox.pop().receipt, "too tall")
        world.train()
        messages = [m.decode(data)[0] for data in world.down]
        assert messages == [m.Dismissal("w", 1, "too tall")]
        world.kill_trainer()
        assert world.memory == []
