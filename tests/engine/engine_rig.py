"""Servers, workers and trainers of one run, connected to an engine."""

import threading

from kit.light_worker import LightWorker
from kit.packets import numbered
from kit.waiting import until

from tmrl_like.delivery.folder import open_folder
from tmrl_like.delivery.receiver import Receiver
from tmrl_like.engine.reader import Reader
from tmrl_like.engine.subjects import stream_name
from tmrl_like.server.server import Server
from tmrl_like.trainer.trainer_link import TrainerLink
from tmrl_like.transport import KeyFolder, connect
from tmrl_like.wire import messages as m

RUN = "run 1"


def trainer_link(link, receiver=None):
    """Return a trainer's link to an engine or to a server."""
    return TrainerLink(link, "t", m.Spaces("o", "a"), receiver or Receiver())


class Rig:
    """Starts parts, and closes all of them at the end."""

    def __init__(self, nodes, folder):
        self.nodes, self.folder, self.parts = nodes, folder, []
        self.keys = KeyFolder(folder / "keys")
        self.arena = nodes.options(RUN, "arena")

    def server(self):
        return self.keep(Server(0, transport="inproc", keys_dir=self.keys.path, engine=self.arena))

    def worker(self, server, name="w1"):
        link = connect("inproc", *server.address, self.keys)
        return self.keep(LightWorker(open_folder(self.folder / "spool", name), link))

    def trainer(self, receiver=None, reads=(), **options):
        """Start a trainer. `reads`: arguments of its `Reader`; `options`: the engine's options."""
        reader = Reader(self.nodes.options(RUN, "gpu", **options), **dict(reads))
        return self.keep(Trainer(reader, receiver or Receiver(run=f"training {len(self.parts)}")))

    def both(self):
        """Start a trainer, and a worker at a server."""
        return self.trainer(), self.worker(self.server())

    def keep(self, part):
        self.parts.append(part)
        return part

    def close(self):
        for part in reversed(self.parts):
            part.close()

    def stream(self):
        """Wait for the run's stream, and return its statistics."""
        return until(lambda: self.nodes.streams().get(stream_name(RUN)), "the stream of the run")

    def in_stream(self):
        """Return the number of messages in the stream."""
        return self.stream()["state"]["messages"]


class Trainer:
    """Stores all that arrives, in a thread."""

    def __init__(self, reader, receiver):
        self.memory = {}  # by worker: the numbers of its samples
        self.receiver = receiver
        self.link = trainer_link(reader, receiver)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def connected(self):
        return self.link.session.connected

    def _run(self):
        while not self._stopping.is_set():
            deliveries = self.link.retrieve(0.05)
            for delivery in deliveries:
                taken = self.memory.setdefault(delivery.receipt.worker, [])
                taken += [int(sample.obs) for sample in delivery.buffer]
            self.link.confirm(deliveries)

    def close(self):
        self._stopping.set()
        self._thread.join()
        self.link.close()


def make(worker, count):
    for _ in range(count):
        worker.append(numbered(worker.made + 1))
    worker.session.wake()


def deliver(worker, count):
    """Make samples, and wait until all are stored."""
    make(worker, count)
    until(lambda: worker.kept == 0, "the samples are stored")
