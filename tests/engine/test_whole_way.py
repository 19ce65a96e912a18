"""Workers, two gateways, a stream and a trainer, all of which fail: every packet is stored once, and none is lost."""

import random
from collections import deque
from pathlib import Path

import msgspec
import pytest
from test_ledger import record_of, sequences_of

from tmrl_like.delivery.log import PacketLog, lock_folder
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.delivery.receiver import Receiver
from tmrl_like.delivery.sender import Sender
from tmrl_like.engine.ledger import Ledger
from tmrl_like.engine.progress import Progress
from tmrl_like.engine.subjects import part_of
from tmrl_like.types import Receipt
from tmrl_like.wire import messages as m
from tmrl_like.wire.records import newest_in


class Worker:
    """One process; it leaves once all that it made is received."""

    def __init__(self, name, root, now):
        self.name = name
        folder = root / f"tmrl_like.{name}"
        self.log = PacketLog(folder, lock_folder(folder))
        self.sender = Sender(name, 1, OutboxOptions(), self.log, now)
        self.made = self.feed = 0
        self.gateway = None
        self.is_gone = False


class Gateway:
    """A seat's bookkeeping, and what is on its way from and to it."""

    def __init__(self, world):
        self.world = world
        self.restart()
        self.is_frozen = False

    def restart(self):
        self.ledger, self.feed = Ledger(), self.world.rng.getrandbits(40) + 1
        self.connect()
        self.up, self.down = deque(), deque()

    def connect(self):
        self.ledger.begin(1 << 20)
        self.out, self.answers = deque(), deque()


