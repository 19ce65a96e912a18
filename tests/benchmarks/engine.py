"""Samples and policies through the engine (gateway, NATS, trainer) beside the same over zmq alone.

    python tests/benchmarks/engine.py [--engines zmq one three three-sync] [--repeats 3] [--seconds 4] [--kills 4]

40 light workers in two processes, with packets of 2.5 kB, each in a message of its own; the trainer is a real
`TrainerLink` with its `Receiver`, before a memory that copies the columns. Everything on loopback; the workers' part
of the way is encrypted.

zmq         workers, server, trainer
one         workers, gateway, one node, trainer
three       the same with three nodes
three-sync  and each of them flushes to the disk before it confirms

The engines take turns. What is measured of each: packets/s with all workers as fast as they can; the latency from a
worker's send to the memory at 10 packets/s of each worker; policies of 0.28 and 10 MB, from their publication to the
last of all workers; and with three nodes the longest silence at the memory after the stream's leader is killed.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from _common import Options, Part, finish, median, run_server
from _flows import SAMPLES, SPACES, run_flows

RUN = "bench"
POLICIES = {"0.28 MB": (280_000, 5), "10 MB": (10_000_000, 3)}


@dataclass(frozen=True)
class Place:
    """Where a pipeline is."""

    keys: Path
    nodes: tuple[str, ...] = ()  # none: zmq alone

    def engine(self) -> Any:
        if not self.nodes:
            return None
        from tmrl_like.engine.options import EngineOptions

        return EngineOptions(nodes=self.nodes, run=RUN)


class Memory:
    """Copies the columns of what it is given into a ring, and notes how old each packet is then."""

    def __init__(self) -> None:
        self._ring, self._at = np.empty(64 << 20, np.uint8), 0
        self._born: dict[tuple[str, int], deque[tuple[int, float]]] = {}
        self.taken: dict[tuple[str, int], int] = {}
        self.counted: dict[tuple[str, int], int] = {}
        self.reset()

    def reset(self) -> None:
        self.ages_s: list[float] = []
        self.first_at = self.last_at = self.silence_s = 0.0

    def note(self, packet: Any) -> None:
        """A packet is on its way to `append`."""
        born = self._born.setdefault((packet.worker, packet.incarnation), deque())
        born.append((packet.last, packet.observed_at_s))

    def append(self, delivery: Any) -> None:
        for block in delivery.buffer.blocks:
            for leaf in (leaf for segment in block.segments for leaf in segment.leaves):
                if isinstance(leaf, np.ndarray):
                    data = np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)
                    self._at = 0 if self._at + len(data) > len(self._ring) else self._at
                    self._ring[self._at : self._at + len(data)] = data
                    self._at += len(data)
        now, process = time.time(), delivery.receipt[:2]
        born = self._born[process]
        while born and born[0][0] <= delivery.receipt.entry:
            entry, born_at = born.popleft()
            self.taken[process] = entry // SAMPLES
            self.counted[process] = self.counted.get(process, 0) + 1
            self.ages_s.append(now - born_at)
        self.silence_s = max(self.silence_s, now - (self.last_at or now))
        self.first_at, self.last_at = self.first_at or now, now

    def report(self) -> dict[str, Any]:
        known = {"taken": self.taken, "counted": self.counted, "packets": len(self.ages_s)}
        ages = np.percentile(self.ages_s, (50, 99)) * 1e3 if self.ages_s else (0.0, 0.0)
        lasted_s = max(1e-9, self.last_at - self.first_at)
        return known | {"lasted_s": lasted_s, "ages_ms": tuple(map(float, ages)), "silence_s": self.silence_s}


def run_trainer(place: Place, port: int, pipe: Any) -> None:
    import torch

    from tmrl_like.session.ring import Ring
    from tmrl_like.trainer.sample_ages import FreshnessLimits
    from tmrl_like.trainer.trainer_link import TrainerLink
    from tmrl_like.transport import KeyFolder, connect

    class Noted(FreshnessLimits):
        def admit(self, packet: Any, now_s: float, newest_version: int, ahead_s: float = 0.0) -> bool:
            memory.note(packet)
            return True

    class Actor:
        def __init__(self, size_bytes: int) -> None:
            self._weights = torch.rand(size_bytes // 4)

        def state_dict(self) -> dict[str, Any]:
            return {"weights": self._weights}

    torch.set_num_threads(1)
    memory, keys = Memory(), KeyFolder(place.keys)
    if (options := place.engine()) is None:
        ring = Ring(["bench"], lambda _: connect("zmq", "127.0.0.1", port, keys))
    else:
        from tmrl_like.engine.reader import Reader

        ring = Ring(["bench"], lambda _: Reader(options), is_quiet=True)
    trainer: Any = TrainerLink(ring, "trainer", SPACES, freshness=Noted())
    pipe.send(trainer.session.wait_connected(20))
    while True:
        deliveries = trainer.retrieve(0.02)
        for delivery in deliveries:
            memory.append(delivery)
        if deliveries:
            trainer.confirm(deliveries)
        if not pipe.poll():
            continue
        what, *arguments = pipe.recv()
        if what == "reset":
            pipe.send(memory.reset())
        elif what == "count":
            pipe.send(sum(memory.counted.values()))
        elif what == "report":
            pipe.send(memory.report())
        elif what == "publish":
            actor = Actor(*arguments)
            started = time.time()
            pipe.send((trainer.broadcast_model(actor), started))


class Rig:
    """A pipeline in processes of its own; phases by pipes. Everything ends with `stack`."""

    def __init__(self, place: Place, nodes: Any, workers: int, stack: contextlib.ExitStack) -> None:
        self.nodes = nodes
        server = stack.enter_context(Part(run_server, {"keys_dir": place.keys, "engine": place.engine()}))
        port = server.hear()
        self.trainer = stack.enter_context(Part(run_trainer, place, port))
        assert self.trainer.hear()
        names = [f"w-{i}" for i in range(workers)]
        shares = (names[part::2] for part in range(2))
        self._flows = [stack.enter_context(Part(run_flows, share, port, place.keys)) for share in shares]
        for flow in self._flows:
            assert flow.hear() == "ready"

    def load(self, rate: float | None, seconds: float, during: Callable[[], None] | None = None) -> dict[str, Any]:
        """All workers make packets; returns what came of them, all of them stored."""
        self.trainer.ask("reset")
        cpu_s = cpu_of_family()
        for flow in self._flows:
            flow.tell("load", rate, seconds)
        if during is not None:
            during()
        sent = {process: counts for flow in self._flows for process, counts in flow.hear().items()}
        total, until = sum(counts[0] for counts in sent.values()), time.monotonic() + 60
        while self.trainer.ask("count") < total and time.monotonic() < until:
            time.sleep(0.02)
        found = self.trainer.ask("report")
        cpu_s = cpu_of_family() - cpu_s
        lost = sum(count - found["taken"].get(process, 0) for process, (count, _, _) in sent.items())
        doubled = sum(count - found["taken"][process] for process, count in found["counted"].items())
        assert (lost, doubled) == (0, 0), f"{lost} packets lost, {doubled} doubled"
        resent = sum(counts[2] for counts in sent.values())
        return found | {"cpu_us": cpu_s / max(1, found["packets"]) * 1e6, "resent": resent}

    def publish(self, size_bytes: int) -> float:
        """Seconds until the last worker has a policy."""
        version, started = self.trainer.ask("publish", size_bytes)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            policies = [policies for flow in self._flows for policies in flow.ask("policies")]
            if all(version in known for known in policies):
                return max(known[version] for known in policies) - started
            time.sleep(0.02)
        arrived = sum(version in known for known in policies)
        raise AssertionError(f"{arrived} of {len(policies)} workers have the policy after 60 s")

    def kill_leaders(self, count: int, every_s: float, down_s: float) -> None:
        from tmrl_like.engine.subjects import stream_name

        for _ in range(count):
            time.sleep(every_s - down_s)
            leader = self.nodes.leader(stream_name(RUN))
            self.nodes.kill(leader)
            time.sleep(down_s)
            self.nodes.start(leader)


def cpu_of_family() -> float:
    """CPU time of all children, in seconds."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            total += sum(process.cpu_times()[:2])
    return total


