"""The outbox: what happens to entries between the control loop and the trainer."""

import errno
import threading

import pytest
from both_ends import Taker, nothing
from kit.failing import failing

from tmrl_like.delivery import segments
from tmrl_like.wire import messages as m

# -- when a packet leaves, and what it holds -------------------------------------------------------

# options; then pairs: how many samples are appended (or "end" of an episode, or "break"), and the
# entries of the packets that leave
LEAVES = {
    "when it is full": ({"max_samples": 10}, [(9, []), (1, [(1, 10)])]),
    "with twenty times as much where it has piled up": (
        {"max_samples": 10},
        [(455, [(1, 10), (11, 210), (211, 410), (411, 455)]), (15, [(456, 465)])],
    ),
    "not below the minimum, however old": (
        {"min_samples": 5, "max_age_s": 0.0},
        [(4, []), ("end", []), (1, [(1, 6)])],
    ),
    "with the end of an episode": ({"min_samples": 3}, [(3, []), ("end", [(1, 4)])]),
    "with the return of a test alone": ({"min_samples": 3}, [("end", [(1, 1)])]),
    "at the minimum, where it is large": (
        {"min_samples": 5, "max_packet_bytes": 1},
        [(12, [(1, 5), (6, 10)])],
    ),
    "below the minimum, when a break follows": (
        {"min_samples": 100},
        [(3, []), ("break", []), (1, [(1, 3)])],
    ),
    "at a minimum above the usual size": (
        {"min_samples": 250, "max_samples": 100, "max_age_s": 0.0},
        [(249, []), (1, [(1, 250)])],
    ),
}


@pytest.mark.parametrize(("options", "steps"), LEAVES.values(), ids=LEAVES)
def test_a_packet_leaves(ends, options, steps):
    box = ends(**options)
    for what, spans in steps:
        if what == "end":
            box.end_episode()
        elif what == "break":
            box.log.add_break()
        else:
            box.fill(*range(what))
        assert box.pumped().spans == spans


def test_a_packet_leaves_when_its_first_sample_is_old(ends):
    box, wire = ends(max_age_s=1.0), Taker()
    for box.clock.now in (10.0, 10.9, 11.8, 12.0, 12.9, 13.0):
        box.fill(0)
        box.pumped(wire)
    assert [packet.samples for packet in wire.packets] == [3, 3]


def test_reports_of_more_episodes_than_a_packet_may_hold_make_several_packets(ends):
    box = ends(min_samples=1000)
    box.fill(0)
    for _ in range(2 * m.MAX_EPISODES + 1):
        box.end_episode()
    box.hasten()
    reports = [len(packet.episodes) for packet in box.pumped().packets]
    assert reports == [m.MAX_EPISODES, m.MAX_EPISODES, 1]


def test_a_packet_leaves_when_it_is_large(ends):
    box = ends(max_packet_bytes=100_000)
    box.fill(*range(8), size=10_000)  # 40 kB each
    assert box.pumped().spans == [(1, 3), (4, 6)]


def test_a_packet_leaves_below_the_minimum_when_it_is_too_large_to_wait(ends):
    box = ends(min_samples=100)
    box.fill(*range(9), size=1 << 18)  # 1 MiB each
    assert box.pumped().spans == [(1, 8)]


def test_a_packet_of_any_size_takes_no_more_memory_than_a_trainer_allows(ends):
    box = ends(max_packet_bytes=32 << 20, max_samples=10_000)
    for _ in range(3000):
        box.append((None, ((),) * 1000, 0.0, False, False, {}))
    assert len(box.emptied().samples) == 3000


def test_a_packet_of_many_structures_has_no_larger_head_than_a_trainer_allows(ends):
    box = ends(min_samples=400, max_samples=1000)
    keys = [f"{number:0100}" for number in range(100)]
    for number in range(300):
        box.append((None, number, 0.0, False, False, dict.fromkeys(keys[number % 2 :])))
    assert box.emptied().all_numbers == list(range(300))