class World:
    def __init__(self, root: Path, seed: int):
        self.rng = random.Random(seed)
        self.now = 100.0
        self.stream, self.newest, self.refuses, self.is_led = deque(), 0, False, True
        self.is_away = self.is_mended = False
        self.gateways = [Gateway(self), Gateway(self)]
        self.workers = {f"w{i}": Worker(f"w{i}", root, self.now) for i in range(4)}
        self.logged = {name: [] for name in self.workers}
        self.cut_off = {name: set() for name in self.workers}  # what the stream had confirmed, and lost
        self.start_trainer()

    def chance(self, share):
        return self.rng.random() < share

    # -- workers

    def work(self):
        worker = self.rng.choice(list(self.workers.values()))
        if worker.is_gone:
            return
        if worker.gateway is None or self.chance(0.003) or worker.gateway.is_frozen:
            worker.gateway = self.rng.choice(self.gateways)
        if worker.feed != worker.gateway.feed:
            worker.feed = worker.gateway.feed
            worker.sender.retransmit(from_the_start=True)
        if worker.made < 60 and self.chance(0.5):
            worker.made += 1
            worker.sender.add(worker.made, 1, record_of(worker.name, 1, worker.made), self.now)
        if self.chance(0.5):
            worker.sender.send(lambda data: self.chance(0.8) and not worker.gateway.up.append(data), self.now)
        if worker.made >= 60 and not worker.sender.pending and self.chance(0.2):
            worker.is_gone = True
            assert set(range(1, 61)) <= self.kept(worker.name) | self.cut_off[worker.name], (
                f"{worker.name} has left, and not all is anywhere"
            )

    def kept(self, name):
        """The packets of a worker that neither it nor a gateway is needed for."""
        return {s for _, n, payload in self.stream if n == name for s in sequences_of(payload)} | set(self.logged[name])

    # -- gateways and stream

    def run_gateway(self):
        gateway = self.rng.choice(self.gateways)
        if gateway.is_frozen:
            return
        for _ in range(min(3, len(gateway.up))):
            data = gateway.up.popleft()
            gateway.ledger.take(*m.decode(data), data, self.now)
        for number, name, payload in gateway.ledger.due(self.now):
            gateway.out.append((number, name, bytes(payload)))
        for _ in range(min(2, len(gateway.answers))):
            number, sequence = gateway.answers.popleft()
            if sequence is None:
                gateway.ledger.on_refused(number, self.now)
            else:
                gateway.ledger.on_stored(number, sequence, self.now)
        while gateway.down:
            self.hear(gateway, gateway.down.popleft())
        if gateway.ledger.is_lost:
            gateway.ledger.start_over()
            gateway.feed += 1
        for word in gateway.ledger.words():
            self.tell(gateway, word)

    def hear(self, gateway, ack):
        if not gateway.ledger.on_ack(ack, self.now):
            self.tell(gateway, msgspec.structs.replace(ack, received=ack.stored))  # as the seat does

    def tell(self, gateway, ack):
        worker = self.workers[ack.worker]
        if worker.gateway is gateway and worker.feed == gateway.feed and not worker.is_gone:
            kept = self.kept(ack.worker) | self.cut_off[ack.worker]
            assert set(range(1, ack.received + 1)) <= kept, f"{ack}: not all of it is anywhere"
            assert ack.stored <= max(self.logged[ack.worker], default=0)
            if self.chance(0.95):
                worker.sender.on_ack(ack, self.now)

    def publish(self):
        """What gateways publish comes to the stream, and to the trainer if it listens."""
        gateway = self.rng.choice(self.gateways)
        if not gateway.out:
            return
        number, name, payload = gateway.out.popleft()
        if self.hears_directly and not self.is_away:
            self.offer(payload, 0)
        if self.is_led and not self.refuses:
            self.newest += 1
            self.stream.append((self.newest, name, payload))
            if self.chance(0.95):
                gateway.answers.append((number, self.newest))
        elif self.chance(0.5):
            gateway.answers.append((number, None))

    # -- the trainer

    def start_trainer(self):
        self.progress = Progress()
        self.reading = self.progress.stream
        self.receiver = Receiver()
        self.receiver.note_stored([Receipt(name, 1, stored[-1]) for name, stored in self.logged.items() if stored])
        self.memory = {name: list(stored) for name, stored in self.logged.items()}
        self.inbox, self.taken, self.hears_directly, self.is_disk_full = deque(), deque(), False, False
        self.last_said = {}
        self.begin()

    def begin(self):
        self.read_to, self.reading.is_silent = 0, True
        self.progress.begin(len(self.stream))

    def read(self):
        if self.progress.read_again and self.chance(0.1):
            self.begin()
        ahead = [entry for entry in self.stream if entry[0] > self.read_to] if self.is_led else []
        if not ahead:
            self.reading.is_silent |= not self.is_led
            return
        self.read_to, name, payload = ahead[0]
        self.reading.is_silent = False
        self.reading.note(self.read_to, part_of(name), len(ahead) - 1)
        self.offer(payload, self.read_to)

    def offer(self, payload, sequence):
        bundle, body = m.decode(payload)
        last = newest_in(body)[1]
        if self.progress.offer(bundle, last, len(payload), self.now, sequence):
            self.inbox.append(payload)
        elif self.progress.has_stored((bundle.worker, 1), last) and bundle.worker in self.last_said:
            self.say(self.last_said[bundle.worker])

    def train(self):
        if self.inbox and self.chance(0.7):
            bundle, body = m.decode(self.inbox.popleft())
            if self.is_mended or self.chance(0.99):  # else there is no room for it
                for delivery in self.receiver.take(bundle, body, self.now, lambda packet: True):
                    self.taken.append((delivery.receipt, [int(sample.obs[0]) for sample in delivery.buffer]))
        if self.taken and self.chance(0.6):
            receipt, numbers = self.taken.popleft()
            self.memory[receipt.worker] += numbers
            self.receiver.confirm([receipt])
        if not self.is_disk_full and self.chance(0.3):
            self.receiver.write(self.now)
            self.logged = {name: list(numbers) for name, numbers in self.memory.items()}
        if self.chance(0.3):
            for ack in self.receiver.due():
                self.last_said[ack.worker] = said = self.progress.on_ack(ack, self.now)
                self.say(said)

    def say(self, ack):
        for gateway in self.gateways:
            if self.chance(0.9):
                gateway.down.append(ack)

    def tidy(self):
        for ack in self.progress.asks(self.now):
            self.say(ack)
        for ack in self.last_said.values():
            if self.chance(0.1):
                self.say(ack)
        for _, below in list(self.progress.purges()) if self.is_led else ():
            gone = [self.stream.popleft() for _ in range(len(self.stream)) if self.stream[0][0] < below]
            self.reading.note_purged(None, below)
            for sequence, name, payload in gone:
                lost = set(sequences_of(payload)) - self.kept(name) - self.cut_off[name]
                assert not (lost and self.workers[name].is_gone), f"{sequence} of {name} is purged: {lost}"

    # -- what fails

    def fail(self):
        gateway = self.rng.choice(self.gateways)
        what = "pause" if self.is_mended else self.rng.choice(self.failures)
        if what == "gateway":
            gateway.restart()
        elif what == "freeze":
            gateway.is_frozen = not gateway.is_frozen
        elif what == "cut":
            gateway.connect()
        elif what == "trainer":
            self.start_trainer()
        elif what == "consumer":
            self.begin()
        elif what == "full":
            self.refuses = not self.refuses
        elif what == "election":
            self.is_led, self.hears_directly = not self.is_led, True
        elif what == "read":
            self.hears_directly = False
        elif what == "away":
            self.is_away = not self.is_away
        elif what == "disk":
            self.is_disk_full = not self.is_disk_full
        elif what == "pause":
            self.now += self.rng.choice((0.7, 6.0, 30.0))
        elif what == "power":
            for _ in range(min(self.rng.randrange(1, 6), len(self.stream))):
                _, name, payload = self.stream.pop()
                self.newest -= 1
                self.cut_off[name].update(sequences_of(payload))
            for each in self.gateways:
                each.connect()
            self.begin()
        elif what == "loss":
            queue = self.rng.choice((gateway.up, gateway.down, gateway.answers))
            if queue:
                del queue[self.rng.randrange(len(queue))]

    failures = (
        "gateway",
        "freeze",
        "cut",
        "trainer",
        "consumer",
        "full",
        "election",
        "read",
        "away",
        "disk",
        "pause",
        "loss",
    )

    def mend(self):
        self.refuses = self.is_disk_full = self.is_away = False
        self.is_led = self.is_mended = True
        for gateway in self.gateways:
            gateway.is_frozen = False
        self.start_trainer()

    @property
    def is_over(self):
        return not self.stream and all(
            w.is_gone and {*self.logged[w.name]} | self.cut_off[w.name] >= {*range(1, 61)}
            for w in self.workers.values()
        )

    def run(self, steps):
        for step in range(steps):
            if step == steps // 4:
                self.mend()
            self.now += 0.01
            for act in (self.work, self.run_gateway, self.publish) + (not self.is_away) * (self.read, self.train):
                act()
            if self.chance(0.05) and not self.is_away:
                self.tidy()
            if self.chance(0.01):
                self.fail()
            if self.is_over:
                return


@pytest.fixture
def world(tmp_path):
    worlds = []

    def make(seed):
        worlds.append(World(tmp_path, seed))
        return worlds[-1]

    yield make
    for worker in worlds[0].workers.values():
        worker.log.close()


@pytest.mark.parametrize("seed", range(12))
def test_each_packet_is_stored_once_whatever_fails(world, seed, monkeypatch):
    monkeypatch.setattr("tmrl_like.delivery.sender._BUNDLE_PACKETS", 3)
    life = world(seed)
    life.run(20_000)
    assert life.logged == {name: list(range(1, 61)) for name in life.workers}
    assert not life.stream
