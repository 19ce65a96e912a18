"""Samples from the worker's log to the trainer's memory, encrypted, over three processes.

    python tests/benchmarks/relay.py [--kinds packets noise] [--seconds 1] [--repeats 3]

Samples of two kinds, as many as `--seconds` would take at the goal's rate:

packets   drone samples (act 2, obs 4 float32, reward, flags, info; no action buffer) that wait
          in the worker's log -> cut, encoded, sent, checked, in the columns of `ReplayMemory`
noise     whole stacks of 4 x 64 x 64 uint8 that wait there, which cannot be compressed

The limit sends as many bytes over two hops of plain TCP (no encryption, no Python objects). CPU is
that of all three processes.
"""

import itertools
import time
from functools import partial

import numpy as np
from _harness import Parts, benchmark, in_turns, link_to, over_two_hops, trainer_link
from kit.boxes import box, picture
from kit.light_worker import LightWorker
from kit.waiting import until

KEPT_BYTES = 8 << 30
REFILL_EVERY = 1000  # samples
SPACES = ("o", "a")
GOALS_PER_S = {"packets": 3_000_000, "noise": 30_000}


def drone_samples(n):
    """Return samples as the drone's worker produces them: one flight to a target after another."""
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


def noise_samples(n):
    rng = np.random.default_rng(0)
    stacks = rng.integers(0, 256, (n, 4, 64, 64), np.uint8)
    return [(np.zeros(2, np.float32), stack, 0.0, False, False, {}) for stack in stacks]


def spaces_of(kind):
    """Return observation and action space of the samples, without the action buffer."""
    from gymnasium import spaces

    obs = spaces.Tuple([box(1.0, 1)] * 4) if kind == "packets" else picture(4, 64, 64)
    return obs, box(2.0, 2)


def run_trainer(port, keys, kind, pipe):
    from tmrl_like.agents.process import tune_process
    from tmrl_like.delivery.receiver import Receiver
    from tmrl_like.replay.memory import ReplayMemory
    from tmrl_like.replay.sample_check import SampleCheck
    from tmrl_like.wire.messages import Spaces

    tune_process(threads=1)
    memory = ReplayMemory(memory_size=100_000 if kind == "packets" else 10_000)
    check = SampleCheck(*spaces_of(kind), memory)
    receiver = Receiver(None, "bench", check=check)
    link = trainer_link(link_to(port, keys), Spaces(*SPACES), receiver)
    pipe.send("ready")
    received, ended_at = 0, 0.0
    while True:
        deliveries = link.retrieve(0.02)
        for delivery in deliveries:
            memory.append(delivery.buffer)
            received += len(delivery.buffer)
        if deliveries:
            link.confirm(deliveries)
            ended_at = time.perf_counter()
        if pipe.poll():
            pipe.recv()
            pipe.send((received, ended_at))


class Sending(LightWorker):
    """A worker that sends only while `is_open`, and counts the bytes sent."""

    is_open = False
    sent_bytes = 0

    def on_tick(self, send, connected):
        def count(data):
            is_sent = send(data)
            self.sent_bytes += len(data) * is_sent
            return is_sent

        super().on_tick(count, connected and self.is_open)
        return 0.01  # as a worker's link


def run_worker(port, keys, kind, count, pipe):
    from tmrl_like.base.processes import keep_freed_memory
    from tmrl_like.delivery.folder import open_folder
    from tmrl_like.delivery.options import OutboxOptions
    from tmrl_like.wire.messages import Spaces

    keep_freed_memory(64 << 20)  # as the link's process
    options, folder = OutboxOptions(max_bytes=KEPT_BYTES), open_folder(None, "bench")
    worker = Sending(folder, link_to(port, keys), options, KEPT_BYTES, Spaces(*SPACES))
    worker.session.wait_connected(10)
    samples = drone_samples(4000) if kind == "packets" else noise_samples(400)
    for i, sample in zip(range(count), itertools.cycle(samples), strict=False):
        worker.log.append(sample, 1e9 + i * 0.05, 1e-4 + i % 4000 * 1e-9, 1e-5, 3, 0)
        if i % REFILL_EVERY == 0:
            worker.log.refill()
    pipe.send("ready")
    pipe.recv()
    started_at = time.perf_counter()
    worker.is_open = True
    worker.session.wake()
    pipe.recv()
    pipe.send((started_at, worker.sent_bytes, worker.log.lost_samples))
    worker.close()


def way(kind, seconds, found):
    """Return samples per second; append bytes and CPU time of a sample to `found`."""
    count = int(seconds * GOALS_PER_S[kind])
    with Parts() as parts:
        server, port = parts.serve()
        trainer = parts.start(run_trainer, port, parts.keys, kind)
        worker = parts.start(run_worker, port, parts.keys, kind, count)
        trainer.hear()
        worker.hear()
        cpu_s = -sum(part.cpu_s() for part in (server, trainer, worker))
        worker.tell("go")
        until(lambda: trainer.ask("count")[0] >= count, "all samples", 120.0)
        cpu_s += sum(part.cpu_s() for part in (server, trainer, worker))
        received, ended_at = trainer.ask("count")
        started_at, sent_bytes, lost = worker.ask("end")
    assert (received, lost) == (count, 0), (
        f"{received} of {count} samples arrived, {lost} were lost"
    )
    found["bytes"].append(sent_bytes / count)
    found["cpu_us"].append(cpu_s / count * 1e6)
    return count / (ended_at - started_at)


def two_tcp_hops(found, count):
    """Return samples per second, with as many bytes for each as were measured last."""
    return count / over_two_hops(int(found["bytes"][-1] * count))


def measure(options):
    for kind in options.kinds:
        found = {"bytes": [], "cpu_us": []}
        turns = in_turns(
            options.repeats,
            ours=partial(way, kind, options.seconds, found),
            limit=partial(two_tcp_hops, found, int(options.seconds * GOALS_PER_S[kind])),
        )
        costs = {"CPU, µs a sample": found["cpu_us"], "bytes a sample": found["bytes"]}
        yield {"what": f"{kind}: samples/s", **turns, "goal": GOALS_PER_S[kind], **costs}


if __name__ == "__main__":
    kinds = list(GOALS_PER_S)
    quick = {"seconds": 0.1, "repeats": 1}
    benchmark(__doc__, measure, kinds=kinds, seconds=1.0, repeats=3, quick=quick)
