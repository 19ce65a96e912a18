"""The relay's decisions, without threads or sockets."""

import pytest
from kit.packets import header
from kit.relays import BOTH, OTHER_SPACES, OTHER_WORKER, WORKER_ONLY, Scene, frame

from tmrl_like.transport.base import REVOKED, Identity
from tmrl_like.wire import messages as m
from tmrl_like.wire.condition import Condition

THIEF = Identity("thief", ("worker",))
GARBAGE = bytes((m.WIRE_VERSION,)) + b"garbage"


@pytest.fixture
def trainer(scene):
    return scene.trainer()


@pytest.fixture
def worker(scene, trainer):
    """A worker with a seat at the server of the trainer."""
    return scene.worker()


# -- what goes where -------------------------------------------------------------------------------


def test_a_probe_comes_back_to_any_key_with_what_the_server_knows_and_not_without_limit(scene):
    greedy, other = scene.peer(WORKER_ONLY), scene.peer(OTHER_WORKER)
    greedy.say(m.Probe(), body=bytes(m.MAX_PROBE_BYTES + 1))
    assert greedy.got == []
    greedy.say(*[m.Probe()] * 9, body=bytes(m.MAX_PROBE_BYTES))
    assert len(greedy.got) == 7
    (answer,) = other.say(m.Probe()).heard()
    assert (answer.key, answer.roles) == ("car", ("worker",))
    assert answer.time_s > 1e9


LARGE = {"body": bytes(1 << 20)}


@pytest.mark.parametrize(
    ("minimum", "packets"),  # each with the number of packets that have arrived then
    [
        (10, [({"samples": 6}, 0), ({"samples": 6}, 2), ({"samples": 9}, 2), ({}, 4)]),
        (100, [(LARGE, 0), (LARGE, 0), (LARGE, 0), (LARGE, 4)]),
        (10, [({"samples": 0}, 1)]),
        (10, [({"awaits": True}, 1)]),
    ],
    ids=["few samples", "all that is on the way", "an episode's report", "lockstep"],
)
def test_the_trainer_receives_nothing_until_enough_wait_or_somebody_waits(minimum, packets):
    scene = Scene(min_samples_per_server_packet=minimum)
    trainer, worker = scene.trainer(), scene.worker()
    for first, (fields, arrived) in enumerate(packets, start=1):
        worker.send(first, **fields)
        assert trainer.entries == list(range(1, arrived + 1))


def test_what_a_trainer_answers_goes_to_the_worker_that_it_names(scene, trainer, worker):
    """Also about earlier processes of the worker, because it sends what they left."""
    named, answers = scene.worker("w2", 2), [m.Ack("w2", 2, 9, 9), m.Dismissal("w2", 5, "no")]
    trainer.say(*answers)
    assert named.heard()[-2:] == answers
    assert not worker.heard(m.Answer)


# -- policies --------------------------------------------------------------------------------------


def test_who_comes_during_an_upload_that_breaks_off_gets_the_policy_before(scene, trainer, worker):
    trainer.say(frame(1, 0, 2), frame(1, 1, 2), frame(2, 0, 3))
    trainer.say(m.Bye())
    late = scene.worker("late", 2)
    assert scene.relay.flush()
    assert worker.policies == late.policies == [1, 1, 2]


def test_a_worker_on_a_slow_link_gets_fewer_policies_and_so_newer_ones(scene, trainer, worker):
    trainer.say(*map(frame, range(1, 20)))
    assert worker.policies == [1, 2, 3]
    worker.say(m.Beat(worker="w1", policy_received=1))
    scene.relay.flush()
    assert worker.policies == [1, 2, 3, 19]


def test_a_policy_larger_than_a_workers_queue_arrives_before_a_newer_one(scene, trainer, worker):
    """One that came while it is being sent; otherwise none would ever arrive."""
    one, newer = ([frame(version, index, 3) for index in range(3)] for version in (1, 2))
    trainer.say(one[0])
    worker.full = True
    trainer.say(*one[1:], *newer)
    worker.full = False
    scene.relay.flush()
    assert worker.heard(m.PolicyFrame) == one + newer


