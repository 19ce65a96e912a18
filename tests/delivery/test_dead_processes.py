"""What a worker's earlier processes left in its folder."""

import errno
import logging

from both_ends import STATS, Taker
from kit.failing import failing

from tmrl_like.delivery import segments
from tmrl_like.delivery.segments import SUFFIX
from tmrl_like.wire import messages as m


def left(spool, incarnation, *numbers):
    box = spool(incarnation)
    box.fill(*numbers)
    box.kill()
    return box


def files_of(box, incarnation):
    return list(box.folder.path.glob(f"{incarnation:016x}-*{SUFFIX}"))


def test_a_successor_sends_what_they_left_as_their_own_and_removes_it(spool, caplog):
    caplog.set_level(logging.INFO)
    for incarnation in (1, 2):
        left(spool, incarnation, *(100 * incarnation + i for i in range(3)))
    box = spool(3)
    assert sorted(box.takes_over) == [1, 2]
    assert caplog.text.count("sending 6 samples that earlier processes left") == 1
    box.fill(300)
    taker = box.pumped(Taker(), awaits=True)
    assert taker.rows == {1: [100, 101, 102], 2: [200, 201, 202], 3: [300]}
    taker.acknowledge(box, stored=False)
    assert (len(files_of(box, 1)), box.pending()) == (1, False)
    taker.acknowledge(box)
    assert [files_of(box, 1), files_of(box, 2), box.unacknowledged_samples()] == [[], [], 0]
    box.log.close()
    box.folder.close()
    box.outbox.close()
    assert sorted(path.name for path in box.folder.path.iterdir())[-2:] == ["lock", "worker.lock"]


def test_reports_and_breaks_are_left_as_well(spool):
    box = spool(1, min_samples=5)
    box.fill(1)
    box.add_break()
    box.end_episode()
    box.kill()
    packets = spool(2).pumped(Taker(), awaits=True).packets
    assert [(p.incarnation, p.breaks, p.samples, p.episodes) for p in packets] == [
        (1, 0, 1, ()),
        (1, 1, 0, ((3, STATS),)),
    ]


def test_what_the_trainer_refuses_stays_on_disk_for_another_one_and_is_reported_once(spool, caplog):
    left(spool, 1, 1, 2)
    box = spool(2)
    box.pumped(Taker(), awaits=True)
    for _ in range(2):
        box.set_aside(1, "obs is float64")
    box.set_aside(2, "this one lives")
    box.fill(3)
    box.send_again(to_another_trainer=False)
    again = box.pumped(Taker(), awaits=True)
    assert again.rows == {2: [3]}
    again.acknowledge(box)
    assert (box.unacknowledged_samples(), box.pending()) == (2, False)
    (line,) = (
        r.message for r in caplog.records if "do not fit those in the trainer's memory" in r.message
    )
    assert line.startswith("2 samples that an earlier process")
    assert "obs is float64" in line
    assert str(box.folder.path / f"{1:016x}-*") in line
    box.send_again(to_another_trainer=True)
    assert box.pumped(Taker(), awaits=True).rows == {1: [1, 2]}
    box.set_aside(1, "obs is float64")
    assert caplog.text.count("do not fit") == 1
    box.kill()
    assert spool(3).pumped(Taker(), awaits=True).rows == {1: [1, 2]}


def test_backlogs_take_turns_when_the_connection_takes_little(spool):
    for incarnation in (1, 2):
        left(spool, incarnation, *range(1000))
    box, taker = spool(3, max_samples=10), Taker()
    box.fill(*range(1000))
    for taker.room in range(1, 10):
        box.pumped(taker, awaits=True)
    assert [packet.incarnation for packet in taker.packets] == 3 * [1, 2, 3]


def test_the_limit_is_for_all_of_them_and_the_newest_are_kept(spool, small_files):
    for incarnation in (1, 2):
        left(spool, incarnation, *range(300))
    box = spool(3, spool_max_bytes=60_000)
    box.fill(*range(300))
    taker = box.pumped(Taker(), awaits=True)
    kept = {process: len(rows) for process, rows in taker.rows.items()}
    assert kept[1] < kept[2] == kept[3] == 300
    lost = box.lost_samples
    assert lost == 300 - kept[1] > 0
    assert {packet.incarnation: packet.lost_samples for packet in taker.packets} == {
        1: lost,
        2: 0,
        3: 0,
    }
    taker.acknowledge(box)
    assert files_of(box, 1) == files_of(box, 2) == []
    assert box.lost_samples == lost


def test_what_a_link_without_its_robot_cannot_open_is_left_to_the_next(
    spool, small_files, monkeypatch
):
    box, taker = spool(1), Taker()
    box.fill(*range(200))
    first, *_ = sorted(files_of(box, 1))
    with monkeypatch.context() as patch:
        patch.setattr(
            segments,
            "map_file",
            failing(errno.EMFILE, segments.map_file, lambda path: path != first),
        )
        box.pumped(taker, awaits=True).acknowledge(box)
        assert 0 < len(taker.rows[1]) < 200
        box.kill_writer()
        box.outbox.close()
    box = spool(2)
    box.pumped(taker, awaits=True).acknowledge(box)
    assert taker.rows == {1: list(range(200))}
    assert files_of(box, 1) == []


def test_those_that_are_too_many_at_once_wait(spool, monkeypatch, caplog):
    monkeypatch.setattr(m, "MAX_TAKEN_OVER", 1)
    for incarnation in (1, 2):
        left(spool, incarnation, 1, 2)
    taker = Taker()
    for incarnation in (3, 4):
        box = spool(incarnation)
        box.pumped(taker, awaits=True).acknowledge(box)
        box.log.close()
        box.folder.close()
        box.outbox.close()
    assert taker.rows == {1: [1, 2], 2: [1, 2]}
    assert caplog.text.count("samples of too many processes: the rest waits") == 1
