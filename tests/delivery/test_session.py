"""A peer's side of the conversation, over a link that the test holds in its hand."""

import time

import pytest
from house import IdleRole

from tmrl_like.delivery.session import Session
from tmrl_like.errors import ConfigError, RefusedError
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
