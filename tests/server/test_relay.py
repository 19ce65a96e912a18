"""The relay's decisions, without threads or sockets."""

import pytest
from relay_kit import (
    BOTH,
    OTHER_WORKER,
    TRAINER_ONLY,
    WORKER_ONLY,
    FakeLink,
    frame,
    give,
    hello,
    packet,
    seat_both,
)

from tmrl_like.server.relay import Relay
from tmrl_like.transport.base import REVOKED, Identity, Incoming
from tmrl_like.wire import messages as m
from tmrl_like.wire.condition import Condition

WORKER_OF_BOTH = Identity(BOTH.name, ("worker",))


@pytest.fixture
def link():
    return FakeLink()


@pytest.fixture
def relay(link):
    return Relay(link)


def test_a_probe_comes_back_to_any_key_with_what_the_server_knows_and_not_without_limit(relay, link):
    for now in (0.0, 0.0):
        give(relay, b"w", m.Probe(), WORKER_ONLY, now, bytes(5 << 18))  # too large
    assert link.sent == []
    for _ in range(9):
        give(relay, b"w", m.Probe(), WORKER_ONLY, body=bytes(m.MAX_PROBE_BYTES))
    give(relay, b"c", m.Probe(), OTHER_WORKER)
    assert len(link.to(b"w", m.Probe)) == 7
    (answer,) = link.to(b"c")
    assert (answer.key, answer.roles) == ("car", ("worker",))
    assert answer.time_s > 1e9


def test_an_unknown_connection_is_asked_to_introduce_itself(relay, link):
    give(relay, b"a", packet())
    assert isinstance(link.to(b"a")[0], m.HelloWanted)


def test_worker_and_trainer_may_come_in_any_order(relay, link):
    give(relay, b"w", hello())
    assert link.to(b"w", m.Welcome)[-1].feed == 0
    give(relay, b"t", hello("trainer", "t1"))
    assert link.to(b"w", m.Welcome)[-1].feed == link.to(b"t", m.Welcome)[-1].feed != 0


def test_the_trainer_receives_nothing_until_enough_samples_wait(link):
    relay = Relay(link, min_samples_per_server_packet=10)
    seat_both(relay)
    give(relay, b"w", packet(first=1, samples=6))
    assert link.to(b"t", m.SamplePacket) == []
    give(relay, b"w", packet(first=2, samples=6))
    assert [p.first for p in link.to(b"t", m.SamplePacket)] == [1, 2]
    give(relay, b"w", packet(first=3, samples=9))
    assert len(link.to(b"t", m.SamplePacket)) == 2
    give(relay, b"w", packet(first=4, samples=1))
    assert [p.first for p in link.to(b"t", m.SamplePacket)] == [1, 2, 3, 4]


@pytest.mark.parametrize("urgent", [packet(samples=0), packet(awaits=True)], ids=["an episode's report", "lockstep"])
def test_what_somebody_waits_for_does_not_wait_for_more_samples(link, urgent):
    relay = Relay(link, min_samples_per_server_packet=10)
    seat_both(relay)
    give(relay, b"w", urgent)
    assert link.to(b"t", m.SamplePacket) == [urgent]


def test_samples_wait_in_order_for_a_slow_trainer(relay, link):
    seat_both(relay)
    link.full.add(b"t")
    for i in range(1, 4):
        give(relay, b"w", packet(first=i))
    link.full.clear()
    assert relay.flush()
    assert [p.first for p in link.to(b"t", m.SamplePacket)] == [1, 2, 3]


def test_without_a_trainer_nothing_is_held(relay, link):
    give(relay, b"w", hello())
    for i in range(1, 100):
        give(relay, b"w", packet(first=i))
    give(relay, b"t", hello("trainer", "t1"))
    assert relay.flush()
    assert link.to(b"t", m.SamplePacket) == []
    give(relay, b"w", packet(first=7, samples=12))
    assert link.to(b"t", m.SamplePacket) == [packet(first=7, samples=12)]
    assert relay.counters.samples == 12


def test_a_new_trainer_makes_workers_send_again(relay, link):
    give(relay, b"t", hello("trainer", "t1", 1))
    give(relay, b"w", hello())
    first = link.to(b"w", m.Welcome)[-1].feed
    give(relay, b"t", m.Bye())
    give(relay, b"u", hello("trainer", "t2", 2))
    assert link.to(b"w", m.Welcome)[-1].feed not in (0, first)


