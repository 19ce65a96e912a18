"""What happens to entries between the control loop and the trainer."""

import errno
import threading

import numpy as np
import pytest
from both_ends import CLOCK, STATS, TIMING, Clock, Taker, Wire, nothing, opened_ends, sample

from tmrl_like.delivery import sample_log, segments
from tmrl_like.wire import messages as m


@pytest.fixture
def outbox():
    with opened_ends() as make:
        yield lambda clock=CLOCK, root=None, **options: make(root, clock=clock, **options)


@pytest.fixture
def small_files(monkeypatch):
    monkeypatch.setattr(sample_log, "_SEGMENT_BYTES", 4096)


def fill(box, n):
    box.fill(*range(n))


def pumped(box, may_send=True, **how):
    wire = Wire()
    box.pump(wire.send, may_send, **how)
    return wire


# -- when a packet leaves, and what it holds ---------------------------------------------------------


def test_a_packet_leaves_when_it_is_full(outbox):
    box = outbox(max_samples=10)
    fill(box, 9)
    assert pumped(box).packets == []
    fill(box, 1)
    assert pumped(box).spans == [(1, 10)]


def test_what_has_piled_up_leaves_in_packets_of_twenty_times_as_many_samples(outbox):
    box = outbox(max_samples=10)
    fill(box, 455)
    assert [packet.samples for packet in pumped(box).packets] == [10, 200, 200, 45]
    fill(box, 15)
    assert [packet.samples for packet in pumped(box).packets] == [10], "nothing had piled up"


def test_a_packet_leaves_when_its_first_sample_is_old(outbox):
    clock, wire = Clock(), Wire()
    box = outbox(clock, max_age_s=1.0)
    for clock.now in (10.0, 10.9, 11.8, 12.0, 12.9, 13.0):
        fill(box, 1)
        box.pump(wire.send, True)
    assert [packet.samples for packet in wire.packets] == [3, 3]


def test_no_packet_leaves_with_fewer_samples_than_the_minimum(outbox):
    box = outbox(min_samples=5, max_age_s=0.0)
    fill(box, 4)
    box.end_episode()
    assert pumped(box).packets == []
    fill(box, 1)
    (packet,) = pumped(box).packets
    assert (packet.samples, packet.episodes) == (5, ((5, STATS),))


def test_an_episode_that_ends_takes_its_samples_along(outbox):
    box = outbox(min_samples=3)
    fill(box, 3)
    assert pumped(box).packets == []
    box.end_episode()
    (packet,) = pumped(box).packets
    assert (packet.samples, packet.episodes) == (3, ((4, STATS),))


def test_a_test_return_leaves_although_there_are_no_samples(outbox):
    box = outbox(min_samples=3)
    box.end_episode()
    (packet,) = pumped(box).packets
    assert (packet.samples, packet.episodes) == (0, ((1, STATS),))


def test_reports_of_more_episodes_than_a_packet_may_hold_make_several_packets(outbox):
    box = outbox(min_samples=1000)
    fill(box, 1)
    for _ in range(2 * m.MAX_EPISODES + 1):
        box.end_episode()
    box.hasten()
    assert [len(packet.episodes) for packet in pumped(box).packets] == [m.MAX_EPISODES, m.MAX_EPISODES, 1]


def test_a_packet_leaves_when_it_is_large(outbox):
    box = outbox(max_packet_bytes=100_000)
    picture = np.zeros((4, 64, 64), np.uint8)
    for i in range(7):
        box.append((np.zeros(1, np.float32), picture + i, 0.0, False, False, {}))
        box.append((None, picture + i, 0.0, False, False, {"jpeg": bytes(30_000)}))
    wire = pumped(box)
    assert wire.numbers == [[0, 0, 1, 1], [2, 2, 3, 3], [4, 4, 5, 5]]
    assert all(100_000 <= packet.body_bytes < 150_000 for packet in wire.packets)


def test_a_large_packet_waits_for_the_minimum(outbox):
    box = outbox(max_packet_bytes=1, min_samples=5)
    fill(box, 12)
    assert [packet.samples for packet in pumped(box).packets] == [5, 5]


def test_a_minimum_above_the_usual_size_is_kept(outbox):
    box = outbox(min_samples=250, max_samples=100, max_age_s=0.0)
    fill(box, 249)
    assert pumped(box).packets == []
    fill(box, 1)
    assert [packet.samples for packet in pumped(box).packets] == [250]


