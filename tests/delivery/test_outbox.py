"""What happens to samples between the control loop and the trainer."""

import errno

import numpy as np
import pytest
from both_ends import CLOCK, STATS, TIMING, Clock, Ends, Wire, opened_ends, sample

from tmrl_like.base.files import disk
from tmrl_like.delivery import sample_log
from tmrl_like.errors import EncodingError
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import PacketWriter, decode_body


@pytest.fixture
def outbox():
    with opened_ends() as make:
        yield lambda clock=CLOCK, **options: make(clock=clock, **options)


def ack(box, stored, received, again=False):
    box.on_ack(m.Ack("w", 1, stored, received, again))


def fill(box, n):
    for i in range(n):
        box.append(sample(i))


def test_a_packet_leaves_when_it_is_full(outbox):
    box, wire = outbox(max_samples=10), Wire()
    fill(box, 25)
    box.pump(wire.send, True)
    assert [h.samples for h, _ in wire.packets] == [10, 10]


def test_a_packet_leaves_when_it_is_old(outbox):
    box, wire = outbox(max_age_s=0.0), Wire()
    for _ in range(3):
        fill(box, 1)
        box.pump(wire.send, True)
    assert [h.samples for h, _ in wire.packets] == [1, 1, 1]


def test_no_packet_leaves_with_fewer_samples_than_the_minimum(outbox):
    box, wire = outbox(min_samples=5, max_age_s=0.0), Wire()
    fill(box, 4)
    box.end_episode(STATS)
    box.pump(wire.send, True)
    assert wire.packets == []
    fill(box, 1)
    box.pump(wire.send, True)
    assert [h.samples for h, _ in wire.packets] == [5]
    assert len(wire.packets[0][0].episodes) == 1


def test_an_episode_that_ends_at_the_minimum_takes_its_samples_along(outbox):
    box, wire = outbox(min_samples=3), Wire()
    fill(box, 3)
    box.end_episode(STATS)
    box.pump(wire.send, True)
    assert [(h.samples, len(h.episodes)) for h, _ in wire.packets] == [(3, 1)]


def test_a_test_return_leaves_although_there_are_no_samples(outbox):
    box, wire = outbox(), Wire()
    box.end_episode(STATS)
    box.pump(wire.send, True)
    header, _ = wire.packets[0]
    assert header.samples == 0
    assert header.episodes[0].return_ == -5.0


def test_reports_of_more_episodes_than_a_packet_may_hold_make_several_packets(outbox):
    box, wire = outbox(min_samples=1000), Wire()
    fill(box, 1)  # a packet is begun, and stays as small as that
    for _ in range(2 * m.MAX_EPISODES + 1):
        box.end_episode(STATS)
    box.seal()
    box.pump(wire.send, True)
    episodes = [len(header.episodes) for header, _ in wire.packets]
    assert (max(episodes), sum(episodes)) == (m.MAX_EPISODES, 2 * m.MAX_EPISODES + 1)


def test_every_episode_is_reported_when_several_end_before_a_packet_leaves(outbox):
    box, wire = outbox(min_samples=100), Wire()
    fill(box, 1)
    for _ in range(3):
        box.end_episode(STATS)
    box.seal()
    box.pump(wire.send, True)
    assert len(wire.packets[0][0].episodes) == 3


def test_nothing_is_sent_while_there_is_no_trainer_and_nothing_is_lost(outbox):
    box, wire = outbox(max_samples=1), Wire()
    fill(box, 5)
    box.pump(wire.send, False)
    assert wire.packets == []
    box.pump(wire.send, True)
    assert wire.sequences == [1, 2, 3, 4, 5]


def test_what_is_not_acknowledged_is_sent_again_in_order(outbox):
    box, wire = outbox(max_samples=1), Wire()
    fill(box, 5)
    box.pump(wire.send, True)
    ack(box, 2, 2)
    box.retransmit(from_the_start=False)
    box.pump(wire.send, True)
    assert wire.sequences == [1, 2, 3, 4, 5, 3, 4, 5]


