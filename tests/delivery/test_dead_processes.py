"""What a worker's earlier processes left in its folder."""

import errno
import logging

import pytest
from both_ends import CLOCK, STATS, Taker, opened_ends

from tmrl_like.delivery import sample_log, segments
from tmrl_like.delivery.segments import SUFFIX
from tmrl_like.wire import messages as m


@pytest.fixture
def outbox(tmp_path):
    """Both ends of the delivery of worker w in tmp_path."""
    with opened_ends() as make:
        yield lambda incarnation, **options: make(tmp_path, incarnation, CLOCK, **options)


@pytest.fixture
def small_files(monkeypatch):
    monkeypatch.setattr(sample_log, "_SEGMENT_BYTES", 4096)


def left(outbox, incarnation, *numbers):
    box = outbox(incarnation)
    box.fill(*numbers)
    box.kill()
    return box


def files_of(box, incarnation):
    return list(box.folder.path.glob(f"{incarnation:016x}-*{SUFFIX}"))


def pumped(box, taker=None):
    taker = taker or Taker()
    box.pump(taker.send, True, awaits=True)
    return taker


def test_a_successor_sends_what_they_left_as_their_own_and_removes_it(outbox, caplog):
    caplog.set_level(logging.INFO)
    for incarnation in (1, 2):
        left(outbox, incarnation, *(100 * incarnation + i for i in range(3)))
    box = outbox(3)
    assert sorted(box.takes_over) == [1, 2]
    assert sum("sending 6 samples that earlier processes left" in r.message for r in caplog.records) == 1
    box.fill(300)
    taker = pumped(box)
    assert taker.rows == {1: [100, 101, 102], 2: [200, 201, 202], 3: [300]}
    taker.acknowledge(box, stored=False)
    assert (len(files_of(box, 1)), box.pending()) == (1, False)
    taker.acknowledge(box)
    assert [files_of(box, 1), files_of(box, 2), box.unacknowledged_samples()] == [[], [], 0]
    box.log.close()
    box.folder.close()
    box.outbox.close()
    assert sorted(path.name for path in box.folder.path.iterdir())[-2:] == ["lock", "worker.lock"]


def test_what_is_stored_is_not_sent_by_a_successor_and_goes(outbox):
    box = outbox(1)
    box.fill(*range(5))
    pumped(box).acknowledge(box)
    box.fill(5)
    box.kill()
    box = outbox(2)
    taker = pumped(box)
    assert taker.spans == [(6, 6)]
    taker.acknowledge(box)
    assert files_of(box, 1) == []


def test_reports_and_breaks_are_left_as_well(outbox):
    box = outbox(1, min_samples=5)
    box.fill(1)
    box.add_break()
    box.end_episode()
    box.kill()
    packets = pumped(outbox(2)).packets
    assert [(p.incarnation, p.breaks, p.samples, p.episodes) for p in packets] == [
        (1, 0, 1, ()),
        (1, 1, 0, ((3, STATS),)),
    ]


def test_what_the_trainer_refuses_stays_on_disk_for_another_one_and_is_reported_once(outbox, caplog):
    left(outbox, 1, 1, 2)
    box = outbox(2)
    pumped(box)
    for _ in range(2):
        box.set_aside(1, "obs is float64")
    box.set_aside(2, "this one lives")
    box.fill(3)
    box.send_again(to_another_trainer=False)
    again = pumped(box)
    assert again.rows == {2: [3]}
    again.acknowledge(box)
    assert (box.unacknowledged_samples(), box.pending()) == (2, False)
    (line,) = (r.message for r in caplog.records if "do not fit those in the trainer's memory" in r.message)
    assert line.startswith("2 samples that an earlier process")
    assert "obs is float64" in line
    assert str(box.folder.path / f"{1:016x}-*") in line
    box.send_again(to_another_trainer=True)
    assert pumped(box).rows == {1: [1, 2]}
    box.set_aside(1, "obs is float64")
    assert sum("do not fit" in r.message for r in caplog.records) == 1
    box.kill()
    assert pumped(outbox(3)).rows == {1: [1, 2]}


def test_backlogs_take_turns_when_the_connection_takes_little(outbox):
    for incarnation in (1, 2):
        left(outbox, incarnation, *range(1000))
    box, taker = outbox(3, max_samples=10), Taker()
    box.fill(*range(1000))
    for taker.room in range(1, 10):
        pumped(box, taker)
    assert [packet.incarnation for packet in taker.packets] == 3 * [1, 2, 3]


def test_the_limit_is_for_all_of_them_and_the_newest_are_kept(outbox, small_files):
    for incarnation in (1, 2):
        left(outbox, incarnation, *range(300))
    box = outbox(3, spool_max_bytes=60_000)
    box.fill(*range(300))
    taker = pumped(box)
    kept = {process: len(rows) for process, rows in taker.rows.items()}
    assert kept[1] < kept[2] == kept[3] == 300
    lost = box.lost_samples
    assert lost == 300 - kept[1] > 0
    assert {packet.incarnation: packet.lost_samples for packet in taker.packets} == {1: lost, 2: 0, 3: 0}
    taker.acknowledge(box)
    assert files_of(box, 1) == files_of(box, 2) == []
    assert box.lost_samples == lost


def test_what_a_link_without_its_robot_cannot_open_is_left_to_the_next(outbox, small_files, monkeypatch):
    box, taker, real = outbox(1), Taker(), segments.map_file
    box.fill(*range(200))
    first, *_ = sorted(files_of(box, 1))

    def short(path):
        if path != first:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(segments, "map_file", short)
        pumped(box, taker).acknowledge(box)
        assert 0 < len(taker.rows[1]) < 200
        box.kill_writer()
        box.outbox.close()
    box = outbox(2)
    pumped(box, taker).acknowledge(box)
    assert taker.rows == {1: list(range(200))}
    assert files_of(box, 1) == []


def test_those_that_are_too_many_at_once_wait(outbox, monkeypatch, caplog):
    monkeypatch.setattr(m, "MAX_TAKEN_OVER", 1)
    for incarnation in (1, 2):
        left(outbox, incarnation, 1, 2)
    taker = Taker()
    for incarnation in (3, 4):
        box = outbox(incarnation)
        pumped(box, taker).acknowledge(box)
        box.log.close()
        box.folder.close()
        box.outbox.close()
    assert taker.rows == {1: [1, 2], 2: [1, 2]}
    assert sum("samples of too many processes: the rest waits" in r.message for r in caplog.records) == 1
