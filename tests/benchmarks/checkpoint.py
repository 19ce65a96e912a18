"""What it costs to keep a training, to bring it back, and what a kill leaves.

    python tests/benchmarks/checkpoint.py [--transitions 1000000] [--pictures 100000] [--repeats 5]

blocked    how long the training thread is held by a checkpoint; and its longest training step while another
           thread writes, beside the longest without
extra RAM  the highest resident set while a checkpoint is written, over the one before it, in percent
resume     what a trainer does at its start: the checkpoint, and the log into a `ReplayMemory`, of drone samples and
           of pictures, 4 x 64 x 64 uint8, whole (their page cache is warm)
log        bytes on disk per sample

The floor reads the log's bytes, and copies as many as the memory holds.
"""

from __future__ import annotations

import contextlib
import sys
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
from _common import Options, finish, median, repeat, timed

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

sys.path.append(str(Path(__file__).parents[1]))
from simulated_drone import SimulatedDroneEnv

PACKET = 100
FILE_BYTES = 16 << 20
GOALS = {"blocked_s": 0.05, "resume_drone_s": 1.0, "resume_pictures_s": 10.0, "extra_ram_percent": 5.0}
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


def save_beside_training(one: TrainingOffline, folder: Path) -> dict[str, float]:
    """A checkpoint as the trainer takes it, while training goes on."""
    process = psutil.Process()
    before = process.memory_info().rss
    quiet = max(timed(lambda: one.agent.train(one.memory.sample())) for _ in range(20))
    with peak_rss() as highest:
        started = time.perf_counter()
        snapshot = take_snapshot(one, "run")
        blocked_s = time.perf_counter() - started
        writer = threading.Thread(target=snapshot.write, args=(folder,))
        writer.start()
        steps = [0.0]
        while writer.is_alive():
            steps.append(timed(lambda: one.agent.train(one.memory.sample())))
        writer.join()
        written_s = time.perf_counter() - started
    return {
        "blocked_s": blocked_s,
        "written_s": written_s,
        "longest_step_while_writing_s": max(steps),
        "longest_step_before_s": quiet,
        "extra_ram_percent": 100 * (highest[0] - before) / before,
    }


def resume(training_cls: Callable[[], TrainingOffline], folder: Path, size: int) -> float:
    """As the trainer does it when it starts, with a training that is built already."""
    checkpoints, training = Checkpoints(folder), training_cls()
    seconds = timed(lambda: checkpoints.build(lambda: training, "all"))
    assert training.total_samples == size
    assert len(training.memory) > 0.9 * size
    checkpoints.close()
    return seconds


def floor(folder: Path, memory_bytes: int) -> float:
    """Read the log's bytes, copy as many as the memory holds: seconds."""
    source, target = np.zeros(memory_bytes, np.uint8), np.empty(memory_bytes, np.uint8)

    def once() -> None:
        for path in sorted((folder / "log").glob("*.log")):
            path.read_bytes()
        np.copyto(target, source)

    return median(repeat(5, lambda: timed(once))[0])


def main() -> None:
    parser = Options(__doc__, transitions=20_000, pictures=1_000, repeats=1)
    parser.add_argument("--transitions", type=int, default=1_000_000)
    parser.add_argument("--pictures", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse()
    size, pictures = arguments.transitions, arguments.pictures
    result: dict[str, Any] = {"transitions": size, "pictures": pictures}
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind, record_of, count, training_cls in (
            ("drone", drone_record, size, drone_training),
            ("pictures", picture_record, pictures, picture_training),
        ):
            if not count:
                continue
            log_of(folder / kind, record_of, count)
            times = [resume(partial(training_cls, count), folder / kind, count) for _ in range(arguments.repeats)]
            bytes_on_disk = sum(file.stat().st_size for file in (folder / kind / "log").glob("*.log"))
            held = count * (30 if kind == "drone" else 4 * 64 * 64)
            result |= {f"resume_{kind}_s": median(times), f"resume_{kind}_max_s": max(times)}
            result |= {f"log_{kind}_bytes_per_sample": bytes_on_disk / count}
            result |= {f"resume_{kind}_floor_s": floor(folder / kind, held)}
        checkpoints = Checkpoints(folder / "drone")
        one = checkpoints.build(partial(drone_training, size), "all")
        checkpoints.close()
        saved = [save_beside_training(one, folder / "drone") for _ in range(arguments.repeats)]
        result |= {key: median([values[key] for values in saved]) for key in saved[0]}
        result["blocked_max_s"] = max(values["blocked_s"] for values in saved)
    finish(result | {f"goal_{name}": value for name, value in GOALS.items()})


if __name__ == "__main__":
    main()
