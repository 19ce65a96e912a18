"""How many workers a server and a trainer carry, and the cost of each. The workers have no
environments.

    python tests/benchmarks/fleet.py [--workers 16 32 64] [--servers 1] [--nodes 0 1 3]
                                     [--hz 20] [--minutes 1]

Light workers share processes, but each has its own connection, sample log and outbox. Each makes a
tiny sample per step and, as a worker's outbox does, a packet every tenth of a second (below 10 Hz
at each step). They dial `--servers` servers, each in a process of its own. Without nodes each
server has a trainer. With nodes, the servers are gateways of an engine that one trainer reads
(JetStream, of which three nodes flush to disk before they confirm). Trainers have a real memory and
log, and publish a policy of 100 kB every 5 s.

No sample may be lost, duplicated or out of order. All of a worker's entries are samples, so at each
packet the trainer must have received as many samples of its process as the number of the packet's
last entry. The age of a sample is the time from its step until it is in the memory. CPU and memory
are those of each process, from the operating system. A generator that is late makes fewer packets
than it is asked for.
"""

import itertools
import logging
import sys
import time
from collections import Counter

import numpy as np
from _harness import TESTS, Parts, benchmark, link_to, trainer_link
from kit.light_worker import LightDelivery
from kit.waiting import until

import tmrl_like
from tmrl_like.delivery.folder import open_folder
from tmrl_like.session.conversation import Conversation
from tmrl_like.transport import KeyFolder, connect
from tmrl_like.wire import messages as m

PACKET_S = 0.1  # the outbox's `max_age_s`
PROCESSES = 4  # which the light workers share
ARRIVES_EVERY_S = 0.01  # between two new workers of a process
PUBLISH_S = 5.0
SPACES = ("o", "a")
WEIGHTS = 25_000


def engine_options(nodes):
    """Return the options of the engine, or None if there are no nodes."""
    if not nodes:
        return None
    from tmrl_like.engine.options import EngineOptions

    return EngineOptions(nodes=tuple(nodes), run="fleet")


def run_trainer(keys, port, nodes, pipe):
    import torch

    from tmrl_like.base.files import lock_folder
    from tmrl_like.delivery.receiver import Receiver
    from tmrl_like.delivery.sample_store import SampleStore
    from tmrl_like.engine.reader import Reader
    from tmrl_like.replay.memory import ReplayMemory

    class Actor:
        def state_dict(self):
            return {"weights": torch.zeros(WEIGHTS)}

    torch.set_num_threads(1)
    folder = keys.parent / f"log-{port}"
    memory = ReplayMemory(memory_size=100_000)
    store = SampleStore(folder, lock_folder(folder))
    store.keep_samples = memory.memory_size
    receiver = Receiver(store, "fleet")
    engine = engine_options(nodes)
    dialled = Reader(engine) if engine else link_to(port, keys)
    link = trainer_link(dialled, m.Spaces(*SPACES), receiver)
    pipe.send("ready")
    given = Counter()
    wrong, ages_s = 0, []
    while True:
        deliveries = link.retrieve(0.02)
        for delivery in deliveries:
            memory.append(delivery.buffer)
            process = delivery.receipt[:2]
            given[process] += len(delivery.buffer)
            wrong += given[process] != delivery.receipt.entry
            newest_s = delivery.buffer.blocks[-1].timing.observed_at_s[-1]
            ages_s.append(time.time() - float(newest_s))
        link.confirm(deliveries)
        if pipe.poll():
            (question,) = pipe.recv()
            if question == "publish":
                link.broadcast_model(Actor())
            else:
                pipe.send((dict(given), wrong, ages_s))


class Worker(LightDelivery):
    """A worker without environment or threads; its owner calls `turn` for each packet."""

    def __init__(self, name, port, keys, samples):
        super().__init__(open_folder(None, name), log_bytes=4 << 20)
        self.collects = False
        self._samples = samples
        hello = m.Hello(
            "worker", name, self.log.incarnation, tmrl_like.__version__, m.Spaces(*SPACES)
        )
        link = connect("zmq", "127.0.0.1", port, keys)
        self._conversation = Conversation(link, self, hello, time.monotonic)

    @property
    def is_connected(self):
        return self._conversation.welcomed.is_set()

    def turn(self):
        for sample in self._samples if self.collects else ():
            self.append(sample, time.time())
        self._conversation.turn(0.0)


def make_room_for_links(links):
    """Prepare this process for this many zmq links: descriptors for all, and one context, whose
    threads they share.
    """
    import zmq

    from tmrl_like.transport.base import raise_descriptor_limit

    class Shared(zmq.Context):
        def term(self):
            """Do nothing: each link ends its context, but here all links share one."""

    raise_descriptor_limit()
    shared = Shared()
    shared.max_sockets = 16 * links + 100
    zmq.Context = lambda: shared


