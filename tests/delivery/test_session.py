"""A peer's side of the conversation, over a link that the test holds in its hand."""

import time

import pytest
from house import IdleRole

from tmrl_like.delivery.session import Session
from tmrl_like.errors import ConfigError, CredentialsError, RefusedError
from tmrl_like.transport.ring import RingLink
from tmrl_like.wire import messages as m


class Link:
    """Takes nothing until `open`; `sent` is what it took, `refused` counts the rest."""

    def __init__(self) -> None:
        self.open = False
        self.refused = 0
        self.sent: list[object] = []
        self.said: list[m.AnyMessage] = []  # by the server

    def send(self, data):
        if self.open:
            self.sent.append(m.decode(data)[0])
        else:
            self.refused += 1
        return self.open

    def receive(self, timeout_s):
        if self.said:
            return m.encode(self.said.pop(0))
        time.sleep(min(timeout_s, 0.01))
        return None

    def wake(self):
        pass

    def close(self):
        pass


def test_a_hello_that_found_no_connection_does_not_wait_for_its_next_turn(until, monkeypatch):
    monkeypatch.setattr("tmrl_like.delivery.session._HELLO_EVERY_S", 1e9)
    link = Link()
    session = Session(link, "nowhere", IdleRole(), "worker", "w")
    until(lambda: link.refused)
    link.open = True
    until(lambda: link.sent)
    session.close()
    assert isinstance(link.sent[0], m.Hello)


def test_a_refusal_that_can_pass_is_tried_again_for_as_long_as_it_takes(until, caplog):
    link = Link()
    link.open = True
    session = Session(link, "nowhere", IdleRole(), "worker", "w")
    for hellos in range(1, 6):
        until(lambda hellos=hellos: len(link.sent) >= hellos)
        link.said.append(m.Refusal("the server is full", 0.0))
    assert not session.wait_connected(0.0)
    link.said.append(m.Welcome(1, False))
    until(lambda: session.connected)
    session.close()
    assert len([r for r in caplog.records if "the server is full" in r.getMessage()]) == 1


def test_a_worker_that_is_dismissed_for_a_while_says_so_and_comes_back(until, caplog):
    link = Link()
    link.open = True
    link.said.append(m.Welcome(1, False))
    session = Session(link, "nowhere", IdleRole(), "worker", "w")
    until(lambda: session.connected)
    link.said.append(m.Refusal("another trainer", 0.0))
    until(lambda: not session.connected)
    link.said.append(m.Welcome(2, False))
    until(lambda: session.connected)
    session.close()
    assert "silent" not in caplog.text  # it was the refusal that it heard


def test_a_server_that_refuses_is_not_missed_until_it_is_gone(caplog, monkeypatch):
    monkeypatch.setattr("tmrl_like.delivery.session.unknown_host", lambda addresses: "")
    link = Link()
    link.takes_turns = link.open = True
    session = Session(link, "nowhere", IdleRole(), "worker", "w")
    for _ in range(3):
        link.said.append(m.Refusal("the server is full", 5.0))
        pass_s(session, 5.0)
    assert [r.getMessage() for r in caplog.records] == ["the server is full; trying again every 5 s"]
    pass_s(session, 5.0)
    assert "no server answers at nowhere: is `tmrl-like server` running there? Trying on" in caplog.text
    session.close()


def test_a_refusal_for_good_ends_the_session(until):
    link = Link()
    link.said.append(m.Refusal("a key for another role"))
    session = Session(link, "nowhere", IdleRole(), "worker", "w")
    until(lambda: session.failed)
    with pytest.raises(RefusedError, match="a key for another role"):
        session.check()


@pytest.mark.parametrize("name", ["two\nlines", "\x1b[31mred", "n" * 201])
def test_a_name_that_no_server_takes_is_refused_at_once(name):
    with pytest.raises(ConfigError, match=r"name is .* printable characters"):
        Session(Link(), "nowhere", IdleRole(), "worker", name)


