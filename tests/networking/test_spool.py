"""Packets on disk: what is found again after a kill at any point, and what happens when the disk does not take them."""

import errno
import io
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tmrl_like.errors import ConfigError
from tmrl_like.networking import spool as spool_module
from tmrl_like.networking.outbox import Outbox, OutboxOptions
from tmrl_like.networking.spool import open_spool
from tmrl_like.types import StepTiming
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import decode_body

TIMING = StepTiming(1e9, 0.0, 0.0, 1)
MB = 1 << 20


@pytest.fixture
def opened(tmp_path):
    """Open spools of tmp_path; those that a test leaves open are closed at its end."""
    spools = []

    def make(name="w", max_bytes=100 * MB, root=tmp_path):
        spools.append(open_spool(root, name, max_bytes))
        return spools[-1]

    yield make
    for spool in spools:
        spool.close()


def kill(spool):
    """What is left of a spool whose process is killed: its files, and no lock."""
    if spool._file is not None:
        spool._file.close()
        spool._file = None
    spool._lock.release()
    spool._current, spool._session = None, 0


def message(sequence, session=7, worker="w", samples=3, body=b""):
    header = m.SamplePacket(worker, session, sequence, 1, samples, len(body), zlib.crc32(body), False)
    return m.encode(header, body)


def segments(root, worker="w"):
    return sorted((root / worker).glob("*.packets"))


def sequences(spool):
    return {session: [r.sequence for r in records] for session, records in spool.predecessors.items()}


def written(opened, *numbers, session=7):
    """Packets with these numbers in a spool whose process was killed."""
    spool = opened()
    spool.begin(session)
    for number in numbers:
        assert spool.append(message(number, session, body=bytes([number]) * 50)) is not None
    kill(spool)


# -- what is found again -----------------------------------------------------------------------------


def test_what_was_written_is_found_again_as_it_was(opened):
    written(opened, 1, 2, 3)
    spool = opened()
    (records,) = spool.predecessors.values()
    assert [(r.sequence, r.samples) for r in records] == [(1, 3), (2, 3), (3, 3)]
    assert [spool.read(r.place) for r in records] == [message(i, body=bytes([i]) * 50) for i in (1, 2, 3)]


def test_several_predecessors_are_found_in_the_order_in_which_they_began(opened):
    for session in (99, 5, 42):
        written(opened, 1, 2, session=session)
    assert list(sequences(opened()).items()) == [(99, [1, 2]), (5, [1, 2]), (42, [1, 2])]


def test_a_predecessor_that_wrote_nothing_is_known_and_its_file_removed(opened, tmp_path):
    written(opened)
    assert sequences(opened()) == {7: []}
    assert segments(tmp_path) == []


