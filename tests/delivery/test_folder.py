"""A worker's packets on disk: what is found again after a kill at any point, and a disk that does not take them."""

import errno
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from both_ends import CLOCK, STATS, Clock, nothing, opened_ends

from tmrl_like.base.files import disk
from tmrl_like.delivery import folder as folder_module
from tmrl_like.delivery.folder import open_folder
from tmrl_like.errors import ConfigError
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import decode_body
from tmrl_like.wire.records import unseal


@pytest.fixture
def opened(tmp_path):
    """Open folders of tmp_path; those that a test leaves open are closed at its end."""
    folders = []

    def make(name="w", root=tmp_path):
        folders.append(open_folder(root, name))
        return folders[-1]

    yield make
    for folder in folders:
        folder.close()


@pytest.fixture
def outbox(tmp_path):
    """Both ends of the delivery of worker w in tmp_path."""
    with opened_ends() as make:
        yield lambda incarnation=1, clock=CLOCK, root=tmp_path, **options: make(
            root, incarnation, clock, **({"max_samples": 1} | options)
        )


def segments(root, worker="w"):
    return sorted((root / worker).glob("*.log"))


# -- whose it is -------------------------------------------------------------------------------------


def test_two_workers_of_one_name_do_not_share_a_folder(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(folder_module, "_LOCK_WITHIN_S", 0.0)
    opened("arm")
    with pytest.raises(ConfigError, match=r"another process uses the spool of worker arm.*give this worker another"):
        open_folder(tmp_path, "arm")


def test_a_worker_without_a_name_takes_the_first_folder_that_is_free(opened):
    first, second = opened(None), opened(None)
    assert first.worker != second.worker
    second.close()
    assert opened(None).worker == second.worker


@pytest.mark.parametrize("name", ["arm 1/left", "..", "ä.b%2E", "C:\\arm", "a" * 66])
def test_any_name_gets_a_folder_of_its_own_and_comes_back(opened, tmp_path, name):
    opened(name).close()
    (folder,) = tmp_path.iterdir()
    assert folder.is_dir()
    assert opened(None).worker == name


def test_a_name_too_long_for_a_folder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="needs a shorter name"):
        open_folder(tmp_path, "ü" * 150)


def test_a_worker_without_a_name_leaves_a_folder_to_who_still_sends_from_it(opened, outbox):
    box = outbox()
    box.kill_writer()
    assert opened(None).worker != "w"
    box.kill_reader()
    assert opened(None).worker == "w"


def test_one_that_sends_waits_for_the_one_before_and_gives_up_after_a_while(outbox, monkeypatch):
    monkeypatch.setattr(folder_module, "_READER_WITHIN_S", 0.0)
    box = outbox()
    with pytest.raises(ConfigError, match=r"another process still sends what is in .*w: end it"):
        box._reader()


@pytest.fixture
def shared_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_module, "_SHARED_MEMORY", tmp_path)
    return tmp_path


@pytest.mark.parametrize("is_writer_first", [False, True])
def test_a_private_folder_goes_with_the_last_of_the_two_that_use_it(outbox, shared_memory, is_writer_first):
    box = outbox(root=None)
    (path,) = shared_memory.iterdir()
    if os.name == "posix":
        assert path.stat().st_mode & 0o777 == 0o700
    box.log.close()
    closers = [box.folder.close, box.outbox.close]
    for close in closers if is_writer_first else reversed(closers):
        assert path.exists()
        close()
    assert not path.exists()


def test_private_folders_that_nobody_uses_are_removed_when_they_are_not_just_being_made(outbox, shared_memory):
    stale, young, used = (outbox(root=None) for _ in range(3))
    for box in (stale, young):
        box.kill()
    for box in (stale, used):
        os.utime(box.folder.path, (0, 0))
    outbox(root=None)
    assert [box.folder.path.exists() for box in (stale, young, used)] == [False, True, True]


def test_where_there_is_no_shared_memory_a_private_folder_is_a_temporary_one(outbox, tmp_path, monkeypatch):
    monkeypatch.setattr(folder_module, "_SHARED_MEMORY", tmp_path / "missing")
    monkeypatch.setattr(folder_module.tempfile, "tempdir", str(tmp_path))
    assert outbox(root=None).folder.path.parent == tmp_path


# -- with the outbox ---------------------------------------------------------------------------------


