"""What the trainer takes of what arrives, what it forgets, and what a worker that takes more than its part gets."""

import random

import numpy as np
import pytest
from kit.episodes import episode
from kit.packets import numbered, record_of

from tmrl_like.base.files import disk
from tmrl_like.delivery.log import PacketLog, lock_folder
from tmrl_like.delivery.receiver import Receiver, WorkerLimits
from tmrl_like.errors import MemoryContractError
from tmrl_like.types import Receipt, StepTiming
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import Compressor, PacketWriter
from tmrl_like.wire.records import seal, sealed_packet


class Trainer:
    """A receiver, and a training thread that does what the test says."""

    def __init__(self, limits=WorkerLimits()):  # noqa: B008 - frozen
        self.receiver = Receiver(limits=limits)
        self.inbox = []
        self.now = 0.0

    def give(self, *sequences, previous=None, incarnation=7, lost=0, worker="w", samples=1, episodes=(), awaits=False):
        """A bundle of packets."""
        process = {"worker": worker, "incarnation": incarnation, "episodes": episodes}
        records = [record_of(sequence, *samples * [numbered(sequence)], **process) for sequence in sequences]
        previous = sequences[0] - 1 if previous is None else previous
        bundle = m.Bundle(worker, incarnation, samples * len(sequences), previous, lost, awaits)
        self.give_bytes(bundle, b"".join(records))

    def give_bytes(self, bundle, body):
        self.inbox += self.receiver.take(bundle, memoryview(body), self.now, lambda packet: True)

    def store(self, count=None):
        """The memory stores what arrived, or the first of it."""
        stored, self.inbox = self.inbox[:count], self.inbox[len(self.inbox) if count is None else count :]
        self.receiver.confirm([delivery.receipt for delivery in stored])
        self.receiver.write(self.now)

    @property
    def taken(self):
        """(number, name of the stream) of what waits for the memory."""
        return [(int(sample.obs), d.buffer.stream) for d in self.inbox for sample in d.buffer.memory]

    def due(self):
        return self.receiver.due()


@pytest.fixture
def trainer():
    return Trainer()


def test_packets_after_one_that_is_missing_have_to_wait_for_it(trainer):
    trainer.give(1)
    trainer.give(3, 4)
    assert [number for number, _ in trainer.taken] == [1]
    assert trainer.due() == [m.Ack("w", 7, 0, 1, True)]


def test_what_is_missing_is_asked_for_but_not_with_each_bundle(trainer):
    trainer.give(1)
    for now, asks in ((0.0, True), (0.1, False), (0.6, True)):
        trainer.now = now
        trainer.give(3)
        assert any(message.again for message in trainer.due()) == asks


def test_a_gap_of_packets_that_come_no_more_is_a_break(trainer, caplog):
    trainer.give(1)
    trainer.give(4, 5, previous=1)
    assert trainer.taken == [(1, "w/7/0/1"), (4, "w/7/0/4"), (5, "w/7/0/4")]
    assert "packets 2 to 3 of worker w are lost for good" in caplog.text


def test_a_gap_inside_a_bundle_is_one_too(trainer):
    trainer.give(1, 2, 5)
    assert trainer.taken == [(1, "w/7/0/1"), (2, "w/7/0/1"), (5, "w/7/0/5")]


def test_what_comes_before_a_gap_is_waited_for(trainer):
    trainer.give(1)
    trainer.give(5, previous=2)  # 2 is on its way, 3 and 4 are not
    assert [number for number, _ in trainer.taken] == [1]
    trainer.give(2, 5)
    assert trainer.taken == [(1, "w/7/0/1"), (2, "w/7/0/1"), (5, "w/7/0/5")]


def test_a_gap_whose_packets_arrived_before_they_were_lost_is_none(trainer):
    trainer.give(1, 2, 3)
    trainer.give(4, previous=0)
    assert trainer.taken[-1] == (4, "w/7/0/1")


def test_a_packet_that_comes_again_is_acknowledged_and_not_taken(trainer):
    for _ in range(2):
        trainer.give(1, 2)
    assert [number for number, _ in trainer.taken] == [1, 2]
    assert len(trainer.due()) == 1


def test_what_is_new_in_a_bundle_that_begins_with_known_packets_is_taken(trainer):
    trainer.give(1, 2)
    trainer.give(1, 2, 3, 4)
    assert [number for number, _ in trainer.taken] == [1, 2, 3, 4]


