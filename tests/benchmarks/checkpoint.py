"""What a checkpoint costs, and what a kill leaves, with a full memory of drone transitions.

    python tests/benchmarks/checkpoint.py [--transitions 1000000] [--repeats 5] [--kills 50]

blocked    how long the training thread is held by a checkpoint; and its longest training step while another
           thread writes, beside the longest without
resume     `load_checkpoint` into a training that was just built
extra RAM  the highest resident set while a checkpoint is written, over the one before it, in percent
append     a packet of 100 to the full memory, committed: in files, and in RAM
kills      processes that append and write checkpoints, killed at random: what the next one misses

The floor writes and reads the bytes of the columns as one file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from _common import finish, median, repeat

from tmrl_like.agents import SACAgent
from tmrl_like.checkpoint import load_checkpoint, take_snapshot
from tmrl_like.memories import ReplayMemory
from tmrl_like.testing.memories import Step, packed
from tmrl_like.training_offline import TrainingOffline
from tmrl_like.types import Buffer, Receipt, Sample
from tmrl_like.util import partial

sys.path.append(str(Path(__file__).parents[1]))
from simulated_drone import SimulatedDroneEnv

PACKET = 100
GOALS = {"blocked_s": 0.05, "resume_s": 1.0, "extra_ram_percent": 5.0, "append_s": 0.0002}
KILLS = Path(__file__).parents[1] / "memories" / "kill_at_random.py"


def packet() -> Buffer:
    """100 samples of the drone as they arrive; its action buffer has been dropped."""
    rng = np.random.default_rng(0)
    steps = [
        Step(
            Sample(
                rng.uniform(-2, 2, 2).astype(np.float32),
                tuple(rng.uniform(-1, 1, (4, 1)).astype(np.float32)),
                np.float32(-1.0),
                False,
                False,
                {},
            ),
            k == 0,
            (),
        )
        for k in range(PACKET)
    ]
    return packed(steps, "drone", with_originals=False)


def training(size: int) -> TrainingOffline:
    env = SimulatedDroneEnv()
    return TrainingOffline(
        (env.observation_space, env.action_space),
        partial(ReplayMemory, act_buf_len=4, memory_size=size, batch_size=256),
        SACAgent,
        device="cpu",
    )


def fill(memory: ReplayMemory, size: int) -> None:
    one = packet()
    for _ in range(0, size + 2 * PACKET, PACKET):
        memory.append(one)
    memory.commit([Receipt("drone", 1, 1)])


def timed(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


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
        snapshot = take_snapshot(one, {}, "run")
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


def resume(size: int, folder: Path) -> float:
    one = training(size)
    seconds = timed(lambda: load_checkpoint(one, folder))
    assert len(one.memory) > 0.98 * size
    one.memory.close()
    return seconds


def floor(size: int, folder: Path) -> tuple[float, float, int]:
    """Write and read the columns' bytes as one file: seconds each, bytes."""
    columns = [np.zeros((size, n), np.float32) for n in (2, 1, 1, 1, 1, 1)] + [np.zeros(2 * size, np.bool_)]
    file = folder / "floor"

    def write() -> None:
        with file.open("wb", buffering=0) as out:
            for column in columns:
                out.write(column)

    def read() -> None:
        with file.open("rb", buffering=0) as source:
            for column in columns:
                source.readinto(column)  # type: ignore[attr-defined]

    write()
    seconds = [median(times) for times in repeat(5, lambda: timed(write), lambda: timed(read))]
    return seconds[0], seconds[1], file.stat().st_size


def append_times(one: ReplayMemory, other: ReplayMemory) -> list[float]:
    """Median seconds for a packet, in files and in RAM, in turns."""
    buffer = packet()
    receipt = [Receipt("drone", 1, 1)]

    def once(memory: ReplayMemory) -> float:
        return timed(lambda: (memory.append(buffer), memory.commit(receipt)))

    return [median(times) for times in repeat(500, lambda: once(one), lambda: once(other))]


def kills(count: int, folder: Path) -> dict[str, Any]:
    command = [sys.executable, str(KILLS), str(folder / "killed"), str(count), "0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    found = json.loads(done.stdout)
    return {f"kills_{name}": len(value) if isinstance(value, list) else value for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transitions", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--kills", type=int, default=50)
    arguments = parser.parse_args()
    size, result = arguments.transitions, {"transitions": arguments.transitions}
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        one, in_ram = training(size), training(size)
        one.memory.keep_in(folder / "run", "run")
        for memory in (one.memory, in_ram.memory):
            fill(memory, size)
        in_files_s, in_ram_s = append_times(one.memory, in_ram.memory)
        del in_ram
        saved = [save_beside_training(one, folder / "run") for _ in range(arguments.repeats)]
        one.memory.close()
        del one
        result |= {key: median([values[key] for values in saved]) for key in saved[0]}
        result["blocked_max_s"] = max(values["blocked_s"] for values in saved)
        result["resume_s"] = median([resume(size, folder / "run") for _ in range(arguments.repeats)])
        result |= {"append_100_in_files_s": in_files_s, "append_100_in_ram_s": in_ram_s}
        write_s, read_s, size_bytes = floor(size, folder)
        result |= {"floor_write_s": write_s, "floor_read_s": read_s, "floor_bytes": size_bytes}
        files = sum(file.stat().st_size for file in (folder / "run").rglob("*") if file.is_file())
        result |= {"bytes_per_transition_on_disk": files / size}
        result |= kills(arguments.kills, folder)
    finish(result | {f"goal_{name}": value for name, value in GOALS.items()})


if __name__ == "__main__":
    main()
