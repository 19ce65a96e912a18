"""Who only looks: what it is shown, and that it can do nothing else."""

import math

import msgspec
import pytest
from relay_kit import BOTH, FakeLink, frame, give, hello, packet

from tmrl_like.server.relay import Relay
from tmrl_like.transport.base import Identity
from tmrl_like.wire import messages as m
from tmrl_like.wire.condition import Condition

WATCHER = Identity("tablet", ("watcher",))


class Link(FakeLink):
    """Keeps the bodies of views, too."""

    def __init__(self):
        super().__init__()
        self.sights = []

    def send(self, peer, data):
        message, body = m.decode(data)
        if isinstance(message, m.View) and peer not in self.full:
            self.sights.append((message, msgspec.msgpack.decode(body, type=m.Sight)))
        return super().send(peer, data)


@pytest.fixture
def link():
    return Link()


@pytest.fixture
def relay(link):
    relay = Relay(link)
    give(relay, b"eye", hello("watcher", "eye"), WATCHER)
    return relay


def look(relay, link, now=0.0, **seen):
    give(relay, b"eye", m.Look(**seen), WATCHER, now)
    return link.sights[-1]


def test_a_watcher_sees_each_workers_newest_beat_with_its_age_and_who_trains(relay, link):
    assert link.to(b"eye", m.Welcome)
    give(relay, b"w", hello())
    give(relay, b"t", hello("trainer", "t1"))
    give(relay, b"w", m.Beat("w1", Condition(env_steps=1)), now=1.0)
    give(relay, b"w", m.Beat("w1", Condition(env_steps=2, returns=(1.5, 2.5))), now=2.0)
    _, sight = look(relay, link, now=2.25)
    assert sight.workers == [(0.25, m.Beat("w1", Condition(env_steps=2, returns=(1.5, 2.5))))]
    assert (sight.trainers, sight.counters["samples"]) == (["t1"], 0)


def test_a_beat_with_a_number_that_is_not_finite_is_no_message(relay, link):
    give(relay, b"w", hello())
    for returns in ((1.0, math.nan), (math.inf,), (1.0,)):
        give(relay, b"w", m.Beat("w1", Condition(returns=returns)))
    assert look(relay, link)[1].workers == [(0.0, m.Beat("w1", Condition(returns=(1.0,))))]
    assert relay.counters.malformed == 2


def test_a_watcher_gets_each_report_once_and_one_that_comes_late_those_that_are_kept(relay, link):
    give(relay, b"t", hello("trainer", "t1"))
    for number in range(3):
        give(relay, b"t", m.Report(), body=b"%d" % number)
    view, sight = look(relay, link)
    assert sight.reports == [b"0", b"1", b"2"]
    give(relay, b"t", m.Report(), body=b"3")
    view, sight = look(relay, link, view=view.number, report=view.report)
    assert sight.reports == [b"3"]
    large = bytes(m.MAX_REPORT_BYTES)
    for _ in range(20):
        give(relay, b"t", m.Report(), body=large)
    give(relay, b"t", m.Report(), body=large + b"!")
    view, sight = look(relay, link, view=view.number, report=view.report)
    assert set(sight.reports) == {large}
    assert 0.9 * m.MAX_REPORTS_BYTES < sum(map(len, sight.reports)) <= m.MAX_REPORTS_BYTES
    assert look(relay, link, view=view.number, report=view.report)[1].reports == []


@pytest.mark.parametrize("message", [packet(), frame(), m.Report(), m.Ack("w1", 1, 9, 9), m.Dismissal("w1", 1, "no")])
def test_a_watcher_that_does_anything_but_look_loses_its_place(relay, link, message):
    give(relay, b"w", hello())
    give(relay, b"t", hello("trainer", "t1"))
    before = len(link.to(b"w")), len(link.to(b"t"))
    give(relay, b"eye", message, WATCHER, body=b"{}")
    (refusal,) = link.to(b"eye", m.Refusal)
    assert f"a watcher does not send {type(message).__name__}" in refusal.reason
    assert (len(link.to(b"w")), len(link.to(b"t"))) == before
    give(relay, b"eye", m.Look(), WATCHER)
    assert link.sights == []


@pytest.mark.parametrize("role", ["worker", "trainer"])
def test_a_watchers_key_takes_no_seat(relay, link, role):
    give(relay, b"x", hello(role, "x"), WATCHER)
    (refusal,) = link.to(b"x", m.Refusal)
    assert refusal.reason.startswith(f"the key 'tablet' is not for a {role}")
    assert relay.workers == {}
    assert relay.trainer is None


def test_a_workers_key_may_not_look_and_a_trainers_may(relay, link):
    give(relay, b"x", hello("watcher", "x"), Identity("lab", ("worker",)))
    assert link.to(b"x", m.Refusal)[0].reason.endswith("tmrl-like keys invite NAME --role watcher`")
    give(relay, b"y", hello("watcher", "y"), BOTH)
    assert link.to(b"y", m.Welcome)


def test_a_watcher_that_does_not_read_or_asks_all_the_time_is_answered_no_more(relay, link):
    for _ in range(10):
        give(relay, b"eye", m.Look(), WATCHER)
    assert [view.number for view, _ in link.sights] == [1]  # and it has not arrived
    for number in range(1, 200):
        give(relay, b"eye", m.Look(view=number), WATCHER, now=1.0)
    assert len(link.sights) == 1 + 80  # at most so many at once
    link.full.add(b"eye")
    give(relay, b"eye", m.Look(view=199), WATCHER, now=100.0)
    link.full.clear()
    assert look(relay, link, now=101.0, view=199)[0].number == 82


def test_there_are_few_watchers(relay, link):
    for number in range(9):
        give(relay, b"eye%d" % number, hello("watcher", f"eye{number}", number), WATCHER)
    (refusal,) = [message for _, message in link.sent if isinstance(message, m.Refusal)][:1]
    assert refusal.reason == "the server has its 8 watchers"


@pytest.mark.fault(
    "peers", "a watcher asks all the time, and comes again and again", "its key is answered 32 times a second"
)
def test_a_watcher_that_comes_again_and_again_gets_no_more_for_it(relay, link):
    for number in range(30):
        peer = b"again%d" % number
        give(relay, peer, hello("watcher", "again", number + 1), WATCHER)
        for _ in range(10):
            view = link.sights[-1][0].number if link.sights else 0
            give(relay, peer, m.Look(view=view), WATCHER)
        give(relay, peer, m.Bye(), WATCHER)
    assert len(link.sights) == 80
