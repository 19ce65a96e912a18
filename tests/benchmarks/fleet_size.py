"""How many workers a server and a trainer carry, and what each costs: sessions and senders without environments.

    python tests/benchmarks/fleet_size.py [--workers 16 32 64] [--servers 1] [--hz 20] [--minutes 1] [--engine]

Light workers, many in a process, each with a connection, a session and a sender of its own: a tiny sample in each
step, a packet in each tenth of a second (below 10 Hz in each step), as a worker's outbox does it. They meet `--servers`
servers, each in a process of its own; each server has a trainer, with `--engine` one trainer has all of them, through
one node. The trainer's memory and log are real, and it publishes a policy every 5 s.

Nothing may be lost, doubled or out of order: all packets of a worker have the same number of samples, so that at each
packet the samples that the trainer was given of its process must be the packet's number times that many. CPU and memory
are each process's own, from the operating system. A line through the figures of three fleets or more says what a worker
costs, and how far the figures are from it. A generator that is late makes fewer packets than it is asked for.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import logging
import multiprocessing as mp
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from _common import finish, make_room_for_links

PACKET_S = 0.1  # the outbox's `max_age_s`
PROCESSES = 4  # that the light workers live in
ARRIVES_EVERY_S = 0.01  # one in each of them
CONNECTING_S = 0.1  # between two looks at a connection that is being made; who proves no key for long is cut
SPACES = ("o", "a")
_PROGRAM = psutil.Process()


def usage() -> dict[str, float]:
    """CPU time, memory and descriptors of this process."""
    memory = _PROGRAM.memory_info().rss
    return {"cpu_s": time.process_time(), "rss_mb": memory / 1e6, "descriptors": float(_PROGRAM.num_fds())}


def answer(pipe: Any, **more: Callable[[], Any]) -> None:
    """Answer questions by their names, until "stop"."""
    known: dict[str, Callable[[], Any]] = {"usage": usage, **more}
    while (question := pipe.recv()) != "stop":
        pipe.send(known[question]())


def run_server(keys: Path, nodes: tuple[str, ...], workers: int, pipe: Any) -> None:
    from tmrl_like.networking import Server

    engine: dict[str, Any] = {}
    if nodes:
        from tmrl_like.engine.options import EngineOptions

        engine = {"engine": EngineOptions(nodes=nodes, run="fleet")}
    with Server(0, host="127.0.0.1", keys_dir=keys, max_workers=workers, **engine) as server:
        pipe.send(server.address[1])
        answer(pipe, counters=lambda: (server.counters.packets, server.counters.dropped))


def run_trainer(keys: Path, nodes: tuple[str, ...], port: int, per_packet: int, kilobytes: int, pipe: Any) -> None:
    import torch

    from tmrl_like.delivery.log import PacketLog, lock_folder
    from tmrl_like.delivery.receiver import Receiver
    from tmrl_like.replay.memory import ReplayMemory
    from tmrl_like.trainer.link import TrainerLink
    from tmrl_like.transport import KeyFolder, connect
    from tmrl_like.wire.messages import Spaces

    class Actor:
        def state_dict(self) -> dict[str, Any]:
            return {"weights": torch.zeros(kilobytes * 250)}

    torch.set_num_threads(1)
    folder = keys.parent / f"log-{port}"
    memory = ReplayMemory(memory_size=100_000)
    lock = lock_folder(folder)
    assert lock is not None
    receiver = Receiver(PacketLog(folder, lock, 16 << 20), "fleet", keep_samples=memory.memory_size)
    if nodes:
        from tmrl_like.engine.authority import engine_user
        from tmrl_like.engine.link import EngineLink
        from tmrl_like.engine.options import EngineOptions

        wire: Any = EngineLink(EngineOptions(nodes=nodes, run="fleet"), engine_user(KeyFolder(keys), "trainer"))
    else:
        wire = connect("zmq", "127.0.0.1", port, KeyFolder(keys))
    link = TrainerLink(wire, "fleet", f"trainer-{port}", Spaces(*SPACES), receiver)
    pipe.send(link.session.wait_connected(30))
    given: Counter[tuple[str, int]] = Counter()
    wrong: list[str] = []
    stopping = threading.Event()
    asking = threading.Thread(
        target=lambda: (
            answer(pipe, given=lambda: dict(given), wrong=lambda: wrong[:5], publish=lambda: publish(Actor())),
            stopping.set(),
        )
    )

    def publish(actor: Any) -> int:
        return link.broadcast_model(actor)

    asking.start()
    while not stopping.is_set():
        deliveries = link.retrieve(0.02)
        for delivery in deliveries:
            memory.append(delivery.buffer)
            process = delivery.receipt[:2]
            given[process] += len(delivery.buffer)
            if given[process] != per_packet * delivery.receipt.sequence:
                wrong.append(f"{given[process]} samples up to packet {delivery.receipt.sequence} of {process}")
        link.confirm(deliveries)
    link.close()


class LightWorker:
    """A session and a sender whose packets were encoded beforehand; its owner calls `turn` for each packet."""

    def __init__(self, name: str, port: int, keys: Any, folder: Path, body: tuple[bytes, int, bool], samples: int):
        from tmrl_like.delivery.log import PacketLog, lock_folder
        from tmrl_like.delivery.options import OutboxOptions
        from tmrl_like.delivery.sender import Sender
        from tmrl_like.delivery.session import Session
        from tmrl_like.transport import TransportOptions
        from tmrl_like.transport.zmq import ZmqPeerLink
        from tmrl_like.wire.messages import Spaces

        class Link(ZmqPeerLink):
            takes_turns = True  # no thread
            clock = staticmethod(time.monotonic)

        self.name, self._body, self._samples = name, body, samples
        self.made = 0  # packets
        self.policies = self.version = 0
        self.most_kept = 0
        self.collects = False
        self._feed = 0
        lock = lock_folder(folder)
        assert lock is not None
        self._log = PacketLog(folder, lock)
        self.incarnation = int.from_bytes(os.urandom(7), "little") | 1
        self.sender = Sender(name, self.incarnation, OutboxOptions(), self._log, time.monotonic())
        link = Link("127.0.0.1", port, keys, TransportOptions())
        self.session = Session(link, "fleet", self, "worker", name, Spaces(*SPACES), incarnation=self.incarnation)

    def on_welcome(self, welcome: Any, is_new: bool) -> None:
        if is_new or welcome.feed != self._feed:
            self.sender.retransmit(from_the_start=welcome.feed != self._feed)
        self._feed = welcome.feed

    def on_message(self, message: Any, body: Any) -> None:
        from tmrl_like.wire import messages as m

        if isinstance(message, m.Ack):
            self.sender.on_ack(message, time.monotonic())
        elif isinstance(message, m.PolicyFrame):
            self.policies += message.index == message.frames - 1
            self.version = message.version

    def on_tick(self, send: Callable[[bytes], bool], connected: bool) -> float:
        from tmrl_like.wire import messages as m
        from tmrl_like.wire.records import record_head

        now = time.monotonic()
        if self.collects:
            self.made += 1
            data, size, compressed = self._body
            frame = m.frame_of(
                m.SamplePacket(self.name, self.incarnation, self.made, 1, self._samples, size, compressed)
            )
            self.sender.add(self.made, self._samples, (record_head(frame, data) + frame, data), now)
            self.most_kept = max(self.most_kept, self.sender.samples)
        if connected and self._feed:
            self.sender.send(send, now)
        return PACKET_S

    def pending(self) -> bool:
        return False

    def beat(self) -> Any:
        from tmrl_like.wire.messages import Beat

        return Beat(self.name, self.version, policy_received=self.version, env_steps=self.made * self._samples)


def run_workers(keys_folder: Path, names: dict[str, int], samples: int, packet_s: float, pipe: Any) -> None:
    """`names`: of the workers, with the port that each dials."""
    from tmrl_like.transport import KeyFolder
    from tmrl_like.types import StepTiming
    from tmrl_like.wire.packet import Compressor, PacketWriter

    logging.disable()
    make_room_for_links(len(names))
    writer = PacketWriter()
    for i in range(samples):
        obs = np.array([0.1 * i, 0.2, 0.3, 0.4], np.float32)
        writer.append(
            (np.zeros(2, np.float32), obs, np.float32(-0.5), False, False, {}), StepTiming(1e9, 1e-4, 1e-5, 3)
        )
    encoded = writer.encode()
    data, compressed = Compressor()(encoded, writer.rows().extra_bytes)
    body = (data, len(encoded), compressed)
    pipe.send("ready")
    pipe.recv()
    keys, began = KeyFolder(keys_folder), time.monotonic()
    workers: list[LightWorker] = []
    turns = 0
    lateness: list[float] = []
    connected_s: float | None = None
    due: list[tuple[float, int]] = []
    coming = list(names.items())[::-1]

    def handle(question: str) -> Any:
        if question in ("collect", "rest"):
            for worker in workers:
                worker.collects = question == "collect"
                worker.most_kept = 0
            lateness.clear()
        known: dict[str, Callable[[], Any]] = {
            "usage": usage,
            "connected": lambda: connected_s,
            "made": lambda: {(w.name, w.incarnation): w.made * samples for w in workers},
            "kept": lambda: sum(w.sender.samples for w in workers),
            "behind_s": lambda: max(w.most_kept for w in workers) / samples * packet_s,
            "lost": lambda: sum(w.sender.lost_samples for w in workers),
            "policies": lambda: [min(w.policies for w in workers), max(w.policies for w in workers)],
            "late_s": lambda: float(np.percentile(lateness, 99)) if lateness else 0.0,
        }
        return known[question]() if question in known else None

    while True:
        now = time.monotonic()
        if coming and now >= began + ARRIVES_EVERY_S * len(workers):
            name, port = coming.pop()
            workers.append(LightWorker(name, port, keys, keys_folder.parent / "spools" / name, body, samples))
            heapq.heappush(due, (now, len(workers) - 1))
        at, i = due[0]
        if at > now:
            if pipe.poll(min(at - now, ARRIVES_EVERY_S)):
                if (question := pipe.recv()) == "stop":
                    break
                pipe.send(handle(question))
            continue
        lateness.append(now - at)
        workers[i].session.turn()
        turn_s = packet_s if workers[i].session.connected else min(packet_s, CONNECTING_S)
        heapq.heapreplace(due, (max(at + turn_s, now), i))  # one that is late skips what it cannot make
        turns += 1
        if turns % 50 == 0 and pipe.poll():
            if (question := pipe.recv()) == "stop":
                break
            pipe.send(handle(question))
        if connected_s is None and not coming and all(w.session.connected for w in workers):
            connected_s = time.monotonic() - began
    for worker in workers:
        worker.session.close(0.0)
        worker._log.close()


class Part:
    """A process that answers questions."""

    def __init__(self, target: Callable[..., None], *args: Any) -> None:
        context = mp.get_context("spawn")
        self.pipe, child = context.Pipe()
        self.process = context.Process(target=target, name=target.__name__, args=(*args, child), daemon=True)
        self.process.start()
        child.close()

    def ask(self, question: str) -> Any:
        self.pipe.send(question)
        return self.take()

    def take(self) -> Any:
        """The next answer; SystemExit: the process has ended."""
        while not self.pipe.poll(0.5):
            if self.process.exitcode is not None:
                sys.exit(f"a part has ended: {self.process.name}, exit code {self.process.exitcode}")
        return self.pipe.recv()

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self.pipe.send("stop")
        self.process.join(20)
        self.process.kill()


def measure(workers: int, servers: int, hz: float, seconds: float, kilobytes: int, has_engine: bool) -> dict[str, Any]:
    packet_s = max(PACKET_S, 1 / hz)
    samples = round(hz * packet_s)
    with tempfile.TemporaryDirectory() as text, contextlib.ExitStack() as stack:
        folder, nodes, brokers = Path(text), (), []
        keys = folder / "keys"
        if has_engine:
            sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
            from engine_nodes import Nodes

            engine = stack.enter_context(Nodes(folder))
            keys, nodes = engine.keys.path, tuple(engine.urls)
            brokers = [psutil.Process(process.pid) for process in engine.processes]

        def part(target: Callable[..., None], *args: Any) -> Part:
            made = Part(target, *args)
            stack.callback(made.stop)
            return made

        first = part(run_server, keys, nodes, workers)
        ports = [first.take()]
        gateways = [first, *(part(run_server, keys, nodes, workers) for _ in range(servers - 1))]
        ports += [gateway.take() for gateway in gateways[1:]]
        trainers = [part(run_trainer, keys, nodes, p, samples, kilobytes) for p in (ports[:1] if nodes else ports)]
        for trainer in trainers:
            assert trainer.take(), "the trainer does not connect"
        names = {f"worker-{i}": ports[i % servers] for i in range(workers)}
        shares = [dict(list(names.items())[i::PROCESSES]) for i in range(min(PROCESSES, workers))]
        fleet = [part(run_workers, keys, share, samples, packet_s) for share in shares]
        for share in fleet:
            share.take()
        idle = [gateway.ask("usage")["rss_mb"] for gateway in gateways]
        idle_trainers = [trainer.ask("usage")["rss_mb"] for trainer in trainers]
        for share in fleet:
            share.pipe.send("go")
        connected_s = [wait_for(lambda share=share: share.ask("connected"), 120) for share in fleet]
        groups = {"server": gateways, "trainer": trainers, "workers": fleet}
        for share in fleet:
            share.ask("collect")
        time.sleep(3)
        before = {name: [p.ask("usage") for p in group] for name, group in groups.items()}
        engine_s = sum(sum(broker.cpu_times()[:2]) for broker in brokers)
        began = time.monotonic()
        sent = sum(gateway.ask("counters")[0] for gateway in gateways)
        published = 0
        while (passed := time.monotonic() - began) < seconds:
            time.sleep(min(5.0, seconds - passed))
            published += 1
            for trainer in trainers:
                trainer.ask("publish")
        lasted_s = time.monotonic() - began
        sent = sum(gateway.ask("counters")[0] for gateway in gateways) - sent
        after = {name: [p.ask("usage") for p in group] for name, group in groups.items()}
        engine_s = sum(sum(broker.cpu_times()[:2]) for broker in brokers) - engine_s
        late_s = max(share.ask("late_s") for share in fleet)
        behind = max(share.ask("behind_s") for share in fleet)
        for share in fleet:
            share.ask("rest")
        settles_s = time.monotonic()
        wait_for(lambda: not sum(share.ask("kept") for share in fleet), 60)
        settles_s = time.monotonic() - settles_s
        made: dict[Any, int] = {}
        for share in fleet:
            made |= share.ask("made")
        given: Counter[Any] = Counter()
        for trainer in trainers:
            given.update(trainer.ask("given"))
        wrong = [line for trainer in trainers for line in trainer.ask("wrong")]
        policies = [share.ask("policies") for share in fleet]
        cpu = {
            name: sum(b["cpu_s"] - a["cpu_s"] for a, b in zip(before[name], after[name], strict=True)) / lasted_s * 1e3
            for name in groups
        }
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
            "dropped_at_server": sum(gateway.ask("counters")[1] for gateway in gateways),
            "server_cpu_ms_per_s": cpu["server"],
            "trainer_cpu_ms_per_s": cpu["trainer"],
            "engine_cpu_ms_per_s": engine_s / lasted_s * 1e3,
            "generator_cpu_ms_per_s": cpu["workers"],
            "server_mb": sum(u["rss_mb"] for u in after["server"]) - sum(idle),
            "trainer_mb": sum(u["rss_mb"] for u in after["trainer"]) - sum(idle_trainers),
            "generator_mb": sum(u["rss_mb"] for u in after["workers"]),
            "server_descriptors": max(u["descriptors"] for u in after["server"]),
            "generator_late_p99_ms": late_s * 1e3,
            "oldest_kept_s": behind,
            "settles_s": settles_s,
            "policies": f"{min(p[0] for p in policies)} to {max(p[1] for p in policies)} of {published}",
            "wrong": wrong[:2],
        }


def wait_for(condition: Callable[[], Any], seconds: float) -> Any:
    until = time.monotonic() + seconds
    while (found := condition()) is None or found is False:
        if time.monotonic() > until:
            return float("nan")
        time.sleep(0.1)
    return found


def line_through(runs: list[dict[str, Any]], name: str) -> dict[str, float]:
    """What a worker adds to a figure, and by what share of it the figures are off the line at most."""
    workers, figures = [run["workers"] for run in runs], [run[name] for run in runs]
    slope, at_0 = np.polyfit(workers, figures, 1)
    off = max(abs(slope * n + at_0 - figure) / figure for n, figure in zip(workers, figures, strict=True))
    return {f"{name}_of_a_worker": float(slope), f"{name}_of_none": float(at_0), f"{name}_off_the_line": float(off)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--hz", type=float, default=20.0, help="steps per second of each worker")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--policy-kb", type=int, default=100, help="one is published every 5 s")
    parser.add_argument("--engine", action="store_true", help="one node and one trainer behind all servers")
    arguments = parser.parse_args()
    runs = []
    for workers in arguments.workers:
        runs.append(
            measure(
                workers,
                arguments.servers,
                arguments.hz,
                arguments.minutes * 60,
                arguments.policy_kb,
                arguments.engine,
            )
        )
    for name in runs[0]:
        print(f"{name:28}" + "".join(f"{_shown(run[name]):>16}" for run in runs))
    result: dict[str, Any] = {"runs": runs}
    if len(runs) > 2:
        for name in ("server_cpu_ms_per_s", "trainer_cpu_ms_per_s", "server_mb"):
            result |= line_through(runs, name)
    finish(result)


def _shown(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
