"""Batches of 256 from the memory, appending to it, and its size, compared with plain numpy.

    python tests/benchmarks/memory.py [--seconds 1] [--repeats 5] [--sizes 100000 1000000]
                                      [--images 100000]

Drone transitions have 4 numbers and 4 buffered actions in each observation. Image stacks are 4
frames of 64 x 64 uint8, stored as single frames, with two stacks per transition. A user's own
`get_transition` works on lists. The limit is plain numpy: precomputed columns, one gather each,
without structure and without regard to episodes.
"""

import time
import tracemalloc
from functools import partial

import numpy as np
import torch
from _harness import benchmark, in_turns, timed
from kit.packets import TIMING
from list_memory import ListMemory
from relay import drone_samples, noise_samples

from tmrl_like.replay import ReplayMemory
from tmrl_like.types import Buffer
from tmrl_like.wire.packet import PacketWriter

ACT_BUF_LEN, FRAMES = ListMemory.act_buf_len, 4
BATCH, EPISODE, BLOCK = 256, 40, 1000
PAYLOAD_BYTES = 8 + 16 + 4 + 2  # action, four numbers observed, reward, two flags


def buffer_of(samples):
    """Return samples, of which each 40th is a reset, in the form in which they come out of a
    packet.
    """
    writer = PacketWriter()
    for i, sample in enumerate(samples):
        writer.append(sample, TIMING, is_reset=i % EPISODE == 0)
    return Buffer(stream="w", blocks=[writer.block()])


def filled(cls, samples, n, batch_size=BATCH, **options):
    """Return a memory of `n` samples, these again and again."""
    memory, buffer = cls(memory_size=n, batch_size=batch_size, **options), buffer_of(samples)
    for _ in range(n // len(samples)):
        memory.append(buffer)
    return memory


def drone_gather(n):
    """Return a function that gathers a batch from each of `n` rows of columns, as tensors."""
    rng = np.random.default_rng(0)
    observed, acts, *numbers = (
        np.ones((n, *size), np.float32) for size in ((4,), (2,), (), (), ())
    )

    def batch():
        rows = rng.integers(ACT_BUF_LEN + 1, n, BATCH)
        obs = observed.take(np.stack((rows - 1, rows)), axis=0)
        buffered = acts.take(rows - np.arange(ACT_BUF_LEN + 1)[:, None], axis=0)
        columns = obs, buffered, *(column.take(rows) for column in numbers)
        return [torch.from_numpy(column) for column in columns]

    return batch


def image_gather(n):
    rng, frames = np.random.default_rng(0), np.ones((n, 64, 64), np.uint8)

    def batch():
        rows = rng.integers(FRAMES, n, (BATCH, 1)) + np.arange(1 - FRAMES, 1)
        return torch.from_numpy(frames.take(np.stack((rows - 1, rows)), axis=0))

    return batch


def per_second(call, seconds):
    """Return how often `call` runs in a second."""
    call()
    count, started = 0, time.perf_counter()
    while (passed := time.perf_counter() - started) < seconds:
        call()
        count += 1
    return count / passed


def measure(options):
    torch.set_num_threads(1)

    def rates(**calls):
        return in_turns(
            options.repeats,
            **{name: partial(per_second, call, options.seconds) for name, call in calls.items()},
        )

    samples = drone_samples(BLOCK)
    for n in options.sizes:
        what = f"{n:,} drone transitions"
        tracemalloc.start()
        memory = filled(ReplayMemory, samples, n, act_buf_len=ACT_BUF_LEN)
        held = tracemalloc.get_traced_memory()[0] / n
        tracemalloc.stop()
        of_both = rates(ours=memory.sample, limit=drone_gather(n))
        goal = 10_000 if n < 1_000_000 else 6_000
        yield {"what": f"batches/s of {what}", **of_both, "goal": goal}
        yield {"what": f"bytes of one of {what}", "ours": held, "limit": PAYLOAD_BYTES}
        append = partial(memory.append, buffer_of(samples[:100]))
        appended_ms = [1e3 * timed(append) for _ in range(100)]
        yield {"what": f"100 samples appended to {what}, ms", "ours": appended_ms, "goal": 0.2}
        yield {
            "what": f"batches/s through a user's `get_transition`, {what}",
            **rates(ours=filled(ListMemory, samples, n).sample),
            "goal": "2 × tmrl's",
        }
    frames = [(act, stack[0], *rest) for act, stack, *rest in noise_samples(BLOCK)]
    memory = filled(ReplayMemory, frames, options.images, frame_stack=FRAMES)
    of_both = rates(ours=memory.sample, limit=image_gather(options.images))
    yield {"what": f"batches/s of {options.images:,} image stacks", **of_both, "goal": 1_000}


if __name__ == "__main__":
    benchmark(
        __doc__,
        measure,
        seconds=1.0,
        repeats=5,
        sizes=[100_000, 1_000_000],
        images=100_000,
        quick={"seconds": 0.2, "repeats": 1, "sizes": [10_000], "images": 5_000},
    )