def test_what_is_asked_to_leave_leaves_whatever_it_holds_and_what_comes_later_waits(ends):
    box = ends(min_samples=100)
    box.fill(0)
    box.end_episode()
    assert box.pumped().packets == []
    box.hasten()
    assert box.pending()
    assert box.pumped().spans == [(1, 2)]
    box.fill(0)
    assert box.pumped().packets == []
    (packet,) = box.emptied().packets
    assert (packet.samples, packet.awaits) == (1, True)


def test_the_window_limits_what_is_on_its_way_and_so_does_a_full_connection(ends):
    box, wire = ends(max_samples=1, max_packet_bytes=1, window_bytes=1), Taker(room=1)
    box.fill(0)
    assert box.pumped(wire).spans == [(1, 1)]
    box.fill(*range(2))
    assert box.pumped().spans == []
    box.ack(stored=0, received=1)
    assert box.pumped(wire).spans == [(1, 1)], "no room"
    wire.room = 2
    assert box.pumped(wire).spans == [(1, 1), (2, 2)]


def test_a_backlog_is_sent_in_turns_between_which_the_link_gives_signs_of_life(ends):
    box, wire = ends(max_samples=1), Taker()
    box.fill(*range(50))

    def send(data):
        box.clock.now += 0.06
        return wire.send(data)

    for sent in (2, 4):
        box.pump(send, True)
        assert len(wire.packets) == sent


# -- what is on its way ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "misses", "is_another", "again"),
    [(2, False, False, [4, 5]), (1, True, None, [4, 5]), (1, False, True, [2, 3, 4, 5])],
    ids=[
        "to the same trainer what it has not received",
        "to one that misses something",
        "to another all",
    ],
)
def test_what_the_trainer_has_not_goes_out_again(ends, stored, misses, is_another, again):
    box = ends(max_samples=1, max_packet_bytes=1)
    box.fill(*range(5))
    box.pumped()
    box.ack(stored, received=3, again=misses)
    if is_another is not None:
        box.send_again(to_another_trainer=is_another)
    assert box.pumped().spans == [(entry, entry) for entry in again]


def test_what_goes_out_again_goes_at_once_and_may_be_cut_in_another_way(ends):
    box = ends(min_samples=3)
    box.fill(*range(3))
    assert box.emptied().spans == [(1, 3)]
    box.fill(3)
    box.ack(stored=1, received=2)
    box.send_again(to_another_trainer=False)
    assert box.pumped().spans == [(3, 4)], "fewer than the minimum, but one left before"


@pytest.mark.fault(
    "peers",
    "a trainer's key asks for packets again without end",
    "they leave again four times a second at most",
)
def test_who_asks_again_and_again_is_heard_four_times_a_second(ends):
    box, wire = ends(), Taker()
    box.fill(0)
    box.hasten()
    for i in range(100):
        box.clock.now = i / 100
        box.pumped(wire)
        box.ack(0, 0, again=True)
    assert len(wire.packets) == 5


def test_a_silence_makes_what_is_not_received_go_out_again(ends):
    box, wire = ends(max_samples=2, min_samples=2), Taker()
    box.fill(*range(2))
    for box.clock.now, spans in ((0.0, 1), (4.0, 1), (6.0, 2), (12.0, 2), (17.0, 3), (36.0, 3)):
        assert box.pumped(wire).spans == [(1, 2)] * spans, "patience grows"
    box.ack(stored=0, received=2)
    for box.clock.now, spans in ((40.0, []), (44.0, [(2, 2)]), (50.0, [])):
        assert box.pumped().spans == spans, "the last entry asks what is stored"
    box.ack(stored=2, received=2)
    box.clock.now = 1e6
    assert box.pumped().packets == []
    assert box.unacknowledged_samples() == 0


def test_what_was_sent_after_a_while_without_anything_is_not_silence(ends):
    box = ends(max_samples=1)
    for newest, box.clock.now in ((1, 0.0), (2, 100.0)):
        box.fill(0)
        assert len(box.pumped().packets) == 1
        assert box.pumped().packets == []
        box.ack(newest, newest)


# -- limits ----------------------------------------------------------------------------------------


