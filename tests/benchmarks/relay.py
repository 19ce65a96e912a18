"""Samples from the worker's send to the trainer's memory, encrypted, over three processes.

    python tests/benchmarks/relay.py [--seconds 4] [--repeats 3] [--transport zmq]

Three kinds of samples:

packets   drone samples (act 2, obs 4 float32, reward, flags, info; the action buffer dropped), already
          encoded at the worker, 100 a packet -> checked, in the columns of `ReplayMemory`
tuples    the same samples as tuples: appended, encoded, sent, decoded, in the memory; CPU time of all
          processes per sample
images    4 x 64 x 64 uint8 stacks, whole: a moving picture, and pure noise (which no compression helps)

The floor sends frames of the same size over two hops of plain TCP (no encryption, no Python objects).
"""

from __future__ import annotations

import itertools
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _common import Options, Part, finish, median, run_server, two_hops

PACKET = 100
cpu_s = time.process_time  # of all threads
SPACES = ("o", "a")


def drone_samples(n: int) -> list[tuple[Any, ...]]:
    """Samples as the drone's worker produces them: a flight towards a target, then the next."""
    rng = np.random.default_rng(0)
    samples = []
    position = np.zeros(2)
    for i in range(n):
        if i % 40 == 0:
            target = rng.uniform(-0.5, 0.5, 2).astype(np.float32)
        act = rng.uniform(-2, 2, 2).astype(np.float32)
        position = np.clip(position + 0.05 * act, -1, 1)
        obs = tuple(np.array([v], np.float32) for v in (*position, *target))
        samples.append((act, obs, np.float32(-np.linalg.norm(position - target)), False, False, {}))
    return samples


def image_samples(n: int, noise: bool) -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(0)
    picture = np.add.outer(np.arange(64), np.arange(64)).astype(np.uint8)
    samples = []
    for i in range(n):
        if noise:
            stack = rng.integers(0, 256, (4, 64, 64), np.uint8)
        else:
            stack = np.stack([np.roll(picture, 3 * (i + k), axis=1) for k in range(4)])
            stack[:, 20:40, (5 * i) % 40 : (5 * i) % 40 + 20] = rng.integers(0, 256, (20, 20), np.uint8)
        samples.append((np.zeros(2, np.float32), stack, 0.0, False, False, {}))
    return samples


def spaces_of(kind: str) -> tuple[Any, Any]:
    """Observation and action space of the samples, without the action buffer."""
    from gymnasium import spaces

    number = spaces.Box(-1.0, 1.0, (1,), np.float32)
    is_drone = kind in ("packets", "tuples")
    obs = spaces.Tuple([number] * 4) if is_drone else spaces.Box(0, 255, (4, 64, 64), np.uint8)
    return obs, spaces.Box(-2.0, 2.0, (2,), np.float32)


def run_trainer(port: int, keys: Path, transport: str, kind: str, pipe: Any) -> None:
    import torch

    from tmrl_like.delivery.receiver import Receiver
    from tmrl_like.replay.memory import ReplayMemory
    from tmrl_like.trainer.link import TrainerLink
    from tmrl_like.trainer.sample_check import SampleCheck
    from tmrl_like.transport import KeyFolder, connect
    from tmrl_like.wire.messages import Spaces

    torch.set_num_threads(1)
    memory, received = ReplayMemory(memory_size=100_000 if kind in ("packets", "tuples") else 10_000), 0
    receiver = Receiver(None, "bench", keep_samples=memory.memory_size)
    receiver.check = SampleCheck(*spaces_of(kind), memory)
    server = connect(transport, "127.0.0.1", port, KeyFolder(keys))
    link = TrainerLink(server, "bench", "t", Spaces(*SPACES), receiver)
    pipe.send(link.session.wait_connected(10))
    while True:
        deliveries = link.retrieve(0.02)
        for delivery in deliveries:
            memory.append(delivery.buffer)
            received += len(delivery.buffer)
        if deliveries:
            link.confirm(deliveries)
        if pipe.poll():
            pipe.recv()
            pipe.send((received, time.perf_counter(), cpu_s()))


