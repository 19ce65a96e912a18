"""Delivery of entries that a worker's earlier processes left in its folder."""

import errno
import logging
import zlib
from pathlib import Path

from both_ends import Taker
from kit.failing import failing

from tmrl_like.delivery.folder import open_folder
from tmrl_like.delivery.sample_log import SampleLog
from tmrl_like.delivery.segments import incarnations_in, path_of
from tmrl_like.wire import messages as m


def left(spool, incarnation, *numbers):
    box = spool(incarnation)
    box.fill(*numbers)
    box.kill()
    return box.path


def test_a_successor_sends_what_they_left_as_their_own_and_removes_it(spool, caplog):
    caplog.set_level(logging.INFO)
    left(spool, 1, 100, 101)
    box = spool(2)
    assert box.takes_over == (1,)
    assert caplog.text.count("sending 2 samples that earlier processes left") == 1
    box.fill(200)
    taker = box.emptied()
    assert taker.rows == {1: [100, 101], 2: [200]}
    taker.acknowledge(box, stored=False)
    assert sorted(incarnations_in(box.path)) == [1, 2]
    taker.acknowledge(box)
    assert incarnations_in(box.path) == [2]


def test_a_copy_of_a_file_beside_it_is_left_alone(spool):
    path = path_of(left(spool, 1, 1, 2), 1, 1)
    copy = path.with_name(path.name.replace(".", " (copy)."))
    copy.write_bytes(path.read_bytes())
    box, taker = spool(2), Taker()
    box.deliver(taker)
    assert taker.rows == {1: [1, 2]}
    assert copy.exists()


def test_a_link_that_starts_after_its_worker_was_killed_leaves_a_successor_its_files(spool):
    box = spool(1)
    box.fill(1, 2)
    box.kill()
    folder = open_folder(box.path.parent, "w")
    successor = SampleLog(folder, 1 << 20, incarnation=2)
    box.restart_reader()
    taker = box.emptied()
    taker.acknowledge(box)
    box.outbox.close()
    assert taker.rows == {1: [1, 2]}
    assert successor.incarnation in incarnations_in(folder.path)
    successor.close()
    folder.close()


def test_what_the_trainer_refuses_stays_on_disk_for_another_one_and_is_reported_once(spool, caplog):
    left(spool, 1, 1, 2)
    box = spool(2)
    box.emptied()
    for incarnation, reason in ((1, "obs is float64"),) * 2 + ((2, "this one lives"),):
        box.set_aside(incarnation, reason)
    box.fill(3)
    box.send_again(to_another_trainer=False)
    again = box.emptied()
    assert again.rows == {2: [3]}
    again.acknowledge(box)
    assert (box.unacknowledged_samples(), box.pending()) == (2, False)
    box.send_again(to_another_trainer=True)
    assert box.emptied().rows == {1: [1, 2]}
    (line,) = (line for line in caplog.messages if "do not fit" in line)
    assert line.startswith("2 samples that an earlier process")
    assert "obs is float64" in line
    assert str(box.path / f"{1:016x}-*") in line


def test_backlogs_take_turns_when_the_connection_takes_little(spool):
    for incarnation in (1, 2):
        left(spool, incarnation, *range(1000))
    box, taker = spool(3, max_samples=10), Taker()
    box.fill(*range(1000))
    for taker.room in range(1, 10):
        box.emptied(taker)
    assert [packet.incarnation for packet in taker.packets] == 3 * [1, 2, 3]


def test_each_row_that_they_left_is_checked_a_few_times_however_many_there_are(spool, monkeypatch):
    left(spool, 1, *range(10_000))
    checked, checksum = [], zlib.crc32
    monkeypatch.setattr(zlib, "crc32", lambda *data: checked.append(1) or checksum(*data))
    assert spool(2, max_samples=5).emptied().all_numbers == [*range(10_000)]
    assert len(checked) < 30 * 10_000


def test_what_they_lost_is_counted_and_not_said_again(spool, small_files, caplog):
    box = spool(1, log_bytes=20_000)
    box.fill(*range(500))
    lost = box.log.lost_samples
    box.kill()
    box = spool(2)
    box.emptied().acknowledge(box)
    assert box.lost_samples == lost > 0
    assert "new samples are dropped" not in caplog.text


def test_what_nobody_takes_leaves_a_quarter_of_the_limit_to_the_living(spool, small_files):
    box = spool(1)
    box.fill(*range(5000), size=30)
    box.kill()
    box = spool(2, log_bytes=400_000)
    box.emptied()
    box.set_aside(1, "obs is float64")
    box.fill(*range(5000), size=30)
    assert box.log.lost_samples > 0
    assert 70_000 < box.spool_bytes(2) <= 110_000


def test_what_they_left_counts_for_the_limit_until_it_is_stored(spool, small_files):
    left(spool, 1, *range(600))
    box, taker = spool(2, log_bytes=120_000), Taker()
    box.fill(*range(1000))
    assert 100_000 < box.spool_bytes() <= 120_000
    box.deliver(taker)
    few = len(taker.rows[2])
    assert box.lost_samples == 1000 - few
    box.fill(*range(1000))
    for _ in range(2):
        box.log.refill()
    box.fill(*range(1000))
    box.deliver(taker)
    assert len(taker.rows[2]) == 3000 - box.lost_samples > 2 * few + 50


def test_those_that_are_too_many_at_once_wait(spool, monkeypatch):
    monkeypatch.setattr(m, "MAX_TAKEN_OVER", 1)
    for incarnation in (1, 2):
        left(spool, incarnation, 1, 2)
    taker = Taker()
    for incarnation in (3, 4):
        box = spool(incarnation)
        box.emptied(taker).acknowledge(box)
        box.close()
    assert taker.rows == {1: [1, 2], 2: [1, 2]}


def test_files_that_cannot_be_removed_stop_nothing_and_go_with_a_later_process(spool, monkeypatch):
    path_of(left(spool, 1, 1, 2), 1, 99).touch()
    box = spool(2)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", failing(errno.EACCES))
        box.emptied().acknowledge(box)
        assert (box.pending(), box.unacknowledged_samples()) == (False, 0)
        box.kill()
        box = spool(3)
        assert box.emptied().packets == []
        box.kill()
    assert sorted(incarnations_in(box.path)) == [1, 2, 3]
    assert spool(4).emptied().packets == []
    assert incarnations_in(box.path) == [4]
