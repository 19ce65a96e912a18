"""A trainer's memory, log and checkpoints in processes that are killed at random; run by test_kills.py.

    python kill_at_random.py FOLDER COUNT SEED

Each process resumes, then takes packets as a worker would send them and writes checkpoints. It is killed a random
moment after something happened that is waited for, so that what the processes come to does not depend on how fast they
are. Prints as JSON how many processes were killed, what they did, and what the next one missed of it.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from numbered_packets import SIZE, SMALL_BYTES, RecordingMemory, end_of, number_of, take

from tmrl_like.base.functional import partial
from tmrl_like.delivery.receiver import Receiver
from tmrl_like.delivery.sample_store import SampleStore
from tmrl_like.testing.fakes import CountingAgent, CountingEnv
from tmrl_like.trainer.checkpoints import Checkpoints
from tmrl_like.trainer.schedule import TrainingOffline

WORKER = "w"
RESENT = 5  # packets that the worker sends again to a trainer that has resumed
WITHIN_S = 60.0
PACKETS = 10_000  # of a process, which ends then
ONCE = ("resuming", "resumed")
MOMENTS = (*ONCE, "stored", "file", "writing", "checkpoint")
Say = Callable[[str], object]


def run(folder: Path, say: Say) -> None:
    """Resume; then take packet after packet, and write a checkpoint now and then."""
    say("resuming")
    kept = Checkpoints(folder, make_store=partial(SampleStore, small_bytes=SMALL_BYTES))
    memory = partial(RecordingMemory, memory_size=SIZE, batch_size=4)
    training = kept.build(partial(TrainingOffline, CountingEnv, memory, CountingAgent), "all")
    receiver = kept.receiver
    resumed = check_resumed(training, receiver, say)
    newest = newest_file(folder)
    first = max(1, resumed + 1 - RESENT)
    for number in range(first, first + PACKETS):
        for _, stored in take(training, receiver, WORKER, number, float(number)):
            say(f"stored {stored}")
        if newest != (newest := newest_file(folder)):
            say("file")
        if number % 5 == 0:
            if training.total_updates:
                kept._wait()
                say(f"checkpoint {training.total_updates}")
            training.total_updates += 1
            say("writing")
            kept.save(training, training.total_updates)


def newest_file(folder: Path) -> int:
    """The newest one's number."""
    return max((int(path.stem) for path in (folder / "log").glob("*.log")), default=0)


def check_resumed(training: TrainingOffline, receiver: Receiver, say: Say) -> int:
    """What is in the memory must be whole; says what it is, and returns the last packet."""
    memory, numbers = training.memory, training.memory.numbers[WORKER]
    number = number_of(receiver.receipts[0].entry) if receiver.receipts else 0
    end = end_of(number)
    if numbers != list(range(end - len(numbers), end)):
        say("unreadable: samples do not follow each other up to the last packet")
    if len(numbers) < min(end, SIZE):
        say(f"unreadable: {len(numbers)} samples of {end}")
    if memory.damaged:
        say("unreadable: a sample is not whole")
    if training.total_samples != end:
        say(f"unreadable: {training.total_samples} samples counted, {end} stored")
    say(f"resumed {number} {training.total_updates}")
    return number


def killed(folder: Path, moment: str, times: int, after_s: float) -> list[str]:
    """What a process said that was killed so long after it had said `moment` so many times."""
    read, written = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read)
        try:
            run(folder, lambda line: os.write(written, f"{line}\n".encode()))
            raise RuntimeError("was not killed")
        except BaseException as error:
            os.write(written, f"unreadable: {error!r}\n".encode())
        os._exit(1)
    os.close(written)
    said = b""
    ready = True
    while ready and said.count(f"\n{moment}".encode()) + said.startswith(moment.encode()) < times:
        ready = bool(select.select([read], [], [], WITHIN_S)[0])
        said += (part := os.read(read, 1 << 16) if ready else b"")
        ready = bool(part)
    time.sleep(after_s)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with os.fdopen(read, "rb") as rest:
        said += rest.read()
    return said.decode().splitlines() + ([] if ready else [f"unreadable: {moment} does not come"])


def main(folder: Path, count: int, seed: int) -> None:
    torch.set_num_threads(1)
    rng = random.Random(seed)
    stored, updates = 0, 0
    found = {"kills": 0, "stored": 0, "files": 0, "checkpoints": 0, "lost": 0, "older_agent": 0}
    unreadable: list[str] = []
    for number in range(count):
        moment = MOMENTS[number % len(MOMENTS)]
        times = 1 if moment in ONCE else rng.randint(1, 4)
        lines = killed(folder, moment, times, rng.uniform(0, 0.01))
        found["kills"] += 1
        for kind, *numbers in (line.split() for line in lines):
            if kind == "resumed":
                found["lost"] += int(numbers[0]) < stored
                found["older_agent"] += int(numbers[1]) < updates
                stored = int(numbers[0])
            elif kind == "stored":
                found["stored"] += int(numbers[0]) > stored
                stored = max(stored, int(numbers[0]))
            elif kind == "file":
                found["files"] += 1
            elif kind == "checkpoint":
                updates = int(numbers[0])
                found["checkpoints"] += 1
        unreadable += [line for line in lines if line.startswith("unreadable")]
    print(json.dumps({**found, "unreadable": unreadable}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
