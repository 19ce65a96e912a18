"""The files between the control loop and the one that sends: what they hold, how many there are, what damage costs."""

import errno
import threading
from itertools import count

import numpy as np
import pytest
from both_ends import CLOCK, Wire, nothing, opened_ends, sample
from kill_lines import kill_after

import tmrl_like.delivery
from tmrl_like.delivery import sample_log
from tmrl_like.delivery.segments import END, HEAD_BYTES, NUMBER, RECORD_BYTES, Segment, segments_in
from tmrl_like.wire.packet import decode_body


@pytest.fixture
def ends(tmp_path):
    """Both ends, with the folder on a disk unless it is asked for otherwise."""
    with opened_ends() as make:
        yield lambda incarnation=1, root=tmp_path, **options: make(root, incarnation, CLOCK, **options)


def numbers_in(wire):
    rows = [row for header, body in wire.packets for row in decode_body(header, body).samples()]
    return [int(row.obs[0]) for row in rows]


def delivered(box):
    wire = Wire()
    box.seal()
    box.pump(wire.send, True)
    return wire


def first_file(box):
    return min(segments_in(box.folder.path))


def test_files_are_filled_again_when_all_that_is_in_them_is_in_packets(ends, monkeypatch):
    monkeypatch.setattr(sample_log, "_SEGMENT_BYTES", 4096)
    box, wire = ends(), Wire()
    for i in range(2000):
        box.append(sample(i))
        if i % 20 == 0:
            box.log.refill()
            box.pump(wire.send, True)
    box.seal()
    box.pump(wire.send, True)
    assert numbers_in(wire) == list(range(2000))
    assert len(segments_in(box.folder.path)) < 10


def test_files_that_nobody_reads_become_larger_and_not_many(ends, monkeypatch):
    monkeypatch.setattr(sample_log, "_SEGMENT_BYTES", 4096)
    box, wire = ends(), Wire()
    for i in range(20_000):  # some 2 MB
        box.append(sample(i))
        if i % 20 == 0:
            box.log.refill()
    assert len(segments_in(box.folder.path)) < 40
    box.seal()
    box.pump(wire.send, True)
    assert numbers_in(wire) == list(range(20_000))


def test_the_control_thread_makes_no_file_where_they_are_made_in_time(ends, monkeypatch):
    monkeypatch.setattr(sample_log, "_SEGMENT_BYTES", 4096)
    box, makers = ends(), set()
    real = sample_log.reserve
    monkeypatch.setattr(sample_log, "reserve", lambda *a: makers.add(threading.current_thread()) or real(*a))
    for i in range(500):
        box.append(sample(i))
        if i % 10 == 0:
            thread = threading.Thread(target=box.log.refill)
            thread.start()
            thread.join()
    assert makers
    assert threading.current_thread() not in makers


def test_what_nobody_reads_is_bounded_and_what_comes_after_a_gap_does_not_continue_what_was_before(ends, monkeypatch):
    monkeypatch.setattr(sample_log, "_SEGMENT_BYTES", 4096)
    box = ends(log_bytes=20_000)
    for i in range(2000):
        box.append(sample(i))
    lost = box.log.lost_samples
    assert 1000 < lost < 2000
    kept = delivered(box)
    box.append(sample(3000))
    after = delivered(box)
    assert numbers_in(kept) == list(range(2000 - lost))
    assert kept.bundles[-1].lost_samples == lost
    assert numbers_in(after) == [3000]
    assert {h.breaks for h, _ in kept.packets} == {0}
    assert {h.breaks for h, _ in after.packets} == {1}
    assert box.lost_samples == lost == after.bundles[-1].lost_samples


@pytest.mark.fault(
    "resources",
    "shared memory has hardly room for a worker's files",
    "an alarm only where samples may be lost, which ends when there is a file to fill",
)
def test_the_alarm_says_that_there_is_no_file_to_be_filled_next(ends, monkeypatch):
    monkeypatch.setattr(sample_log, "_SEGMENT_BYTES", 4096)
    real, room = sample_log.reserve, 2  # files: fewer than those that are kept ready

    def full(path, size):
        if len(segments_in(path.parent)) >= room:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, size)

    monkeypatch.setattr(sample_log, "reserve", full)
    box = ends()
    box.log.refill()
    assert box.log.alarm == ""
    numbers = iter(range(1000))
    while not box.log.alarm:
        box.append(sample(next(numbers)))
        box.log.refill()
    assert len(box.log._used) == room
    assert not box.log.lost_samples
    delivered(box)
    box.log.refill()
    assert box.log.alarm == ""


