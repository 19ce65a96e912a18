"""The trainer's end of delivery in a test, without a connection or a training thread."""

from kit.packets import answers_of, numbered, packet_of

from tmrl_like.delivery.receiver import Receiver
from tmrl_like.wire import messages as m


def trainer_of(store):
    """Return a trainer with a sample store."""
    store.keep_samples = 100
    return Trainer(store=store, run="run")


class Trainer:
    """A receiver whose training thread is played by the test."""

    def __init__(self, **options):
        self.receiver = Receiver(**options)
        self.inbox = []
        self.now = 0.0

    def give(self, first, newest=None, samples=None, **header):
        """Give the receiver a packet of samples that are numbered like their entries."""
        numbers = range(first, (newest or first) + 1) if samples is None else samples
        self.give_bytes(packet_of(first, *map(numbered, numbers), **header))

    def give_bytes(self, message, admit=lambda packet: True):
        packet, body = m.decode(message)
        self.inbox += self.receiver.take(packet, body, message, self.now, admit)

    def store(self, count=None):
        """Store what has arrived, or its first `count` deliveries."""
        stored = self.inbox[:count]
        del self.inbox[:count]
        self.receiver.confirm([delivery.receipt for delivery in stored])
        self.receiver.write(self.now)

    @property
    def metrics(self):
        return self.receiver.metrics()

    @property
    def taken(self):
        """(number, name of the stream) of each sample that waits for the memory."""
        return [
            (int(sample.obs), d.buffer.stream) for d in self.inbox for sample in d.buffer.memory
        ]

    def due(self):
        return answers_of(self.receiver)

    def write(self, now):
        """Store all that waits; return what is acknowledged to the worker: received and stored
        entries.
        """
        self.now = now
        self.store()
        return [(ack.received, ack.stored) for ack in self.due()]

    def take(self, entry, now):
        """Give a packet and store it at once; return as `write` does."""
        self.give(entry)
        return self.write(now)