def test_to_another_trainer_all_that_is_not_stored_goes_out_again_in_order(outbox):
    box, wire = outbox(max_samples=1), Wire()
    fill(box, 5)
    box.pump(wire.send, True)
    ack(box, 1, 3)
    box.retransmit(from_the_start=True)
    box.pump(wire.send, True)
    assert wire.sequences == [1, 2, 3, 4, 5, 2, 3, 4, 5]


def test_what_has_arrived_is_not_sent_again(outbox):
    box, wire = outbox(max_samples=1), Wire()
    fill(box, 5)
    box.pump(wire.send, True)
    ack(box, 1, 3, again=True)
    box.pump(wire.send, True)
    assert wire.sequences == [1, 2, 3, 4, 5, 4, 5]


def test_acknowledged_packets_are_forgotten(outbox):
    box, wire = outbox(max_samples=1), Wire()
    fill(box, 5)
    box.pump(wire.send, True)
    assert box.unacknowledged_samples() == 5
    ack(box, 5, 5)
    assert not box.pending()
    assert box.unacknowledged_samples() == 0


def test_the_window_limits_what_is_on_its_way(outbox):
    box, wire = outbox(max_samples=1, window_bytes=1), Wire()
    fill(box, 1)
    box.pump(wire.send, True)
    fill(box, 1)
    box.pump(wire.send, True)
    assert wire.sequences == [1]
    ack(box, 0, 1)
    box.pump(wire.send, True)
    assert wire.sequences == [1, 2]
    assert box.unacknowledged_samples() == 2


@pytest.mark.fault(
    "peers", "a trainer's key asks for packets again without end", "they leave again twice a second at most"
)
def test_who_asks_again_and_again_is_heard_twice_a_second(outbox):
    clock = Clock()
    box, wire = outbox(clock=clock), Wire()
    fill(box, 1)
    box.seal()
    for i in range(100):
        clock.now = i / 100
        box.pump(wire.send, True)
        ack(box, 0, 0, again=True)
    assert 3 <= len(wire.packets) <= 4


def test_what_was_dropped_on_its_way_counts_for_the_window_until_it_is_acknowledged_or_sent_again(outbox):
    clock = Clock()
    box, wire = outbox(clock, max_samples=1, window_bytes=1, max_held_samples=2), Wire()
    for last in (1, 11):
        fill(box, last - (last > 1))
        box.pump(wire.send, True)
        assert wire.sequences == [1]
    ack(box, 0, 1)
    box.pump(wire.send, True)
    assert wire.sequences == [1, 10, 11]
    fill(box, 10)
    box.pump(wire.send, True)
    assert wire.sequences == [1, 10, 11]
    clock.now = 6.0  # nothing is acknowledged for a long time
    box.pump(wire.send, True)
    assert wire.sequences == [1, 10, 11, 20, 21]


def test_a_full_connection_is_tried_again(outbox):
    box, wire = outbox(max_samples=1), Wire(room=1)
    fill(box, 2)
    box.pump(wire.send, True)
    fill(box, 2)
    box.pump(wire.send, True)
    assert wire.sequences == [1, 2]
    wire.room = 10
    box.pump(wire.send, True)
    assert wire.sequences == [1, 2, 3, 4]


def test_packets_that_wait_together_travel_together_within_bounds(outbox):
    box, wire = outbox(max_samples=1), Wire()
    fill(box, 1000)
    box.pump(wire.send, True)
    assert wire.sequences == list(range(1, 1001))
    assert 1000 / 64 <= len(wire.bundles) < 50


def test_beyond_its_limit_the_oldest_samples_are_dropped_and_counted(outbox, caplog):
    box, wire = outbox(max_samples=10, max_bytes=1000), Wire()
    fill(box, 200)
    box.pump(wire.send, False)
    assert 0 < box.lost_samples < 200
    assert box.lost_samples + box.unacknowledged_samples() == 200
    fill(box, 10)
    box.pump(wire.send, True)
    assert wire.sequences[-1] == 21
    assert wire.bundles[-1].lost_samples > 0
    assert sum("outbox is full" in r.message for r in caplog.records) == 1


