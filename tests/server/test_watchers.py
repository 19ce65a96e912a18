"""Watchers: what they see, and that they can do nothing else."""

import msgspec
import pytest
from kit.relays import BOTH, WORKER_ONLY

from tmrl_like.transport.base import Identity
from tmrl_like.wire import messages as m
from tmrl_like.wire.condition import Condition

WATCHER = Identity("tablet", ("watcher",))


@pytest.fixture
def watcher(scene):
    return scene.peer(WATCHER).introduce("watcher", "eye")


def views(peer):
    """Return each view that a peer has received, with its contents."""
    return [
        (message, msgspec.msgpack.decode(body, type=m.Sight))
        for message, body in peer.got
        if isinstance(message, m.View)
    ]


def look(watcher, view=m.View(0, 0)):  # noqa: B008 - no view was seen yet
    """Have a watcher ask what is new since a view; return the answer."""
    return views(watcher.say(m.Look(view=view.number, report=view.report)))[-1]


def test_a_watcher_sees_each_workers_newest_beat_with_its_age_and_who_trains(scene, watcher):
    assert watcher.heard(m.Welcome)
    beats = [m.Beat("w1", Condition(env_steps=steps)) for steps in (1, 2)]
    worker = scene.worker().say(*beats)
    worker.send(1)  # it keeps this one: there is no trainer
    scene.trainer()
    worker.send(1, samples=2)
    scene.now = 0.25
    _, sight = look(watcher)
    assert sight.workers == [(0.25, beats[1])]
    assert (sight.trainers, sight.counters["samples"]) == (["t1"], 2)


def test_a_watcher_gets_each_report_once_and_one_that_comes_late_those_that_are_kept(
    scene, watcher
):
    trainer = scene.trainer()
    for body in (b"0", b"1", b"2"):
        trainer.say(m.Report(), body=body)
    view, sight = look(watcher)
    assert sight.reports == [b"0", b"1", b"2"]
    large = bytes(m.MAX_REPORT_BYTES)
    trainer.say(*[m.Report()] * 20, body=large)
    trainer.say(m.Report(), body=large + b"!")
    view, sight = look(watcher, view)
    assert set(sight.reports) == {large}
    assert len(sight.reports) == 15  # and with what each takes beside its bytes, 1 MiB
    assert look(watcher, view)[1].reports == []


@pytest.mark.parametrize(
    ("key", "role"),
    [
        (WATCHER, "worker"),
        (WATCHER, "trainer"),
        (WORKER_ONLY, "watcher"),
    ],
)
def test_a_key_takes_no_seat_of_another_role(scene, key, role):
    refusal = scene.peer(key).introduce(role, "x").refusal
    assert f"the key '{key.name}' is not for a {role}" in refusal.reason
    assert f"tmrl-like keys invite NAME --role {role}" in refusal.reason
    assert (scene.workers, scene.ranks) == ([], {})
    assert scene.peer(BOTH).introduce("watcher", "y").heard(m.Welcome)


def test_a_watcher_that_does_not_read_is_answered_no_more(scene, watcher):
    watcher.say(*[m.Look()] * 10)
    assert [view.number for view, _ in views(watcher)] == [1]  # and it is not confirmed yet
    watcher.full = True
    watcher.say(m.Look(view=1))
    watcher.full = False
    assert look(watcher, m.View(1, 0))[0].number == 2


def test_there_are_few_watchers(scene, watcher):
    *seated, late = [
        scene.peer(WATCHER).introduce("watcher", f"eye{number}", number) for number in range(8)
    ]
    assert all(peer.heard(m.Welcome) for peer in seated)
    assert late.refusal.reason == "the server has its 8 watchers"


@pytest.mark.fault(
    "peers",
    "a watcher asks all the time, and comes again and again",
    "its key is answered 32 times a second",
)
def test_a_watcher_that_comes_again_and_again_gets_no_more_for_it(scene):
    newest = shown = 0
    for session in range(1, 31):
        peer = scene.peer(WATCHER).introduce("watcher", "again", session)
        for _ in range(10):
            peer.say(m.Look(view=newest))
            newest = max([newest, *(view.number for view, _ in views(peer))])
        shown += len(views(peer.say(m.Bye())))
    assert shown == 80
