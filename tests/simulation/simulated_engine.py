"""A simulated engine between servers and a trainer. Its stream refuses messages, doubles them, and
loses some that it had confirmed.

Gateway and reader use the package's own bookkeeping; nodes and connections are simulated by the
scheduler.
"""

from __future__ import annotations

from collections import deque

import msgspec

from tmrl_like.engine.backlog import Backlog
from tmrl_like.engine.subjects import feed_of
from tmrl_like.engine.tracks import Tracks
from tmrl_like.transport.base import Identity, Incoming
from tmrl_like.wire import messages as m

ENGINE = b"the engine"
IDENTITY = Identity("the engine", ("trainer",))
WORDS_KEPT = 100  # messages on their way from a trainer to a server; older ones are lost
HELLO_S = 1.0


class Stream:
    """The stream that the nodes hold: numbered messages.

    Attributes:
        refuses: whether no messages are accepted.
    """

    def __init__(self, world):
        self.world = world
        self.messages = deque()
        self.refuses = False
        self._newest = 0
        self.readers = []

    def publish(self, data):
        """Append a message and return its number, or 0 if it is refused."""
        if self.refuses:
            return 0
        # without an answer a client may publish a message again
        for _ in range(self.world.rng.choice((1, 1, 1, 2))):
            self._newest += 1
            self.messages.append((self._newest, data))
        return self._newest

    def lose(self, count):
        """Return to an older state, without the newest `count` messages."""
        for _ in range(min(count, len(self.messages))):
            self._newest = self.messages.pop()[0] - 1
        for reader in self.readers:
            reader.begin()


class Gateway:
    """A server's connection to the stream, which its relay takes for a trainer."""

    def __init__(self, server, stream):
        self._server, self._stream = server, stream
        self._tracks = Tracks()
        self._answers = deque()
        self._hello = m.Hello("trainer", "the engine", self._incarnation(), "")
        self._feed = 0
        self.words = deque(maxlen=WORDS_KEPT)  # acknowledgements of the trainer
        self._hello_at = 0.0

    def send(self, data):
        """Take a message that the relay sends to the trainer."""
        message, _ = m.decode(data)
        if isinstance(message, m.SamplePacket):
            is_taken = self._tracks.begins(message) and self._stream.publish(data) > 0
            self._answers.append((message, is_taken))
        elif isinstance(message, m.Beat) and message.worker:
            for reader in self._stream.readers:
                reader.arrived.append(data)
        return True

    def turn(self):
        now = self._server.clock()
        if now >= self._hello_at:
            self._hello_at = now + HELLO_S
            self._deliver(m.encode(self._hello))
        while self.words:
            self._tracks.on_ack(self.words.popleft())
        while self._answers:
            self._tracks.ends(*self._answers.popleft())
        for word in self._tracks.words():
            self._deliver(m.encode(word))

    def on_training(self, feed):
        """Note which training takes the samples; a new one takes over the seat."""
        if self._feed not in (0, feed):
            took_over = (self._hello.incarnation,)
            self._hello = msgspec.structs.replace(
                self._hello, incarnation=self._incarnation(), takes_over=took_over
            )
            self._hello_at = 0.0
        self._feed = feed

    def _incarnation(self):
        return self._server.world.rng.getrandbits(40) + 1

    def _deliver(self, data):
        self._server.relay.handle(Incoming(ENGINE, IDENTITY, data), self._server.clock())


class Reader:
    """A trainer's `PeerLink` to the stream."""

    is_lost = False

    def __init__(self, process, stream):
        self._process, self._stream = process, stream
        self._backlog = Backlog()
        self._feed = process.world.rng.getrandbits(40) + 1
        self._training = self._feed
        self.arrived = deque()
        stream.readers.append(self)
        self.begin()

    def begin(self):
        """Read the stream from its first message."""
        self._read_to = 0
        self._backlog.begin()

    def receive(self, timeout_s):
        self._read()
        for server in self._process.world.servers:
            if server.is_alive:
                server.gateway.on_training(self._training)
        return self.arrived.popleft() if self.arrived else None

    def _read(self):
        now = self._process.clock()
        if self._backlog.is_over:
            self.begin()
        ahead = [(number, data) for number, data in self._stream.messages if number > self._read_to]
        if ahead and self._backlog.has_room(now):
            self._read_to, data = ahead[0]
            self._backlog.add(m.decode(data)[0], self._read_to, len(data), now)
            self._backlog.note(self._read_to, len(ahead) - 1)
            self.arrived.append(data)
        below = self._backlog.purge(now) or 0
        while self._stream.messages and self._stream.messages[0][0] < below:
            self._stream.messages.popleft()

    def send(self, data):
        message, _ = m.decode(data)
        if isinstance(message, m.Hello):
            self._training = feed_of(message.run) or self._feed
            self.arrived.append(m.encode(m.Welcome(self._feed)))
        elif isinstance(message, m.Ack):
            self._process.world.auditor.on_sent(data, self._process)
            self._say(self._backlog.on_ack(message))
        return True

    def _say(self, ack):
        for server in self._process.world.servers:
            if server.is_alive:
                server.gateway.words.append(ack)

    def wake(self):
        pass

    def close(self):
        if self in self._stream.readers:
            self._stream.readers.remove(self)
