"""The cost of saving a training and of resuming it.

    python tests/benchmarks/checkpoint.py [--transitions 1000000] [--repeats 5]

A checkpoint is taken while training continues. Measured is how long it holds the training thread.
Resuming is what a trainer does at its start: it loads the checkpoint, and reads the log into a
`ReplayMemory` (with a warm page cache). The limit reads the log's bytes, and copies as many as the
memory holds.
"""

import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
from _harness import benchmark, in_turns, timed
from kit.packets import packet_of, write
from relay import drone_samples
from simulated_drone import SimulatedDroneEnv

from tmrl_like.agents import SACAgent
from tmrl_like.base.functional import partial
from tmrl_like.replay import ReplayMemory
from tmrl_like.trainer.checkpoints import Checkpoints
from tmrl_like.trainer.schedule import TrainingOffline
from tmrl_like.trainer.snapshot import take_snapshot

PACKET = 100  # samples
PACKETS_OF_A_FILE = 5000
SAMPLE_BYTES = 30


def drone_training(size):
    env = SimulatedDroneEnv()
    return TrainingOffline(
        (env.observation_space, env.action_space),
        partial(ReplayMemory, act_buf_len=4, memory_size=size, batch_size=256),
        SACAgent,
        device="cpu",
    )


def log_of(folder, size):
    """Write the sample store of a trainer that has received `size` samples."""
    samples = drone_samples(PACKET)  # of each packet
    packets = [packet_of(first, *samples) for first in range(1, size, PACKET)]
    files = range(0, len(packets), PACKETS_OF_A_FILE)
    write(folder / "log", *(packets[at : at + PACKETS_OF_A_FILE] for at in files))


def save_beside_training(one, folder):
    """Take a checkpoint while training continues; return for how many milliseconds training is
    held.
    """
    for _ in range(20):  # the first one compiles
        one.agent.train(one.memory.sample())
    started = time.perf_counter()
    snapshot = take_snapshot(one, "run")
    held_s = time.perf_counter() - started
    writer = threading.Thread(target=snapshot.write, args=(folder,))
    writer.start()
    while writer.is_alive():
        one.agent.train(one.memory.sample())
    return 1e3 * held_s


def resumed(make, folder):
    """Resume as the trainer does when it starts, with a training that is already built."""
    checkpoints, training = Checkpoints(folder), make()
    checkpoints.build(lambda: training, "all")
    checkpoints.close()
    return training


def read_and_copy(folder, held):
    """Read the log's bytes, and write as many as the memory holds."""
    for path in sorted((folder / "log").glob("*.log")):
        path.read_bytes()
    held[:] = 0


def measure(options):
    torch.set_num_threads(1)  # as a trainer on two cores
    torch.manual_seed(0)
    count = options.transitions
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log_of(folder, count)
        resume = partial(resumed, partial(drone_training, count), folder)
        training = resume()
        assert training.total_samples == count
        assert len(training.memory) > 0.9 * count
        copy = partial(read_and_copy, folder, np.ones(count * SAMPLE_BYTES, np.uint8))
        times = in_turns(options.repeats, ours=partial(timed, resume), limit=partial(timed, copy))
        yield {
            "what": f"resumed, {count:,} drone transitions from the log, s",
            **times,
            "goal": 1.0,
        }
        held_ms = [save_beside_training(training, folder) for _ in range(options.repeats)]
        yield {"what": "training held by a checkpoint, ms", "ours": held_ms, "goal": 50}


if __name__ == "__main__":
    benchmark(
        __doc__,
        measure,
        transitions=1_000_000,
        repeats=5,
        quick={"transitions": 20_000, "repeats": 1},
    )