def test_what_a_bundle_holds_twice_is_taken_once(trainer):
    trainer.give(1, 2, 1, 2, 3)
    assert trainer.taken == [(1, "w/7/0/1"), (2, "w/7/0/1"), (3, "w/7/0/1")]


def test_what_waits_for_the_memory_is_in_no_receipt_and_not_acknowledged(trainer):
    for sequence in (1, 2, 3):
        trainer.give(sequence)
    trainer.store(2)
    assert trainer.receiver.receipts == (Receipt("w", 7, 2),)
    assert trainer.due() == [m.Ack("w", 7, 2, 2)]


def test_what_the_memory_of_a_checkpoint_has_is_not_taken_again(trainer):
    assert list(trainer.receiver.replay(known=(Receipt("w", 7, 3),))) == []
    trainer.give(1, 2, 3, 4)
    assert [number for number, _ in trainer.taken] == [4]


def test_what_was_stored_is_not_taken_again_though_its_segment_is_gone(tmp_path):
    def begin():
        log, trainer = PacketLog(tmp_path, lock_folder(tmp_path), segment_bytes=1), Trainer()
        trainer.receiver = Receiver(log, "run", keep_samples=2)
        return log, trainer, sum(len(buffer) for buffer in trainer.receiver.replay())

    log, trainer, _ = begin()
    for sequence in (1, 2, 3):
        trainer.give(sequence)
        trainer.store()
    for sequence in range(1, 9):
        trainer.give(sequence, incarnation=8)
        trainer.store()
    log.close()
    log, trainer, in_memory = begin()
    assert 2 <= in_memory < 5
    assert trainer.receiver.samples == 11
    trainer.give(1, 2, 3)
    trainer.give(*range(1, 9), incarnation=8)
    assert trainer.taken == []
    log.close()


def test_of_a_process_that_was_never_heard_of_the_first_packet_that_is_kept_comes_first(trainer):
    trainer.give(8, previous=7)
    assert trainer.taken == []
    assert trainer.due() == [m.Ack("w", 7, 0, 0, True)]
    trainer.give(6, 7, 8, previous=0)
    assert [number for number, _ in trainer.taken] == [6, 7, 8]


def test_a_packet_that_does_not_decode_is_counted_acknowledged_and_a_break(trainer, caplog):
    trainer.give(1)
    header = m.SamplePacket("w", 7, 2, 0, 5, 3, False)
    trainer.give_bytes(m.Bundle("w", 7, 5, 1), seal(m.frame_of(header), b"xyz"))
    trainer.give(3)
    trainer.store()
    assert trainer.due() == [m.Ack("w", 7, 3, 3)]
    assert trainer.receiver.metrics()["refused_packets_total"] == 1
    assert trainer.receiver.samples == 2
    assert len([r for r in caplog.records if "refused a packet of worker w" in r.message]) == 1


def test_packets_of_another_worker_in_a_bundle_are_refused(trainer):
    trainer.give_bytes(m.Bundle("w", 7, 1), record_of(1, worker="other", episodes=(episode(),)))
    assert trainer.inbox == []
    assert trainer.receiver.malformed == 1


# -- packets that follow each other ---------------------------------------------------------------------


def of_two_steps(sequence, number, breaks=0):
    """A packet of samples with these observations."""
    writer = PacketWriter()
    for k in range(2):
        sample = (k, np.float32(number + k / 2), 0.0, False, False, {})
        writer.append(sample, StepTiming(1e9 + sequence, 0.01 * sequence, 0.0, sequence), is_reset=not k)
    return sealed_packet(Receipt("w", 7, sequence), breaks, writer, (), Compressor())


def test_packets_of_one_form_arrive_as_one_block_with_the_samples_that_each_alone_would_bring(trainer):
    records = [of_two_steps(sequence, sequence) for sequence in (1, 2, 3)]
    trainer.give_bytes(m.Bundle("w", 7, 6), b"".join(records))
    alone = Trainer()
    for number, record in enumerate(records):
        alone.give_bytes(m.Bundle("w", 7, 2, number), record)
    (delivery,) = trainer.inbox
    (block,) = delivery.buffer.blocks
    assert delivery.receipt == Receipt("w", 7, 3)
    samples = [sample for one in alone.inbox for sample in one.buffer.memory]
    assert delivery.buffer.memory == samples
    assert [s.info.timing for s in delivery.buffer.memory] == [s.info.timing for s in samples]
    assert block.is_reset.tolist() == [True, False] * 3
    trainer.store()
    assert trainer.due() == [m.Ack("w", 7, 3, 3)]
    assert trainer.receiver.samples == 6