def test_a_policy_reaches_all_workers_and_late_joiners_at_once(relay, link):
    seat_both(relay)
    for index in range(3):
        give(relay, b"t", frame(4, index, 3))
    give(relay, b"late", hello(name="w2"))
    relay.flush()
    for peer in (b"w", b"late"):
        assert [f.index for f in link.to(peer, m.PolicyFrame)] == [0, 1, 2]


def test_a_worker_on_a_slow_link_gets_fewer_policies_and_so_newer_ones(relay, link):
    seat_both(relay)
    for version in range(1, 20):
        give(relay, b"t", frame(version))
    assert [f.version for f in link.to(b"w", m.PolicyFrame)] == [1, 2, 3]
    give(relay, b"w", m.Beat(worker="w1", policy_received=1))
    relay.flush()
    assert [f.version for f in link.to(b"w", m.PolicyFrame)] == [1, 2, 3, 19]


def test_a_trainer_that_counts_its_policies_from_1_again_gets_them_through(relay, link):
    give(relay, b"t", hello("trainer", "an engine, and who is behind it"))
    give(relay, b"w", hello())
    for version in (100, 101, 102, 1):
        give(relay, b"t", frame(version))
    assert [f.version for f in link.to(b"w", m.PolicyFrame)] == [100, 101, 102, 1]


def test_a_hello_that_is_repeated_changes_nothing(relay, link):
    give(relay, b"t", hello("trainer", "t1"))
    give(relay, b"t", hello("trainer", "t1"))
    assert len({w.feed for w in link.to(b"t", m.Welcome)}) == 1


def test_a_newer_policy_replaces_the_one_on_its_way(relay, link):
    seat_both(relay)
    link.full.add(b"w")
    for version in (1, 2):
        for index in range(2):
            give(relay, b"t", frame(version, index, 2))
    link.full.clear()
    relay.flush()
    assert [(f.version, f.index) for f in link.to(b"w", m.PolicyFrame)] == [(2, 0), (2, 1)]


def test_a_server_without_a_policy_asks_the_trainer_for_it(relay, link):
    give(relay, b"t", hello("trainer", "t1"))
    assert link.to(b"t", m.Welcome)[-1].policy_wanted
    give(relay, b"t", frame(1, 0, 1))
    give(relay, b"t", hello("trainer", "t1"))
    assert not link.to(b"t", m.Welcome)[-1].policy_wanted


@pytest.mark.parametrize("message", [m.Ack("w2", 2, 9, 9), m.Dismissal("w2", 5, "obs is float64")])
def test_what_a_trainer_answers_goes_to_the_worker_that_it_names(relay, link, message):
    """Of any of its processes: it may send what a dead one left."""
    give(relay, b"t", hello("trainer", "t1"))
    give(relay, b"w", hello(name="w1", session=1))
    give(relay, b"v", hello(name="w2", session=2))
    give(relay, b"t", message)
    assert link.to(b"v", type(message)) == [message]
    assert link.to(b"w", type(message)) == []


def test_a_second_trainer_is_refused_with_cause_and_cure(relay, link):
    give(relay, b"t", hello("trainer", "t1", 1))
    give(relay, b"u", hello("trainer", "t2", 2), now=0.5)
    refusal = link.to(b"u", m.Refusal)[0]
    assert "t1" in refusal.reason
    assert "stop it" in refusal.reason
    assert relay.trainer.peer == b"t"


def test_a_silent_trainers_seat_is_taken_over(relay, link):
    give(relay, b"t", hello("trainer", "t1", 1))
    give(relay, b"u", hello("trainer", "t2", 2), now=3.0)
    assert relay.trainer.peer == b"u"


def resumed(name, session, run="5eed"):
    say = hello("trainer", name, session)
    say.run, say.began_up_s = run, 10.0 + session
    return say


def test_a_killed_trainers_seat_is_at_once_that_of_who_goes_on_with_its_run(relay, link):
    give(relay, b"w", hello())
    give(relay, b"t", resumed("t1", 1))
    give(relay, b"u", resumed("t2", 2), now=0.1)
    assert relay.trainer.peer == b"u"
    assert link.to(b"u", m.Refusal) == []
    assert link.to(b"w", m.Welcome)[-1].feed == link.to(b"u", m.Welcome)[-1].feed != 0


