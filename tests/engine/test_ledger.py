"""A gateway's bookkeeping, between real senders and receivers, over a stream that loses, refuses and restarts."""

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tmrl_like.delivery.log import PacketLog, lock_folder
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.delivery.receiver import Receiver
from tmrl_like.delivery.sender import Sender
from tmrl_like.engine import ledger as ledger_module
from tmrl_like.engine.ledger import Ledger
from tmrl_like.types import Receipt, StepTiming
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import Compressor, PacketWriter
from tmrl_like.wire.records import newest_in, packet_pieces, unseal

WORKERS = ("w1", "w2", "w3")
ACTIONS = (
    *("produce",) * 8,
    *("send",) * 6,
    *("to_ledger",) * 8,
    *("publish",) * 8,
    *("to_stream",) * 10,
    *("to_seat",) * 10,
    *("to_trainer",) * 8,
    *("train",) * 4,
    *("acks",) * 4,
    *("lose_on_the_way_up", "lose_a_publication", "lose_an_answer", "lose_an_ack", "swap_answers", "pause", "wait"),
    *("refuse", "take", "cut", "kill_trainer", "ask_again", "cut_worker"),
)


def record_of(worker: str, incarnation: int, sequence: int) -> tuple[bytes, ...]:
    writer = PacketWriter()
    writer.append((np.zeros(1), np.array([sequence]), 0.0, False, False, {}), StepTiming(1e9, 0.0, 0.0, 1))
    return packet_pieces(Receipt(worker, incarnation, sequence), 0, writer.rows(), (), Compressor())


def bundle_of(worker: str, sequences: list[int], previous: int = 0) -> tuple[m.Bundle, memoryview, bytes]:
    records = [b"".join(record_of(worker, 1, sequence)) for sequence in sequences]
    data = m.encode(m.Bundle(worker, 1, len(sequences), previous), *records)
    return *m.decode(data), data


def sequences_of(payload: bytes) -> list[int]:
    return [m.decode(message)[0].sequence for _, message in unseal(m.decode(payload)[1])]


