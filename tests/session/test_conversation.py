"""A peer's side of the protocol, with links and a clock that the test controls."""

import pytest
from kit.clocks import Clock
from kit.rings import DeadLink, IdleRole

from tmrl_like.errors import CredentialsError, RefusedError, ShortageError, TransportError
from tmrl_like.session import conversation as module
from tmrl_like.session.conversation import Conversation
from tmrl_like.session.ring import Ring
from tmrl_like.wire import messages as m

HELLO = m.Hello("worker", "w", 1, "0")
WELCOME = m.Welcome(1, False)
NOT_KNOWN = CredentialsError("it refuses this machine's key")


class Link(DeadLink):
    """A link to a server played by the test. `sent`: messages that it accepted; `refused`: how many
    it did not; `said`: messages of the server.
    """

    is_open, is_closed, error = True, False, None

    def __init__(self):
        self.sent, self.refused, self.said = [], 0, []

    def send(self, data):
        if self.is_open:
            self.sent.append(m.decode(data)[0])
        else:
            self.refused += 1
        return self.is_open

    def receive(self, timeout_s):
        if self.error:
            raise self.error
        return self.said.pop(0) if self.said else None

    def close(self):
        self.is_closed = True


class Scene:
    """A conversation with servers; `pass_s` lets time pass, with 100 turns a second."""

    def __init__(self, *addresses, is_quiet=False):
        self.links, self.dialled, self.clock = {}, [], Clock()
        self.cannot_dial = None  # the error, if so
        self.ring = Ring(addresses, self._dial, is_quiet)
        self.role = IdleRole()
        self.conversation = Conversation(self.ring, self.role, HELLO, self.clock)

    def _dial(self, address):
        if self.cannot_dial:
            raise self.cannot_dial
        self.dialled.append(address)
        return self.links.setdefault(address, Link())

    @property
    def link(self):
        return self.links[self.ring.where]

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
def known_hosts(monkeypatch):
    monkeypatch.setattr(module, "unknown_host", lambda addresses: "")


@pytest.fixture
def alone(known_hosts):
    return Scene("a:1")


@pytest.fixture
def two(known_hosts):
    return Scene("a:1", "b:2")


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_a_role_gets_a_message_its_body_and_the_whole_of_it(alone, monkeypatch):
    heard, frame = [], m.PolicyFrame(1, 0, 1, 4, 1.0)
    monkeypatch.setattr(alone.role, "on_message", lambda *message: heard.append(message))
    alone.say(frame, b"body")
    assert heard == [(frame, b"body", m.encode(frame, b"body"))]


def test_a_hello_that_found_no_connection_does_not_wait_for_its_next_turn(alone):
    alone.link.is_open = False
    alone.pass_s(0.7)
    assert alone.link.refused > 1
    alone.link.is_open = True
    alone.pass_s(0.1)
    assert alone.link.sent == [HELLO]


def test_a_refusal_that_can_pass_is_tried_again_for_as_long_as_it_takes_and_said_once(
    alone, caplog
):
    for hellos in range(1, 6):
        alone.pass_s(1.0)
        assert len(alone.link.sent) == hellos
        alone.say(m.Refusal("the server is full", 0.5))
        assert not alone.is_welcome
    assert lines(caplog) == ["the server is full; trying again every 0 s"]
    alone.say(WELCOME)
    assert alone.is_welcome


def test_a_server_that_refuses_is_not_missed_until_it_is_gone(alone, caplog):
    for _ in range(3):
        alone.say(m.Refusal("the server is full", 5.0))
        alone.pass_s(5.0)
    assert lines(caplog) == ["the server is full; trying again every 5 s"]
    alone.pass_s(5.0)
    assert lines(caplog)[1:] == [
        "no server answers at a:1: is `tmrl-like server` running there, with its keys unchanged? "
        "Still trying"
    ]


def test_a_refusal_for_good_ends_it(alone):
    with pytest.raises(RefusedError, match="a key for another role"):
        alone.say(m.Refusal("a key for another role"))