@pytest.mark.parametrize(
    ("run", "key"),
    [("5eed", Identity("other", ("trainer",))), ("another", BOTH), ("", BOTH)],
    ids=["another key", "another run", "no run"],
)
def test_nobody_else_gets_the_seat_of_a_living_trainer(relay, link, run, key):
    give(relay, b"t", resumed("t1", 1, run="" if run == "" else "5eed"))
    give(relay, b"u", resumed("t2", 2, run), key, now=0.1)
    assert relay.trainer.peer == b"t"
    (refusal,) = link.to(b"u", m.Refusal)
    assert refusal.retry_after_s > 0
    assert link.to(b"t", m.Refusal) == []


def test_what_a_dead_trainer_said_may_arrive_behind_its_successor(relay, link):
    give(relay, b"u", resumed("t2", 2))
    give(relay, b"t", resumed("t1", 1), now=0.1)
    assert relay.trainer.peer == b"u"
    assert link.to(b"u", m.Refusal) == []


def test_a_frozen_trainer_that_wakes_up_is_told_that_it_has_a_successor_and_changes_nothing(relay, link):
    give(relay, b"w", hello())
    give(relay, b"t", resumed("t1", 1))
    give(relay, b"u", resumed("t2", 2), now=1.0)
    assert link.to(b"t", m.Refusal)[-1].retry_after_s < 0
    link.sent.clear()
    for message in (m.Ack("w1", 1, 9, 9), m.Dismissal("w1", 1, "no"), frame(7), m.Beat(), m.Bye()):
        give(relay, b"t", message, now=9.0)
    assert link.to(b"w", (m.Ack, m.Dismissal, m.PolicyFrame, m.Refusal, m.Welcome)) == []
    for peer in (b"t", b"t again"):
        give(relay, peer, resumed("t1", 1), now=9.0)
        assert "another process goes on with this trainer's run" in link.to(peer, m.Refusal)[-1].reason
    assert relay.trainer.peer == b"u"


def test_a_trainer_that_reconnects_keeps_its_seat(relay, link):
    give(relay, b"t", hello("trainer", "t1", 1))
    give(relay, b"t2", hello("trainer", "t1", 1))
    assert relay.trainer.peer == b"t2"


def test_the_seats_of_the_silent_are_freed(relay, link):
    seat_both(relay)
    give(relay, b"w", m.Beat(worker="w1"), now=4.0)
    relay.tick(6.0)
    assert relay.trainer is None
    assert len(relay.workers) == 1
    assert link.to(b"w", m.Welcome)[-1].feed == 0


def test_a_revoked_key_ends_what_it_has_open(relay, link):
    seat_both(relay)
    give(relay, b"w", packet(), REVOKED)
    assert "revoked" in link.to(b"w", m.Refusal)[0].reason
    assert link.to(b"t", m.SamplePacket) == []
    assert relay.workers == {}


def test_a_workers_key_cannot_play_the_trainer(relay, link):
    give(relay, b"x", hello("trainer", "evil"), WORKER_ONLY)
    assert "not for a trainer" in link.to(b"x", m.Refusal)[0].reason
    assert relay.trainer is None


@pytest.mark.fault("peers", "a worker's key is used to play the trainer", "it is refused")
@pytest.mark.parametrize(
    "message", [frame(), m.Ack("w2", 2, 5, 5), m.Dismissal("w2", 2, "no"), m.Report(), packet(name="w2", session=2)]
)
def test_a_worker_that_plays_another_part_loses_its_seat_and_nobody_hears_it(relay, link, message):
    seat_both(relay)
    give(relay, b"v", hello(name="w2", session=2))
    before = len(link.to(b"v")), len(link.to(b"t"))
    give(relay, b"w", message)
    (refusal,) = link.to(b"w", m.Refusal)
    what = (
        "in the name of w2"
        if isinstance(message, m.SamplePacket)
        else f"a worker does not send {type(message).__name__}"
    )
    assert what in refusal.reason
    assert refusal.retry_after_s < 0
    assert (len(link.to(b"v")), len(link.to(b"t"))) == before
    assert list(relay.workers) == ["w2"]
    assert (relay.counters.malformed, relay.counters.refused) == (1, 1)