def test_a_packet_that_is_larger_than_the_limit_is_kept_until_there_is_another(outbox):
    box, wire = outbox(max_samples=1, max_bytes=1), Wire()
    fill(box, 1)
    box.pump(wire.send, True)
    assert wire.sequences == [1]
    assert box.lost_samples == 0


def test_the_age_of_a_packet_is_that_of_its_first_sample(outbox):
    clock = Clock()
    box, wire = outbox(clock, max_age_s=1.0), Wire()
    for clock.now in (10.0, 10.9, 11.8, 12.0, 12.9, 13.0):
        fill(box, 1)
        box.pump(wire.send, True)
    assert [h.samples for h, _ in wire.packets] == [3, 3]


def test_what_does_not_continue_what_came_before_is_a_break(outbox):
    box, wire = outbox(max_samples=2), Wire()
    for _ in range(3):
        fill(box, 3)
        box.add_break()
    box.pump(wire.send, True)
    assert [(h.breaks, h.samples) for h, _ in wire.packets] == [(0, 2), (0, 1), (1, 2), (1, 1), (2, 2), (2, 1)]


def test_a_silence_after_the_last_packets_makes_them_go_out_again(outbox):
    clock = Clock()
    box, wire = outbox(clock, max_samples=1), Wire()
    fill(box, 2)
    box.pump(wire.send, True)
    ack(box, 0, 1)
    clock.now = 6.0
    box.pump(wire.send, True)
    assert wire.sequences == [1, 2, 2]
    clock.now = 12.0
    box.pump(wire.send, True)
    assert wire.sequences == [1, 2, 2], "patience grows"


def test_a_silence_after_all_was_received_makes_the_last_packet_ask_what_is_stored(outbox):
    clock = Clock()
    box, wire = outbox(clock, max_samples=1), Wire()
    fill(box, 2)
    box.pump(wire.send, True)
    ack(box, 0, 2)
    clock.now = 6.0
    box.pump(wire.send, True)
    assert wire.sequences == [1, 2, 2]
    ack(box, 2, 2)
    clock.now = 100.0
    box.pump(wire.send, True)
    assert wire.sequences == [1, 2, 2]
    assert box.unacknowledged_samples() == 0


def test_a_minimum_above_the_usual_size_is_kept(outbox):
    box, wire = outbox(min_samples=250, max_samples=100, max_age_s=0.0), Wire()
    fill(box, 300)
    box.pump(wire.send, True)
    assert [h.samples for h, _ in wire.packets] == [250]


def test_what_is_in_the_trainers_memory_is_not_counted_as_lost(outbox):
    box, wire = outbox(max_samples=10, max_bytes=4000), Wire()
    fill(box, 50)
    box.pump(wire.send, True)
    ack(box, 0, 5)
    fill(box, 50)
    box.pump(wire.send, False)
    assert box.lost_samples == 0
    assert box.unacknowledged_samples() < 100


def test_samples_come_out_as_they_went_in(outbox):
    box, wire = outbox(max_samples=3), Wire()
    fill(box, 3)
    box.pump(wire.send, True)
    header, body = wire.packets[0]
    rows = decode_body(header, body).samples()
    assert [row.obs.tolist() for row in rows] == [[i] * 3 for i in range(3)]


def test_an_environment_that_reuses_its_arrays_does_no_harm(outbox):
    box, wire = outbox(max_samples=3), Wire()
    obs = np.zeros(3, np.float32)
    for i in range(3):
        obs[:] = i
        box.append((np.zeros(1, np.float32), obs, 0.0, False, False, {}), TIMING)
    box.pump(wire.send, True)
    header, body = wire.packets[0]
    assert [row.obs[0] for row in decode_body(header, body).samples()] == [0, 1, 2]


