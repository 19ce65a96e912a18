"""The files between control loop and link: their contents, their number, and the effect of
damage.
"""

import errno
import threading
from collections import Counter
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from both_ends import Taker, sample
from kill_lines import kill_after
from kit.failing import failing

import tmrl_like.delivery
from tmrl_like.delivery import sample_log, segments
from tmrl_like.delivery.segments import END, HEAD_BYTES, NUMBER, RECORD_BYTES, ROW, SUFFIX, Segment
from tmrl_like.errors import EncodingError


def room_for(files):
    """Return a `reserve` of a disk that has room for some files."""

    def is_full(path, size):
        return len([*path.parent.glob(f"*{SUFFIX}")]) >= files

    return failing(errno.ENOSPC, sample_log.reserve, is_full)


def files_of(box):
    return sorted(box.path.glob(f"*{SUFFIX}"))


def test_some_room_on_a_disk_is_left_to_others(spool, monkeypatch):
    """Otherwise a trainer that stores on the same disk would have no room, and nothing would be
    freed.
    """
    disk = SimpleNamespace(total=100 << 20, free=5 << 20)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: disk)
    log = spool().log
    assert "No space left" in log.alarm
    disk.free = 20 << 20
    log.refill()
    assert not log.alarm


def test_files_that_nobody_reads_become_larger_and_not_many(spool, small_files):
    box = spool()
    for i in range(20_000):  # some 2 MB
        box.fill(i)
        if i % 20 == 0:
            box.log.refill()
    assert len(files_of(box)) < 40
    assert box.emptied().all_numbers == list(range(20_000))


def test_files_that_the_link_has_mapped_go_when_it_lets_go_of_them(spool, small_files, monkeypatch):
    """Windows removes no file that a process has mapped."""
    mapped = Counter()
    opens, closes, unlink = Segment.__init__, Segment.close, Path.unlink

    def open_(segment, path):
        opens(segment, path)
        mapped[path] += 1

    def close(segment):
        closes(segment)
        mapped[segment.path] -= 1

    def unlink_unmapped(path, **how):
        if mapped[path]:
            raise PermissionError(errno.EACCES, "it is mapped", str(path))
        unlink(path, **how)

    for owner, name, method in (
        (Segment, "__init__", open_),
        (Segment, "close", close),
        (Path, "unlink", unlink_unmapped),
    ):
        monkeypatch.setattr(owner, name, method)
    box, taker = spool(), Taker()
    for samples in (1000, 4000, 16_000, 64_000):  # each time the files become larger
        for i in range(samples):
            box.fill(i)
            if i % 20 == 0:
                box.log.refill()
        box.deliver(taker)
        box.log.refill()
    assert len(files_of(box)) < 10


def test_the_only_file_that_is_ready_is_there_at_any_moment(spool, monkeypatch):
    monkeypatch.setattr(sample_log, "reserve", room_for(2))
    box, is_there = spool(), []

    def size_bytes(segment):
        is_there.append(box.log.has_room_ahead())
        return len(segment.map)

    monkeypatch.setattr(Segment, "size_bytes", property(size_bytes))
    box.log.refill()
    assert is_there
    assert all(is_there)


def test_the_control_thread_makes_no_file_where_they_are_made_in_time(
    spool, small_files, monkeypatch
):
    def is_the_control_thread(path, size):
        return threading.current_thread() is threading.main_thread()

    box = spool()
    reserve = failing(errno.ENOSPC, sample_log.reserve, is_the_control_thread)
    monkeypatch.setattr(sample_log, "reserve", reserve)
    for i in range(500):
        box.fill(i)
        if i % 10 == 0:
            thread = threading.Thread(target=box.log.refill)
            thread.start()
            thread.join()
    assert len(files_of(box)) > 10
    assert not box.log.lost_samples


@pytest.mark.fault(
    "resources",
    "shared memory has hardly room for a worker's files",
    "an alarm only where samples may be lost, which ends when there is a file to fill",
)
def test_the_alarm_says_that_there_is_no_file_to_be_filled_next(spool, small_files, monkeypatch):
    monkeypatch.setattr(sample_log, "reserve", room_for(2))  # fewer than are kept ready
    box = spool()
    box.log.refill()
    assert box.log.alarm == ""
    while not box.log.alarm:
        box.fill(1)
        box.log.refill()
    assert len(files_of(box)) == 2
    assert not box.log.lost_samples
    newest = box.emptied().packets[-1].last
    box.ack(newest, newest)
    box.log.refill()
    assert box.log.alarm == ""


@pytest.mark.fault(
    "disk", "the worker's disk is full", "the control loop never stops; lost samples are counted"
)
@pytest.mark.fault(
    "disk", "the spool's disk is full when a worker starts", "it starts; lost samples are counted"
)
@pytest.mark.parametrize("is_full_at_the_start", [False, True])
def test_a_disk_that_is_full_costs_samples_and_never_stops_the_control_thread(
    spool, small_files, monkeypatch, is_full_at_the_start
):
    box = None if is_full_at_the_start else spool()
    with monkeypatch.context() as patch:
        patch.setattr(sample_log, "reserve", failing(errno.ENOSPC))
        box = box or spool()
        box.fill(*range(2000))
        assert "No space left on device; samples may be lost" in box.log.alarm
        box.log.refill()
        assert box.log.alarm
        kept = box.emptied().all_numbers
    lost = box.log.lost_samples
    assert kept == [*range(2000 - lost)]
    assert (lost == 2000) == is_full_at_the_start
    assert lost
    box.log.refill()
    assert box.log.alarm == ""
    box.fill(2000)
    (packet,) = box.emptied().packets
    assert (packet.samples, packet.breaks, box.lost_samples) == (1, 1, lost)


