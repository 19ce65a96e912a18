"""The packet log on a disk whose power may fail: what is stored is on it, and what is not is written again."""

import errno
import random
from concurrent.futures import Executor, Future

import pytest
from disk import PowerDisk
from kit.episodes import episode
from kit.packets import opaque, sequences

from tmrl_like.base.files import disk
from tmrl_like.delivery.log import _SYNCED
from tmrl_like.delivery.receiver import Receiver
from tmrl_like.types import Receipt
from tmrl_like.wire import messages as m
from tmrl_like.wire.records import seal

EVERY_S = 0.25
MARK = len(seal(_SYNCED))


@pytest.fixture
def power(tmp_path):
    with PowerDisk(tmp_path) as power:
        yield power


def killed(log):
    """Its process is dead: nothing is written any more."""
    log._end_segment()
    log._unsynced_since = None
    log.close()


def stored(log, *numbers, now=0.0):
    for number in numbers:
        assert log.append(opaque(number), now, 3) is not None
    assert log.settle(now + EVERY_S) is True


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 0x55
    path.write_bytes(data)


def test_what_was_appended_is_stored_once_it_and_its_name_are_on_the_disk(opened, power):
    log = opened(1 << 20, EVERY_S)
    assert log.settle(0.0) is True
    log.append(opaque(1), 1.0)
    assert log.settle(1.0 + EVERY_S / 2) is None
    log.append(opaque(2), 1.2)
    before = len(power.operations)
    assert log.settle(1.0 + EVERY_S) is True
    assert [operation[0] for operation in power.operations[before:]] == ["sync", "sync_folder", "write"]
    assert log.settle(2.0) is True
    log.append(opaque(3), 3.0)
    before = len(power.operations)
    assert log.settle(4.0) is True
    assert [operation[0] for operation in power.operations[before:]] == ["sync", "write"]


class Later(Executor):
    """Does what it is given when it is told to."""

    def __init__(self):
        self.waiting = []

    def submit(self, call, /, *args, **kwargs):
        self.waiting.append((Future(), call))
        return self.waiting[-1][0]

    def work(self):
        done, call = self.waiting.pop()
        try:
            done.set_result(call())
        except OSError as error:
            done.set_exception(error)


def test_nothing_is_written_while_a_group_is_synced_and_nobody_waits_for_it(opened, power):
    later = Later()
    log = opened(1 << 20, EVERY_S, later)
    log.append(opaque(1), 0.0)
    assert log.settle(1.0) is None
    assert not log.can_write(1.0)
    assert log.append(opaque(2), 1.0) is None
    assert log.settle(100.0) is None
    assert len(later.waiting) == 1
    later.work()
    assert log.settle(100.0) is True
    assert log.append(opaque(2), 100.0) is not None


def test_a_segment_is_begun_only_when_all_before_it_is_on_the_disk(opened, power, tmp_path):
    log = opened(1, EVERY_S)
    log.append(opaque(1), 0.0)
    log.append(opaque(2), 0.0)
    assert len(list(tmp_path.glob("log/*.log"))) == 1
    assert log.settle(1.0) is True
    log.append(opaque(3), 1.0)
    assert len(list(tmp_path.glob("log/*.log"))) == 2


@pytest.mark.parametrize("seed", range(40))
def test_after_a_power_cut_what_is_stored_is_there_and_nothing_behind_what_is_missing(opened, power, seed):
    rng = random.Random(seed)
    log = opened(400, EVERY_S)
    promised = written = 0
    for number in range(1, rng.randrange(2, 20)):
        log.append(opaque(number, size=rng.choice((10, 700))), 0.0, 3)
        written = number
        if rng.random() < 0.3 and log.settle(1.0):
            promised = number
    killed(log)
    power.cut(rng)
    log = opened(1 << 20, EVERY_S)
    found = sequences(log)
    assert found == list(range(1, len(found) + 1))
    assert promised <= len(found) <= written
    power.cut(rng)  # what the next process has acknowledged survives another cut
    killed(log)
    assert sequences(opened(1 << 20, EVERY_S)) == found