class Ring(RingLink):
    """Over links that the test holds; time passes by turns, 100 in a second."""

    takes_turns = True

    def __init__(self, *addresses):
        self.links = {}  # by address, the one that was dialled last
        self.dialled = []
        super().__init__(addresses, self._make)

    def _make(self, address):
        self.dialled.append(address)
        link = self.links[address] = Link()
        link.open, link.is_lost, link.error = True, False, None
        return link

    def receive(self, timeout_s):
        link = self.links[self.where]
        if link.error:
            raise link.error
        return link.receive(0.0)


def pass_s(session, seconds):
    for _ in range(int(seconds * 100)):
        session.turn()


@pytest.fixture
def ring():
    return Ring("a:1", "b:2")


@pytest.fixture
def over_ring(ring):
    session = Session(ring, "", IdleRole(), "worker", "w")
    yield session
    session.close()


def welcome(ring, session):
    ring.links[ring.where].said.append(m.Welcome(1, False))
    session.turn()
    assert session.connected


def test_a_server_that_is_silent_is_left_for_the_next_one(ring, over_ring, caplog):
    welcome(ring, over_ring)
    first = ring.links["a:1"]
    for _ in range(5):
        first.said.append(m.Beat())
        pass_s(over_ring, 2.0)
    assert ring.dialled == ["a:1"]
    pass_s(over_ring, 1.5)
    assert ring.dialled == ["a:1", "b:2"]
    assert isinstance(first.sent[-1], m.Bye)
    assert isinstance(ring.links["b:2"].sent[0], m.Hello)
    assert not over_ring.connected
    welcome(ring, over_ring)
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [
        next(r.getMessage() for r in caplog.records if "a:1 has been silent" in r.getMessage())
    ]


def test_a_connection_that_is_lost_is_not_waited_for(ring, over_ring, caplog):
    welcome(ring, over_ring)
    pass_s(over_ring, 1.0)
    ring.links["a:1"].is_lost = True
    pass_s(over_ring, 0.6)
    assert ring.where == "b:2"
    assert "the server at a:1 is lost: dialling the one at b:2" in caplog.text


def test_all_servers_are_dialled_in_turn_until_one_answers_and_that_is_said_once(ring, over_ring, caplog, monkeypatch):
    asked = []
    monkeypatch.setattr("tmrl_like.delivery.session.unknown_host", lambda addresses: asked.append(addresses) or "why?")
    pass_s(over_ring, 60.0)
    assert ring.dialled[:4] == ["a:1", "b:2", "a:1", "b:2"]
    assert len(ring.dialled) < 12  # a slow link gets more time
    assert [r.getMessage() for r in caplog.records] == ["no server answers at a:1, b:2: why? Trying on"]
    assert asked == [("a:1", "b:2")]
    welcome(ring, over_ring)


def test_a_server_that_takes_no_more_workers_leaves_them_to_the_next_one(ring, over_ring):
    ring.links["a:1"].said.append(m.Refusal("the server has its 3 workers", 2.0))
    pass_s(over_ring, 1.9)
    assert ring.where == "a:1"
    pass_s(over_ring, 1.0)
    assert ring.where == "b:2"
    welcome(ring, over_ring)


def test_a_key_that_one_server_does_not_know_is_tried_with_the_others(ring, over_ring, caplog):
    ring.links["a:1"].error = CredentialsError("a:1 refuses this machine's key")
    over_ring.turn()
    assert ring.where == "b:2"
    assert "a:1 refuses this machine's key; trying the other servers" in caplog.text
    welcome(ring, over_ring)
    ring.links["b:2"].is_lost = True
    pass_s(over_ring, 0.6)
    ring.links["a:1"].error = CredentialsError("a:1 refuses this machine's key")
    over_ring.turn()
    ring.links["b:2"].error = CredentialsError("b:2 refuses this machine's key")
    with pytest.raises(CredentialsError, match="b:2 refuses"):
        over_ring.turn()