@pytest.mark.fault(
    "disk",
    "the worker's disk fills up while the trainer is away",
    "files that become free are filled again; one line says that the disk is full",
)
def test_a_full_disk_takes_no_file_away_that_can_be_filled_again(
    spool, small_files, monkeypatch, caplog
):
    monkeypatch.setattr(sample_log, "reserve", room_for(18))
    box = spool()
    for _ in range(4):
        for i in range(3000):
            box.fill(i)
            if i % 10 == 0:
                box.log.refill()
        newest = box.emptied().packets[-1].last
        box.ack(newest, newest)
        box.log.refill()
    assert box.log.lost_samples
    assert len(files_of(box)) == 18
    assert sum("No space left" in line for line in caplog.messages) == 1


@pytest.mark.parametrize("elements", [1 << 18, 1 << 20])  # bytes: as large as a file, and larger
def test_a_sample_of_any_size_gets_a_file(spool, elements):
    box = spool(max_packet_bytes=1 << 25)
    for i in range(3):
        box.append(sample(i))
        box.append(sample(i, elements))
    assert box.emptied().all_numbers == [0, 0, 1, 1, 2, 2]


def test_arrays_of_any_layout_are_stored_by_value(spool):
    box = spool(root=None)
    whole = np.arange(4096.0).reshape(64, 64)
    arrays = [whole.T, whole[::-1, ::2]]
    for array in arrays:
        given = array.copy(order="K")
        box.append((None, given, 0.0, False, False, {}))
        given[...] = 0.0
    for array, row in zip(arrays, box.emptied().samples, strict=True):
        np.testing.assert_array_equal(row.obs, array)


def test_what_cannot_be_sent_is_refused_by_name(spool):
    box = spool()
    with pytest.raises(EncodingError, match=r"info\['car'\] is a builtins.object"):
        box.append((0, 0, 0.0, False, False, {"car": object()}))
    box.fill(1)
    assert box.emptied().spans == [(1, 1)]


def rows_in(segment):
    runs = segment.runs(HEAD_BYTES)
    return [at + i * size for kind, at, size, number in runs if kind == ROW for i in range(number)]


def fill_after_a_break(box):
    box.log.add_break()
    box.fill(2)


@pytest.mark.parametrize(
    ("what", "entries"),
    [(lambda box: box.fill(2), 1), (lambda box: box.end_episode(), 1), (fill_after_a_break, 2)],
)
def test_an_entry_whose_writing_is_killed_at_any_line_is_there_whole_or_not_at_all(
    spool, what, entries
):
    for lines in count():
        box = spool(lines + 1, root=None)
        box.fill(1, 1)
        segment = Segment(files_of(box)[0])
        *_, at = rows_in(segment)
        end = segment.words[END]
        segment.map[end : end + end - at] = segment.map[at:end]  # former content of the file
        segment.close()
        is_killed = kill_after(lines, lambda box=box: what(box), tmrl_like.delivery)
        wire = box.emptied()
        assert 2 <= wire.packets[-1].last <= 2 + entries
        assert wire.all_numbers in ([1, 1], [1, 1, 2])
        if not is_killed:
            assert wire.packets[-1].last == 2 + entries
            return


@pytest.mark.fault(
    "disk", "a power cut leaves a sample log in parts", "what comes before the damage is there"
)
@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_of_a_file_that_a_power_cut_damaged_what_comes_before_the_damage_is_there(spool, damaged):
    box = spool()
    box.fill(0, 1, 2)
    box.end_episode()
    box.fill(9)  # intact by chance
    segment = Segment(files_of(box)[0])
    segment.map[rows_in(segment)[damaged] + RECORD_BYTES + 40] ^= 1
    segment.close()
    box.kill()
    assert spool(2).emptied().all_numbers == list(range(damaged))


def test_a_record_of_what_a_file_held_before_is_none_after_a_power_cut(spool):
    box = spool()
    box.fill(1)
    segment = Segment(files_of(box)[0])
    segment.words[NUMBER] += 4  # the head is on the disk, the entries it refers to are not
    segment.close()
    box.kill()
    assert spool(2).emptied().packets == []


def test_files_that_were_never_filled_go_with_the_next_process(spool):
    box = spool()
    box.fill(1)
    (box.path / f"{1:016x}-000099{SUFFIX}").touch()
    before = files_of(box)
    box.kill()
    box = spool(2)
    assert len(before) == 3 + 1
    assert [path for path in before if path.exists()] == [before[0], before[3]]
    taker = box.emptied()
    assert taker.all_numbers == [1]
    taker.acknowledge(box)
    assert not any(path.exists() for path in before)


@pytest.mark.fault(
    "resources",
    "the descriptors run out while a worker starts",
    "what earlier processes left stays where it is",
)
def test_files_that_cannot_be_looked_at_stay(spool, monkeypatch):
    box = spool()
    box.fill(1)
    box.kill()
    with monkeypatch.context() as patch:
        patch.setattr(segments, "map_file", failing(errno.EMFILE))
        spool(2).kill()
    assert spool(3).emptied().all_numbers == [1]


def test_a_sample_log_that_was_closed_takes_nothing_and_does_not_fail(spool):
    box = spool(root=None)
    box.fill(1)
    for _ in range(2):
        box.log.close()
    box.fill(2)
    box.log.refill()
    assert box.log.lost_samples == 1