def test_a_key_that_lost_its_role_loses_its_seat(relay, link):
    give(relay, b"t", hello("trainer", "t1"), BOTH)
    give(relay, b"t", frame(), WORKER_OF_BOTH)
    assert link.to(b"t")[-1] == m.HelloWanted()
    assert relay.trainer is None
    give(relay, b"t", hello("trainer", "t1"), WORKER_OF_BOTH)
    assert "not for a trainer" in link.to(b"t", m.Refusal)[0].reason


def test_every_message_is_checked_against_the_key_that_its_connection_has_proved(relay, link):
    """A connection's id can come again with another key behind it: the seat stays with the first."""
    give(relay, b"w", hello(), OTHER_WORKER)
    give(relay, b"t", hello("trainer", "t1"), TRAINER_ONLY)
    for message in (frame(), m.Ack("w1", 1, 5, 5), m.Dismissal("w1", 1, "no")):
        give(relay, b"t", message, WORKER_ONLY)
        assert isinstance(link.to(b"t")[-1], m.HelloWanted)
    assert relay.trainer is None
    assert link.to(b"w", m.PolicyFrame) + link.to(b"w", m.Ack) + link.to(b"w", m.Refusal) == []


def test_a_connection_that_introduces_itself_as_another_leaves_its_first_seat(relay, link):
    give(relay, b"x", hello("trainer", "t1"))
    give(relay, b"x", hello("worker", "w1"))
    assert relay.trainer is None
    assert [seat.peer for seat in relay.workers.values()] == [b"x"]


def test_a_name_belongs_to_the_key_that_used_it_first_however_silent_its_worker_is(relay, link):
    give(relay, b"w", hello(name="arm"), WORKER_ONLY)
    relay.tick(60.0)
    give(relay, b"v", hello(name="arm", session=2), OTHER_WORKER, now=60.0)
    (refusal,) = link.to(b"v", m.Refusal)
    assert "arm" in refusal.reason
    assert "--name" in refusal.reason
    assert refusal.retry_after_s > 0
    give(relay, b"w2", hello(name="arm"), WORKER_ONLY, now=61.0)
    assert [seat.peer for seat in relay.workers.values()] == [b"w2"]


def test_the_names_of_a_revoked_key_are_free(relay, link):
    give(relay, b"w", hello(name="arm"), WORKER_ONLY)
    give(relay, b"w", m.Beat(worker="arm"), REVOKED)
    give(relay, b"v", hello(name="arm", session=2), OTHER_WORKER)
    assert [seat.peer for seat in relay.workers.values()] == [b"v"]


def test_a_key_that_uses_many_names_holds_no_more_than_the_server_has_seats(link):
    relay = Relay(link, max_workers=2)
    for i, name in enumerate(("a", "b", "c", "d")):
        give(relay, b"w", hello(name=name, session=i), WORKER_ONLY)
    give(relay, b"v", hello(name="a", session=9), OTHER_WORKER)
    give(relay, b"u", hello(name="d", session=9), OTHER_WORKER)
    assert link.to(b"v", m.Refusal) == []
    assert link.to(b"u", m.Refusal) != []


def test_a_restarted_worker_whose_connection_is_gone_gets_its_seat_at_once(relay, link):
    give(relay, b"w", hello(session=1), WORKER_ONLY)
    give(relay, b"v", hello(session=2), WORKER_ONLY, now=0.1)
    assert [seat.peer for seat in relay.workers.values()] == [b"w"]
    link.full.add(b"w")
    give(relay, b"v", hello(session=2), WORKER_ONLY, now=0.2)
    assert [seat.peer for seat in relay.workers.values()] == [b"v"]


@pytest.mark.parametrize("another", ["of that name", "one too many", "trainer", "of other spaces"])
def test_what_another_peer_is_the_reason_of_is_tried_again(link, another):
    relay = Relay(link, max_workers=1)
    seat_both(relay)
    late = {
        "of that name": hello(session=2),
        "one too many": hello(name="w2", session=2),
        "trainer": hello("trainer", "t2", 2),
        "of other spaces": hello(spaces=m.Spaces("Box(3)", "Box(2)")),
    }[another]
    for _ in range(3):
        give(relay, b"x", late)
    refusals = link.to(b"x", m.Refusal)
    assert len(refusals) == 3
    assert all(refusal.retry_after_s > 0 for refusal in refusals)