def test_policies_whose_upload_broke_off_do_not_count_as_on_their_way(scene, worker):
    for _ in range(3):
        trainer = scene.trainer()
        trainer.say(frame(1, 0, 2))
    trainer.say(frame(1, 0, 2), frame(1, 1, 2))
    assert [f.index for f in worker.heard(m.PolicyFrame)] == [0, 0, 0, 0, 1]


def test_policies_of_a_trainer_that_counts_from_1_again_are_taken(trainer, worker):
    trainer.say(*map(frame, (100, 101, 102, 1)))  # an engine, whose trainer changes
    assert worker.policies == [100, 101, 102, 1]


def test_the_rest_of_a_policy_whose_beginning_was_lost_is_ignored(trainer, worker):
    trainer.say(frame(3, 2, 4), frame(4))
    assert worker.policies == [4]
    trainer.say(frame(5, 0, 3), frame(6, 1, 3), frame(6, 2, 3))
    assert worker.policies == [4, 5]


def test_a_server_without_a_policy_asks_the_trainer_and_a_repeated_hello_changes_nothing_else(
    trainer,
):
    feed = trainer.feed
    for wanted in (True, False):
        assert trainer.heard(m.Welcome)[-1] == m.Welcome(feed, policy_wanted=wanted)
        trainer.say(frame())
        trainer.introduce("trainer", "t1")


# -- the trainer's seat ----------------------------------------------------------------------------


def resumed(scene, session, run="5eed", key=BOTH):
    return scene.trainer(f"t{session}", session, key, run=run, began_up_s=10.0 + session)


@pytest.mark.parametrize(("silent_s", "is_taken"), [(0.5, False), (3.0, True)])
def test_a_second_trainer_is_refused_with_cause_and_cure_until_the_first_is_silent(
    scene, trainer, silent_s, is_taken
):
    scene.now = silent_s
    second = scene.trainer("t2", 2)
    assert scene.ranks == {0: second if is_taken else trainer}
    assert is_taken or "(t1): stop it" in second.refusal.reason


def test_the_late_hello_of_a_killed_trainer_does_not_unseat_who_goes_on_with_its_run(scene):
    successor, _ = resumed(scene, 2), resumed(scene, 1)
    assert scene.ranks == {0: successor}
    assert successor.refusal is None


def test_a_run_that_moved_to_another_machine_has_its_seat_at_once_and_for_good(scene):
    """The times since two machines started say nothing."""
    first = scene.trainer("t1", 1, run="5eed", samples=10, began_up_s=2.0)
    second = scene.trainer("t2", 2, run="5eed", samples=20, began_up_s=1.0)
    late = scene.trainer("t3", 3, run="5eed", samples=10, began_up_s=3.0)
    assert scene.ranks == {0: second}
    assert first.refusal.retry_after_s < 0
    assert late.refusal


@pytest.mark.parametrize(
    ("run", "key"),
    [("5eed", Identity("other", ("trainer",))), ("another", BOTH), ("", BOTH)],
    ids=["another key", "another run", "no run"],
)
def test_nobody_else_gets_the_seat_of_a_living_trainer(scene, run, key):
    living = resumed(scene, 1, run="" if run == "" else "5eed")
    assert resumed(scene, 2, run, key).refusal.retry_after_s > 0
    assert scene.ranks == {0: living}
    assert living.refusal is None


