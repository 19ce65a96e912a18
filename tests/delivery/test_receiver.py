"""The trainer's receiver: which entries it takes, what it forgets, and its limits for each
worker.
"""

import pytest
from kit.episodes import episode
from kit.executors import Beside
from kit.failing import failing_for_want_of_memory
from kit.packets import entries, header, numbered, packet_of
from receiving import Trainer, trainer_of

from tmrl_like.delivery import receiver as module
from tmrl_like.delivery import sample_store
from tmrl_like.delivery.receiver import Receiver
from tmrl_like.types import Receipt
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import encode_packet


@pytest.fixture
def trainer():
    return Trainer()


@pytest.fixture
def store(opened):
    return opened()


@pytest.fixture
def keeper(store):
    return trainer_of(store)


# -- in order, and once ----------------------------------------------------------------------------

# entries of each packet (with /oldest: the oldest entry that its worker has); the stretches that
# the trainer takes; its acknowledgement
HISTORIES = [
    ("1-1 3-4", "1", "1 again"),
    ("1-1 3-4 2-3 3-4", "1 2 3 4", "4 again"),
    ("1-1 4-5/4", "1 | 4 5", "5"),
    ("1-1 6-6/4", "1", "3 again"),  # the worker still has 4 and 5
    ("1-1 6-6/4 4-6/4", "1 | 4 5 6", "6 again"),
    ("1-1 4-6/6", "1 | 4 5 6", "6"),  # the worker has only 6, but the packet has 4 and 5
    ("1-2 1-2", "1 2", "2"),
    ("1-2 1-4", "1 2 3 4", "4"),
    ("8-8/6", "", "5 again"),  # from an unknown process
    ("8-8/6 6-8/6", "6 7 8", "8 again"),
]


@pytest.mark.parametrize(("packets", "stretches", "word"), HISTORIES)
def test_entries_are_taken_once_and_in_order_and_a_gap_is_a_break(
    trainer, packets, stretches, word
):
    for packet in packets.split():
        entries, _, oldest = packet.partition("/")
        first, last = map(int, entries.split("-"))
        trainer.give(first, last, oldest=int(oldest or 1))
    streams = {}
    for number, stream in trainer.taken:
        streams.setdefault(stream, []).append(str(number))
    assert " | ".join(map(" ".join, streams.values())) == stretches
    trainer.store()
    (ack,) = trainer.due()
    assert f"{ack.received}{' again' * ack.again}" == word


REPORTS = tuple(episode(return_=k) for k in range(3))


@pytest.mark.parametrize(
    ("known", "samples", "reports"),
    [(1, [2, 3], [0, 1, 2]), (2, [3], [0, 1, 2]), (4, [], [1, 2]), (6, [], [])],
)
def test_breaks_samples_and_reports_are_cut_off_alike(trainer, known, samples, reports):
    """Entry 1 is a break, entries 2 and 3 are samples, 4 to 6 are reports."""
    trainer.receiver.note_stored([Receipt("w", 7, known)])
    trainer.give(1, samples=(2, 3), reports=REPORTS, begins_with_break=True)
    assert [number for number, _ in trainer.taken] == samples
    assert [report.return_ for d in trainer.inbox for report in d.episodes] == reports


def test_a_damaged_packet_is_counted_and_asked_for_again(trainer):
    trainer.give(1)
    message = packet_of(2, numbered(2))
    trainer.give_bytes(message[:-1] + bytes((message[-1] ^ 0x55,)))
    assert trainer.due() == [m.Ack("w", 7, 0, 1, True)]
    assert trainer.metrics["refused_packets_total"] == 1
    trainer.give_bytes(message)
    assert trainer.taken == [(1, "w/7/0/1"), (2, "w/7/0/1")]


