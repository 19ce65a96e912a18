"""How many workers a server and a trainer carry, and what each costs: sessions and senders without environments.

    python tests/benchmarks/fleet_size.py [--workers 16 32 64] [--servers 1] [--hz 20] [--minutes 1]

Light workers, many in a process, each with a connection, a sample log and an outbox of its own: a tiny sample in each
step, a packet in each tenth of a second (below 10 Hz in each step), as a worker's outbox does it. They meet `--servers`
servers, each in a process of its own; each has a trainer, whose memory and log are real, and which publishes a policy
every 5 s.

Nothing may be lost, doubled or out of order: a worker's entries are samples, so that at each packet the trainer must
have been given as many samples of its process as the number of the packet's last entry. CPU and memory are each
process's own, from the operating system. A line through the figures of three fleets or more says what a worker costs,
and how far the figures are from it. A generator that is late makes fewer packets than it is asked for.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _common import Options, Part, finish, make_room_for_links, wait_for
from _sending import Sending

import tmrl_like
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.session.conversation import Conversation
from tmrl_like.session.ring import connect_to_one
from tmrl_like.transport import KeyFolder
from tmrl_like.wire import messages as m

PACKET_S = 0.1  # the outbox's `max_age_s`
PROCESSES = 4  # that the light workers live in
ARRIVES_EVERY_S = 0.01  # one in each of them
CONNECTING_S = 0.1  # between two looks at a connection that is being made; who proves no key for long is cut
SPACES = ("o", "a")


def run_gateway(keys: Path, workers: int, pipe: Any) -> None:
    from tmrl_like.networking import Server

    with Server(0, host="127.0.0.1", keys_dir=keys, max_workers=workers) as server:
        pipe.send(server.address[1])
        while pipe.recv():
            pipe.send((server.counters.packets, server.counters.dropped))


def run_trainer(keys: Path, port: int, kilobytes: int, pipe: Any) -> None:
    import torch

    from tmrl_like.base.files import lock_folder
    from tmrl_like.delivery.receiver import Receiver
    from tmrl_like.delivery.sample_store import SampleStore
    from tmrl_like.replay.memory import ReplayMemory
    from tmrl_like.session.ring import connect_to_one
    from tmrl_like.trainer.trainer_link import TrainerLink
    from tmrl_like.transport import KeyFolder
    from tmrl_like.wire.messages import Spaces

    class Actor:
        def state_dict(self) -> dict[str, Any]:
            return {"weights": torch.zeros(kilobytes * 250)}

    torch.set_num_threads(1)
    folder = keys.parent / f"log-{port}"
    memory = ReplayMemory(memory_size=100_000)
    lock = lock_folder(folder)
    assert lock is not None
    receiver = Receiver(SampleStore(folder, lock), "fleet", keep_samples=memory.memory_size)
    ring = connect_to_one("zmq", [f"127.0.0.1:{port}"], "", KeyFolder(keys))
    link = TrainerLink(ring, f"trainer-{port}", Spaces(*SPACES), receiver)
    pipe.send(link.session.wait_connected(30))
    given: Counter[tuple[str, int]] = Counter()
    wrong: list[str] = []
    while True:
        deliveries = link.retrieve(0.02)
        for delivery in deliveries:
            memory.append(delivery.buffer)
            process = delivery.receipt[:2]
            given[process] += len(delivery.buffer)
            if given[process] != delivery.receipt.entry:
                wrong.append(f"{given[process]} samples up to entry {delivery.receipt.entry} of {process}")
        link.confirm(deliveries)
        if pipe.poll():
            is_over = pipe.recv() == ("given",)
            pipe.send((dict(given), wrong) if is_over else link.broadcast_model(Actor()))


class LightWorker:
    """What a worker has, but for an environment and threads; its owner calls `turn` for each packet."""

    def __init__(self, name: str, port: int, keys: KeyFolder, samples: list[tuple[Any, ...]]) -> None:
        options = OutboxOptions(max_age_s=0.0, max_bytes=4 << 20)
        self.sending = Sending(name, options)
        self.incarnation = self.sending.log.incarnation
        self.collects = False
        self._samples = samples
        hello = m.Hello("worker", name, self.incarnation, tmrl_like.__version__, m.Spaces(*SPACES))
        ring = connect_to_one("zmq", [f"127.0.0.1:{port}"], name, keys)
        self._conversation = Conversation(ring, self.sending, hello, time.monotonic)

    @property
    def is_connected(self) -> bool:
        return self._conversation.welcomed.is_set()

    def turn(self) -> None:
        for sample in self._samples if self.collects else ():
            self.sending.log.append(sample, 1e9, 1e-4, 1e-5, 3, 0)
        self.sending.log.refill()
        self._conversation.turn(0.0)


def run_workers(keys_folder: Path, names: dict[str, int], samples: int, packet_s: float, pipe: Any) -> None:
    """`names`: of the workers, with the port that each dials."""
    logging.disable()
    make_room_for_links(len(names))
    observations = (np.array([0.1 * i, 0.2, 0.3, 0.4], np.float32) for i in range(samples))
    of_a_packet = [(np.zeros(2, np.float32), obs, np.float32(-0.5), False, False, {}) for obs in observations]
    pipe.send("ready")
    pipe.recv()
    keys, began = KeyFolder(keys_folder), time.monotonic()
    workers: list[LightWorker] = []
    connected_s: float | None = None
    due: list[tuple[float, int]] = []
    coming = list(names.items())[::-1]
    turns = 0
    while True:
        now = time.monotonic()
        if coming and now >= began + ARRIVES_EVERY_S * len(workers):
            workers.append(LightWorker(*coming.pop(), keys, of_a_packet))
            heapq.heappush(due, (now, len(workers) - 1))
        at, i = due[0]
        if at <= now:
            workers[i].turn()
            turn_s = packet_s if workers[i].is_connected else min(packet_s, CONNECTING_S)
            heapq.heapreplace(due, (max(at + turn_s, now), i))  # one that is late skips what it cannot make
            turns += 1
        if connected_s is None and not coming and all(w.is_connected for w in workers):
            connected_s = time.monotonic() - began
        if (at <= now and turns % 50) or not pipe.poll(max(0.0, min(at - now, ARRIVES_EVERY_S))):
            continue
        question, *arguments = pipe.recv()
        if question == "connected":
            pipe.send(connected_s)
        elif question == "collect":
            for worker in workers:
                (worker.collects,) = arguments
            pipe.send({(w.sending.outbox.worker, w.incarnation): w.sending.log.entries for w in workers})
        elif question == "kept":
            pipe.send(sum(w.sending.outbox.unacknowledged_samples() for w in workers))


def measure(workers: int, servers: int, hz: float, seconds: float, kilobytes: int) -> dict[str, Any]:
    packet_s = max(PACKET_S, 1 / hz)
    samples = round(hz * packet_s)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        keys = Path(folder) / "keys"

        def part(target: Callable[..., None], *args: Any) -> Part:
            return stack.enter_context(Part(target, *args))

        first = part(run_gateway, keys, workers)
        ports = [first.hear()]
        gateways = [first, *(part(run_gateway, keys, workers) for _ in range(servers - 1))]
        ports += [gateway.hear() for gateway in gateways[1:]]
        trainers = [part(run_trainer, keys, port, kilobytes) for port in ports]
        for trainer in trainers:
            assert trainer.hear(), "the trainer does not connect"
        names = {f"worker-{i}": ports[i % servers] for i in range(workers)}
        shares = [dict(list(names.items())[i::PROCESSES]) for i in range(min(PROCESSES, workers))]
        fleet = [part(run_workers, keys, share, samples, packet_s) for share in shares]
        for share in fleet:
            share.hear()
        idle_mb = sum(gateway.rss_mb() for gateway in gateways)
        for share in fleet:
            share.tell("go")
        connected_s = [wait_for(lambda share=share: share.ask("connected"), "all workers") for share in fleet]
        for share in fleet:
            share.ask("collect", True)
        time.sleep(min(3.0, seconds))
        groups = {"server": gateways, "trainer": trainers, "generator": fleet}
        cpu_s = {name: -sum(p.cpu_s() for p in group) for name, group in groups.items()}
        sent, began = -sum(gateway.ask("counters")[0] for gateway in gateways), time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            time.sleep(min(5.0, seconds - passed))
            for trainer in trainers:
                trainer.ask("publish")
        lasted_s = time.monotonic() - began
        sent += sum(gateway.ask("counters")[0] for gateway in gateways)
        for name, group in groups.items():
            cpu_s[name] += sum(p.cpu_s() for p in group)
        grown_mb = sum(gateway.rss_mb() for gateway in gateways) - idle_mb
        made: dict[Any, int] = {}
        for share in fleet:
            made |= share.ask("collect", False)
        wait_for(lambda: not sum(share.ask("kept") for share in fleet), "an end of what is kept", 60)
        given: Counter[Any] = Counter()
        wrong: list[str] = []
        for trainer in trainers:
            its_own, its_wrong = trainer.ask("given")
            given.update(its_own)
            wrong += its_wrong
        return {
            "workers": workers,
            "servers": servers,
            "connected_s": max(connected_s),
            "packets_per_s": sent / lasted_s,
            "asked_packets_per_s": workers / packet_s,
            "samples": sum(made.values()),
            "lost": sum(max(0, count - given[key]) for key, count in made.items()),
            "doubled": sum(max(0, given[key] - count) for key, count in made.items()),
            "out_of_order": len(wrong),
            "wrong": wrong[:2],
            **{f"{name}_cpu_ms_per_s": 1e3 * spent_s / lasted_s for name, spent_s in cpu_s.items()},
            "server_mb": grown_mb,
        }


def line_through(runs: list[dict[str, Any]], name: str) -> dict[str, float]:
    """What a worker adds to a figure, and by what share of it the figures are off the line at most."""
    workers, figures = [run["workers"] for run in runs], [run[name] for run in runs]
    slope, at_0 = np.polyfit(workers, figures, 1)
    off = max(abs(slope * n + at_0 - figure) / figure for n, figure in zip(workers, figures, strict=True))
    return {f"{name}_of_a_worker": float(slope), f"{name}_of_none": float(at_0), f"{name}_off_the_line": float(off)}


def main() -> None:
    parser = Options(__doc__, workers=[4, 8], hz=10.0, minutes=0.03)
    parser.add_argument("--workers", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--hz", type=float, default=20.0, help="steps per second of each worker")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--policy-kb", type=int, default=100, help="one is published every 5 s")
    asked = parser.parse()
    runs = [measure(count, asked.servers, asked.hz, asked.minutes * 60, asked.policy_kb) for count in asked.workers]
    result: dict[str, Any] = {"runs": runs}
    for name in ("server_cpu_ms_per_s", "trainer_cpu_ms_per_s", "server_mb") if len(runs) > 2 else ():
        result |= line_through(runs, name)
    finish(result)


if __name__ == "__main__":
    main()