def test_a_frozen_trainer_that_wakes_up_is_told_that_it_has_a_successor_and_changes_nothing(scene):
    worker, frozen, successor = scene.worker(), resumed(scene, 1), resumed(scene, 2)
    assert frozen.refusal.retry_after_s < 0
    assert worker.feed == successor.feed
    before = worker.heard()
    scene.now = 9.0
    frozen.say(m.Ack("w1", 1, 9, 9), m.Dismissal("w1", 1, "no"), frame(7), m.Beat(), m.Bye())
    assert worker.heard() == before
    for peer in (frozen.introduce("trainer", "t1", run="5eed"), resumed(scene, 1)):
        assert "another process has resumed this trainer's run" in peer.refusal.reason
    assert scene.ranks == {0: successor}


def test_the_seats_of_the_silent_are_freed_but_not_between_two_signs_of_life():
    scene = Scene(silent_after_s=0.3)
    trainer, worker = scene.trainer(), scene.worker()
    scene.now = 1.0
    worker.say(m.Beat(worker="w1"))
    for scene.now, ranks in ((1.9, {0: trainer}), (2.1, {})):
        scene.relay.tick(scene.now)
        assert (scene.ranks, scene.workers) == (ranks, [worker])
    assert worker.feed == 0


# -- keys, and what they may -----------------------------------------------------------------------


def test_a_revoked_key_ends_what_it_has_open_and_its_names_are_free(scene, trainer):
    revoked = scene.worker("arm", key=WORKER_ONLY)
    revoked.key = REVOKED
    scene.revoked.add(WORKER_ONLY.name)
    revoked.send(1)
    assert "revoked" in revoked.refusal.reason
    assert trainer.entries == scene.workers == []
    heir = scene.worker("arm", 2, OTHER_WORKER)
    assert scene.workers == [heir]


@pytest.mark.fault("peers", "a worker's key is used to play the trainer", "it is refused")
@pytest.mark.parametrize(
    ("role", "message"),
    [
        ("worker", frame()),
        ("worker", m.Ack("w2", 2, 5, 5)),
        ("worker", m.Report()),
        ("watcher", header(1, 5, "w2", 2)),
    ],
)
def test_who_plays_another_part_loses_its_seat_and_nobody_hears_it(scene, trainer, role, message):
    other, player = scene.worker("w2", 2), scene.peer(BOTH).introduce(role, "w1")
    before = other.heard(), trainer.heard()
    player.say(message, body=b"{}")
    assert f"a {role} does not send {type(message).__name__}" in player.refusal.reason
    assert player.refusal.retry_after_s < 0
    assert (other.heard(), trainer.heard()) == before
    assert scene.workers == [other]
    assert (scene.relay.counters.malformed, scene.relay.counters.refused) == (1, 1)


def test_samples_in_the_name_of_another_worker_cost_a_worker_its_seat(scene, trainer, worker):
    other = scene.worker("w2", 2)
    worker.send(1, worker="w2", incarnation=2)
    assert "in the name of w2" in worker.refusal.reason
    assert worker.refusal.retry_after_s < 0
    assert trainer.entries == []
    assert scene.workers == [other]


@pytest.mark.parametrize("key", [Identity(BOTH.name, ("worker",)), Identity("b", ("trainer",))])
def test_every_message_is_checked_against_the_key_that_its_connection_has_now(
    scene, trainer, worker, key
):
    """A key may lose its role, and a connection's id can be used again with another key."""
    trainer.key = key
    assert trainer.say(frame()).heard()[-1] == m.HelloWanted()
    assert (scene.ranks, worker.policies, worker.feed) == ({}, [], 0)


def test_a_connection_that_introduces_itself_as_another_leaves_its_first_seat(scene, trainer):
    trainer.introduce("worker", "w1")
    assert scene.ranks == {}
    assert scene.workers == [trainer]


# -- names, and seats of workers -------------------------------------------------------------------


def test_a_name_belongs_to_the_key_that_used_it_first_however_silent_its_worker_is(scene):
    scene.worker("arm", key=WORKER_ONLY)
    scene.now = 60.0
    scene.relay.tick(60.0)
    refusal = scene.worker("arm", 2, OTHER_WORKER).refusal
    assert "--name" in refusal.reason
    assert refusal.retry_after_s > 0
    owner = scene.worker("arm", key=WORKER_ONLY)
    assert scene.workers == [owner]