class Trainer:
    """Takes messages as the trainer's connection does, and acknowledges."""

    def __init__(self):
        self.received = {}
        self.rows = {}
        self.lost = []

    def send(self, data):
        bundle, body = m.decode(data)
        assert bundle.previous <= self.received.get(bundle.incarnation, 0), "a packet is missing"
        for _, message in unseal(body):
            self._take(*m.decode(message))
        return True

    def _take(self, packet, body):
        received = self.received.get(packet.incarnation, 0)
        if packet.sequence <= received:
            return
        if packet.sequence > received + 1:
            self.lost.append((packet.incarnation, received + 1, packet.sequence - 1))
        self.received[packet.incarnation] = packet.sequence
        rows = decode_body(packet, body).samples()
        self.rows.setdefault(packet.incarnation, []).extend(int(row.obs[0]) for row in rows)

    def acknowledge(self, box, incarnation=None, stored=True):
        for number, received in self.received.items():
            if incarnation in (None, number):
                box.on_ack(m.Ack("w", number, received if stored else 0, received))


class Disk:
    """Takes `room` bytes of packets, then fails."""

    def __init__(self, monkeypatch):
        self.room = 10**9
        monkeypatch.setattr(disk, "write", self.write)

    def write(self, file, data):
        taken = file.write(bytes(data[: max(0, self.room)]))
        self.room -= taken
        if taken < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")


def fill(box, *numbers, size=1):
    for number in numbers:
        obs = np.random.default_rng(number).random(size, np.float32)  # does not compress
        obs[0] = number
        box.append((None, obs, 0.0, False, False, {}))


def produce(box, *numbers, size=1):
    """Samples whose packets are sealed as soon as they are closed."""
    for number in numbers:
        fill(box, number, size=size)
        box.pump(nothing, False)


def test_a_packet_is_on_disk_before_it_is_sent(outbox, tmp_path):
    box = outbox()
    fill(box, 1)

    def send(data):
        (path,) = segments(tmp_path)
        assert path.stat().st_size > 0
        return True

    box.pump(send, True)
    assert not box.pending() or box.unacknowledged_samples() == 1


def test_a_successor_sends_what_its_predecessors_left_under_their_numbers(outbox, tmp_path):
    for incarnation in (1, 2):
        box = outbox(incarnation)
        fill(box, *(100 * incarnation + i for i in range(3)))
        box.pump(nothing, False)
        box.kill()
    box, trainer = outbox(3), Trainer()
    assert box.takes_over == (1, 2)
    fill(box, 300)
    box.pump(trainer.send, True)
    assert trainer.rows == {1: [100, 101, 102], 2: [200, 201, 202], 3: [300]}
    trainer.acknowledge(box)
    assert box.unacknowledged_samples() == 0
    assert not box.pending()
    box.close()
    assert segments(tmp_path) == []


def test_what_a_predecessor_left_and_the_trainer_refuses_stays_on_disk_and_is_reported_once(outbox, tmp_path, caplog):
    left = outbox(1)
    fill(left, 1, 2)
    left.pump(nothing, False)
    left.kill()
    trainer = Trainer()
    box = outbox(2)
    box.pump(trainer.send, True)
    for _ in range(2):
        box.set_aside(1, "obs is float64")
    fill(box, 3)
    box.retransmit(from_the_start=False)
    again = Trainer()
    box.pump(again.send, True)
    assert again.rows == {2: [3]}
    again.acknowledge(box)
    assert box.unacknowledged_samples() == 2
    assert not box.pending()
    (line,) = (
        r.message for r in caplog.records if "do not fit those in the trainer's memory: obs is float64" in r.message
    )
    assert line.startswith("2 samples that an earlier process")
    assert [Path(word).name for word in line.split() if word.endswith(".log")] == ["0000000001.log"]
    another = Trainer()
    box.retransmit(from_the_start=True)
    box.pump(another.send, True)
    assert another.rows == {1: [1, 2]}
    box.set_aside(1, "obs is float64")
    assert len([r for r in caplog.records if "do not fit" in r.message]) == 1
    box.close()
    third = Trainer()
    outbox(3).pump(third.send, True)
    assert third.rows == {1: [1, 2]}


def test_what_the_trainer_has_already_is_not_sent_whole(outbox):
    box, trainer = outbox(1, max_samples=100), Trainer()
    for start in range(0, 5000, 100):
        produce(box, *range(start, start + 100), size=100)
    box.pump(trainer.send, True)
    box.kill()
    box = outbox(2, window_bytes=1)
    sent = []
    box.pump(lambda data: sent.append(data) or True, True)
    trainer.acknowledge(box, stored=False)
    box.pump(lambda data: sent.append(data) or True, True)
    assert len(sent) == 1
    assert not box.pending()
    assert box.unacknowledged_samples() == 5000