def test_what_is_asked_to_leave_leaves_whatever_it_holds_and_what_comes_later_waits(outbox):
    box = outbox(min_samples=100)
    fill(box, 1)
    box.end_episode()
    assert pumped(box).packets == []
    thread = threading.Thread(target=box.hasten)
    thread.start()
    thread.join()
    assert box.pending()
    assert pumped(box).spans == [(1, 2)]
    fill(box, 1)
    assert pumped(box).packets == []


def test_what_is_awaited_leaves_at_once_and_says_so(outbox):
    box = outbox(min_samples=5)
    fill(box, 1)
    assert pumped(box).packets == []
    (packet,) = pumped(box, awaits=True).packets
    assert (packet.samples, packet.awaits) == (1, True)


def test_what_does_not_continue_what_came_before_begins_a_packet(outbox):
    box = outbox(max_samples=2)
    for _ in range(3):
        fill(box, 3)
        box.add_break()
    wire = pumped(box, awaits=True)
    assert wire.spans == [(1, 2), (3, 3), (4, 7), (8, 11)]
    assert [(packet.breaks, packet.samples) for packet in wire.packets] == [(0, 2), (0, 1), (1, 3), (2, 3)]


def test_samples_come_out_as_they_went_in_although_an_environment_reuses_its_arrays(outbox):
    box, obs = outbox(), np.zeros(3, np.float32)
    for i in range(5):
        obs[:] = i
        box.append((np.zeros(1, np.float32), obs, 0.0, False, False, {"note": "x" * i} if i % 2 else {}))
    assert pumped(box, awaits=True).numbers == [[0, 1, 2, 3, 4]]


def test_a_packet_says_what_decides_whether_it_is_too_old(outbox):
    box = outbox(max_samples=3)
    for version in (0, 7, 8):
        box.append(sample(), TIMING._replace(policy_version=version, observed_at_s=1e9 + version))
    (packet,) = pumped(box).packets
    assert (packet.observed_at_s, packet.policy_version) == (1e9, 7)


def test_lanes_share_a_folder_and_a_window_and_their_entries_are_their_own(outbox):
    box, taker = outbox(lanes=3, window_bytes=1), Taker()
    for number in range(10):
        for lane in range(3):
            box.fill(100 * lane + number, lane=lane)
    for _ in range(3):
        box.deliver(taker)
    assert taker.rows == {1 + lane: [100 * lane + number for number in range(10)] for lane in range(3)}
    assert not box.pending()


# -- what is on its way ------------------------------------------------------------------------------


def test_nothing_is_sent_while_there_is_no_trainer_and_nothing_is_lost(outbox):
    box = outbox(max_samples=1)
    fill(box, 5)
    box.pump(nothing, False)
    assert pumped(box).all_numbers == list(range(5))


@pytest.fixture
def sent(outbox):
    """Five samples that were sent, a packet each."""

    def make(**options):
        box = outbox(**{"max_samples": 1, "max_packet_bytes": 1} | options)
        fill(box, 5)
        assert pumped(box).spans == [(i, i) for i in range(1, 6)]
        return box

    return make


def test_what_is_not_received_is_sent_again(sent):
    box = sent()
    box.ack(stored=2, received=3)
    box.send_again(to_another_trainer=False)
    assert pumped(box).spans == [(4, 4), (5, 5)]


def test_to_another_trainer_all_that_is_not_stored_goes_out_again(sent):
    box = sent()
    box.ack(stored=1, received=3)
    box.send_again(to_another_trainer=True)
    assert pumped(box).spans == [(2, 2), (3, 3), (4, 4), (5, 5)]


def test_another_trainer_does_not_wait_for_what_is_stored_although_it_is_in_the_file(sent):
    box, taker = sent(), Taker()
    box.ack(stored=2, received=5)
    box.send_again(to_another_trainer=True)
    box.pump(taker.send, True)
    assert taker.rows == {1: [2, 3, 4]}
    assert taker.gaps == [(1, 0, 3)]


@pytest.mark.parametrize("received", [0, 30, 63, 64, 65, 99, 100])
def test_what_goes_out_again_may_begin_anywhere(outbox, small_files, received):
    box = outbox(max_packet_bytes=1 << 25)
    for number in range(100):  # in several files, each of which says how its samples are structured
        box.append(sample(number) if number < 99 else (None, 99, 0.0, False, False, {}))
    assert pumped(box, awaits=True).all_numbers == list(range(100))
    box.ack(0, received, again=True)
    assert pumped(box, awaits=True).all_numbers == list(range(received, 100))