def measure(engine: str, options: argparse.Namespace) -> dict[str, float]:
    """One turn of one engine."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        nodes, place = None, Place(Path(name) / "keys")
        if engine != "zmq":
            sys.path.append(str(Path(__file__).parents[1] / "engine"))
            from engine_nodes import Nodes

            count = 1 if engine == "one" else 3
            nodes = stack.enter_context(Nodes(Path(name) / "nodes", count, engine.endswith("sync"), is_open=True))
            place = Place(place.keys, tuple(nodes.urls))
        rig = Rig(place, nodes, options.workers, stack)
        rig.load(10, 1.0)
        fast, paced = rig.load(None, options.seconds), rig.load(10, options.seconds)
        found = {
            "packets/s": fast["packets"] / fast["lasted_s"],
            "CPU of all, us a packet": fast["cpu_us"],
            "latency p50, ms": paced["ages_ms"][0],
            "latency p99, ms": paced["ages_ms"][1],
        }
        for size, (size_bytes, times) in POLICIES.items():
            found[f"policy of {size}, ms"] = 1e3 * median([rig.publish(size_bytes) for _ in range(times)])
        if engine.startswith("three") and options.kills:
            rig.load(10, options.kills * 8.0 + 2.0, lambda: rig.kill_leaders(options.kills, 8.0, 3.0))
            killed = rig.trainer.ask("report")
            found["silence, s"] = killed["silence_s"]
        return found


def main() -> None:
    quick = {"engines": ["zmq", "one"], "workers": 8, "seconds": 0.5, "repeats": 1, "kills": 0}
    parser = Options(__doc__, **quick)
    engines = ["zmq", "one", "three", "three-sync"]
    parser.add_argument("--engines", nargs="+", default=engines, choices=engines)
    parser.add_argument("--workers", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each load")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each engine")
    parser.add_argument("--kills", type=int, default=4, help="of the stream's leader in a turn; one in 8 s")
    options = parser.parse()
    runs: dict[str, list[dict[str, float]]] = {engine: [] for engine in options.engines}
    for _ in range(options.repeats):
        for engine in options.engines:
            runs[engine].append(measure(engine, options))
    medians = {
        engine: {name: median([turn[name] for turn in turns]) for name in turns[0]} for engine, turns in runs.items()
    }
    for engine, turns in runs.items():
        for name, value in medians[engine].items():
            values = [turn[name] for turn in turns]
            print(f"{engine:12}{name:24} {value:,.4g} ({min(values):,.4g} to {max(values):,.4g})")
    finish({f"{engine}: {name}": value for engine, found in medians.items() for name, value in found.items()})


if __name__ == "__main__":
    main()