def test_beyond_its_memory_the_outbox_reads_back_from_the_disk(outbox):
    box, trainer = outbox(max_bytes=40_000, max_samples=10), Trainer()
    for number in range(500):
        fill(box, number, size=100)
        box.pump(nothing, False)
    assert box._sender._memory_bytes < 40_000 < 150_000 < box._log.size_bytes
    box.pump(trainer.send, True)
    assert trainer.rows[1] == list(range(500))
    assert box.lost_samples == 0


def test_packets_on_disk_take_a_little_memory_each_and_are_dropped_beyond_the_limit(outbox):
    box = outbox(max_bytes=4000)  # 400 bytes each
    produce(box, *range(20))
    assert box.unacknowledged_samples() == box.lost_samples == 10


@pytest.mark.parametrize(("limit", "kept"), [(50, 50), (1, 10)])  # the newest packet always
def test_the_limit_in_samples_counts_what_is_in_memory(outbox, limit, kept):
    box = outbox(root=None, max_held_samples=limit, max_samples=10)
    fill(box, *range(200))
    box.pump(nothing, False)
    assert box.unacknowledged_samples() == kept
    assert box.lost_samples == 200 - kept


@pytest.mark.fault("disk", "a spool has reached its limit", "the oldest go, and are counted")
def test_a_full_spool_drops_the_oldest_and_counts_them(outbox):
    box, trainer = outbox(spool_max_bytes=20_000), Trainer()
    produce(box, *range(200), size=100)
    assert 0 < box.lost_samples < 200
    assert box.lost_samples + box.unacknowledged_samples() == 200
    assert box._log.size_bytes <= 20_000
    box.pump(trainer.send, True)
    assert trainer.rows[1] == list(range(box.lost_samples, 200))


def test_what_is_lost_is_counted_once_whoevers_packets_are_sent(outbox, tmp_path):
    box = outbox(1)
    produce(box, 1, 2)
    box.kill()
    box, lost = outbox(2), {}
    (path, _) = segments(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])  # takes the second packet
    produce(box, 3)

    def send(data):
        bundle, _ = m.decode(data)
        lost[bundle.incarnation] = bundle.lost_samples
        return True

    box.pump(send, True)
    assert set(lost) == {1, 2}
    assert sum(lost.values()) == box.lost_samples == 1


@pytest.mark.fault("disk", "the spool's disk is away for a while", "what is kept in memory is written later")
def test_without_a_disk_the_outbox_goes_on_and_writes_later_what_it_kept(outbox, monkeypatch):
    full = Disk(monkeypatch)
    clock = Clock()
    box = outbox(clock=clock)
    full.room = 0
    fill(box, 1, 2)
    box.pump(nothing, False)
    assert "No space left" in box.alarm
    full.room = 10**9
    box.pump(nothing, False)
    assert "No space left" in box.alarm, "not before a while has passed"
    clock.now = 11.0
    box.pump(nothing, False)
    assert box.alarm == ""
    box.kill()
    box, trainer = outbox(2), Trainer()
    box.pump(trainer.send, True)
    assert trainer.rows == {1: [1, 2]}


def test_a_packet_that_the_disk_does_not_give_back_is_lost_and_a_break(outbox, tmp_path, caplog):
    box = outbox()
    produce(box, 1, 2, 3)
    box.kill()
    box, trainer = outbox(2), Trainer()
    (path, _) = segments(tmp_path)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    box.pump(trainer.send, True)
    assert trainer.rows == {1: [1, 3]}
    assert trainer.lost == [(1, 2, 2)]
    assert box.lost_samples == 1


def test_what_is_sealed_when_a_worker_closes_is_left_to_the_next(outbox):
    box = outbox(max_samples=100)
    fill(box, 1, 2)
    box.seal()
    box.close()
    box, trainer = outbox(2), Trainer()
    box.pump(trainer.send, True)
    assert trainer.rows == {1: [1, 2]}


def test_backlogs_take_turns_when_the_connection_takes_little(outbox):
    box = outbox(1)
    produce(box, *range(1000))
    box.kill()
    box, trainer = outbox(2), Trainer()
    produce(box, *range(1000))
    for _ in range(8):
        room = iter([True, False])
        box.pump(lambda data, room=room: next(room) and trainer.send(data), True)
    assert min(map(len, trainer.rows.values())) > 100


