"""A conversation in its own thread."""

import pytest
from kit.links import DeadLink, IdleRole

from tmrl_like.errors import RefusedError, ShortageError
from tmrl_like.session.session import Session
from tmrl_like.wire import messages as m


class Link(DeadLink):
    """A link to a server that sends one message."""

    def __init__(self, message):
        super().__init__()
        self.said, self.is_closed = [message], False

    def receive(self, timeout_s):
        return m.encode(self.said.pop()) if self.said else super().receive(timeout_s)

    def close(self):
        self.is_closed = True


def session_with(link):
    return Session(link, IdleRole(), m.Hello.of_this_process("worker", "w"))


def test_a_session_is_connected_until_it_is_closed():
    link = Link(m.Welcome(1, False))
    session = session_with(link)
    assert session.wait_connected(60.0)
    session.close()
    session.close()
    assert link.is_closed
    assert not session.connected


def test_what_ends_a_session_surfaces_in_its_owner(until):
    link = Link(m.Refusal("a key for another role"))
    session = session_with(link)
    until(lambda: session.failed)
    with pytest.raises(RefusedError, match="a key for another role"):
        session.check()
    until(lambda: link.is_closed)


def test_where_there_is_no_thread_the_link_is_closed(monkeypatch):
    def refuse(*_):
        raise ShortageError("no thread")

    monkeypatch.setattr("tmrl_like.session.session.start_thread", refuse)
    link = Link(m.Welcome(1, False))
    with pytest.raises(ShortageError):
        session_with(link)
    assert link.is_closed