def test_what_cannot_be_sent_is_refused_by_name(outbox):
    box = outbox()
    with pytest.raises(EncodingError, match=r"info\['car'\] is a builtins.object"):
        box.append((0, 0, 0.0, False, False, {"car": object()}), TIMING)


def test_a_packet_leaves_when_it_is_large(outbox):
    box, wire = outbox(max_packet_bytes=100_000), Wire()
    for _ in range(7):
        box.append((np.zeros(1, np.float32), np.zeros((4, 64, 64), np.uint8), 0.0, False, False, {}), TIMING)
        box.append((None, np.zeros((4, 64, 64), np.uint8), 0.0, False, False, {"jpeg": bytes(30_000)}), TIMING)
    box.pump(wire.send, True)
    assert [h.samples for h, _ in wire.packets] == [4, 4, 4]
    assert all(100_000 <= h.body_bytes < 150_000 for h, _ in wire.packets)


def test_a_large_packet_waits_for_the_minimum(outbox):
    box, wire = outbox(max_packet_bytes=1, min_samples=5), Wire()
    fill(box, 12)
    box.pump(wire.send, True)
    assert [h.samples for h, _ in wire.packets] == [5, 5]


def test_the_bytes_of_a_packet_are_known_while_it_is_filled():
    writer = PacketWriter()
    for i in range(50):
        obs = {"image": np.zeros((8, 8), np.uint8), "speed": np.float32(i), "text": "é" * 10}
        writer.append((1.0, obs, 0.0, False, False, {"n": i, "b": b"x" * 5}), TIMING)
    assert 0.6 < writer.size_bytes / len(writer.encode()) < 1.1


def test_a_packet_says_what_decides_whether_it_is_too_old(outbox):
    box, wire = outbox(max_samples=3), Wire()
    for version in (0, 7, 8):
        box.append(sample(), TIMING._replace(policy_version=version, observed_at_s=1e9 + version))
    box.pump(wire.send, True)
    header, _ = wire.packets[0]
    assert (header.observed_at_s, header.policy_version) == (1e9, 7)


@pytest.mark.parametrize("restarts", [False, True])
def test_samples_are_known_by_the_packet_they_are_in_also_to_another_reader(outbox, restarts):
    box = outbox(log_bytes=1 << 16, max_samples=1000)
    for round_ in range(1, 51):
        fill(box, 40)
        box.end_episode(STATS)
        fill(box, 9)
        box.seal()
        box.pump(Wire().send, True)
        ack(box, 2 * round_ - 1, 2 * round_ - 1)
        if restarts:
            box.restart_reader()
            box.pump(Wire().send, True)
        assert box.samples_up_to(2 * round_ - 1) == 49 * (round_ - 1) + 40
        assert box.samples_up_to(2 * round_ - 1) == 0
        assert restarts or box.forgotten == 2 * round_ - 1  # another reader sends again what it finds
    assert box.log.samples == 50 * 49


def test_what_is_awaited_leaves_at_once(outbox):
    box, wire = outbox(min_samples=5), Wire()
    fill(box, 1)
    box.pump(wire.send, True)
    assert wire.bundles == []
    box.pump(wire.send, True, awaits=True)
    assert [(bundle.samples, bundle.awaits) for bundle in wire.bundles] == [(1, True)]


def test_what_a_full_disk_keeps_from_being_taken_over_is_there_for_the_next_process(outbox, tmp_path, monkeypatch):
    monkeypatch.setattr(sample_log, "_SEGMENT_BYTES", 4096)  # so that the samples lie in several files
    monkeypatch.setattr(sample_log, "_ROWS", 4)
    dead = Ends(tmp_path, 1, max_samples=7)
    fill(dead, 200)
    dead.kill()

    def full(file, data):
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write", full)
        Ends(tmp_path, 2).kill()
    wire = Wire()
    outbox(root=tmp_path, incarnation=3).pump(wire.send, True)
    found = [int(row.obs[0]) for packet, body in wire.packets for row in decode_body(packet, body).samples()]
    assert found == list(range(200))