def test_samples_of_two_forms_and_behind_a_break_keep_their_order(trainer):
    records = (of_two_steps(1, 1), of_two_steps(2, 2), of_two_steps(3, 3, breaks=1), packet_of_text(4))
    trainer.give_bytes(m.Bundle("w", 7, 8), b"".join(records))
    assert [d.buffer.stream for d in trainer.inbox] == ["w/7/0/1", "w/7/1/1", "w/7/0/1"]
    assert [s.obs for d in trainer.inbox for s in d.buffer.memory] == [1, 1.5, 2, 2.5, 3, 3.5, "text"]


def packet_of_text(sequence):
    return record_of(sequence, (None, "text", 0.0, False, False, {}))


def test_of_packets_that_are_decoded_together_only_those_at_fault_are_lost(trainer):
    header = m.SamplePacket("w", 7, 3, 0, 5, 3, False)
    damaged = seal(m.frame_of(header), b"xyz")
    records = [of_two_steps(1, 1), of_two_steps(2, 2), damaged, of_two_steps(4, 4)]
    trainer.give_bytes(m.Bundle("w", 7, 11), b"".join(records))
    assert [number for number, _ in trainer.taken] == [1, 1, 2, 2, 4, 4]
    assert [stream for _, stream in trainer.taken] == ["w/7/0/1"] * 4 + ["w/7/0/4"] * 2
    assert trainer.receiver.malformed == 1
    trainer.store()
    assert trainer.due() == [m.Ack("w", 7, 4, 4)]


def test_of_packets_that_are_decoded_together_those_before_one_that_is_refused_are_taken(trainer):
    class Check:
        def structure(self, schema):
            pass

        def values(self, block):
            if any(sample.obs == 3 for sample in block.samples()):
                raise MemoryContractError("obs is 3")

    trainer.receiver.check = Check()
    trainer.give_bytes(m.Bundle("w", 7, 8), b"".join(of_two_steps(number, number) for number in (1, 2, 3, 4)))
    assert [number for number, _ in trainer.taken] == [1, 1, 2, 2]
    assert trainer.due() == [m.Dismissal("w", 7, "obs is 3")]


# -- rejection -----------------------------------------------------------------------------------------


def test_a_packet_that_reports_an_episode_of_another_worker_is_refused(trainer):
    trainer.give(1, worker="x", episodes=(episode(),))
    assert trainer.inbox == []
    assert trainer.receiver.metrics()["refused_packets_total"] == 1


def test_of_a_rejected_process_nothing_more_is_taken_or_acknowledged(trainer, caplog):
    for sequence in (1, 2, 3):
        trainer.give(sequence)
    second = trainer.inbox[1].receipt
    trainer.store(1)
    trainer.receiver.reject(second, "obs is float64,\nit was float32")
    assert [trainer.receiver.is_rejected(d.receipt) for d in trainer.inbox] == [True, True]
    trainer.receiver.write(0.0)
    assert trainer.due() == [m.Dismissal("w", 7, "obs is float64, it was float32")]
    trainer.give(4)
    assert len(trainer.inbox) == 2
    assert not any(isinstance(message, m.Ack) for message in trainer.due())
    assert trainer.receiver.receipts == (Receipt("w", 7, 1),)
    assert trainer.receiver.metrics()["rejected_workers_total"] == 1
    assert [r.message for r in caplog.records] == [
        "worker w is rejected, training goes on without its samples: they do not fit those in the memory: "
        "obs is float64, it was float32"
    ]


def test_a_rejected_process_that_goes_on_sending_is_rejected_again_but_not_for_each_bundle(trainer):
    trainer.give(1)
    trainer.receiver.reject(trainer.inbox[0].receipt, "no")
    trainer.due()
    said = []
    for trainer.now in (1.0, 1.1, 1.2, 2.0):
        trainer.give(2)
        said.append(trainer.due())
    assert said == [[m.Dismissal("w", 7, "no")], [], [], [m.Dismissal("w", 7, "no")]]


def test_a_rejection_that_could_not_be_sent_is_sent_later(trainer):
    trainer.give(1)
    trainer.receiver.reject(trainer.inbox[0].receipt, "no")
    for message in trainer.due():
        trainer.receiver.not_said(message)
    assert trainer.receiver.pending
    assert m.Dismissal("w", 7, "no") in trainer.due()
    assert not trainer.receiver.pending


