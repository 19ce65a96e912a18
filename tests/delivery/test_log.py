"""The packet log: what is found again after a kill at any byte and damage at any byte, and what is removed."""

import errno

import pytest
from kit.packets import opaque, sequences

from tmrl_like.base.files import disk, write_whole
from tmrl_like.delivery.log import Head, entries_of, lock_folder
from tmrl_like.errors import DecodingError
from tmrl_like.types import Receipt
from tmrl_like.wire import messages as m
from tmrl_like.wire import records
from tmrl_like.wire.records import seal, unseal


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "log").mkdir()
    return tmp_path / "log"


def written(opened, *numbers, segment_bytes=1 << 20):
    log = opened(segment_bytes)
    for number in numbers:
        assert log.append(opaque(number), 0.0, 3) is not None
    log.close()


def test_what_was_written_is_found_again_as_it_was(opened):
    written(opened, 1, 2)
    (segment,) = opened().segments
    head, first, second = entries_of(segment)
    assert head.message == Head()
    assert [bytes(first.record), bytes(second.record)] == [opaque(1), opaque(2)]


def test_records_in_a_bundle_are_those_in_a_log():
    records = list(unseal(memoryview(opaque(1) + opaque(2))))
    assert [bytes(record) for record, _ in records] == [opaque(1), opaque(2)]
    assert [m.decode(message)[0].sequence for _, message in records] == [1, 2]


@pytest.mark.parametrize("damage", [lambda d: d[:-1], lambda d: d[:5], lambda d: b"x" + d[1:], lambda d: d + b"tPL"])
def test_a_damaged_bundle_is_an_error(damage):
    with pytest.raises(DecodingError, match="no whole packet"):
        list(unseal(memoryview(damage(opaque(1)))))