def test_a_packet_that_never_decodes_is_counted_passed_over_and_a_break(trainer, caplog):
    trainer.give(1)
    trainer.give_bytes(encode_packet(header(2, 6, body_bytes=3), b"xyz"))
    trainer.give(7)
    assert trainer.taken == [(1, "w/7/0/1"), (7, "w/7/0/7")]
    trainer.store()
    assert trainer.due() == [m.Ack("w", 7, 7, 7)]
    assert (trainer.metrics["refused_packets_total"], trainer.receiver.samples) == (1, 2)
    assert caplog.text.count("refused a packet of worker w") == 1


@pytest.mark.parametrize(
    "header",
    [
        {"last": 2},  # that is two samples without a break
        {"episodes": ((4, episode(worker="x")),), "last": 4},
        {"episodes": ((1, episode()),), "last": 4},
        {"episodes": ((5, episode()),), "last": 4},
        {"episodes": ((3, episode()), (3, episode())), "last": 5},
        {"episodes": ((2, episode()),), "last": 5},  # where the break must be
    ],
)
def test_a_packet_whose_entries_are_not_those_that_it_holds_is_counted_and_passed_over(
    trainer, header
):
    trainer.give(1)
    trainer.give(2, samples=(2, 3), **header)
    assert trainer.receiver.malformed == 1
    assert trainer.taken == [(1, "w/7/0/1")]
    assert not any(delivery.episodes for delivery in trainer.inbox)
    trainer.store()
    assert trainer.due() == [m.Ack("w", 7, header["last"], header["last"])]


def test_of_what_is_not_admitted_the_reports_are_taken(trainer):
    trainer.give_bytes(packet_of(1, numbered(1), reports=REPORTS), admit=lambda packet: False)
    assert [delivery.episodes for delivery in trainer.inbox] == [REPORTS]
    assert trainer.taken == []


def test_what_is_admitted_are_the_new_samples_of_a_packet_that_repeats_others(trainer):
    asked = []
    trainer.give(1, 3)
    for last in (5, 6):
        trainer.give_bytes(
            packet_of(1, *map(numbered, range(1, last + 1))),
            admit=lambda packet: asked.append(packet.samples),
        )
    assert asked == [2, 1]