def test_samples_of_a_packet_that_is_being_filled_survive_a_kill(outbox, tmp_path):
    box = outbox(1, max_samples=100)
    fill(box, 1, 2)
    box.pump(nothing, False)
    box.seal()
    fill(box, 3)  # the packet before is closed, and not sealed yet
    box.kill()
    box, trainer = outbox(2), Trainer()
    assert box.takes_over == (1,)
    box.pump(trainer.send, True)
    assert trainer.rows == {1: [1, 2, 3]}
    trainer.acknowledge(box)
    box.close()
    assert sorted(path.name for path in (tmp_path / "w").iterdir()) == ["lock", "worker.lock"]


def test_an_episode_that_was_reported_survives_a_kill_as_well(outbox):
    box = outbox(1, min_samples=5, max_samples=100)
    fill(box, 1)
    box.end_episode(STATS)
    box.kill()
    box, packets = outbox(2, max_samples=100), []
    box.pump(
        lambda data: packets.extend(m.decode(message)[0] for _, message in unseal(m.decode(data)[1])) or True, True
    )
    assert [(packet.samples, [e.return_ for e in packet.episodes]) for packet in packets] == [(1, [-5.0])]


def test_a_report_of_a_packet_that_was_sealed_is_not_taken_again_from_the_file_that_it_ends_in(outbox):
    box = outbox(1, max_samples=100)
    fill(box, 1)
    box.begin_file()
    box.end_episode(STATS)
    trainer = Trainer()
    box.pump(trainer.send, True)
    trainer.acknowledge(box)
    fill(box, 2)
    box.kill()
    box = outbox(2, max_samples=100)
    box.pump(trainer.send, True)
    assert trainer.rows == {1: [1, 2]}


def test_what_cannot_be_taken_over_because_the_disk_is_full_is_there_for_the_next_process(outbox, monkeypatch):
    box = outbox(1, max_samples=100)
    fill(box, 1, 2)
    box.kill()
    full = Disk(monkeypatch)
    full.room = 0
    box, trainer = outbox(2), Trainer()
    box.pump(trainer.send, True)
    assert trainer.rows == {1: [1, 2]}
    box.kill()  # before anything is acknowledged
    full.room = 10**9
    box, trainer = outbox(3), Trainer()
    box.pump(trainer.send, True)
    assert trainer.rows == {1: [1, 2]}


def test_what_a_full_disk_keeps_in_memory_is_there_for_the_next_process_when_a_worker_closes(outbox, monkeypatch):
    full = Disk(monkeypatch)
    box = outbox(1)
    fill(box, 1, 2)
    full.room = 0
    box.kill_writer()
    box.close()
    full.room = 10**9
    box, trainer = outbox(2), Trainer()
    box.pump(trainer.send, True)
    assert trainer.rows == {1: [1, 2]}


def test_packets_that_cannot_be_read_for_a_while_stay_for_the_next_process(outbox, monkeypatch):
    box = outbox(1)
    produce(box, 1, 2)
    box.kill()

    def fail(path):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", fail)
        outbox(2).close()
    box, trainer = outbox(3), Trainer()
    box.pump(trainer.send, True)
    assert trainer.rows == {1: [1, 2]}


def test_samples_of_a_process_whose_packets_have_to_wait_wait_with_them(outbox, monkeypatch):
    monkeypatch.setattr(m, "MAX_TAKEN_OVER", 1)
    for incarnation in (1, 2):
        box = outbox(incarnation, max_samples=100)
        fill(box, 1)
        box.seal()
        box.pump(nothing, False)
        fill(box, 2)
        box.kill()
    trainer = Trainer()
    for incarnation in (3, 4):
        box = outbox(incarnation)
        box.pump(trainer.send, True)
        trainer.acknowledge(box)
        box.close()
    assert trainer.rows == {1: [1, 2], 2: [1, 2]}


def test_closing_meets_a_connections_thread_that_still_works(outbox):
    box = outbox()
    fill(box, 1)
    inside, go_on = threading.Event(), threading.Event()

    def send(data):
        inside.set()
        return go_on.wait(5)

    thread = threading.Thread(target=box.pump, args=(send, True))
    thread.start()
    assert inside.wait(5)
    closer = threading.Thread(target=box.close)
    closer.start()
    go_on.set()
    thread.join(5)
    closer.join(5)
    box.pump(nothing, True)
    assert not closer.is_alive()
