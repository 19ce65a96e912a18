"""A relay in a test, and peers that send it messages: no threads, no sockets, and a clock that the
test moves.
"""

from kit.packets import header

from tmrl_like.server.relay import Relay
from tmrl_like.transport.base import Identity, Incoming
from tmrl_like.wire import messages as m

BOTH = Identity("local", ("worker", "trainer"))
WORKER_ONLY = Identity("lab", ("worker",))
OTHER_WORKER = Identity("car", ("worker",))
SPACES, OTHER_SPACES = m.Spaces("Box(4)", "Box(2)"), m.Spaces("Box(3)", "Box(2)")


class Peer:
    """A peer's connection with its key; while it is `full`, it accepts no messages."""

    def __init__(self, scene, number, key):
        self.id, self.key = b"%d" % number, key
        self.full = False
        self.got = []  # messages received, each with its body
        self._scene = scene

    def introduce(self, role, name, session=1, spaces=SPACES, **fields):
        self.name, self.session = name, session
        return self.say(m.Hello(role, name, session, "0", spaces, **fields))

    def say(self, *messages, body=b""):
        for message in messages:
            self.say_bytes(m.encode(message, body))
        return self

    def say_bytes(self, data):
        self._scene.relay.handle(Incoming(self.id, self.key, data), self._scene.now)

    def send(self, *firsts, samples=1, body=b"", **fields):
        """Send a packet for each of these first entries, with `samples` samples or, if 0, with an
        episode's report.
        """
        fields = {"worker": self.name, "incarnation": self.session, "samples": samples} | fields
        for first in firsts:
            self.say(header(first, first + max(samples, 1) - 1, **fields), body=body)

    def heard(self, kind=object):
        return [message for message, _ in self.got if isinstance(message, kind)]

    @property
    def entries(self):
        """First entry of each packet that the peer has received."""
        return [packet.first for packet in self.heard(m.SamplePacket)]

    @property
    def policies(self):
        return [frame.version for frame in self.heard(m.PolicyFrame)]

    @property
    def feed(self):
        return self.heard(m.Welcome)[-1].feed

    @property
    def refusal(self):
        """The newest refusal, or None."""
        return (self.heard(m.Refusal) or [None])[-1]


class Scene:
    """A relay with its peers, connected by this stand-in of a `ServerLink`."""

    address = ("fake", 1)

    def __init__(self, **options):
        self.now = 0.0
        self.relay = Relay(self, **options)
        self.peers = {}
        self.revoked = set()  # names of keys

    def send(self, peer, data):
        if self.peers[peer].full:
            return False
        self.peers[peer].got.append(m.decode(data))
        return True

    def is_valid(self, key):
        return key not in self.revoked

    def forget(self, peer):
        """Do nothing: nothing is kept about peers."""

    def peer(self, key=BOTH):
        peer = Peer(self, len(self.peers), key)
        self.peers[peer.id] = peer
        return peer

    def worker(self, name="w1", session=1, key=BOTH, **fields):
        return self.peer(key).introduce("worker", name, session, **fields)

    def trainer(self, name="t1", session=1, key=BOTH, **fields):
        return self.peer(key).introduce("trainer", name, session, **fields)

    @property
    def workers(self):
        """The workers that have a seat."""
        return [self.peers[seat.peer] for seat in self.relay.workers.values()]

    @property
    def ranks(self):
        """The trainers that have a seat, by rank."""
        return {rank: self.peers[seat.peer] for rank, seat in self.relay.ranks.items()}


def frame(version=1, index=0, frames=1):
    return m.PolicyFrame(version, index, frames, 10, 0.0)