def test_who_misses_something_gets_what_follows_and_no_more(sent):
    box = sent()
    box.ack(stored=1, received=3, again=True)
    assert pumped(box).spans == [(4, 4), (5, 5)]


def test_what_goes_out_again_goes_at_once_and_may_be_cut_in_another_way(outbox):
    box = outbox(min_samples=3)
    fill(box, 3)
    assert pumped(box, awaits=True).spans == [(1, 3)]
    fill(box, 2)
    box.ack(stored=1, received=2)
    box.send_again(to_another_trainer=False)
    assert pumped(box).spans == [(3, 5)]
    box.ack(stored=1, received=4)
    box.send_again(to_another_trainer=False)
    assert pumped(box).spans == [(5, 5)], "fewer than the minimum, but they left before"


def test_what_is_stored_is_forgotten(sent):
    box = sent()
    assert box.unacknowledged_samples() == 5
    box.ack(stored=2, received=5)
    assert not box.pending()
    assert box.unacknowledged_samples() == 3
    box.ack(stored=1, received=1)
    assert box.unacknowledged_samples() == 3, "an answer that came late"


@pytest.mark.parametrize("received", [2, 5])
def test_another_link_goes_on_behind_what_is_stored(sent, received):
    box = sent()
    box.ack(stored=2, received=received)
    box.restart_reader()
    assert box.unacknowledged_samples() == 3
    assert box.stored(1) == 2
    box.ack(stored=2, received=received)
    assert pumped(box).all_numbers == list(range(received, 5)), "what the trainer has already is not sent"


def test_the_window_limits_what_is_on_its_way(outbox):
    box = outbox(max_samples=1, window_bytes=1)
    fill(box, 1)
    assert pumped(box).spans == [(1, 1)]
    fill(box, 1)
    assert pumped(box).spans == []
    box.ack(stored=0, received=1)
    assert pumped(box).spans == [(2, 2)]
    assert box.unacknowledged_samples() == 2


def test_a_full_connection_is_tried_again(outbox):
    box, wire = outbox(max_samples=1, max_packet_bytes=1), Wire(room=1)
    fill(box, 2)
    for wire.room in (1, 1, 10):
        box.pump(wire.send, True)
    assert wire.spans == [(1, 1), (2, 2)]


@pytest.mark.fault(
    "peers", "a trainer's key asks for packets again without end", "they leave again four times a second at most"
)
def test_who_asks_again_and_again_is_heard_four_times_a_second(outbox):
    clock, wire = Clock(), Wire()
    box = outbox(clock)
    fill(box, 1)
    box.hasten()
    for i in range(100):
        clock.now = i / 100
        box.pump(wire.send, True)
        box.ack(0, 0, again=True)
    assert len(wire.packets) == 5


@pytest.mark.parametrize("min_samples", [1, 2])
def test_a_silence_makes_what_is_not_received_go_out_again(outbox, min_samples):
    clock, wire = Clock(), Wire()
    box = outbox(clock, max_samples=2, min_samples=min_samples)
    fill(box, 2)
    for now, spans in [(0.0, 1), (4.0, 1), (6.0, 2), (12.0, 2), (17.0, 3), (36.0, 3), (38.0, 4)]:
        clock.now = now
        box.pump(wire.send, True)
        assert wire.spans == [(1, 2)] * spans, "patience grows"
    box.ack(stored=0, received=2)
    for now, spans in [(42.0, []), (44.0, [(2, 2)]), (50.0, [])]:
        clock.now = now
        assert pumped(box).spans == spans, "the last entry asks what is stored"
    box.ack(stored=2, received=2)
    clock.now = 1e6
    assert pumped(box).packets == []
    assert box.unacknowledged_samples() == 0


def test_what_was_sent_after_a_while_without_anything_is_not_silence(outbox):
    clock = Clock()
    box = outbox(clock, max_samples=1)
    for clock.now in (0.0, 100.0):
        fill(box, 1)
        assert len(pumped(box).packets) == 1
        assert pumped(box).packets == []
        newest = 1 + (clock.now > 0)
        box.ack(newest, newest)


# -- limits ------------------------------------------------------------------------------------------