@pytest.mark.fault(
    "disk", "a log's last record is torn", "it is passed over; it was not acknowledged, so it comes again"
)
def test_a_last_record_cut_off_at_any_byte_is_ignored_and_not_called_damage(opened, folder, caplog):
    written(opened, 1, 2, 3)
    (path,) = folder.glob("*.log")
    whole = path.read_bytes()
    head = len(whole) - 3 * len(opaque(1))
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        log = opened()
        assert sequences(log) == [1, 2, 3][: max(0, size - head) // len(opaque(1))], size
        log.close()
    assert caplog.records == []


@pytest.mark.fault("disk", "a byte in a log is damaged", "it costs the packet that it is in, and one line says so")
def test_a_damaged_byte_costs_the_record_it_is_in_and_no_other(opened, folder, caplog):
    written(opened, 1, 2, 3)
    (path,) = folder.glob("*.log")
    whole = path.read_bytes()
    head = len(whole) - 3 * len(opaque(1))
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 0x55
        path.write_bytes(damaged)
        hit = (at - head) // len(opaque(1)) + 1
        caplog.clear()
        log = opened()
        assert sequences(log) == [i for i in (1, 2, 3) if i != hit or at < head], at
        assert len(caplog.records) == (hit < 3), at  # of the last one, damage and a cut look alike
        log.close()


def test_marks_without_records_cost_no_more_than_reading_the_file_a_few_times(opened, folder, monkeypatch, caplog):
    checked = []
    crc32 = records.zlib.crc32
    monkeypatch.setattr(records.zlib, "crc32", lambda data: checked.append(len(data)) or crc32(data))
    size = 100_000
    claims = (size - at - 12 for at in range(0, size - 24, 12))  # each all the rest of the file
    bait = b"".join(b"tPL\x01" + claim.to_bytes(4, "little") + bytes(4) for claim in claims) + bytes(24)
    (folder / "0000000001.log").write_bytes(bait)
    assert sequences(opened()) == []
    assert sum(checked) < 20 * size
    assert "is damaged" in caplog.text


@pytest.mark.parametrize("name", ["-1.log", "0x1.log", "1_0.log", "log", "a.log", "1.packets"])
def test_a_file_whose_name_is_none_of_ours_is_left_as_it_is(opened, folder, name):
    (folder / name).write_bytes(b"anything")
    log = opened()
    assert log.segments == []
    log.append(opaque(1), 0.0)
    assert (folder / name).read_bytes() == b"anything"


def test_a_segment_that_is_full_is_followed_by_another_and_each_begins_with_a_head(opened):
    log = opened(segment_bytes=3 * len(opaque(1)))
    counts = iter(range(100))
    log.make_head = lambda: Head(samples=next(counts), receipts=(Receipt("w", 7, 1),))
    for number in range(1, 10):
        log.append(opaque(number), 0.0, 3)
    log.close()
    entries = [list(entries_of(segment)) for segment in opened().segments]
    assert len(entries) > 2
    assert [e[0].message.samples for e in entries] == list(range(len(entries)))
    assert [entry.message.sequence for e in entries for entry in e[1:]] == list(range(1, 10))


def test_the_oldest_segments_go_when_the_others_hold_enough(opened, folder):
    log = opened(segment_bytes=len(opaque(1)))
    for number in range(1, 7):
        log.append(opaque(number), 0.0, 3)
    log.keep_newest(7)
    assert len(list(folder.glob("*.log"))) == 3
    assert log.size_bytes == sum(path.stat().st_size for path in folder.glob("*.log"))
    log.close()
    assert sequences(opened()) == [4, 5, 6]


def test_a_segment_is_removed_when_nothing_in_it_is_needed(opened, folder):
    log = opened(segment_bytes=len(opaque(1)))
    places = [log.append(opaque(number), 0.0) for number in (1, 2, 3)]
    log.forget(places[1], 0.0)
    assert len(list(folder.glob("*.log"))) == 2
    assert log.read(places[1]) is None
    assert log.read(places[0]) == opaque(1)


def test_a_packet_that_is_damaged_is_not_given_back(opened, folder, caplog):
    log = opened()
    place = log.append(opaque(1), 0.0)
    (path,) = folder.glob("*.log")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert log.read(place) is None
    assert "a packet in it is lost" in caplog.text


def test_a_folder_belongs_to_one_process(opened, folder):
    log = opened()
    assert lock_folder(folder) is None
    log.close()
    lock = lock_folder(folder)
    assert lock is not None
    lock.release()


@pytest.mark.parametrize("room", [0, 20, 300])
def test_a_disk_that_stays_full_is_not_filled_with_files_that_hold_nothing(opened, folder, monkeypatch, room):
    log = opened(segment_bytes=3 * len(opaque(1)))
    for number in (1, 2, 3):
        log.append(opaque(number), 0.0, 3)
    before = sum(path.stat().st_size for path in folder.glob("*.log"))

    def full(file, data):
        left = room - sum(path.stat().st_size for path in folder.glob("*.log")) + before
        write_whole(file, memoryview(data)[: max(0, left)])
        if left < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write", full)
        for hour in range(1, 6):
            assert log.append(opaque(4, size=500), 3600.0 * hour, 3) is None
            assert len(list(folder.glob("*.log"))) <= 2
            assert log.size_bytes == sum(path.stat().st_size for path in folder.glob("*.log"))
    for number in (4, 5):
        place = log.append(opaque(number), 36_000.0, 3)
        assert log.read(place) == opaque(number)
    log.close()
    assert sequences(opened()) == [1, 2, 3, 4, 5]


def test_a_log_of_another_version_is_refused_and_not_taken_for_damage(opened, folder):
    (folder / "0000000001.log").write_bytes(seal(b"\0", bytes((m.WIRE_VERSION + 1,)), b"another head"))
    with pytest.raises(m.WireVersionError, match=f"wire version {m.WIRE_VERSION + 1} where"):
        sequences(opened())


def test_a_segment_of_reports_alone_goes_with_the_next_one_and_a_last_one_stays(opened, folder):
    log = opened(segment_bytes=len(opaque(1)))
    for number, samples in enumerate((3, 0, 0, 3, 0), start=1):
        log.append(opaque(number), 0.0, samples)
        log.keep_newest(100)
    log.close()
    assert sequences(opened()) == [1, 4, 5]


def test_a_segment_that_could_not_be_read_is_not_taken_for_one_of_reports(opened, folder):
    written(opened, 1)
    log = opened(segment_bytes=len(opaque(1)))
    for number in (2, 3):
        log.append(opaque(number), 0.0, 3)
        log.keep_newest(100)
    log.close()
    assert sequences(opened()) == [1, 2, 3]