@pytest.mark.fault("disk", "a spool has reached its limit", "new samples go, and are counted")
def test_beyond_its_limit_new_samples_are_dropped_and_counted_once_and_a_break_follows(
    spool, small_files, caplog
):
    box, taker = spool(log_bytes=20_000), Taker()
    for box.clock.now, lost, lines in (
        (0.0, 500, 1),
        (599.0, 500, 1),
        (700.0, 0, 1),
        (701.0, 500, 2),
    ):
        box.fill(*range(lost))
        assert box.unacknowledged_samples()
        box.pump(nothing, False)
        assert caplog.text.count("new samples are dropped") == lines
    lost = box.lost_samples
    kept = 1500 - lost
    assert 0 < kept < 500
    assert box.spool_bytes() <= 20_000
    box.deliver(taker)
    box.fill(7)
    box.deliver(taker)
    assert taker.rows == {1: [*range(kept), 7]}
    assert taker.packets[-1].breaks == 1
    box.restart_reader()
    assert (box.unacknowledged_samples(), box.lost_samples) == (0, lost)


def test_lanes_have_equal_shares_of_what_is_kept(ends, small_files):
    box, taker = ends(lanes=3, log_bytes=200_000), Taker()
    for lane in range(3):
        box.fill(*range(2000 if lane else 100), lane=lane)
    kept = [len(rows) for rows in box.emptied(taker).rows.values()]
    assert kept[0] == 100
    assert 100 < kept[1] == kept[2] < 2000


@pytest.mark.fault(
    "resources",
    "a link has no descriptor left for the next file",
    "it waits for one: nothing is lost or left out",
)
@pytest.mark.parametrize("is_new", [False, True])
def test_a_file_that_cannot_be_opened_for_a_while_is_waited_for(
    ends, small_files, monkeypatch, caplog, is_new
):
    box, taker = ends(), Taker()
    box.fill(*range(200))
    first, *_ = sorted(box.path.iterdir())
    short = failing(errno.EMFILE, segments.map_file, lambda path: (path == first) == is_new)
    with monkeypatch.context() as patch:
        patch.setattr(segments, "map_file", short)
        if is_new:
            box.restart_reader()
        for _ in range(2):
            box.deliver(taker)
    assert len(taker.rows.get(1, [])) < (1 if is_new else 200), "the oldest entry is not known"
    assert caplog.text.count("Too many open files; trying again") == 1
    box.deliver(taker)
    assert taker.rows == {1: list(range(200))}


def test_what_is_stored_stays_so_though_a_link_could_not_read_that_when_it_began(ends, monkeypatch):
    box = ends()
    box.fill(*range(10))
    box.emptied()
    box.ack(6, 6)
    with monkeypatch.context() as patch:
        patch.setattr(segments, "map_file", failing(errno.EMFILE))
        box.restart_reader()
    box.ack(6, 8)
    assert box.stored(1) == 6
    assert box.emptied().spans == [(9, 10)], "what the trainer has already is not sent"
    box.ack(0, 10)
    box.send_again(to_another_trainer=True)
    assert box.emptied().spans == [(7, 10)]


def test_files_that_are_all_stored_are_free_whatever_another_trainer_knows(ends, small_files):
    box = ends(log_bytes=40_000)
    box.fill(*range(400))
    box.restart_reader()
    box.ack(400, 400)
    box.pumped()  # only now this link knows of the files behind the first one
    box.ack(0, 0)
    box.fill(*range(400))
    assert not box.lost_samples


# -- threads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ["unacknowledged_samples", "pending", "hasten", "close"])
def test_who_asks_how_far_it_is_does_not_meet_who_sends(ends, asked):
    box, answers = ends(), []
    box.fill(0)
    thread = threading.Thread(target=lambda: answers.append(getattr(box, asked)()))

    def send(data):
        thread.start()
        thread.join(0.05)
        assert not answers, "it was answered while something was sent"
        return True

    box.pump(send, True, awaits=True)
    thread.join(5)
    assert answers


def test_an_outbox_that_is_closed_does_nothing(ends):
    box = ends()
    box.fill(0)
    for _ in range(2):
        box.outbox.close()
    box.pump(nothing, True, awaits=True)
    box.ack(1, 1)
    box.hasten()
    assert (box.pending(), box.unacknowledged_samples()) == (False, 0)