def test_the_next_process_of_a_rejected_worker_is_taken(trainer):
    trainer.give(1)
    trainer.receiver.reject(trainer.inbox.pop().receipt, "no")
    trainer.give(2)
    trainer.give(1, incarnation=8)
    assert [d.receipt for d in trainer.inbox] == [Receipt("w", 8, 1)]


def test_samples_that_the_check_refuses_reject_their_process(trainer):
    class Check:
        def structure(self, schema):
            raise MemoryContractError("obs is text")

    trainer.receiver.check = Check()
    trainer.give(1, 2)
    assert trainer.inbox == []
    assert trainer.due() == [m.Dismissal("w", 7, "obs is text")]


# -- processes that ended ------------------------------------------------------------------------------


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr("tmrl_like.delivery.receiver._MAX_PROCESSES", 100)


def live_and_end(trainer, first, number, lost=0):
    """So many worker processes each send a packet, which is stored, and end."""
    for incarnation in range(first, first + number):
        trainer.give(1, incarnation=incarnation, lost=lost)
    trainer.store()


def test_processes_that_ended_long_ago_are_forgotten_and_what_they_lost_is_not(trainer, few):
    for first in range(1, 1000, 50):
        live_and_end(trainer, first, 50, lost=2)
    known = [incarnation for _, incarnation, _ in trainer.receiver.receipts]
    assert len(known) <= 100
    assert known[-50:] == list(range(951, 1001))
    assert trainer.receiver.metrics()["lost_samples_total"] == 2000


def test_a_process_that_is_still_heard_is_not_forgotten(trainer, few):
    trainer.give(1)
    for k in range(20):
        live_and_end(trainer, 1000 + 50 * k, 50)
        trainer.give(2 + k)
    trainer.give(5)  # again
    assert trainer.inbox[-1].receipt == Receipt("w", 7, 21)


def test_a_process_whose_packets_are_not_stored_is_not_forgotten(trainer, few):
    trainer.give(1)
    waiting = trainer.inbox.pop()
    live_and_end(trainer, 1000, 500)
    trainer.give(1)
    assert trainer.inbox == []
    trainer.receiver.confirm([waiting.receipt])
    trainer.receiver.write(0.0)
    assert m.Ack("w", 7, 1, 1) in trainer.due()


def test_what_waits_of_a_rejected_process_that_was_forgotten_is_dropped(trainer, few):
    trainer.give(1, 2)
    trainer.receiver.reject(trainer.inbox[0].receipt, "no")
    late = list(trainer.inbox)
    trainer.inbox.clear()
    live_and_end(trainer, 1000, 200)
    assert all(trainer.receiver.is_rejected(d.receipt) for d in late)
    trainer.receiver.confirm([d.receipt for d in late])
    trainer.receiver.write(0.0)
    assert not any(message.incarnation == 7 for message in trainer.due())


def test_a_process_that_was_forgotten_may_still_be_rejected(trainer, few):
    trainer.give(1)
    trainer.give(2)
    trainer.receiver.reject(trainer.inbox[1].receipt, "the second does not fit")
    in_the_memorys_hands = trainer.inbox.pop(0)
    trainer.inbox.clear()
    live_and_end(trainer, 1000, 200)
    trainer.receiver.reject(in_the_memorys_hands.receipt, "nor does the first")
    assert trainer.receiver.is_rejected(in_the_memorys_hands.receipt)


# -- a worker that takes more than its part ------------------------------------------------------------


def test_packets_of_nothing_are_counted_and_leave_no_trace(trainer, caplog):
    for k in range(20):
        trainer.give(k + 1, worker="bad", samples=0, previous=0)
    assert trainer.inbox == []
    assert trainer.receiver.receipts == ()
    assert trainer.receiver.malformed == 20
    assert len(caplog.records) == 1


def test_more_packets_than_a_bundle_may_hold_are_refused(trainer):
    trainer.give(*range(1, m.MAX_BUNDLE_PACKETS + 2))
    assert len(trainer.taken) == m.MAX_BUNDLE_PACKETS
    assert trainer.receiver.malformed == 1


@pytest.mark.fault("peers", "a worker fills what may wait at the trainer", "the others keep their share")
def test_a_worker_that_fills_what_may_wait_leaves_the_others_their_share():
    trainer = Trainer(WorkerLimits(total_bytes=10_000))
    for sequence in range(1, 21):
        trainer.give(sequence, worker="bad")
        trainer.give(sequence)
    workers = [d.receipt.worker for d in trainer.inbox]
    assert 2 < workers.count("bad") < 10
    trainer.give(workers.count("bad") + 1, worker="bad")
    trainer.give(1, worker="new", incarnation=1)
    assert [d.receipt.worker for d in trainer.inbox][len(workers) :] == ["new"]
    assert any(message.worker == "bad" and message.again for message in trainer.due())
    trainer.store()
    trainer.give(workers.count("bad") + 1, worker="bad")
    assert [d.receipt.worker for d in trainer.inbox] == ["bad"]