@pytest.mark.parametrize("end", ["silent", "lost"])
def test_the_only_server_is_waited_for_and_not_dialled_again(alone, caplog, end):
    alone.say(WELCOME)
    alone.pass_s(1.0)
    alone.link.is_lost = end == "lost"
    alone.pass_s(12.0)
    assert not alone.is_welcome
    assert alone.dialled == ["a:1"]
    assert m.Bye() not in alone.link.sent
    assert len(lines(caplog)) == 2
    alone.link.is_lost = False
    alone.say(WELCOME)
    assert alone.is_welcome


def test_a_server_that_wants_a_hello_gets_one_and_its_welcome_is_new(alone, monkeypatch):
    news = []
    monkeypatch.setattr(alone.role, "on_welcome", lambda welcome, is_new: news.append(is_new))
    alone.pass_s(1.0)
    for message in (WELCOME, WELCOME, m.HelloWanted(), WELCOME):
        alone.say(message)
    assert news == [True, False, True]
    assert alone.link.sent[-1] == HELLO


def test_a_link_that_speaks_for_itself_is_not_spoken_for(known_hosts, caplog):
    scene = Scene("a:1", is_quiet=True)
    scene.say(WELCOME)
    scene.pass_s(20.0)
    assert not scene.is_welcome
    assert not caplog.records


def test_a_server_that_is_silent_is_left_for_the_next_one(two, caplog):
    two.say(WELCOME)
    first = two.link
    for _ in range(5):
        two.say(m.Beat())
        two.pass_s(2.0)
    assert two.dialled == ["a:1"]
    two.pass_s(1.5)
    assert two.dialled == ["a:1", "b:2"]
    assert (first.sent[-1], two.link.sent[0]) == (m.Bye(), HELLO)
    assert not two.is_welcome
    (line,) = lines(caplog)
    assert line.startswith("the server at a:1 has been silent for 2.")


def test_all_servers_are_dialled_in_turn_until_one_answers_and_that_is_said_once(two, caplog):
    two.pass_s(60.0)
    assert two.dialled[:4] == ["a:1", "b:2", "a:1", "b:2"]
    assert len(two.dialled) < 12  # slow links are given more time
    (line,) = lines(caplog)
    assert line.startswith("no server answers at a:1, b:2: is `tmrl-like server` running there, ")
    two.say(WELCOME)
    assert two.is_welcome


def test_a_server_that_takes_no_more_workers_leaves_them_to_the_next_one(two):
    two.say(m.Refusal("the server has its 3 workers", 2.0))
    two.pass_s(1.9)
    assert two.ring.where == "a:1"
    two.pass_s(1.0)
    assert two.ring.where == "b:2"


def test_a_key_that_one_server_does_not_know_is_tried_with_the_others(two, caplog):
    two.link.error = NOT_KNOWN
    two.conversation.turn(0.0)
    assert two.ring.where == "b:2"
    assert lines(caplog) == ["it refuses this machine's key; trying the other servers"]
    two.say(WELCOME)
    two.link.is_lost = True
    two.pass_s(0.6)
    two.links["b:2"].error = NOT_KNOWN
    with pytest.raises(CredentialsError):
        two.conversation.turn(0.0)


@pytest.mark.fault(
    "resources",
    "no thread is left to dial the next server",
    "the peer stays where it is, one line, and tries again",
)
@pytest.mark.parametrize(
    "error",
    [
        ShortageError("the thread zmq cannot be started"),
        CredentialsError("cannot read peer.json: Stale file handle"),
        TransportError("bücher.example:7790 is not an address to connect to: Invalid argument"),
    ],
)
def test_a_server_that_cannot_be_dialled_now_ends_nothing(two, caplog, error):
    two.say(WELCOME)
    first, two.cannot_dial = two.link, error
    two.pass_s(10.0)
    assert two.ring.where == "a:1"
    assert not first.is_closed
    assert caplog.text.count(f"another server is not dialled: {error}") == 1
    two.cannot_dial = None
    two.pass_s(15.0)
    assert two.dialled[:2] == ["a:1", "b:2"]
    assert first.is_closed


def test_who_leaves_sends_what_waits_and_says_goodbye(alone, monkeypatch):
    waits = [True, True, False]
    monkeypatch.setattr(alone.role, "pending", lambda: waits.pop(0))
    alone.say(WELCOME)
    alone.conversation.end(1.0)
    assert not waits
    assert alone.link.sent[-1] == m.Bye()
