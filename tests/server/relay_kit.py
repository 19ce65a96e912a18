"""A relay in a test: a link that remembers, and messages to give to it."""

from tmrl_like.transport.base import Identity, Incoming
from tmrl_like.wire import messages as m

BOTH = Identity("local", ("worker", "trainer"))
WORKER_ONLY = Identity("lab", ("worker",))
OTHER_WORKER = Identity("car", ("worker",))
TRAINER_ONLY = Identity("gpu", ("trainer",))
SPACES = m.Spaces("Box(4)", "Box(2)")


class FakeLink:
    """Records what the relay sends; `full` peers take nothing."""

    address = ("fake", 1)

    def __init__(self):
        self.sent = []
        self.full = set()

    def send(self, peer, data):
        if peer in self.full:
            return False
        self.sent.append((peer, m.decode(data)[0]))
        return True

    def forget(self, peer):
        pass

    def to(self, peer, kind=None):
        return [msg for p, msg in self.sent if p == peer and (kind is None or isinstance(msg, kind))]


def hello(role="worker", name="w1", session=1, spaces=SPACES, takes_over=()):
    return m.Hello(role, name, session, "0", spaces, takes_over=takes_over)


def give(relay, peer, message, identity=BOTH, now=0.0, body=b""):
    relay.handle(Incoming(peer, identity, m.encode(message, body)), now)


def seat_both(relay):
    """A trainer at t, and the worker w1 at w."""
    give(relay, b"t", hello("trainer", "t1"))
    give(relay, b"w", hello())


def packet(name="w1", session=1, first=1, samples=5, **fields):
    """Of so many samples, or of the report of an episode."""
    last = first + max(samples, 1) - 1
    return m.SamplePacket(name, session, first, last, 1, 0, samples, 0, False, **fields)


def frame(version=1, index=0, frames=1):
    return m.PolicyFrame(version, index, frames, 10, 0.0)
