"""Appends and writes checkpoints in processes that are killed at random; run by test_kills.py.

    python kill_at_random.py FOLDER COUNT SEED

Prints as JSON how many processes were killed, where, and what the next one missed of what the killed one had said.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch

from tmrl_like.checkpoint import has_checkpoint, load_checkpoint, new_run, take_snapshot
from tmrl_like.errors import TmrlLikeError
from tmrl_like.memories import ReplayMemory
from tmrl_like.testing.fakes import CountingAgent, CountingEnv
from tmrl_like.training_offline import TrainingOffline
from tmrl_like.types import Buffer, Info, Receipt, Sample
from tmrl_like.util import partial

SIZE = 3000
LARGEST = 40


def packet(sequence: int) -> tuple[int, int]:
    """Number of the first sample, and one behind the last."""
    sizes = [1 + k * 7919 % LARGEST for k in range(LARGEST)]
    whole, rest = divmod(sequence, LARGEST)
    first = whole * sum(sizes) + sum(sizes[:rest])
    return first, first + sizes[rest]


def samples_of(sequence: int) -> Buffer:
    rows = [
        Sample(np.float32([k % 1000]), np.float64([k, k * k]), float(k), False, False, Info(is_reset=k % 50 == 49))
        for k in range(*packet(sequence))
    ]
    return Buffer(rows, f"w/{sequence // 1000}")


def run(folder: Path, say) -> None:
    training = TrainingOffline(CountingEnv, partial(ReplayMemory, memory_size=SIZE, batch_size=4), CountingAgent)
    training_run = new_run()
    if has_checkpoint(folder):
        training_run = load_checkpoint(training, folder).run
    else:
        training.memory.keep_in(folder, training_run)
    sequence = checked(training, say)
    writing: threading.Thread | None = None
    while True:
        sequence += 1
        training.memory.append(samples_of(sequence))
        training.total_samples += len(samples_of(sequence))
        if training.memory.commit([Receipt("w", 1, sequence)]):
            say(f"stored {sequence}")
        if sequence % 5 == 0 and (writing is None or not writing.is_alive()):
            training.total_updates += 1
            snapshot = take_snapshot(training, {}, training_run)
            writing = threading.Thread(target=write, args=(snapshot, folder, training.total_updates, say))
            writing.start()


def write(snapshot, folder, updates, say) -> None:
    snapshot.write(folder)
    say(f"checkpoint {updates}")


def checked(training: TrainingOffline, say) -> int:
    """What is in the memory must be whole; says what it is."""
    memory = training.memory
    receipts = memory.receipts
    sequence = receipts[0].sequence if receipts else -1
    rows: list[int] = []
    if memory.kept is not None:
        numbers = np.arange(memory._lanes.oldest, memory._lanes.written) % SIZE
        act, obs, rew = [field.columns[0].array[numbers] for field in memory._fields[:3]]
        rows = rew.astype(int).tolist()
        end = packet(sequence)[1] if receipts else 0
        if rows != list(range(end - len(rows), end)):
            say("unreadable: rows do not follow each other up to the last packet")
        if len(rows) < min(end, SIZE - LARGEST):
            say(f"unreadable: {len(rows)} rows of {end}")
        if not (np.array_equal(obs, np.stack((rew, rew * rew), 1)) and np.array_equal(act[:, 0], rew % 1000)):
            say("unreadable: a row is not whole")
        if training.total_samples != end:
            say(f"unreadable: {training.total_samples} samples counted, {end} stored")
    say(f"resumed {sequence} {training.total_updates} {len(rows)}")
    return sequence


def killed(folder: Path, after_s: float) -> list[str]:
    """What a process said until it was killed."""
    read, written = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read)
        try:
            run(folder, lambda line: os.write(written, f"{line}\n".encode()))
        except TmrlLikeError as error:
            os.write(written, f"unreadable: {error}\n".encode())
        except BaseException as error:
            os.write(written, f"unreadable: {error!r}\n".encode())
        os._exit(1)
    os.close(written)
    time.sleep(after_s)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with os.fdopen(read, "rb") as said:
        return said.read().decode().splitlines()


def main(folder: Path, count: int, seed: int) -> None:
    torch.set_num_threads(1)
    rng = random.Random(seed)
    stored, updates = -1, 0
    found = {"kills": 0, "stored": 0, "checkpoints": 0, "lost": 0, "doubled": 0, "older_agent": 0, "unreadable": []}
    for _ in range(count):
        lines = killed(folder, rng.choice((rng.uniform(0, 0.02), rng.uniform(0, 0.15))))
        found["kills"] += 1
        for kind, *numbers in (line.split() for line in lines):
            if kind == "resumed":
                found["lost"] += int(numbers[0]) < stored
                found["older_agent"] += int(numbers[1]) < updates
                stored = int(numbers[0])
            elif kind == "stored":
                found["doubled"] += int(numbers[0]) != stored + 1
                stored = int(numbers[0])
                found["stored"] += 1
            elif kind == "checkpoint":
                updates = int(numbers[0])
                found["checkpoints"] += 1
        found["unreadable"] += [line for line in lines if line.startswith("unreadable")]
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