def test_a_key_that_uses_many_names_holds_no_more_than_the_server_has_seats():
    scene = Scene(max_workers=2)
    peer = scene.peer(WORKER_ONLY)
    for session, name in enumerate("abcd"):
        peer.introduce("worker", name, session)
    assert scene.worker("a", 9, OTHER_WORKER).refusal is None
    assert scene.worker("d", 9, OTHER_WORKER).refusal


def test_a_restarted_worker_whose_connection_is_gone_gets_its_seat_at_once(scene):
    first, second = scene.worker(), scene.worker(session=2)
    assert scene.workers == [first]
    first.full = True
    second.introduce("worker", "w1", 2)
    assert scene.workers == [second]


def test_the_seat_of_a_dead_process_is_its_successors_at_once_though_the_server_is_full():
    scene = Scene(max_workers=2)
    first, _ = scene.worker("w1"), scene.worker("w2", 2)
    successor = scene.worker("w2", 9, takes_over=(2,))
    assert scene.workers == [first, successor]
    assert successor.refusal is None
    late, namesake = scene.worker("w3", 10), scene.worker("w1", 11)
    assert "has its 2 workers" in late.refusal.reason
    assert "named w1 is connected already" in namesake.refusal.reason
    assert min(late.refusal.retry_after_s, namesake.refusal.retry_after_s) > 0


def test_other_spaces_are_refused_on_the_worker_whoever_came_first(scene):
    before = scene.worker(spaces=OTHER_SPACES)
    scene.trainer()
    for worker in (before, scene.worker("w2", 2, spaces=OTHER_SPACES)):
        assert "observation space is Box(3), the trainer's is Box(4)" in worker.refusal.reason
        assert worker.refusal.retry_after_s > 0
    assert scene.workers == []


# -- what makes no sense ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("newer_by", "cure"),
    [(1, "on the server to that of the peer"), (-1, "on the peer to that of the server")],
)
def test_another_wire_version_is_refused_with_the_side_to_upgrade(scene, newer_by, cure):
    peer = scene.peer()
    peer.say_bytes(bytes((m.WIRE_VERSION + newer_by,)) + m.encode(m.Bye())[1:])
    assert peer.refusal.reason.endswith(f"upgrade tmrl_like {cure}")


def test_malformed_messages_are_counted_answered_once_and_end_in_dismissal(scene, worker, caplog):
    for number in range(1, 151):
        worker.say_bytes(GARBAGE)
        assert scene.workers == [worker] * (number < 100)
    assert "refused a message" in caplog.text
    assert scene.relay.counters.malformed == 150
    assert len(worker.heard(m.Refusal)) == 1


# -- a key that takes more than its part -----------------------------------------------------------


def test_what_waits_for_the_trainer_goes_out_in_turns_of_the_keys(scene, trainer):
    one, two = (scene.worker(name, key=THIEF) for name in ("b1", "b2"))
    good = scene.worker("g", key=WORKER_ONLY)
    trainer.full = True
    for first in (1, 2):
        one.send(first)
        two.send(first)
    good.send(1, 2)
    trainer.full = False
    assert scene.relay.flush()
    sent = [(packet.worker, packet.first) for packet in trainer.heard(m.SamplePacket)]
    assert sent == [("b1", 1), ("g", 1), ("b2", 1), ("g", 2), ("b1", 2), ("b2", 2)]


def crowded(max_waiting_bytes):
    """Return a server whose trainer takes nothing, the trainer, and workers of two keys."""
    scene = Scene(max_waiting_bytes=max_waiting_bytes)
    trainer = scene.trainer()
    trainer.full = True
    return scene, trainer, scene.worker("bad", key=THIEF), scene.worker("good", key=WORKER_ONLY)