def test_reports_of_episodes_without_samples_are_limited_and_the_packets_acknowledged(trainer):
    for sequence in range(1, 200):
        trainer.give(sequence, samples=0, episodes=(episode(),) * m.MAX_EPISODES)
    assert len(trainer.inbox) == 199
    assert sum(len(d.episodes) for d in trainer.inbox) < 2 * trainer.receiver.limits.episodes


def test_new_processes_of_one_worker_are_limited_and_those_known_go_on(trainer):
    for incarnation in range(1, 5000):
        trainer.give(1, worker="bad", incarnation=incarnation)
    assert len(trainer.inbox) < trainer.receiver.limits.processes + 100
    trainer.inbox.clear()
    trainer.give(2, worker="bad", incarnation=1)
    trainer.give(1)
    assert [d.receipt for d in trainer.inbox] == [Receipt("bad", 1, 2), Receipt("w", 7, 1)]


def test_of_one_worker_a_new_process_a_second_is_taken_beyond_the_first(trainer):
    for trainer.now in (0.0, 10.0):
        for incarnation in range(1, trainer.receiver.limits.processes + 100):
            trainer.give(1, incarnation=incarnation)
    assert len(trainer.inbox) == trainer.receiver.limits.processes + 10


def test_one_worker_cannot_fill_the_log(trainer, caplog):
    for sequence in range(2, 2000, 2):
        trainer.give(sequence, previous=0)
    assert len(caplog.records) < 200


def test_a_log_that_takes_nothing_shows_in_the_metrics_until_it_does(tmp_path, monkeypatch):
    log = PacketLog(tmp_path, lock_folder(tmp_path))
    receiver = Receiver(log)

    def fail(*_):
        raise OSError("full")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write", fail)
        log.append(b"x", 0.0)
    assert receiver.metrics()["log_fails"] == 1
    log.append(b"x", 60.0)
    log.close()
    assert receiver.metrics()["log_fails"] == 0


def test_who_awaits_training_hears_how_far_it_is(trainer):
    trainer.give(1, 2, awaits=True)
    trainer.give(1, worker="v")
    trainer.store()
    assert trainer.due() == [m.Ack("w", 7, 2, 2, trained=0), m.Ack("v", 7, 1, 1, trained=0)]
    trainer.receiver.note_trained(Receipt("w", 7, 2))
    assert trainer.due() == [m.Ack("w", 7, 2, 2, trained=2)]
    assert trainer.due() == []
    trainer.receiver.remind("w")
    assert trainer.due() == [m.Ack("w", 7, 2, 2, trained=2)]


def test_who_begins_to_await_training_hears_of_what_came_before(trainer):
    trainer.give(1)
    trainer.store()
    trainer.due()
    trainer.receiver.remind("w")
    assert trainer.due() == [m.Ack("w", 7, 1, 1, trained=1)]


@pytest.mark.fault(
    "network", "packets are lost, doubled, delayed and out of order", "each is in the memory once, in order"
)
@pytest.mark.parametrize("seed", range(20))
def test_packets_are_taken_once_and_in_order_in_whatever_order_they_come(trainer, seed):
    rng = random.Random(seed)
    for _ in range(200):
        first = rng.randrange(1, 50)
        trainer.give(*range(first, first + rng.randrange(1, 4)))
        trainer.now += rng.random()
    trainer.give(*range(1, 60))
    assert [number for number, _ in trainer.taken] == list(range(1, 60))
    assert len({stream for _, stream in trainer.taken}) == 1


def test_packets_that_the_log_has_removed_are_not_taken_again_by_the_next_process(tmp_path):
    def started():
        trainer = Trainer()
        log = PacketLog(tmp_path, lock_folder(tmp_path), 700)
        trainer.receiver = Receiver(log, "run", keep_samples=4)
        return log, trainer, sum(len(buffer) for buffer in trainer.receiver.replay())

    log, trainer, _ = started()
    for sequence in range(1, 41):
        trainer.give(sequence)
        trainer.store()
    log.close()
    log, trainer, replayed = started()
    assert 4 <= replayed < 20
    assert trainer.receiver.samples == 40
    trainer.give(*range(1, 41))
    assert trainer.taken == []
    log.close()