def test_a_peer_that_tries_again_and_again_is_one_line_in_the_log(relay, link, caplog):
    give(relay, b"t", hello("trainer", "t1"))
    for _ in range(10):
        give(relay, b"u", hello("trainer", "t2", 2))
    assert len([r for r in caplog.records if "refused trainer t2" in r.getMessage()]) == 1
    assert relay.counters.refused == 10


def test_other_spaces_are_refused_on_the_worker_whoever_came_first(relay, link):
    other = m.Spaces("Box(3)", "Box(2)")
    give(relay, b"w", hello(spaces=other))
    give(relay, b"t", hello("trainer", "t1"))
    give(relay, b"v", hello(name="w2", session=2, spaces=other))
    for peer in (b"w", b"v"):
        reason = link.to(peer, m.Refusal)[0].reason
        assert "observation space is Box(3)" in reason
        assert "Box(4)" in reason
    assert relay.workers == {}


@pytest.mark.parametrize(
    ("newer_by", "cure"), [(1, "on the server to that of the peer"), (-1, "on the peer to that of the server")]
)
def test_another_wire_version_is_refused_with_the_side_to_upgrade(relay, link, newer_by, cure):
    data = bytearray(m.encode(hello()))
    data[0] = m.WIRE_VERSION + newer_by
    relay.handle(Incoming(b"w", BOTH, bytes(data)), 0.0)
    assert link.to(b"w", m.Refusal)[0].reason.endswith(f"upgrade tmrl_like {cure}")


def test_malformed_messages_are_counted_answered_once_and_end_in_dismissal(relay, link, caplog):
    give(relay, b"w", hello())
    relay.handle(Incoming(b"w", BOTH, bytes((m.WIRE_VERSION,)) + b"garbage"), 0.0)
    assert "refused a message" in caplog.text
    assert len(relay.workers) == 1
    for _ in range(149):
        relay.handle(Incoming(b"w", BOTH, bytes((m.WIRE_VERSION,)) + b"garbage"), 0.0)
    assert relay.counters.malformed == 150
    assert len(link.to(b"w", m.Refusal)) == 1
    assert relay.workers == {}


def test_above_its_limit_the_relay_drops_packets_and_counts_them(link):
    relay = Relay(link, max_waiting_bytes=5_000)
    seat_both(relay)
    link.full.add(b"t")
    for i in range(1, 100):
        give(relay, b"w", packet(first=i), body=b"x" * 50)
    assert relay.counters.dropped > 80
    link.full.clear()
    relay.flush()
    give(relay, b"w", packet(first=100))
    assert link.to(b"t", m.SamplePacket)[-1].first == 100


def test_the_rest_of_a_policy_whose_beginning_was_lost_is_ignored(relay, link):
    seat_both(relay)
    give(relay, b"t", frame(3, 2, 4))
    assert relay.trainer is not None
    give(relay, b"t", frame(4, 0, 1))
    assert [f.version for f in link.to(b"w", m.PolicyFrame)] == [4]


def test_a_policy_larger_than_the_limit_is_refused(link):
    relay = Relay(link, max_policy_bytes=100)
    give(relay, b"t", hello("trainer", "t1"))
    give(relay, b"t", frame(1, 0, 2), body=b"x" * 200)
    assert link.to(b"t", m.Refusal)
    assert relay.trainer is None


def test_a_worker_sends_what_any_process_of_its_name_left(relay, link):
    give(relay, b"t", hello("trainer", "t1"))
    give(relay, b"w", hello(session=3))
    for session in (1, 2, 3):
        give(relay, b"w", packet(session=session))
    assert [p.incarnation for p in link.to(b"t", m.SamplePacket)] == [1, 2, 3]


def test_the_seat_of_a_dead_process_is_its_successors_at_once(relay, link):
    give(relay, b"w", hello(session=1))
    give(relay, b"v", hello(session=2, takes_over=(1,)), now=0.1)
    assert [seat.peer for seat in relay.workers.values()] == [b"v"]
    assert link.to(b"v", m.Refusal) == []


# -- a key that takes more than its part ---------------------------------------------------------------

THIEF = Identity("thief", ("worker",))