def test_a_packet_for_which_memory_runs_out_is_not_taken_and_comes_again(trainer, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(module, "Delivery", failing_for_want_of_memory)
        with pytest.raises(MemoryError):
            trainer.give(1)
    trainer.give(2)
    trainer.store()
    assert trainer.due() == [m.Ack("w", 7, 0, 0, True)]
    trainer.give(1, 2)
    assert trainer.taken == [(1, "w/7/0/1"), (2, "w/7/0/1")]


def test_what_could_not_be_written_for_want_of_memory_is_not_acknowledged_as_stored(
    keeper, store, monkeypatch
):
    keeper.give(1)
    with monkeypatch.context() as patch:
        patch.setattr(store, "write", failing_for_want_of_memory)
        with pytest.raises(MemoryError):
            keeper.store()
    assert keeper.due() == [m.Ack("w", 7, 0, 1)]
    assert keeper.write(0.0) == [(1, 1)]
    assert entries(store) == [1]


# -- the next process ------------------------------------------------------------------------------


def test_what_was_stored_is_not_taken_again_though_its_file_is_gone(
    keeper, store, opened, monkeypatch
):
    monkeypatch.setattr(sample_store, "SMALL_BYTES", 1)  # a file per packet
    store.keep_samples = 2
    for incarnation, entry in ((7, 1), (8, 1), (8, 2), (8, 3)):
        keeper.now += 1.0
        keeper.give(entry, incarnation=incarnation)
        keeper.store()
    store.close()
    store = opened()
    successor = trainer_of(store)
    assert sum(map(len, successor.receiver.replay(store.files()))) == 2
    assert (successor.receiver.samples, store.run) == (4, "run")
    for incarnation, entry in ((7, 1), (8, 3), (7, 2)):
        successor.give(entry, incarnation=incarnation)
    assert successor.taken == [(2, "w/7/0/2")]


def test_consecutive_packets_of_a_stream_are_replayed_in_one_piece(keeper, store, opened):
    keeper.give(1, 2)
    keeper.give(1, 3)
    keeper.give(4, 5, begins_with_break=True, samples=(5,))
    keeper.give(6, breaks=1)
    keeper.store()
    store.close()
    found = [(buffer.stream, len(buffer)) for buffer in Receiver().replay(opened().files())]
    assert found == [("w/7/0/1", 3), ("w/7/1/1", 2)]


# -- rejection -------------------------------------------------------------------------------------


def test_of_a_rejected_process_nothing_more_is_taken_and_it_is_told_so_but_not_for_each_packet(
    trainer, caplog
):
    for entry in (1, 2, 3):
        trainer.give(entry)
    trainer.store(1)
    trainer.receiver.reject(trainer.inbox[0].receipt, "obs is float64,\nit was float32")
    assert all(trainer.receiver.rejection_of(delivery.receipt) for delivery in trainer.inbox)
    trainer.receiver.write(0.0)
    dismissal = m.Dismissal("w", 7, "obs is float64, it was float32")
    trainer.receiver.answer(lambda data: False)
    assert trainer.receiver.pending
    assert trainer.due() == [dismissal], "what could not be sent is sent later"
    assert not trainer.receiver.pending
    for trainer.now, said in ((1.0, [dismissal]), (1.1, []), (2.0, [dismissal])):
        trainer.give(4)
        assert trainer.due() == said
    assert len(trainer.inbox) == 2
    assert trainer.receiver.receipts == (Receipt("w", 7, 1),)
    assert trainer.metrics["rejected_workers_total"] == 1
    (line,) = caplog.messages
    assert line.startswith("worker w is rejected, training goes on without its samples")
    trainer.give(1, incarnation=8)
    assert trainer.inbox[-1].receipt == Receipt("w", 8, 1), "the worker's next process is taken"


def test_a_process_that_both_threads_reject_at_once_is_one_and_keeps_the_first_reason(trainer):
    trainer.give(1)
    for reason in ("one", "another"):
        trainer.receiver.reject(trainer.inbox[0].receipt, reason)
    assert trainer.metrics["rejected_workers_total"] == 1
    assert trainer.due() == [m.Dismissal("w", 7, "one")]


def test_samples_that_were_being_stored_when_their_process_was_rejected_count_as_stored(opened):
    beside = Beside()
    keeper = trainer_of(opened(0.25, beside))
    keeper.give(1, 3)
    keeper.store()
    keeper.receiver.reject(Receipt("w", 7, 4), "the fourth does not fit")
    beside.work()
    keeper.store()
    assert keeper.receiver.samples == 3


def test_what_was_rejected_may_come_again_to_the_next_process_of_the_training(
    keeper, store, opened
):
    keeper.give(1)
    keeper.store()
    for entry in (2, 3):
        keeper.give(entry)
    keeper.give(1, incarnation=8)
    keeper.receiver.confirm([keeper.inbox[0].receipt, keeper.inbox[2].receipt])
    keeper.receiver.reject(keeper.inbox[1].receipt, "the third does not fit")
    keeper.receiver.finish()
    store.close()
    successor = Receiver()
    list(successor.replay(opened().files()))
    assert successor.receipts == (Receipt("w", 7, 1), Receipt("w", 8, 1))


# -- processes that ended --------------------------------------------------------------------------


def live_and_end(trainer, first, number):
    """Have `number` processes of several workers each send a packet, which is stored, and end."""
    for incarnation in range(first, first + number):
        trainer.give(1, worker=f"w{incarnation // 1000}", incarnation=incarnation)
    trainer.store()


def test_processes_that_ended_long_ago_are_forgotten_and_one_that_is_still_heard_is_not(trainer):
    for k in range(20):
        live_and_end(trainer, 1000 + 250 * k, 250)
        trainer.give(1 + k)
        trainer.store()
    *ended, (_, live, newest) = trainer.receiver.receipts
    assert len(ended) < 4096
    assert [incarnation for _, incarnation, _ in ended[-4000:]] == [*range(2000, 6000)]
    assert (live, newest) == (7, 20)
    trainer.give(5)  # again
    assert trainer.inbox == []


def test_a_process_whose_packets_are_not_stored_is_not_forgotten(trainer):
    trainer.give(1)
    waiting = trainer.inbox.pop()
    live_and_end(trainer, 1000, 5000)
    trainer.give(1)
    assert trainer.inbox == []
    trainer.receiver.confirm([waiting.receipt])
    trainer.receiver.write(0.0)
    assert m.Ack("w", 7, 1, 1) in trainer.due()


# -- a worker that takes more than its part --------------------------------------------------------


@pytest.mark.fault(
    "peers", "a worker fills what may wait at the trainer", "the others keep their share"
)
def test_a_worker_that_fills_what_may_wait_leaves_the_others_their_share():
    trainer = Trainer(total_bytes=40_000)
    for entry in range(1, 21):
        trainer.give(entry, worker="bad")
        trainer.give(entry)
    workers = [d.receipt.worker for d in trainer.inbox]
    next_entry = workers.count("bad") + 1
    assert 3 < next_entry < 11
    trainer.give(next_entry, worker="bad")
    trainer.give(1, worker="new", incarnation=1)
    assert [d.receipt.worker for d in trainer.inbox][len(workers) :] == ["new"]
    trainer.store(1)
    assert not any(message.again for message in trainer.due()), "that would fill the network"
    trainer.store()
    assert {message.worker for message in trainer.due() if message.again} == {"bad", "w"}
    trainer.store()
    assert not any(message.again for message in trainer.due()), "once is enough"
    trainer.give(next_entry, worker="bad")
    assert [d.receipt.worker for d in trainer.inbox] == ["bad"]


def test_what_there_was_no_room_for_is_asked_for_when_the_worker_heeds_a_request_again():
    """Just after another one it would ignore the request, and nothing else would follow."""
    trainer = Trainer(total_bytes=4000)
    trainer.give(2)
    assert [message.again for message in trainer.due()] == [True]
    trainer.give(1, newest=4)
    trainer.give(5)
    trainer.store()
    assert [(ack.received, ack.again) for ack in trainer.due()] == [(4, False)]
    trainer.now += 0.6
    trainer.store()
    assert [(ack.received, ack.again) for ack in trainer.due()] == [(4, True)]


def test_reports_of_episodes_without_samples_are_limited_and_the_packets_acknowledged(trainer):
    for entry in range(1, 200):
        first = 1 + (entry - 1) * m.MAX_EPISODES
        trainer.give(first, samples=(), reports=(episode(),) * m.MAX_EPISODES)
    assert len(trainer.inbox) == 199
    assert sum(len(d.episodes) for d in trainer.inbox) < 2 * module._REPORTS


def test_new_processes_of_one_worker_are_limited_and_those_known_go_on(trainer):
    for incarnation in range(1, 2000):
        trainer.give(1, worker="bad", incarnation=incarnation)
    assert len(trainer.inbox) < module._PROCESSES + 100
    trainer.inbox.clear()
    trainer.give(2, worker="bad", incarnation=1)
    trainer.give(1)
    assert [d.receipt for d in trainer.inbox] == [Receipt("bad", 1, 2), Receipt("w", 7, 1)]


def test_one_worker_cannot_fill_the_log(trainer, caplog):
    for entry in range(2, 2000, 2):
        trainer.give(entry, oldest=entry)
    assert caplog.records[0].message == "entries 3 to 3 of worker w are lost for good"
    assert len(caplog.records) < 200


def test_who_begins_to_await_training_hears_how_far_it_is(trainer):
    trainer.give(1)
    trainer.store()
    trainer.due()
    trainer.receiver.remind("w")
    assert trainer.due() == [m.Ack("w", 7, 1, 1, trained=1)]