class World:
    """Workers, a gateway, a stream, a trainer; what is on its way between them."""

    def __init__(self, root: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 100.0
        self.logs, self.senders = [], {}
        for worker in WORKERS:
            folder = root / f"tmrl_like.{worker}"
            self.logs.append(PacketLog(folder, lock_folder(folder)))
            self.senders[worker] = Sender(worker, 1, OutboxOptions(), self.logs[-1], self.now)
        self.produced = dict.fromkeys(WORKERS, 0)
        self.up: list[bytes] = []
        self.ledger = Ledger()
        self.ledger.begin(1 << 20)
        self.publications: list[tuple[int, bytes]] = []
        self.answers: list[tuple[int, int | None]] = []
        self.refuses = False
        self.sequence = 0  # the stream's newest
        self.stream: list[tuple[int, bytes]] = []
        self.in_stream = {worker: {0} for worker in WORKERS}  # packets that it has ever held
        self.read_to = 0
        self.acks_down: list[m.Ack] = []
        self.memory: dict[str, list[int]] = {worker: [] for worker in WORKERS}
        self.stored: list[Receipt] = []
        self.receiver = Receiver()
        self.audits = True

    def act(self, action: str) -> None:
        self.now += 0.02
        getattr(self, action)()

    # -- workers and gateway

    def produce(self) -> None:
        worker = self.rng.choice(WORKERS)
        self.produced[worker] += 1
        self.senders[worker].add(self.produced[worker], 1, record_of(worker, 1, self.produced[worker]), self.now)

    def send(self) -> None:
        for sender in self.senders.values():
            sender.send(lambda data: len(self.up) < 100 and (self.up.append(data) or self.rng.random() < 0.8), self.now)

    def to_ledger(self) -> None:
        if self.up:
            data = self.up.pop(0)
            self.ledger.take(*m.decode(data), data, self.now)
            self.tell_workers()

    def tell_workers(self) -> None:
        if self.ledger.is_lost:
            self.ledger.start_over()
            for sender in self.senders.values():
                sender.retransmit(from_the_start=True)
        for word in self.ledger.words():
            self.audit(word)
            if self.rng.random() < 0.95:
                self.senders[word.worker].on_ack(word, self.now)

    def audit(self, ack: m.Ack) -> None:
        if self.audits:
            held = self.in_stream[ack.worker] | set(self.memory[ack.worker])
            assert set(range(ack.received + 1)) <= held, f"{ack} is more than the stream holds"
        assert ack.stored <= len(set(self.memory[ack.worker]))

    # -- gateway and stream

    def publish(self) -> None:
        for number, worker, payload in self.ledger.due(self.now):
            assert m.decode(payload)[0].worker == worker
            self.publications.append((number, bytes(payload)))

    def to_stream(self) -> None:
        if self.publications:
            number, payload = self.publications.pop(0)
            if self.refuses:
                self.answers.append((number, None))
                return
            worker, sequences = m.decode(payload)[0].worker, sequences_of(payload)
            if self.audits:
                assert set(range(1, sequences[0])) <= self.in_stream[worker] | set(self.memory[worker]), "behind a gap"
            self.in_stream[worker].update(sequences)
            self.sequence += 1
            self.stream.append((self.sequence, payload))
            self.answers.append((number, self.sequence))

    def to_seat(self) -> None:
        if self.answers:
            number, sequence = self.answers.pop(0)
            if sequence is None:
                self.ledger.on_refused(number, self.now)
            else:
                self.ledger.on_stored(number, sequence, self.now)
            self.tell_workers()

    # -- stream and trainer

    def to_trainer(self) -> None:
        if message := next((entry for entry in self.stream if entry[0] > self.read_to), None):
            self.read_to = message[0]
            self.receive(message[1])

    def receive(self, payload: bytes) -> None:
        for delivery in self.receiver.take(*m.decode(payload), self.now, lambda packet: True):
            for sample in delivery.buffer:
                self.memory[delivery.receipt.worker].append(int(sample.obs[0]))
            self.stored.append(delivery.receipt)

    def train(self) -> None:
        self.receiver.confirm(self.stored)
        self.receiver.write(self.now)
        self.acks_down += self.receiver.due()
        done = {receipt.worker: receipt.sequence for receipt in self.stored}
        while self.stream and newest_in(m.decode(self.stream[0][1])[1])[1] <= done.get(
            m.decode(self.stream[0][1])[0].worker, 0
        ):
            self.stream.pop(0)  # as the trainer purges

    def acks(self) -> None:
        for ack in self.acks_down:
            if not self.ledger.on_ack(ack, self.now):
                self.senders[ack.worker].on_ack(ack, self.now)
        self.acks_down.clear()
        self.tell_workers()

    # -- what goes wrong

    def lose_on_the_way_up(self) -> None:
        lose_one(self.up, self.rng)

    def lose_a_publication(self) -> None:
        lose_one(self.publications, self.rng)

    def lose_an_answer(self) -> None:
        lose_one(self.answers, self.rng)

    def lose_an_ack(self) -> None:
        lose_one(self.acks_down, self.rng)

    def swap_answers(self) -> None:
        self.rng.shuffle(self.answers)

    def pause(self) -> None:
        self.now += 0.7

    def wait(self) -> None:
        self.now += 6.0

    def refuse(self) -> None:
        self.refuses = True

    def take(self) -> None:
        self.refuses = False

    def cut(self) -> None:
        """The gateway's connection to the engine; what was published may be on its way still."""
        self.answers.clear()
        if self.rng.random() < 0.5:
            self.publications.clear()
        self.ledger.begin(1 << 20)

    def cut_worker(self) -> None:
        self.senders[self.rng.choice(WORKERS)].retransmit(from_the_start=False)

    def kill_trainer(self) -> None:
        """The next one knows what is stored, and reads the stream from its beginning."""
        self.receiver = Receiver()
        self.receiver.note_stored(self.stored)
        self.read_to = 0

    def ask_again(self) -> None:
        worker = self.rng.choice(WORKERS)
        received = max((receipt.sequence for receipt in self.stored if receipt.worker == worker), default=0)
        self.acks_down.append(m.Ack(worker, 1, 0, received, again=True))

    def lose_the_tail(self) -> None:
        """A power cut: the stream forgets what it has confirmed."""
        self.audits = False
        self.cut()
        self.publications.clear()
        for _ in range(min(self.rng.randrange(1, 6), len(self.stream))):
            self.stream.pop()
            self.sequence -= 1
        self.read_to = min(self.read_to, self.sequence)

    def settle(self) -> None:
        self.take()
        for turn in range(300):
            self.now += 0.6
            if turn == 20:
                for worker in WORKERS:  # a gap at a stream's end shows when something follows
                    self.produced[worker] += 1
                    record = record_of(worker, 1, self.produced[worker])
                    self.senders[worker].add(self.produced[worker], 1, record, self.now)
            self.send()
            for step in (self.to_ledger, self.publish, self.to_stream, self.to_seat, self.to_trainer):
                for _ in range(100):
                    step()
            self.train()
            self.acks()
            if turn > 20 and not any(sender.samples for sender in self.senders.values()):
                break
        assert self.memory == {worker: list(range(1, count + 1)) for worker, count in self.produced.items()}
        assert not any(sender.samples or sender.lost_samples for sender in self.senders.values())
        assert (self.ledger.held, self.ledger.held_bytes, self.ledger._sent_bytes) == (0, 0, 0)
        assert not {**self.ledger._sent, **self.ledger._again, **self.ledger._refused}
        assert len(self.ledger._copies) < 50


def lose_one(link: list, rng: random.Random) -> None:
    if link:
        link.pop(rng.randrange(len(link)))


@pytest.fixture
def world(tmp_path):
    worlds = []

    def make(seed):
        worlds.append(World(tmp_path / str(len(worlds)), seed))
        return worlds[-1]

    yield make
    for world in worlds:
        for log in world.logs:
            log.close()


@pytest.fixture(autouse=True)
def small_bundles(monkeypatch) -> None:
    monkeypatch.setattr("tmrl_like.delivery.sender._BUNDLE_PACKETS", 3)


@pytest.mark.parametrize("seed", range(30))
def test_everything_arrives_once_and_in_order_and_is_confirmed_only_where_it_is(world, seed):
    life = world(seed)
    for action in life.rng.choices(ACTIONS, k=500):
        life.act(action)
    life.settle()


@pytest.mark.parametrize("seed", range(10))
def test_what_the_stream_confirmed_and_lost_comes_again(world, seed):
    life = world(1000 + seed)
    for action in life.rng.choices((*ACTIONS, "lose_the_tail"), k=500):
        life.act(action)
    life.settle()


def taken(*bundles: tuple[m.Bundle, memoryview, bytes], now: float = 0.0) -> Ledger:
    ledger = Ledger()
    ledger.begin(1 << 20)
    for bundle in bundles:
        ledger.take(*bundle, now)
    return ledger


def test_what_waits_behind_a_message_is_joined_to_one(monkeypatch):
    ledger = taken(bundle_of("w", [1]))
    (first,) = ledger.due(0.0)
    for i in range(2, 101):
        ledger.take(*bundle_of("w", [i], i - 1), 0.0)
    assert ledger.due(0.0) == []
    assert sequences_of(first.payload) == [1]
    ledger.on_stored(first.number, 1, 0.0)
    (second,) = ledger.due(0.0)
    assert sequences_of(second.payload) == list(range(2, 66))
    assert m.decode(second.payload)[0] == m.Bundle("w", 1, samples=64, previous=1)
    monkeypatch.setattr(ledger_module, "_JOINED_BYTES", 3 * len(bundle_of("w", [1])[2]))
    ledger.on_stored(second.number, 2, 0.0)
    assert [len(sequences_of(p.payload)) for p in ledger.due(0.0)] == [3]
    assert ledger.words() == [m.Ack("w", 1, stored=0, received=65)]


def test_on_the_way_to_the_stream_is_no_more_than_a_window(monkeypatch):
    monkeypatch.setattr(ledger_module, "_WINDOW_MESSAGES", 5)
    ledger = taken(*(bundle_of(f"w{i}", [1]) for i in range(20)))
    sent = ledger.due(0.0)
    assert len(sent) == 5
    assert ledger.due(0.5) == []
    ledger.on_stored(sent[0].number, 1, 0.5)
    assert [p.worker for p in ledger.due(0.5)] == ["w5"]


def test_a_full_stream_is_asked_by_one_message_at_a_time():
    ledger = taken(*(bundle_of(f"w{i}", [1]) for i in range(20)))
    asked = Counter()
    for step in range(1000):  # ten seconds
        now = step * 0.01
        for publication in ledger.due(now):
            asked[publication.worker] += 1
            ledger.on_refused(publication.number, now)
    assert ledger.refused_since == 0.0
    assert 10 <= asked.total() - 20 <= 15, asked  # after pauses up to a second
    assert max(asked.values()) <= 2  # in turns
    (probe,) = ledger.due(20.0)
    ledger.on_stored(probe.number, 1, 20.0)
    assert ledger.refused_since is None
    again = ledger.due(20.0)
    assert len(again) == 19
    ledger.take(*bundle_of("new", [1]), 20.0)
    assert [p.worker for p in ledger.due(20.0)] == ["new"]
    ledger.on_refused(again[0].number, 20.0)
    assert ledger.due(20.05) == []
    assert len(ledger.due(20.15)) == 1, "the pause is a short one again"


def test_a_new_connection_asks_at_once_for_what_was_refused_and_for_each_once():
    ledger = taken(bundle_of("a", [1]), bundle_of("b", [1]))
    for step in range(300):
        for publication in ledger.due(step * 0.01):
            ledger.on_refused(publication.number, step * 0.01)
    ledger.begin(1 << 20)
    again = ledger.due(3.0)
    assert sorted(p.worker for p in again) == ["a", "b"]
    ledger.take(*bundle_of("c", [1]), 3.0)
    assert [p.worker for p in ledger.due(3.0)] == ["c"]
    ledger.on_refused(again[0].number, 3.0)
    assert len(ledger.due(3.15)) == 1, "the pause is a short one again"


def test_a_silence_has_the_oldest_sent_again_and_its_answer_the_rest():
    ledger = taken(*(bundle_of(f"w{i}", [1]) for i in range(20)))
    ledger.due(0.0)
    assert ledger.due(0.9) == []
    (probe,) = ledger.due(1.1)
    assert ledger.due(1.2) == []
    (other,) = ledger.due(2.1)
    assert (probe.worker, other.worker) == ("w0", "w1")
    ledger.on_stored(probe.number, 1, 2.2)
    assert len(ledger.due(2.2)) == 18


def test_a_quick_answer_makes_no_silence_of_what_takes_a_moment():
    ledger = taken(bundle_of("w", [1]))
    ledger.on_stored(ledger.due(0.0)[0].number, 1, 0.0)
    ledger.take(*bundle_of("w", [2], 1), 0.0)
    assert len(ledger.due(0.0)) == 1
    assert ledger.due(0.9) == []


def test_a_slow_line_is_not_filled_with_copies():
    ledger = taken(*(bundle_of(f"w{i}", [1]) for i in range(40)))
    waiting, copies = [], 0
    for step in range(4000):  # each message takes a second; 40 of them wait for one another
        now = step * 0.01
        waiting += ledger.due(now)
        copies = max(copies, len(waiting))
        if step % 100 == 99 and waiting:
            ledger.on_stored(waiting.pop(0).number, step, now)
    assert copies < 50


def test_a_stream_that_begins_again_is_noticed():
    ledger = taken(bundle_of("w", [1]))
    ledger.on_stored(ledger.due(0.0)[0].number, 1000, 0.0)
    ledger.take(*bundle_of("w", [2], 1), 0.0)
    ledger.words()
    ledger.on_stored(ledger.due(0.0)[0].number, 7, 0.0)
    assert ledger.is_lost
    assert ledger.words() == []
    ledger.start_over()
    ledger.take(*bundle_of("w", [1]), 1.0)
    ledger.on_stored(ledger.due(1.0)[0].number, 8, 1.0)
    assert not ledger.is_lost


def test_confirmations_out_of_order_are_no_sign_of_a_loss():
    ledger = taken(bundle_of("a", [1]), bundle_of("b", [1]))
    first, second = ledger.due(0.0)
    ledger.on_stored(second.number, 12, 0.0)
    ledger.on_stored(first.number, 11, 0.0)
    (again,) = ledger.due(0.0)  # an answer that comes that late looks like none
    ledger.on_stored(again.number, 13, 0.0)
    assert not ledger.is_lost
    assert ledger.words() == [m.Ack("b", 1, 0, 1), m.Ack("a", 1, 0, 1)]


def test_the_largest_number_that_was_given_out_is_not_given_out_again():
    ledger = taken(bundle_of("a", [1]), bundle_of("b", [1]))
    first, second = ledger.due(0.0)
    ledger.on_stored(first.number, 12, 0.0)
    ledger.on_stored(second.number, 11, 0.0)
    ledger.take(*bundle_of("c", [1]), 0.0)
    ledger.on_stored(ledger.due(0.0)[0].number, 12, 0.0)
    assert ledger.is_lost


def test_what_the_trainer_has_stored_needs_no_confirmation():
    ledger = taken(bundle_of("w", [1]))
    ledger.due(0.0)
    for i in range(2, 6):
        ledger.take(*bundle_of("w", [i], i - 1), 0.0)
    assert ledger.on_ack(m.Ack("w", 1, stored=3, received=3), 1.0)
    (rest,) = ledger.due(1.0)
    assert sequences_of(rest.payload) == [4, 5]
    assert ledger.words() == [m.Ack("w", 1, stored=3, received=3)]
    assert not ledger.on_ack(m.Ack("stranger", 1, 3, 3), 1.0)


def test_late_answers_to_copies_are_none_to_what_came_after():
    ledger = taken(bundle_of("w", [1]))
    first, again, third = (ledger.due(now)[0] for now in (0.0, 1.1, 3.2))
    ledger.on_stored(first.number, 1, 3.3)
    ledger.take(*bundle_of("w", [2], 1), 3.3)
    (second,) = ledger.due(3.3)
    ledger.on_stored(again.number, 2, 3.4)
    ledger.on_stored(third.number, 3, 3.4)
    assert ledger.held == 1
    ledger.take(*bundle_of("w", [3], 2), 3.4)
    assert ledger.due(3.4) == []
    ledger.on_stored(second.number, 4, 3.4)
    assert [sequences_of(p.payload) for p in ledger.due(3.4)] == [[3]]


def test_what_was_published_long_before_something_that_the_trainer_has_heard_goes_again_at_once():
    ledger = taken(bundle_of("a", [1]))
    ledger.due(0.0)
    ledger.take(*bundle_of("b", [1]), 0.5)
    ledger.take(*bundle_of("c", [1]), 0.5)
    ledger.due(0.5)
    ledger.on_ack(m.Ack("c", 1, stored=1, received=1), 0.8)
    assert [p.worker for p in ledger.due(0.8)] == ["a"]


def test_of_a_process_that_the_trainer_takes_nothing_of_nothing_is_kept():
    ledger = taken(bundle_of("w", [1]))
    (publication,) = ledger.due(0.0)
    ledger.take(*bundle_of("w", [2], 1), 0.0)
    ledger.on_ack(m.Ack("w", 1, stored=0, received=0), 0.0)
    ledger.on_dismissal(m.Dismissal("w", 1, "no"))
    assert (ledger.held, ledger.held_bytes, ledger.words(), ledger.due(5.0)) == (0, 0, [], [])
    ledger.on_stored(publication.number, 1, 5.0)
    assert ledger.words() == []


def test_what_the_trainer_has_by_another_gateway_is_no_hole_here():
    ledger = taken(bundle_of("w", [1]))
    assert ledger.on_ack(m.Ack("w", 1, stored=10, received=10), 0.0)
    ledger.take(*bundle_of("w", [11], 10), 0.0)
    assert [sequences_of(p.payload) for p in ledger.due(0.0)] == [[11]]


def test_what_is_in_the_trainers_memory_alone_is_not_received():
    ledger = taken(bundle_of("w", [1, 2, 3]))
    ledger.due(0.0)
    assert ledger.on_ack(m.Ack("w", 1, stored=1, received=3), 0.0)  # it heard what the stream does not have yet
    assert ledger.words() == [m.Ack("w", 1, stored=1, received=1)]


def test_how_far_training_is_goes_with_every_acknowledgement():
    ledger = taken(bundle_of("w", [1, 2, 3]))
    assert ledger.on_ack(m.Ack("w", 1, stored=1, received=1, trained=1), 0.0)
    assert ledger.words() == [m.Ack("w", 1, 1, 1, trained=1)]
    ledger.on_stored(ledger.due(0.0)[0].number, 1, 0.0)
    assert ledger.words() == [m.Ack("w", 1, 1, 3, trained=1)]
    assert ledger.on_ack(m.Ack("w", 1, stored=2, received=2, trained=0), 0.0)
    assert ledger.words() == [m.Ack("w", 1, 2, 3, trained=1)]


def test_while_the_trainer_alone_answers_nothing_piles_up():
    ledger = taken(bundle_of("w", [1]))
    for i in range(1, 100):
        assert len(ledger.due(float(i))) == 1
        assert ledger.on_ack(m.Ack("w", 1, stored=i, received=i), float(i))
        ledger.take(*bundle_of("w", [i + 1], i), float(i))
    assert len(ledger._copies) == 0


def test_what_comes_twice_goes_once_and_its_worker_hears_of_it_again():
    ledger = taken(bundle_of("w", [1, 2]))
    (publication,) = ledger.due(0.0)
    ledger.take(*bundle_of("w", [1]), 0.0)
    assert ledger.words() == []
    ledger.on_stored(publication.number, 1, 0.0)
    assert ledger.words() == [m.Ack("w", 1, 0, 2)]
    ledger.take(*bundle_of("w", [1]), 0.0)
    assert ledger.words() == [m.Ack("w", 1, 0, 2)]
    ledger.on_ack(m.Ack("w", 1, stored=1, received=1), 0.0)
    ledger.take(*bundle_of("w", [2], 1), 0.0)
    assert ledger.words() == [m.Ack("w", 1, 1, 2)]
    assert ledger.due(0.0) == []


def test_behind_a_hole_nothing_is_taken_and_the_worker_is_asked_now_and_then():
    ledger = taken(bundle_of("w", [1]))
    words = []
    for step in range(200):
        ledger.take(*bundle_of("w", [3], 2), step * 0.01)
        words += ledger.words()
    assert words == 4 * [m.Ack("w", 1, 0, 0, again=True)]
    assert ledger.held == 1


def test_what_the_trainer_asks_for_again_is_taken_again_once_in_a_while():
    ledger = taken(bundle_of("w", [1]))
    ledger.on_stored(ledger.due(0.0)[0].number, 1, 0.0)
    for i in (2, 3):
        ledger.take(*bundle_of("w", [i], i - 1), 0.0)
        ledger.due(0.0)
    ledger.words()
    assert ledger.on_ack(m.Ack("w", 1, stored=0, received=0, again=True), 1.0)
    assert ledger.words() == [m.Ack("w", 1, 0, 0, again=True)]
    assert ledger.held == 0
    ledger.take(*bundle_of("w", [1, 2, 3]), 1.1)
    assert ledger.on_ack(m.Ack("w", 1, stored=0, received=0, again=True), 1.2)  # it has not seen them yet
    assert ledger.words() == [m.Ack("w", 1, 0, 0)]
    (publication,) = ledger.due(1.2)
    assert sequences_of(publication.payload) == [1, 2, 3]
    ledger.on_ack(m.Ack("w", 1, stored=0, received=0, again=True), 9.0)  # they come from here
    assert ledger.words() == [m.Ack("w", 1, 0, 0)]
    assert ledger.held == 1
    ledger.on_stored(publication.number, 2, 9.0)
    ledger.on_ack(m.Ack("w", 1, stored=0, received=0, again=True), 9.0)
    assert ledger.words() == [m.Ack("w", 1, 0, 0, again=True)]
    ledger.take(*bundle_of("w", [1, 2, 3]), 9.1)
    ledger.on_stored(ledger.due(9.1)[0].number, 3, 9.1)
    for now, is_taken_again in ((10.0, False), (15.0, True)):  # at first it may not have read them yet
        ledger.on_ack(m.Ack("w", 1, stored=0, received=0, again=True), now)
        assert ledger.words() == [m.Ack("w", 1, 0, 0 if is_taken_again else 3, again=is_taken_again)]


def test_a_packet_that_no_node_takes_ends_its_worker_alone():
    big = bundle_of("big", [1, 2, 3])
    ledger = taken(big, bundle_of("other", [1]))
    ledger.begin(len(big[2]) - 1)
    assert [p.worker for p in ledger.due(0.0)] == ["other"]
    reason = "a packet takes 0.0 MB, and the engine's nodes take 0.0 MB at most"
    assert ledger.words() == [m.Dismissal("big", 1, reason)]
    for _ in range(5):
        ledger.take(*big, 1.0)
    assert ledger.words() == [m.Dismissal("big", 1, reason)]
    assert ledger.held == 1
    largest = taken(big)
    largest.begin(len(big[2]))
    assert [len(p.payload) for p in largest.due(0.0)] == [len(big[2])]


def test_of_very_many_processes_the_idle_ones_are_forgotten(monkeypatch):
    monkeypatch.setattr(ledger_module, "_MAX_PROCESSES", 3)
    ledger = taken(bundle_of("busy", [1]))
    for i in range(10):
        ledger.on_dismissal(m.Dismissal("nobody", 1, ""))
        ledger.take(*bundle_of(f"hole{i}", [9], 8), 0.0)
    assert len(ledger._processes) == 3
    assert [p.worker for p in ledger.due(0.0)] == ["busy"]