class _Sender:
    """A worker's session and outbox, without an environment."""

    def __init__(self, port: int, keys: Path, transport: str) -> None:
        from tmrl_like.delivery.folder import open_folder
        from tmrl_like.delivery.options import OutboxOptions
        from tmrl_like.delivery.outbox import Outbox
        from tmrl_like.delivery.sample_log import SampleLog
        from tmrl_like.delivery.session import Session
        from tmrl_like.transport import KeyFolder, connect
        from tmrl_like.wire.messages import Spaces

        options = OutboxOptions(max_samples=PACKET, max_age_s=1e9)
        folder = open_folder(None, "bench")
        self.log = SampleLog(folder)
        self.outbox = Outbox(folder.path, "bench", self.log.incarnation, options)
        self.sequence = 0  # of the newest packet that was encoded beforehand
        self.stream = 0
        self.feed: Iterator[Any] | None = None  # encoded bodies to send, by the connection's thread
        self.sent_bytes = 0
        link = connect(transport, "127.0.0.1", port, KeyFolder(keys))
        spaces = Spaces(*SPACES)
        self.session = Session(link, "bench", self, "worker", "bench", spaces, incarnation=self.outbox.incarnation)

    def on_welcome(self, welcome: Any, is_new: bool) -> None:
        self.stream = welcome.feed

    def on_message(self, message: Any, body: Any) -> None:
        if type(message).__name__ == "Ack":
            self.outbox.on_ack(message)

    def _send(self, send: Callable[[bytes], bool], data: bytes) -> bool:
        if not send(data):
            return False
        self.sent_bytes += len(data)
        return True

    def on_tick(self, send: Callable[[bytes], bool], connected: bool) -> float:
        own = self.outbox._sender._own
        while self.feed is not None and len(own.produced) < 50 and len(own.received) + len(own.in_flight) < 1000:
            _queue_encoded(self, next(self.feed))
        self.log.refill()
        self.outbox.pump(lambda data: self._send(send, data), connected and self.stream != 0)
        return 0.0 if self.feed is not None and len(own.received) + len(own.in_flight) < 1000 else 0.001

    def pending(self) -> bool:
        return False

    def beat(self) -> Any:
        from tmrl_like.wire.messages import Beat

        return Beat()


def run_worker(port: int, keys: Path, transport: str, kind: str, seconds: float, pipe: Any) -> None:
    from tmrl_like.types import StepTiming

    sender = _Sender(port, keys, transport)
    sender.session.wait_connected(10)
    while not sender.stream:
        time.sleep(0.01)
    samples = drone_samples(4000) if kind in ("packets", "tuples") else image_samples(400, kind == "noise")
    timings = [StepTiming(1e9 + i * 0.05, 1e-4 + i * 1e-9, 1e-5, 3) for i in range(len(samples))]
    bodies = [] if kind == "tuples" else _encoded(samples, timings)
    pipe.send("ready")
    pipe.recv()
    cpu, started = cpu_s(), time.perf_counter()
    count = 0
    if kind == "tuples":
        for sample, timing in itertools.cycle(zip(samples, timings, strict=True)):
            sender.log.append(sample, *timing)
            count += 1
            if count % PACKET == 0:
                _wait(sender.outbox, count)
                if time.perf_counter() - started > seconds:
                    break
        sender.log.seal()
    else:
        sender.feed = itertools.cycle(bodies)
        time.sleep(seconds)
        sender.feed = None
        time.sleep(0.1)
        count = sender.sequence * PACKET
    pipe.send((count, started))
    while sender.outbox.pending():
        time.sleep(0.001)
    pipe.send((cpu_s() - cpu, sender.sent_bytes))
    sender.session.close()


def _wait(outbox: Any, count: int) -> None:
    """Do not run ahead of the link: a worker in real time would not either."""
    own = outbox._sender._own
    while count / PACKET - outbox._reader.sequence > 50 or len(list(own)) > 400:
        time.sleep(0.0002)