def test_a_last_record_cut_off_at_any_byte_is_ignored_and_not_called_damage(opened, tmp_path, caplog):
    written(opened, 1, 2, 3)
    (path,) = segments(tmp_path)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        spool = opened()
        assert sequences(spool) == {7: [1, 2, 3][: size * 3 // len(whole)]}, size
        kill(spool)
        path.write_bytes(whole)
    assert caplog.records == []


def test_a_damaged_byte_costs_the_record_it_is_in_and_no_other(opened, tmp_path, caplog):
    written(opened, 1, 2, 3)
    (path,) = segments(tmp_path)
    whole = path.read_bytes()
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 0x55
        path.write_bytes(damaged)
        hit = 1 + at * 3 // len(whole)
        caplog.clear()
        spool = opened()
        assert sequences(spool) == {7: [i for i in (1, 2, 3) if i != hit]}, at
        assert len(caplog.records) == (hit < 3), at  # of the last one, damage and a cut look alike
        kill(spool)
        path.write_bytes(whole)


def test_packets_of_another_wire_version_wait_for_it(opened, tmp_path, monkeypatch, caplog):
    with monkeypatch.context() as patch:
        patch.setattr(m, "WIRE_VERSION", 1)
        written(opened, 1, 2)
    assert sequences(opened()) == {7: []}
    assert len(segments(tmp_path)) == 1
    assert "holds packets of wire version 1" in caplog.text


def test_packets_of_another_worker_are_not_sent_in_this_ones_name(opened, tmp_path, caplog):
    written(opened, 1)
    (tmp_path / "w").rename(tmp_path / "v")
    assert sequences(opened("v")) == {7: []}
    assert "holds packets of worker w: start that one to send them, or remove it" in caplog.text
    assert len(segments(tmp_path, "v")) == 1


def test_more_predecessors_than_a_hello_can_name_wait_for_the_next_start(opened, monkeypatch, caplog):
    for session in (1, 2, 3):
        written(opened, 1, session=session)
    monkeypatch.setattr(m, "MAX_TAKEN_OVER", 2)
    spool = opened()
    assert list(spool.predecessors) == [1, 2]
    for records in spool.predecessors.values():
        spool.forget(records[0].place)
    spool.close()
    assert list(opened().predecessors) == [3]


# -- what is removed ---------------------------------------------------------------------------------


def test_a_segment_is_removed_when_all_its_packets_are_stored(opened, tmp_path):
    spool = opened(max_bytes=8 * 1024)  # segments of 2 KiB
    spool.begin(7)
    places = [spool.append(message(i, body=bytes(500))) for i in range(1, 11)]
    before = segments(tmp_path)
    assert len(before) > 1
    assert spool.size_bytes == sum(p.stat().st_size for p in before)
    for place in places[1:]:
        spool.forget(place)
    assert segments(tmp_path) == [before[0], before[-1]]
    spool.forget(places[0])
    assert segments(tmp_path) == [before[-1]]
    spool.close()
    assert segments(tmp_path) == []
    assert spool.size_bytes == 0


def test_what_is_not_stored_stays_after_close(opened, tmp_path):
    spool = opened()
    spool.begin(7)
    spool.append(message(1))
    spool.close()
    assert sequences(opened()) == {7: [1]}


def test_a_segment_whose_packets_are_stored_does_not_grow_for_ever(opened, tmp_path):
    spool = opened()
    spool.begin(7)
    for i in range(1, 60):
        spool.forget(spool.append(message(i, body=bytes(20_000))))
    assert spool.size_bytes < 2 * spool_module._RENEW_AT_BYTES
    assert len(segments(tmp_path)) == 1


# -- a disk that does not take it --------------------------------------------------------------------


class Disk:
    """Stands in for `FileIO.write`: takes `room` bytes, then fails."""

    def __init__(self, monkeypatch):
        self.room = 10**9
        real = Path.open
        disk = self

        class File(io.FileIO):
            def write(self, data):
                if disk.room <= 0:
                    raise OSError(errno.ENOSPC, "No space left on device")
                taken = super().write(bytes(data[: disk.room]))
                disk.room -= taken
                return taken

        def open_(path, mode="r", buffering=-1, **more):
            return File(path, mode) if mode == "xb" else real(path, mode, buffering, **more)

        monkeypatch.setattr(Path, "open", open_)


def test_a_full_disk_is_said_once_and_tried_again(opened, tmp_path, monkeypatch, caplog):
    disk = Disk(monkeypatch)
    spool = opened()
    spool.begin(7)
    assert spool.append(message(1)) is not None
    disk.room = 20
    assert [spool.append(message(i)) for i in (2, 3)] == [None, None]
    assert "No space left on device" in spool.alarm
    spool._try_again_at = 0.0
    assert spool.append(message(2)) is None
    assert [r.levelname for r in caplog.records] == ["ERROR"]
    disk.room = 10**9
    assert spool.append(message(2)) is None  # not before a while has passed
    spool._try_again_at = 0.0
    assert spool.append(message(2)) is not None
    assert spool.alarm == ""
    kill(spool)
    assert sequences(opened()) == {7: [1, 2]}
    assert "is damaged" not in caplog.text


def test_a_folder_that_cannot_be_made_is_told_at_once(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ConfigError, match="cannot use the spool"):
        open_spool(tmp_path / "file", "w", MB)


# -- whose it is -------------------------------------------------------------------------------------


def test_two_workers_of_one_name_do_not_share_a_folder(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(spool_module, "_LOCK_WITHIN_S", 0.0)
    opened("arm")
    with pytest.raises(ConfigError, match=r"another process uses the spool of worker arm.*give this worker another"):
        open_spool(tmp_path, "arm", MB)


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
        open_spool(tmp_path, "ü" * 150, MB)


# -- with the outbox ---------------------------------------------------------------------------------


class Trainer:
    """Takes messages as the trainer's connection does, and acknowledges."""

    def __init__(self):
        self.received = {}
        self.rows = {}
        self.lost = []

    def send(self, data):
        header, body = m.decode(data)
        for packet, packet_body in m.decode_bundle(body) if isinstance(header, m.Bundle) else [(header, body)]:
            self._take(packet, packet_body)
        return True

    def _take(self, packet, body):
        received = self.received.setdefault(packet.session, packet.oldest - 1)
        if packet.sequence <= received:
            return
        assert packet.oldest > received + 1 or packet.sequence - packet.gap <= received + 1, "a packet is missing"
        if packet.sequence > received + 1:
            self.lost.append((packet.session, received + 1, packet.sequence - 1))
        self.received[packet.session] = packet.sequence
        rows = decode_body(packet, body).samples()
        self.rows.setdefault(packet.session, []).extend(int(row.obs[0]) for row in rows)

    def acknowledge(self, box, session=None, stored=True):
        for number, received in self.received.items():
            if session in (None, number):
                box.on_ack(m.Ack("w", number, received if stored else 0, received))


def outbox(spool, session=1, **options):
    options = {"max_age_s": 1e9, "max_samples": 1} | options
    return Outbox("w", options=OutboxOptions(**options), spool=spool, session=session)


def fill(box, *numbers, size=1):
    for number in numbers:
        obs = np.random.default_rng(number).random(size, np.float32)  # does not compress
        obs[0] = number
        box.append((None, obs, 0.0, False, False, {}), TIMING)


def nothing(data):
    raise AssertionError("nothing may be sent")


def test_a_packet_is_on_disk_before_it_is_sent(opened, tmp_path):
    box = outbox(opened())
    fill(box, 1)

    def send(data):
        (path,) = segments(tmp_path)
        assert path.stat().st_size > 0
        return True

    box.pump(send, True)
    assert not box.pending() or box.unacknowledged_samples() == 1


def test_a_successor_sends_what_its_predecessors_left_under_their_numbers(opened, tmp_path):
    for session in (1, 2):
        spool = opened()
        box = outbox(spool, session)
        fill(box, *(100 * session + i for i in range(3)))
        box.pump(nothing, False)
        kill(spool)
    box, trainer = outbox(opened(), 3), Trainer()
    assert box.takes_over == (1, 2)
    fill(box, 300)
    box.pump(trainer.send, True)
    assert trainer.rows == {1: [100, 101, 102], 2: [200, 201, 202], 3: [300]}
    trainer.acknowledge(box)
    assert box.unacknowledged_samples() == 0
    assert not box.pending()
    box.close()
    assert segments(tmp_path) == []


def test_what_a_predecessor_left_and_the_trainer_refuses_stays_on_disk_and_is_told_once(opened, tmp_path, caplog):
    first = opened()
    left = outbox(first, 1)
    fill(left, 1, 2)
    left.pump(nothing, False)
    kill(first)
    trainer = Trainer()
    box = outbox(opened(), 2)
    box.pump(trainer.send, True)
    for _ in range(2):
        box.set_aside(1, "obs is float64")
    fill(box, 3)
    box.send_all_again(from_the_start=False)
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
    (pattern,) = (word for word in line.split() if word.endswith(".packets"))
    assert [p.name for p in Path(pattern).parent.glob(Path(pattern).name)] == ["0000000001-0000000000000001.packets"]
    another = Trainer()
    box.send_all_again(from_the_start=True)
    box.pump(another.send, True)
    assert another.rows == {1: [1, 2]}
    box.set_aside(1, "obs is float64")
    assert len([r for r in caplog.records if "do not fit" in r.message]) == 1
    box.close()
    assert sequences(opened()) == {1: [1, 2]}


def test_what_the_trainer_has_already_is_not_sent_whole(opened):
    spool = opened()
    box, trainer = outbox(spool, 1, max_samples=100), Trainer()
    for start in range(0, 5000, 100):
        fill(box, *range(start, start + 100), size=100)
    box.pump(trainer.send, True)
    kill(spool)
    box = outbox(opened(), 2, window_bytes=1)
    sent = []
    box.pump(lambda data: sent.append(data) or True, True)
    trainer.acknowledge(box, stored=False)
    box.pump(lambda data: sent.append(data) or True, True)
    assert len(sent) == 1
    assert not box.pending()
    assert box.unacknowledged_samples() == 5000


def test_beyond_its_memory_the_outbox_reads_back_from_the_disk(opened):
    box, trainer = outbox(opened(), max_bytes=40_000, max_samples=10), Trainer()
    for number in range(500):
        fill(box, number, size=100)
        box.pump(nothing, False)
    assert box._store._bytes < 40_000 < 150_000 < box._spool.size_bytes
    box.pump(trainer.send, True)
    assert trainer.rows[1] == list(range(500))
    assert box.lost_samples == 0


def test_the_limit_in_samples_counts_what_is_in_memory(opened):
    box = outbox(None, max_held_samples=50, max_samples=10)
    fill(box, *range(200))
    box.pump(nothing, False)
    assert box.unacknowledged_samples() == 50
    assert box.lost_samples == 150


def test_a_full_spool_drops_the_oldest_and_counts_them(opened):
    spool = opened(max_bytes=20_000)
    box, trainer = outbox(spool, spool_max_bytes=20_000), Trainer()
    fill(box, *range(200), size=100)
    box.pump(nothing, False)
    assert 0 < box.lost_samples < 200
    assert box.lost_samples + box.unacknowledged_samples() == 200
    assert spool.size_bytes <= 20_000
    box.pump(trainer.send, True)
    assert trainer.rows[1] == list(range(box.lost_samples, 200))


def test_without_a_disk_the_outbox_goes_on_and_writes_later_what_it_kept(opened, monkeypatch):
    disk = Disk(monkeypatch)
    spool = opened()
    box = outbox(spool)
    disk.room = 0
    fill(box, 1, 2)
    box.pump(nothing, False)
    assert "No space left" in box.alarm
    disk.room = 10**9
    spool._try_again_at = 0.0
    box.pump(nothing, False)
    assert box.alarm == ""
    kill(spool)
    box, trainer = outbox(opened(), 2), Trainer()
    box.pump(trainer.send, True)
    assert trainer.rows == {1: [1, 2]}


def test_a_packet_that_the_disk_does_not_give_back_is_lost_and_a_break(opened, tmp_path, caplog):
    spool = opened()
    box = outbox(spool)
    fill(box, 1, 2, 3)
    box.pump(nothing, False)
    kill(spool)
    box, trainer = outbox(opened(), 2), Trainer()
    (path, _) = segments(tmp_path)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    box.pump(trainer.send, True)
    assert trainer.rows == {1: [1, 3]}
    assert trainer.lost == [(1, 2, 2)]
    assert box.lost_samples == 1


def test_what_is_sealed_when_a_worker_closes_is_left_to_the_next(opened):
    box = outbox(opened(), max_samples=100)
    fill(box, 1, 2)
    box.seal()
    box.close()
    box, trainer = outbox(opened(), 2), Trainer()
    box.pump(trainer.send, True)
    assert trainer.rows == {1: [1, 2]}


def test_backlogs_take_turns_when_the_connection_takes_little(opened):
    spool = opened()
    box = outbox(spool, 1)
    fill(box, *range(1000))
    box.pump(nothing, False)
    kill(spool)
    box, trainer = outbox(opened(), 2), Trainer()
    fill(box, *range(1000))
    for _ in range(8):
        room = iter([True, False])
        box.pump(lambda data, room=room: next(room) and trainer.send(data), True)
    assert min(map(len, trainer.rows.values())) > 100


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 8)),
        st.tuples(st.just("send"), st.booleans()),
        st.tuples(st.just("store"), st.booleans()),
        st.tuples(st.just("kill"), st.integers(0, 40)),
        st.tuples(st.just("trainer"), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ACTIONS)
def test_whatever_happens_the_memory_holds_every_spooled_sample_once_and_in_order(tmp_path_factory, actions):
    """The model: a trainer that is killed goes back to what it had stored; a worker to what is on disk."""
    root = tmp_path_factory.mktemp("spool")
    spool = open_spool(root, "w", 100 * MB)
    session, number = 1, 0
    box, trainer, stored = outbox(spool, session), Trainer(), Trainer()
    due = {}  # session: samples that must reach the memory
    for action, amount in actions:
        if action == "append":
            fill(box, *range(number, number + amount))
            box.pump(nothing, False)
            due.setdefault(session, []).extend(range(number, number + amount))
            number += amount
        elif action == "send":
            box.pump(trainer.send, True)
        elif action == "store":
            trainer.acknowledge(box, stored=amount)
            if amount:
                stored.received = dict(trainer.received)
                stored.rows = {key: list(rows) for key, rows in trainer.rows.items()}
        elif action == "kill":
            kill(spool)
            _cut(root, amount, due, session, trainer)
            session += 1
            spool = open_spool(root, "w", 100 * MB)
            box = outbox(spool, session)
        else:
            trainer = Trainer()
            trainer.received = dict(stored.received)
            trainer.rows = {key: list(rows) for key, rows in stored.rows.items()}
            box.send_all_again(from_the_start=True)
    box.send_all_again(from_the_start=True)
    box.pump(trainer.send, True)
    trainer.acknowledge(box)
    spool.close()
    assert {key: rows for key, rows in trainer.rows.items() if rows} == {key: rows for key, rows in due.items() if rows}
    assert box.unacknowledged_samples() == 0
    assert list((root / "w").glob("*.packets")) == []


def _cut(root, amount, due, session, trainer):
    """The kill came in the middle of writing the last record, unless that was sent already."""
    paths = [p for p in segments(root) if p.name.endswith(f"{session:016x}.packets") and p.stat().st_size]
    if not amount or not paths or not due.get(session) or due[session] == trainer.rows.get(session):
        return
    data = paths[-1].read_bytes()
    paths[-1].write_bytes(data[:-amount])
    del due[session][-1:]


def test_closing_meets_a_connections_thread_that_still_works(opened):
    box = outbox(opened())
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


@pytest.mark.parametrize(
    "name",
    [
        "0000000001--0000000000000007",  # a session below 0
        "0000000001-ffffffffffffffff",  # one that no message can hold
        "0000000001-0000000000000000",
        "0000000001-7",
        "0000000001-0x00000000000007",
        "0000000001-0_0000000000007_",
        "-000000001-0000000000000007",
        "٠٠٠٠٠٠٠٠٠١-0000000000000007",
        "9" * 40 + "-0000000000000007",
    ],
)
def test_a_file_whose_name_is_none_of_ours_is_left_as_it_is(opened, tmp_path, caplog, name):
    folder = tmp_path / "w"
    folder.mkdir()
    odd = folder / f"{name}.packets"
    odd.write_bytes(b"anything")
    spool = opened()
    assert sequences(spool) == {}
    assert odd.read_bytes() == b"anything"
    assert len([r for r in caplog.records if "which is left as it is" in r.message]) == 1
    m.decode(m.encode(m.Hello("worker", "w", 1, "0", takes_over=tuple(spool.predecessors))))  # the server takes it


def test_marks_without_messages_cost_no_more_than_reading_the_file_a_few_times(opened, tmp_path, monkeypatch, caplog):
    checked = []
    crc32 = zlib.crc32
    monkeypatch.setattr(spool_module.zlib, "crc32", lambda data: checked.append(len(data)) or crc32(data))
    mark = b"tSP\x01"
    size = 100_000
    claims = (size - at - 12 for at in range(0, size - 24, 12))  # each all the rest of the file
    bait = b"".join(mark + claim.to_bytes(4, "little") + bytes(4) for claim in claims) + bytes(24)
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / f"{1:010d}-{7:016x}.packets").write_bytes(bait)
    assert sequences(opened()) == {7: []}
    assert sum(checked) < 20 * size
    assert "is damaged" in caplog.text