def test_what_waits_for_the_trainer_goes_out_in_turns_of_the_keys(relay, link):
    give(relay, b"t", hello("trainer", "t1"))
    for peer, name, key in ((b"b1", "b1", THIEF), (b"b2", "b2", THIEF), (b"g", "good", WORKER_ONLY)):
        give(relay, peer, hello(name=name), key)
    link.full.add(b"t")
    for i in range(1, 21):
        give(relay, b"b1", packet("b1", first=i), THIEF)
        give(relay, b"b2", packet("b2", first=i), THIEF)
    for i in range(1, 4):
        give(relay, b"g", packet("good", first=i), WORKER_ONLY)
    link.full.clear()
    assert relay.flush()
    sent = link.to(b"t", m.SamplePacket)
    assert [i for i, p in enumerate(sent) if p.worker == "good"] == [1, 3, 5]
    assert [p.first for p in sent if p.worker == "b1"] == list(range(1, 21))
    assert relay.trainer.waiting.size_bytes == 0


@pytest.mark.fault("peers", "a worker sends more than the trainer takes", "the others keep their room")
def test_a_key_that_fills_the_server_leaves_the_others_their_room(link):
    relay = Relay(link, max_waiting_bytes=100_000)
    give(relay, b"t", hello("trainer", "t1"))
    give(relay, b"b", hello(name="bad"), THIEF)
    give(relay, b"g", hello(name="good"), WORKER_ONLY)
    link.full.add(b"t")
    for i in range(1, 200):
        give(relay, b"b", packet("bad", first=i), THIEF, body=bytes(10_000))
    for i in range(1, 5):
        give(relay, b"g", packet("good", first=i), WORKER_ONLY, body=bytes(10_000))
    assert relay.trainer.waiting.size_bytes <= 100_000
    link.full.clear()
    relay.flush()
    sent = link.to(b"t", m.SamplePacket)
    assert [p.first for p in sent if p.worker == "good"] == [1, 2, 3, 4]
    bad = [p.first for p in sent if p.worker == "bad"]
    assert bad == list(range(1, len(bad) + 1))  # the oldest stay, so that what comes again continues them
    assert relay.counters.dropped == 199 - len(bad)


def test_new_names_and_processes_of_a_key_are_limited_and_the_seats_that_it_has_stay(link, caplog):
    relay = Relay(link, max_workers=10)
    give(relay, b"g", hello(name="good"), WORKER_ONLY)
    for i in range(2000):
        give(relay, b"b", hello(name=f"b{i}"), THIEF)
        give(relay, b"b", m.Bye(), THIEF)
    assert len(link.to(b"b", m.Welcome)) < 50
    assert len(caplog.records) < 300
    give(relay, b"g2", hello(name="good2"), WORKER_ONLY)
    assert link.to(b"g2", m.Welcome)
    give(relay, b"b", hello(name="late"), THIEF, now=100.0)
    assert link.to(b"b")[-1] == m.Welcome(0)


def test_refusals_of_a_key_do_not_fill_the_log(link, caplog):
    relay = Relay(link)
    for i in range(5000):
        give(relay, b"b%d" % i, hello("trainer", f"b{i}"), THIEF)
        relay.handle(Incoming(b"b%d" % i, THIEF, b"nonsense"), 0.0)
    assert len(caplog.records) < 300


def test_signs_of_life_beyond_a_few_are_heard_and_not_passed_on(relay, link):
    seat_both(relay)
    for i in range(1000):
        give(relay, b"w", m.Beat("w1", Condition(env_steps=i)), now=1.0)
    assert 10 < len(link.to(b"t", m.Beat)) < 300
    give(relay, b"w", m.Beat("w1", Condition(env_steps=5)), now=2.0)
    assert link.to(b"t", m.Beat)[-1].condition.env_steps == 5


def test_a_worker_that_keeps_its_process_may_connect_again_as_often_as_it_likes(link):
    relay = Relay(link, max_workers=1)
    for i in range(200):
        give(relay, b"%d" % i, hello(), WORKER_ONLY)
        assert link.to(b"%d" % i, m.Welcome)


def test_a_relay_that_is_full_takes_the_next_process_of_a_worker_that_is_dead(link):
    relay = Relay(link, max_workers=2)
    for i in range(2):
        give(relay, b"%d" % i, hello(name=f"w{i}", session=i + 1))
    give(relay, b"x", hello(name="w1", session=9, takes_over=(2,)))
    give(relay, b"y", hello(name="w2", session=10))
    assert [seat.peer for seat in relay.workers.values()] == [b"0", b"x"]
    assert "has its 2 workers" in link.to(b"y", m.Refusal)[0].reason