def test_damage_in_what_was_synced_costs_the_packet_that_it_is_in_and_behind_that_all(opened, tmp_path):
    log = opened(1 << 20, EVERY_S)
    stored(log, 1, 2, 3)
    for number in (4, 5, 6):
        log.append(opaque(number), 9.0)
    killed(log)
    (path,) = tmp_path.glob("log/*.log")
    whole, size = path.read_bytes(), len(opaque(1))
    head = len(whole) - 6 * size - MARK
    for at in range(head, len(whole)):
        path.write_bytes(whole)
        flip(path, at)
        log = opened(1 << 20, EVERY_S)
        place = at - head
        if place < 3 * size:
            assert sequences(log) == [i for i in range(1, 7) if i != place // size + 1], at
        elif place < 3 * size + MARK:  # without the mark
            assert sequences(log) == [1, 2, 3], at
        else:
            hit = (place - 3 * size - MARK) // size + 4
            assert sequences(log) == list(range(1, hit)), at
        killed(log)


def test_a_torn_record_of_which_the_beginning_is_there_and_zeros_is_no_mark(opened, tmp_path):
    log = opened(1 << 20, EVERY_S)
    stored(log, 1)
    for number in (2, 3):
        log.append(opaque(number), 9.0)
    killed(log)
    (path,) = tmp_path.glob("log/*.log")
    whole, size = path.read_bytes(), len(opaque(2))
    for kept in range(size):
        path.write_bytes(whole[: -2 * size] + whole[-2 * size :][:kept].ljust(size, b"\0") + whole[-size:])
        log = opened(1 << 20, EVERY_S)
        assert sequences(log) == [1], kept
        killed(log)


def refusing(monkeypatch, *outcomes):
    """The next syncs of files fail, or do not."""
    coming, real = list(outcomes), disk.sync

    def sync(file):
        if coming and not coming.pop(0):
            raise OSError(errno.EIO, "Input/output error")
        real(file)

    monkeypatch.setattr(disk, "sync", sync)


def test_what_could_not_be_synced_is_cut_off_and_written_again_to_a_new_segment(opened, power, monkeypatch, caplog):
    log = opened(1 << 20, EVERY_S)
    stored(log, 1)
    log.append(opaque(2), 10.0, 3)
    refusing(monkeypatch, False)
    assert log.settle(11.0) is False
    assert "Input/output error" in log.alarm
    assert not log.can_write(12.0)
    assert len(log._segments) == 1
    stored(log, 2, 3, now=30.0)
    assert log.alarm == ""
    assert [segment.samples for segment in log._segments] == [3, 6]
    assert sum(path.stat().st_size for path in log.folder.glob("*.log")) == log.size_bytes
    killed(log)
    for seed in range(20):
        assert {1, 2, 3} <= {*sequences_after_a_cut(power, opened, seed)}
    assert [r.levelname for r in caplog.records if r.levelname == "ERROR"] == ["ERROR"]


def sequences_after_a_cut(power, opened, seed):
    power.cut(random.Random(seed))
    log = opened(1 << 20, EVERY_S)
    found = sequences(log)
    killed(log)
    return found


def test_while_the_tail_cannot_be_cut_off_for_good_nothing_follows_it(opened, power, monkeypatch):
    log = opened(1 << 20, EVERY_S)
    stored(log, 1)
    log.append(opaque(2), 10.0, 3)
    refusing(monkeypatch, False, False, False)
    assert log.settle(11.0) is False
    assert log.append(opaque(2), 30.0, 3) is None
    assert len(log._segments) == 1
    stored(log, 2, now=60.0)
    assert [segment.samples for segment in log._segments] == [3, 3]


def test_a_packet_is_acknowledged_as_received_at_once_and_as_stored_when_it_is_on_the_disk(opened, power, monkeypatch):
    receiver = Receiver(opened(1 << 20, EVERY_S), "run", keep_samples=100)

    def take(sequence, now):
        for delivery in receiver.take(m.Bundle("w", 7, 3, sequence - 1), memoryview(no_samples(sequence)), now, bool):
            receiver.confirm([delivery.receipt])
        receiver.write(now)
        return [(ack.received, ack.stored) for ack in receiver.due()]

    assert take(1, 0.0) == [(1, 0)]
    assert take(2, 0.1) == [(2, 0)]
    assert take(3, 0.3) == [(3, 2)]
    refusing(monkeypatch, False)
    assert take(4, 1.0) == [(4, 2)]
    receiver.write(20.0)
    assert receiver.due() == []
    receiver.write(21.0)
    assert [(ack.received, ack.stored) for ack in receiver.due()] == [(4, 4)]
    assert receiver.receipts == (Receipt("w", 7, 4),)


def no_samples(sequence):
    report = episode()
    packet = m.SamplePacket("w", 7, sequence, 0, 0, 0, False, episodes=(report,))
    return seal(m.frame_of(packet))


@pytest.mark.fault(
    "disk", "a sync of the trainer's log takes seconds", "what was written is acknowledged after it; one line"
)
def test_a_sync_that_takes_seconds_is_one_line_and_holds_back_what_was_written(opened, caplog):
    later = Later()
    log = opened(1 << 20, EVERY_S, later)
    for begun_at in (0.0, 10.0, 20.0):
        log.append(opaque(1), begun_at, 3)
        assert log.settle(begun_at + 0.5) is None
        assert log.settle(begun_at + 1.4) is None
        assert caplog.text.count("is slow") == (begun_at > 0.0)
        assert log.settle(begun_at + 3.4) is None
        later.work()
        assert log.settle(begun_at + 3.5) is True
        assert caplog.text.count("is slow") == 1