@pytest.mark.fault("disk", "the worker's disk is full", "the control loop never stops; lost samples are counted")
def test_a_disk_that_is_full_costs_samples_and_never_stops_the_control_thread(ends, monkeypatch):
    monkeypatch.setattr(sample_log, "_SEGMENT_BYTES", 4096)

    def full(path, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    box = ends()
    with monkeypatch.context() as patch:
        patch.setattr(sample_log, "reserve", full)
        for i in range(2000):
            box.append(sample(i))
        assert "No space left on device; samples may be lost" in box.log.alarm
        lost = box.log.lost_samples
        box.log.refill()
        assert box.log.alarm
    assert 0 < lost < 2000
    box.log.refill()
    assert box.log.alarm == ""
    box.append(sample(2000))
    wire = delivered(box)
    assert numbers_in(wire) == [*range(2000 - lost), 2000]
    assert [h.breaks for h, _ in wire.packets][-1] == 1


def test_a_worker_starts_although_the_disk_is_full(ends, monkeypatch):
    def full(path, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(sample_log, "reserve", full)
        box = ends()
        box.append(sample(0))
        box.seal()
        box.pump(nothing, True)
    box.log.refill()
    box.append(sample(1))
    wire = delivered(box)
    assert numbers_in(wire) == [1]
    assert box.lost_samples == 1


@pytest.mark.parametrize("elements", [1 << 18, 1 << 20])  # as large as a file, and larger
def test_a_sample_of_any_size_gets_a_file(ends, elements):
    box = ends(max_packet_bytes=1 << 30)
    for i in range(3):
        box.append(sample(i))
        box.append((None, np.full(elements, i, np.float32), 0.0, False, False, {}))
    assert numbers_in(delivered(box)) == [0, 0, 1, 1, 2, 2]


def test_arrays_of_any_layout_are_stored_by_value(ends):
    box = ends(root=None)
    whole = np.arange(4096.0).reshape(64, 64)
    arrays = [whole, whole.T, whole[::-1, ::2], np.asfortranarray(whole), whole.astype("M8[s]"), whole[:0]]
    arrays += [np.array("ä" * 2000), whole.astype(">f4"), whole > 9]
    for array in arrays:
        array = array.copy(order="K")
        box.append((None, array, 0.0, False, False, {}))
        array[...] = np.zeros((), array.dtype)
    wire = delivered(box)
    rows = [row for header, body in wire.packets for row in decode_body(header, body).samples()]
    for array, row in zip(arrays, rows, strict=True):
        assert row.obs.dtype == array.dtype
        np.testing.assert_array_equal(row.obs, array)


def test_what_is_asked_to_leave_leaves_whatever_it_holds(ends):
    box, wire = ends(min_samples=100), Wire()
    box.append(sample(1))
    box.end_episode()
    box.pump(wire.send, True)
    assert wire.packets == []
    thread = threading.Thread(target=box.seal)
    thread.start()
    thread.join()
    assert box.pending()
    box.pump(wire.send, True)
    assert numbers_in(wire) == [1]
    box.append(sample(2))
    box.pump(wire.send, True)
    assert numbers_in(wire) == [1], "what came later waits"


def test_a_record_that_was_not_finished_is_not_there(ends):
    box = ends()
    box.append(sample(1))
    segment = Segment(first_file(box))
    end = segment.words[END]
    box.append(sample(2))
    segment.words[END] = end  # killed before this was stored
    segment.close()
    box.kill()
    assert numbers_in(delivered(ends(2))) == [1]


@pytest.mark.parametrize("what", [lambda box: box.append(sample(2)), lambda box: box.end_episode()])
def test_a_record_whose_writing_is_killed_at_any_line_is_there_whole_or_not_at_all(ends, what):
    for lines in count():
        box = ends(lines + 1, root=None)
        box.append(sample(1))
        box.append(sample(1))
        segment = Segment(first_file(box))
        end, size = segment.words[END], RECORD_BYTES + box.log._format.size_bytes
        segment.map[end : end + size] = segment.map[end - size : end]  # of what the file held before
        segment.words[end >> 3] = 7  # … the last of a packet
        segment.close()
        is_killed = kill_after(lines, lambda box=box: what(box), tmrl_like.delivery)
        wire = delivered(box)
        assert wire.sequences == [1]
        assert numbers_in(wire) in ([1, 1], [1, 1, 2])
        if not is_killed:
            return


def test_a_link_that_ends_leaves_the_samples_of_a_robot_that_goes_on(ends):
    box = ends()
    box.append(sample(1))
    box.outbox.close()
    box.append(sample(2))
    box.outbox = box._reader()
    assert numbers_in(delivered(box)) == [1, 2]


@pytest.mark.fault("disk", "a power cut leaves a sample log in parts", "what comes before the damage is there")
@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_of_a_file_that_a_power_cut_damaged_what_comes_before_the_damage_is_there(ends, damaged):
    box = ends()
    for i in range(3):
        box.append(sample(i))
    box.end_episode()
    box.append(sample(9))  # whole, by chance
    path = first_file(box)
    segment = Segment(path)
    rows = [at + k * size for kind, at, size, n in segment.runs(HEAD_BYTES, segment.words[END]) for k in range(n)][1:]
    segment.map[rows[damaged] + RECORD_BYTES + 40] ^= 1
    segment.close()
    box.kill()
    assert numbers_in(delivered(ends(2))) == list(range(damaged))


def test_a_record_of_what_a_file_held_before_is_none_after_a_power_cut(ends):
    box = ends()
    box.append(sample(1))
    segment = Segment(first_file(box))
    segment.words[NUMBER] += 4  # the head was written to the disk, what it says lies there was not
    segment.close()
    box.kill()
    assert numbers_in(delivered(ends(2))) == []


def test_the_one_that_sends_says_after_a_kill_what_was_lost_before(ends):
    box, wire = ends(max_held_samples=10, max_samples=5, root=None), Wire()
    for i in range(50):
        box.append(sample(i))
    box.pump(nothing, False)
    lost = box.lost_samples
    assert lost == 40
    box.restart_reader()
    box.pump(wire.send, True)
    assert box.lost_samples == lost == wire.bundles[-1].lost_samples


def test_files_that_were_never_filled_go_with_the_next_process(ends):
    box = ends()
    box.append(sample(1))
    (box.folder.path / "000099.rows").touch()
    count = len(segments_in(box.folder.path))
    box.kill()
    box = ends(2)
    assert count == 4
    assert len(segments_in(box.folder.path)) == 3, "those of the new one"


def test_a_sample_log_that_was_closed_takes_nothing_and_does_not_fail(ends):
    box = ends(root=None)
    box.append(sample(1))
    for _ in range(2):
        box.log.close()
    box.append(sample(2))
    box.log.refill()
    box.seal()
    assert box.log.lost_samples == 1
