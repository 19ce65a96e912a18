"""A peer's side of the protocol, with links and a clock that the test controls."""

import pytest
from kit.clocks import Clock
from kit.links import DeadLink, IdleRole

from tmrl_like.errors import CredentialsError
from tmrl_like.session import conversation as module
from tmrl_like.session.conversation import Conversation
from tmrl_like.wire import messages as m

HELLO = m.Hello("worker", "w", 1, "0")
WELCOME = m.Welcome(1, False)


class Link(DeadLink):
    """A link to a server played by the test. `sent`: messages that it accepted; `said`: messages of
    the server.
    """

    where, is_open, error = "a:1", True, None

    def __init__(self):
        self.sent, self.said = [], []

    def send(self, data):
        if self.is_open:
            self.sent.append(m.decode(data)[0])
        return self.is_open

    def receive(self, timeout_s):
        if self.error:
            raise self.error
        return self.said.pop(0) if self.said else None


class Scene:
    """A conversation with a server; `pass_s` lets time pass, with 100 turns a second."""

    def __init__(self):
        self.link, self.role, self.clock = Link(), IdleRole(), Clock()
        self.conversation = Conversation(self.link, self.role, HELLO, self.clock)

    @property
    def is_welcome(self):
        return self.conversation.welcomed.is_set()

    def pass_s(self, seconds):
        for _ in range(round(seconds * 100)):
            self.clock.now += 0.01
            self.conversation.turn(0.0)

    def say(self, message, body=b""):
        self.link.said.append(m.encode(message, body))
        self.conversation.turn(0.0)


@pytest.fixture
def scene(monkeypatch):
    monkeypatch.setattr(module, "unknown_host", lambda address: "")
    return Scene()


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_a_hello_that_found_no_connection_does_not_wait_for_its_next_turn(scene):
    scene.link.is_open = False
    scene.pass_s(0.7)
    scene.link.is_open = True
    scene.pass_s(0.1)
    assert scene.link.sent == [HELLO]


def test_a_refusal_that_can_pass_is_tried_again_for_as_long_as_it_takes_and_said_once(
    scene, caplog
):
    for hellos in range(1, 6):
        scene.pass_s(1.0)
        assert len(scene.link.sent) == hellos
        scene.say(m.Refusal("the server is full", 0.5))
        assert not scene.is_welcome
    assert lines(caplog) == ["the server is full; trying again every 0 s"]
    scene.say(WELCOME)
    assert scene.is_welcome


def test_a_server_that_refuses_is_not_missed_until_it_is_gone(scene, caplog):
    for _ in range(3):
        scene.say(m.Refusal("the server is full", 5.0))
        scene.pass_s(5.0)
    assert lines(caplog) == ["the server is full; trying again every 5 s"]
    scene.pass_s(5.0)
    assert lines(caplog)[1:] == [
        "no server answers at a:1: is `tmrl-like server` running there, with its keys unchanged? "
        "Still trying"
    ]


def test_a_key_that_the_server_refuses_ends_it(scene):
    scene.link.error = CredentialsError("it refuses this machine's key")
    with pytest.raises(CredentialsError):
        scene.conversation.turn(0.0)


@pytest.mark.parametrize(
    ("is_lost", "after_s", "why"),
    [(False, 2.4, "has been silent for 2."), (True, 0.4, "is lost: waiting for it")],
)
def test_a_server_that_is_gone_is_waited_for(scene, caplog, is_lost, after_s, why):
    scene.say(WELCOME)
    scene.link.is_lost = is_lost
    scene.pass_s(after_s)
    assert scene.is_welcome
    scene.pass_s(0.7)
    assert not scene.is_welcome
    scene.pass_s(12.0)
    first, second = lines(caplog)
    assert first.startswith(f"the server at a:1 {why}")
    assert second.startswith("no server answers at a:1: is `tmrl-like server` running there, ")
    scene.link.is_lost = False
    scene.say(WELCOME)
    assert scene.is_welcome


def silence_endured_s(scene):
    """Return how long a server that has just spoken may be silent before it counts as gone."""
    scene.say(WELCOME)
    started = scene.clock.now
    while scene.is_welcome:
        scene.pass_s(0.1)
    return scene.clock.now - started


def test_a_server_that_is_often_silent_gets_more_time(scene):
    endured_s = [silence_endured_s(scene) for _ in range(8)]
    assert endured_s[0] == pytest.approx(2.5, abs=0.6)
    assert endured_s[:6] == sorted(endured_s[:6])
    assert endured_s[-1] == pytest.approx(15.0, abs=0.6)
    scene.say(WELCOME)
    for _ in range(40):  # it says something now and then
        scene.say(m.Beat())
        scene.pass_s(2.0)
        assert scene.is_welcome
    silence_endured_s(scene)
    assert silence_endured_s(scene) == pytest.approx(2.5, abs=0.6)


def test_a_server_that_wants_a_hello_gets_one_and_its_welcome_is_new(scene, monkeypatch):
    news = []
    monkeypatch.setattr(scene.role, "on_welcome", lambda welcome, is_new: news.append(is_new))
    scene.pass_s(1.0)
    for message in (WELCOME, WELCOME, m.HelloWanted(), WELCOME):
        scene.say(message)
    assert news == [True, False, True]
    assert scene.link.sent[-1] == HELLO


def test_a_link_that_speaks_for_itself_is_not_spoken_for(scene, caplog):
    scene.link.logs_itself = True
    scene.say(WELCOME)
    scene.pass_s(20.0)
    assert not scene.is_welcome
    assert not caplog.records


def test_who_leaves_sends_what_waits_and_says_goodbye(scene, monkeypatch):
    waits = [True, True, False]
    monkeypatch.setattr(scene.role, "pending", lambda: waits.pop(0))
    scene.say(WELCOME)
    scene.conversation.end(1.0)
    assert not waits
    assert scene.link.sent[-1] == m.Bye()