def _encoded(samples: list[Any], timings: list[Any]) -> list[tuple[int, bytes, bool]]:
    """Bodies of packets: size before compression, bytes to send, whether they are compressed."""
    from tmrl_like.wire.packet import Compressor, PacketWriter

    compress, bodies = Compressor(), []
    for start in range(0, len(samples), PACKET):
        writer = PacketWriter()
        for sample, timing in zip(samples[start : start + PACKET], timings[start:], strict=False):
            writer.append(sample, timing)
        body = writer.encode()
        bodies.append((len(body), *compress(body, writer.rows().extra_bytes)))
    return bodies


def _queue_encoded(sender: _Sender, encoded: tuple[int, bytes, bool]) -> None:
    """Number an encoded body, seal it and queue it for sending, in the connection's thread's place."""
    from tmrl_like.wire import messages as m
    from tmrl_like.wire.records import record_head

    size, data, compressed = encoded
    sender.sequence += 1
    header = m.SamplePacket("bench", sender.outbox.incarnation, sender.sequence, 1, PACKET, size, compressed)
    frame = m.frame_of(header)
    sender.outbox._sender.add(sender.sequence, PACKET, (record_head(frame, data) + frame, data), time.monotonic())


def measure(kind: str, seconds: float, transport: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        with Part(run_server, {"keys_dir": keys, "transport": transport}) as server:
            port = server.hear()
            with (
                Part(run_trainer, port, keys, transport, kind) as trainer,
                Part(run_worker, port, keys, transport, kind, seconds) as worker,
            ):
                assert trainer.hear()
                worker.hear()
                cpu = {"server": -server.cpu_s(), "trainer": -trainer.ask("count")[2]}
                count, started = worker.ask("go")
                received, ended = 0, 0.0
                while received < count:
                    received, ended, trainer_cpu = trainer.ask("count")
                    time.sleep(0.002)
                cpu["worker"], sent_bytes = worker.hear()
                cpu["server"] += server.cpu_s()
                cpu["trainer"] += trainer_cpu
    assert received == count, f"{received} of {count} samples arrived"
    return {
        "samples_per_s": count / (ended - started),
        "bytes_per_sample": sent_bytes / count,
        "cpu_us_per_sample": sum(cpu.values()) / count * 1e6,
        **{f"{part}_cpu_us_per_sample": spent_s / count * 1e6 for part, spent_s in cpu.items()},
    }


def floor_samples_per_s(frame_bytes: int, seconds: float) -> float:
    """Frames of the same size over two hops of plain TCP."""
    frame, got, stop = bytes(frame_bytes), 0, time.perf_counter() + seconds
    with two_hops() as (begin, end):

        def send() -> None:
            while time.perf_counter() < stop:
                begin.sendall(frame)
            begin.shutdown(socket.SHUT_WR)

        threading.Thread(target=send, daemon=True).start()
        started, buffer = time.perf_counter(), bytearray(1 << 18)
        while n := end.recv_into(buffer):
            got += n
        return got / frame_bytes * PACKET / (time.perf_counter() - started)


def main() -> None:
    parser = Options(__doc__, seconds=0.5, repeats=1, kinds=["packets", "tuples"])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--transport", default="zmq")
    parser.add_argument("--kinds", nargs="+", default=["packets", "tuples", "images", "noise"])
    arguments = parser.parse()
    result: dict[str, Any] = {"transport": arguments.transport}
    for kind in arguments.kinds:
        runs, floors = [], []
        for _ in range(arguments.repeats):
            runs.append(measure(kind, arguments.seconds, arguments.transport))
            floors.append(floor_samples_per_s(int(runs[-1]["bytes_per_sample"] * PACKET), arguments.seconds / 4))
        for name in runs[0]:
            values = [run[name] for run in runs]
            result[f"relay_{kind}_{name}"] = median(values)
            result[f"relay_{kind}_{name}_min"], result[f"relay_{kind}_{name}_max"] = min(values), max(values)
        result[f"relay_{kind}_floor_samples_per_s"] = median(floors)
    goals = {"packets_samples_per_s": 3_000_000, "tuples_cpu_us_per_sample": 5, "packets_bytes_per_sample": 45}
    goals["images_samples_per_s"] = 20_000
    finish(result | {f"goal_{name}": value for name, value in goals.items()})


if __name__ == "__main__":
    main()