@pytest.mark.fault(
    "peers", "a worker sends more than the trainer takes", "the others keep their room"
)
def test_a_key_that_fills_the_server_leaves_the_others_their_room():
    scene, trainer, bad, good = crowded(100_000)
    bad.send(*range(1, 200), body=bytes(10_000))
    good.send(1, 2, 3, 4, body=bytes(10_000))
    assert scene.relay.trainer.waiting.size_bytes <= 100_000
    trainer.full = False
    scene.relay.flush()
    packets = trainer.heard(m.SamplePacket)
    assert [packet.first for packet in packets if packet.worker == "good"] == [1, 2, 3, 4]
    kept = [packet.first for packet in packets if packet.worker == "bad"]
    assert kept == list(range(1, len(kept) + 1)), "so that what comes again continues them"
    assert scene.relay.counters.dropped == 199 - len(kept)


def test_a_key_whose_only_message_was_dropped_does_not_hold_up_the_others():
    scene, trainer, bad, good = crowded(10_000)
    bad.send(1, body=bytes(8000))
    good.send(1, 2, 3, body=bytes(1000))
    trainer.full = False
    assert scene.relay.flush()
    assert [packet.worker for packet in trainer.heard(m.SamplePacket)] == ["good"] * 3


def test_what_a_message_takes_beside_its_bytes_counts_where_messages_are_kept():
    scene = Scene(max_waiting_bytes=100_000, max_policy_bytes=100_000)
    trainer, worker = scene.trainer(), scene.worker()
    trainer.full = True
    worker.send(*range(1, 301))
    assert scene.relay.counters.dropped >= 100
    trainer.full = False
    trainer.say(*(frame(1, index, 1000) for index in range(300)))
    assert "its policy is larger than 100000 bytes" in trainer.refusal.reason
    assert scene.ranks == {}


def test_a_message_that_is_larger_than_a_ranks_share_of_the_room_arrives():
    scene = Scene(max_waiting_bytes=10_000)
    first, second = (scene.trainer(f"t{n}", n, rank=m.Rank(n, 2, 7)) for n in (0, 1))
    scene.worker().send(1, 2, body=bytes(6000))
    assert first.entries + second.entries == [1, 2]


def test_new_names_and_processes_of_a_key_are_limited_and_the_seats_that_it_has_stay(caplog):
    scene = Scene(max_workers=10)
    bad = scene.peer(THIEF)
    for number in range(2000):
        bad.introduce("worker", f"b{number}").say(m.Bye())
    assert len(bad.heard(m.Welcome)) < 50
    assert len(caplog.records) < 300
    assert scene.worker("good", key=WORKER_ONLY).heard(m.Welcome)
    scene.now = 100.0
    assert bad.introduce("worker", "late").heard()[-1] == m.Welcome(0)


def test_refusals_of_a_key_do_not_fill_the_log(scene, caplog):
    for number in range(5000):
        scene.trainer(f"b{number}", key=THIEF).say_bytes(GARBAGE)
    assert len(caplog.records) < 300


def test_a_peer_that_tries_again_and_again_is_one_line_in_the_log(scene, trainer, caplog):
    for _ in range(10):
        scene.trainer("t2", 2)
    assert caplog.text.count("refused trainer t2") == 1
    assert scene.relay.counters.refused == 10


def test_signs_of_life_beyond_a_few_are_heard_and_not_passed_on(scene, trainer, worker):
    worker.say(*(m.Beat("w1", Condition(env_steps=i)) for i in range(1000)))
    assert 10 < len(trainer.heard(m.Beat)) < 300
    scene.now = 1.0
    worker.say(m.Beat("w1", Condition(env_steps=5)))
    assert trainer.heard(m.Beat)[-1].condition.env_steps == 5


def test_a_worker_that_keeps_its_process_may_connect_again_as_often_as_it_likes():
    scene = Scene(max_workers=1)
    assert all(scene.worker(key=WORKER_ONLY).heard(m.Welcome) for _ in range(200))
