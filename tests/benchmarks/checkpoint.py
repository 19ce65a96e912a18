"""What it costs to keep a training and to bring it back.

    python tests/benchmarks/checkpoint.py [--transitions 1000000] [--pictures 100000] [--repeats 5]

A checkpoint is taken while training goes on: how long the training thread is held, and the highest resident set
meanwhile, over the one before it. To resume is what a trainer does at its start: the checkpoint, and the log into a
`ReplayMemory`, of drone samples and of pictures, 4 x 64 x 64 uint8, whole (their page cache is warm). The limit reads
the log's bytes, and copies as many as the memory holds.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import numpy as np
import psutil
import torch
from _harness import Row, benchmark, in_turns, timed
from simulated_drone import SimulatedDroneEnv

from tmrl_like.agents import SACAgent
from tmrl_like.base.files import lock_folder
from tmrl_like.base.functional import partial
from tmrl_like.delivery.sample_store import SampleStore, StoreHead
from tmrl_like.replay import ReplayMemory
from tmrl_like.testing.fakes import CountingAgent
from tmrl_like.trainer.checkpoints import Checkpoints
from tmrl_like.trainer.schedule import TrainingOffline
from tmrl_like.trainer.snapshot import take_snapshot
from tmrl_like.types import StepTiming
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import Compressor, PacketWriter, columns_in, encode_packet, encode_rows

PACKET = 100
FILE_BYTES = 16 << 20
Record = Callable[[int], bytes]


def drone_record(number: int) -> bytes:
    """100 samples of the drone as they arrive; its action buffer has been dropped."""
    rng = np.random.default_rng(number)
    return _sealed(number, lambda: tuple(rng.uniform(-1, 1, (4, 1)).astype(np.float32)))


def picture_record(number: int) -> bytes:
    """100 samples of stacks of pictures, half of each of them noise."""
    rng = np.random.default_rng(number)
    return _sealed(
        number,
        lambda: np.concatenate((rng.integers(0, 256, (4, 32, 64), np.uint8), np.zeros((4, 32, 64), np.uint8)), axis=1),
    )


def _sealed(number: int, observe: Callable[[], Any]) -> bytes:
    rng, writer = np.random.default_rng((number, 1)), PacketWriter()
    for k in range(PACKET):
        sample = (rng.uniform(-2, 2, 2).astype(np.float32), observe(), np.float32(-1.0), False, False, {})
        writer.append(sample, StepTiming(1e9 + k * 0.05, 1e-4, 1e-5, 3), k == 0)
    entries = {"first": (number - 1) * PACKET + 1, "last": number * PACKET, "oldest": 1, "breaks": 0}
    return encode_rows(writer.rows(), Compressor(), worker="bench", incarnation=1, **entries)


def drone_training(size: int) -> TrainingOffline:
    env = SimulatedDroneEnv()
    return TrainingOffline(
        (env.observation_space, env.action_space),
        partial(ReplayMemory, act_buf_len=4, memory_size=size, batch_size=256),
        SACAgent,
        device="cpu",
    )


def picture_training(size: int) -> TrainingOffline:
    box = gymnasium.spaces.Box
    spaces = (box(0, 255, (4, 64, 64), np.uint8), box(-1.0, 1.0, (2,), np.float32))
    return TrainingOffline(spaces, partial(ReplayMemory, memory_size=size, batch_size=256), CountingAgent)


def log_of(folder: Path, record_of: Record, size: int, distinct: int = 20) -> None:
    """Write the log of a trainer that has received so many samples; a few packets' samples over and over."""
    messages = [record_of(number) for number in range(1, distinct + 1)]
    lock = lock_folder(folder / "log")
    assert lock is not None
    packets = size // PACKET
    per_file = max(1, FILE_BYTES // len(messages[0]))
    with contextlib.closing(SampleStore(folder / "log", lock)) as store:
        for first in range(1, packets + 1, per_file):
            numbers = range(first, min(first + per_file, packets + 1))
            group = [renumbered(messages[number % distinct], number) for number in numbers]
            store.write(StoreHead("run", PACKET * numbers[-1], PACKET * len(group)), group, 0.0)
            assert store.is_settled(0.0), store.alarm


def renumbered(message: bytes, number: int) -> bytes:
    """A packet with the same samples as this one, as the one of this number."""
    header, body = m.decode(message)
    entries = {"first": (number - 1) * PACKET + 1, "last": number * PACKET}
    return encode_packet(msgspec.structs.replace(header, **entries), bytes(columns_in(message, body)))


@contextmanager
def peak_rss() -> Iterator[list[int]]:
    """The highest resident set, looked at every millisecond; page cache of mapped files counts."""
    process, highest, done = psutil.Process(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.001):
            highest[0] = max(highest[0], process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield highest
    finally:
        done.set()
        watcher.join()


def save_beside_training(one: TrainingOffline, folder: Path) -> tuple[float, float]:
    """A checkpoint while training goes on: milliseconds that it is held, and percent of RAM more."""
    for _ in range(20):  # the first one compiles
        one.agent.train(one.memory.sample())
    before = psutil.Process().memory_info().rss
    with peak_rss() as highest:
        started = time.perf_counter()
        snapshot = take_snapshot(one, "run")
        held_s = time.perf_counter() - started
        writer = threading.Thread(target=snapshot.write, args=(folder,))
        writer.start()
        while writer.is_alive():
            one.agent.train(one.memory.sample())
        writer.join()
    return 1e3 * held_s, 100 * (highest[0] - before) / before


def resumed(make: Callable[[], TrainingOffline], folder: Path) -> TrainingOffline:
    """As the trainer does it when it starts, with a training that is built already."""
    checkpoints, training = Checkpoints(folder), make()
    checkpoints.build(lambda: training, "all")
    checkpoints.close()
    return training


def read_and_copy(folder: Path, held: np.ndarray[Any, Any]) -> None:
    """The log's bytes, and as many as the memory holds."""
    for path in sorted((folder / "log").glob("*.log")):
        path.read_bytes()
    held[:] = 0


def measure(options: Any) -> Iterator[Row]:
    torch.manual_seed(0)
    kinds = (
        ("drone transitions", drone_record, options.transitions, drone_training, 30, 1.0),
        ("pictures", picture_record, options.pictures, picture_training, 4 * 64 * 64, 10.0),
    )
    with tempfile.TemporaryDirectory() as name:
        for kind, record_of, count, training_of, sample_bytes, goal_s in kinds:
            folder = Path(name) / kind
            log_of(folder, record_of, count)
            resume = partial(resumed, partial(training_of, count), folder)
            copy = partial(read_and_copy, folder, np.ones(count * sample_bytes, np.uint8))
            training = resume()
            assert training.total_samples == count
            assert len(training.memory) > 0.9 * count
            times = in_turns(options.repeats, ours=partial(timed, resume), limit=partial(timed, copy))
            yield {"what": f"resumed, {count:,} {kind} from the log, s", **times, "goal": goal_s}
        folder = Path(name) / "drone transitions"
        training = resumed(partial(drone_training, options.transitions), folder)
        held_ms, more = zip(*(save_beside_training(training, folder) for _ in range(options.repeats)), strict=True)
        yield {"what": "training held by a checkpoint, ms", "ours": list(held_ms), "goal": 50}
        yield {"what": "more RAM while saving, %", "ours": list(more), "goal": 5}


if __name__ == "__main__":
    quick = {"transitions": 20_000, "pictures": 1_000, "repeats": 1}
    benchmark(__doc__, measure, transitions=1_000_000, pictures=100_000, repeats=5, quick=quick)