def run_workers(keys_folder, names, samples, packet_s, pipe):
    """Run light workers; `names` maps their names to the ports that they dial."""
    logging.disable()
    make_room_for_links(len(names))
    observations = (np.array([0.1 * i, 0.2, 0.3, 0.4], np.float32) for i in range(samples))
    of_a_packet = [
        (np.zeros(2, np.float32), obs, np.float32(-0.5), False, False, {}) for obs in observations
    ]
    pipe.send("ready")
    pipe.recv()
    keys, began = KeyFolder(keys_folder), time.monotonic()
    coming, workers = list(names.items()), []
    while coming or not all(worker.is_connected for worker in workers):
        if coming:
            workers.append(Worker(*coming.pop(), keys, of_a_packet))
        for worker in workers:
            worker.turn()
        time.sleep(ARRIVES_EVERY_S)
    due = time.monotonic()
    pipe.send(due - began)
    for worker in itertools.cycle(workers):
        # what is late is left out
        due = max(due + packet_s / len(workers), time.monotonic())
        while pipe.poll(max(0.0, due - time.monotonic())):
            question, *arguments = pipe.recv()
            if question == "kept":
                pipe.send(sum(w.kept for w in workers))
                continue
            for w in workers:
                (w.collects,) = arguments
            pipe.send({(w.outbox.worker, w.log.incarnation): w.made for w in workers})
        worker.turn()


class Fleet:
    """Connected servers, trainers and light workers, which are `parts`."""

    def __init__(self, parts, workers, servers, nodes, hz):
        options = {"max_workers": workers, "engine": engine_options(nodes)}
        # one after the other: the first one makes the keys
        self.servers, ports = zip(*(parts.serve(**options) for _ in range(servers)), strict=True)
        self.trainers = [
            parts.start(run_trainer, parts.keys, port, nodes)
            for port in (ports[:1] if nodes else ports)
        ]
        for trainer in self.trainers:
            trainer.hear()
        self.packet_s = max(PACKET_S, 1 / hz)
        names = {f"worker-{i}": ports[i % servers] for i in range(workers)}
        shares = [dict(list(names.items())[i::PROCESSES]) for i in range(min(PROCESSES, workers))]
        samples = round(hz * self.packet_s)
        self.generators = [
            parts.start(run_workers, parts.keys, share, samples, self.packet_s) for share in shares
        ]
        for share in self.generators:
            share.hear()
        self.idle_mb = self.servers_mb()
        for share in self.generators:
            share.tell("go")
        self.connected_s = max(share.hear() for share in self.generators)

    def servers_mb(self):
        return sum(server.rss_mb() for server in self.servers)

    def packets(self):
        return sum(server.ask("packets") for server in self.servers)

    def cpu_s(self):
        groups = {"servers": self.servers, "trainers": self.trainers}
        return {name: sum(part.cpu_s() for part in group) for name, group in groups.items()}

    def collect(self, on):
        """Switch collecting on or off; return how many samples each worker has made."""
        made = {}
        for share in self.generators:
            made |= share.ask("collect", on)
        return made


def one_fleet(fleet, seconds):
    """Return the figures of a fleet: its packets, its losses and its costs."""
    fleet.collect(True)
    time.sleep(min(3.0, seconds))
    cpu_s, packets, began = fleet.cpu_s(), fleet.packets(), time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        time.sleep(min(PUBLISH_S, seconds - passed))
        for trainer in fleet.trainers:
            trainer.tell("publish")
    lasted_s = time.monotonic() - began
    packets = fleet.packets() - packets
    spent_s = {name: now_s - cpu_s[name] for name, now_s in fleet.cpu_s().items()}
    grown_mb = fleet.servers_mb() - fleet.idle_mb
    made = fleet.collect(False)
    until(
        lambda: not sum(share.ask("kept") for share in fleet.generators),
        "an end of what is kept",
        120.0,
    )
    given = Counter()
    wrong, ages_s = 0, []
    for trainer in fleet.trainers:
        its_own, its_wrong, its_ages_s = trainer.ask("given")
        given.update(its_own)
        wrong += its_wrong
        ages_s += its_ages_s
    lost = sum(max(0, count - given[worker]) for worker, count in made.items())
    doubled = sum(max(0, given[worker] - count) for worker, count in made.items())
    return {
        "packets/s": packets / lasted_s,
        "asked": len(made) / fleet.packet_s,
        "lost, doubled, out of order": f"{lost}, {doubled}, {wrong} of {sum(made.values()):,}",
        **{f"CPU of {name}, ms/s": 1e3 * took_s / lasted_s for name, took_s in spent_s.items()},
        "age p50, ms": 1e3 * float(np.percentile(ages_s, 50)),
        "age p99, ms": 1e3 * float(np.percentile(ages_s, 99)),
        "memory of servers, MB more": grown_mb,
        "last one in after, s": fleet.connected_s,
    }


def measure(options):
    for workers, nodes in itertools.product(options.workers, options.nodes):
        with Parts() as parts:
            urls = []
            if nodes:
                sys.path.append(str(TESTS / "engine"))
                from engine_nodes import Nodes

                sync = "sync_interval: always" if nodes > 1 else ""
                engine = Nodes(parts.folder / "nodes", nodes, is_open=True, jetstream=sync)
                urls = parts.enter_context(engine).urls
            fleet = Fleet(parts, workers, options.servers, urls, options.hz)
            what = (
                f"{workers:,} workers at {options.hz:g} Hz; servers: {options.servers}, nodes: "
                f"{nodes}"
            )
            yield {"what": what, **one_fleet(fleet, 60 * options.minutes)}


if __name__ == "__main__":
    quick = {"workers": [8], "servers": 2, "nodes": [0, 1], "hz": 10.0, "minutes": 0.03}
    benchmark(
        __doc__,
        measure,
        workers=[16, 32, 64],
        servers=1,
        nodes=[0],
        hz=20.0,
        minutes=1.0,
        quick=quick,
    )