@pytest.mark.fault("disk", "a spool has reached its limit", "the oldest go, and are counted")
@pytest.mark.parametrize("option", ["max_bytes", "spool_max_bytes"])
def test_beyond_its_limit_the_oldest_samples_are_dropped_and_counted_once(
    outbox, small_files, tmp_path, caplog, option
):
    box = outbox(root=tmp_path if option == "spool_max_bytes" else None, **{option: 20_000})
    for _ in range(2):
        fill(box, 500)
        box.pump(nothing, False)
    lost = box.lost_samples
    assert 0 < lost < 1000
    assert lost + box.unacknowledged_samples() == 1000
    assert sum("oldest samples are dropped" in r.message for r in caplog.records) == 1
    for _ in range(2):
        box.restart_reader()
        box.pump(nothing, False)
        assert box.lost_samples == lost
        assert lost + box.unacknowledged_samples() == 1000
    taker = Taker()
    box.pump(taker.send, True, awaits=True)
    assert taker.rows == {1: [*range(500), *range(500)][lost:]}
    assert taker.gaps == [(1, 0, lost + 1)]
    assert {packet.lost_samples for packet in taker.packets} == {lost}
    taker.acknowledge(box)
    box.restart_reader()
    assert (box.lost_samples, box.unacknowledged_samples()) == (lost, 0)


def test_the_newest_file_is_kept_whatever_the_limit(outbox, small_files):
    box = outbox(max_bytes=1)
    fill(box, 20)
    box.pump(nothing, False)
    assert pumped(box, awaits=True).all_numbers == list(range(20))
    assert box.lost_samples == 0


def test_what_is_in_the_trainers_memory_is_not_counted_as_lost(outbox, small_files):
    box, taker = outbox(max_bytes=60_000), Taker()
    fill(box, 500)
    box.deliver(taker, stored=False)
    fill(box, 500)
    box.pump(nothing, False)
    assert box.unacknowledged_samples() < 1000
    assert box.lost_samples == 0


def test_lanes_have_equal_shares_of_what_is_kept(outbox, small_files):
    box = outbox(lanes=3, max_bytes=200_000)
    for lane in range(3):
        box.fill(*range(2000 if lane else 100), lane=lane)
    box.pump(nothing, False)
    kept = [sender.kept for sender in box._senders.values()]
    assert kept[0] == 100
    assert 100 < kept[1] == kept[2] < 2000
    assert sum(sender.source.size_bytes for sender in box._senders.values()) <= 200_000


@pytest.mark.fault(
    "resources", "a link has no descriptor left for the next file", "it waits for one: nothing is lost or left out"
)
@pytest.mark.parametrize("is_new", [False, True])
def test_a_file_that_cannot_be_opened_for_a_while_is_waited_for(outbox, small_files, monkeypatch, caplog, is_new):
    box, taker = outbox(), Taker()
    fill(box, 200)
    real, (first, *_) = segments.map_file, sorted(box.folder.path.iterdir())

    def short(path):
        if (path == first) == is_new:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(segments, "map_file", short)
        if is_new:
            box.restart_reader()
        for _ in range(2):
            box.deliver(taker)
    assert len(taker.rows.get(1, [])) < (1 if is_new else 200), "the oldest entry is not known"
    assert sum("Too many open files; trying again" in r.message for r in caplog.records) == 1
    box.pump(taker.send, True, awaits=True)
    assert taker.rows == {1: list(range(200))}


# -- threads -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ["unacknowledged_samples", "pending", "lost_samples", "close"])
def test_who_asks_how_far_it_is_does_not_meet_who_sends(outbox, asked):
    box = outbox()
    fill(box, 1)
    answers = []

    def ask():
        answer = getattr(box.outbox, asked)
        answers.append(answer() if callable(answer) else answer)

    threads = [threading.Thread(target=ask)]

    def send(data):
        threads[0].start()
        threads[0].join(0.05)
        return not answers

    box.pump(send, True, awaits=True)
    threads[0].join(5)
    assert answers == {"unacknowledged_samples": [1], "pending": [True], "lost_samples": [0], "close": [None]}[asked]
    assert box._senders[1].sent == 1, "it was answered while something was sent"


def test_an_outbox_that_is_closed_does_nothing(outbox):
    box = outbox()
    fill(box, 1)
    for _ in range(2):
        box.outbox.close()
    box.pump(nothing, True, awaits=True)
    box.ack(1, 1)
    box.hasten()
    assert (box.pending(), box.unacknowledged_samples()) == (False, 0)
    assert not box._senders[1].source._chain.segments, "a file is open again"
