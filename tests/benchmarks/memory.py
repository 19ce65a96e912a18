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
from list_memory import ListMemory

from tmrl_like.replay import ReplayMemory
from tmrl_like.types import Buffer
from tmrl_like.wire.columns import Columns
from tmrl_like.wire.packet import SampleBlock, Timing
from tmrl_like.wire.schema import schema_of

ACT_BUF_LEN, FRAMES = ListMemory.act_buf_len, 4
BATCH, EPISODE, BLOCK = 256, 40, 10_000
PAYLOAD_BYTES = 8 + 16 + 4 + 2  # action, four numbers observed, reward, two flags


def drone_columns(n):
    """Return n steps of drone flights, the first of each episode a reset, as arrays [n, ...]."""
    rng = np.random.default_rng(0)
    number = np.arange(n) % EPISODE
    return {
        "act": rng.uniform(-2, 2, (n, 2)).astype(np.float32),
        "obs": rng.uniform(-1, 1, (4, n, 1)).astype(np.float32),
        "rew": rng.uniform(-1, 0, n).astype(np.float32),
        "terminated": number == EPISODE - 1,
        "truncated": np.zeros(n, np.bool_),
        "is_reset": number == 0,
    }


def image_columns(n):
    """Return n steps of an environment that shows its last `FRAMES` frames. `obs` holds the newest
    frame of each step: uint8 [n, 64, 64].
    """
    frames = np.random.default_rng(0).integers(0, 256, (n, 64, 64), np.uint8)
    return {**drone_columns(n), "obs": frames}


def block_of(columns, start, end):
    """Return samples in the form in which they come out of a packet."""
    obs = columns["obs"]
    leaves = list(obs) if len(obs) == 4 else [obs]
    flags = columns["terminated"], columns["truncated"]
    parts = [part[start:end] for part in (columns["act"], *leaves, columns["rew"], *flags)]
    observed = tuple(leaf[0].copy() for leaf in leaves) if len(leaves) > 1 else obs[0]
    schema = schema_of((columns["act"][0], observed, columns["rew"][0], False, False, {}))
    segments = (Columns(schema, end - start, tuple(parts)),)
    numbers = np.zeros(end - start)
    timing = Timing(*(numbers for _ in Timing._fields))
    return SampleBlock(
        segments, columns["is_reset"][start:end], np.zeros(end - start, np.uint8), timing
    )


def filled(cls, columns, **options):
    """Return a memory, filled with these samples."""
    n = len(columns["rew"])
    memory = cls(memory_size=n, batch_size=BATCH, **options)
    for start in range(0, n, BLOCK):
        memory.append(Buffer(stream="w", blocks=[block_of(columns, start, min(n, start + BLOCK))]))
    return memory


def drone_gather(columns):
    """Return a function that gathers a batch from each column, as tensors."""
    rng = np.random.default_rng(0)
    flags = (
        columns["rew"],
        columns["terminated"].astype(np.float32),
        columns["truncated"].astype(np.float32),
    )
    observed, acts = np.ascontiguousarray(columns["obs"][:, :, 0].T), columns["act"]

    def batch():
        rows = rng.integers(ACT_BUF_LEN + 1, len(flags[0]), BATCH)
        obs = observed.take(np.stack((rows - 1, rows)), axis=0)
        buffered = acts.take(rows - np.arange(ACT_BUF_LEN + 1)[:, None], axis=0)
        return [
            torch.from_numpy(a) for a in (obs, buffered, *(column.take(rows) for column in flags))
        ]

    return batch


def image_gather(columns):
    rng = np.random.default_rng(0)

    def batch():
        rows = rng.integers(FRAMES, len(columns["obs"]), (BATCH, 1)) + np.arange(1 - FRAMES, 1)
        return torch.from_numpy(columns["obs"].take(np.stack((rows - 1, rows)), axis=0))

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

    for n in options.sizes:
        what, columns = f"{n:,} drone transitions", drone_columns(n)
        tracemalloc.start()
        memory = filled(ReplayMemory, columns, act_buf_len=ACT_BUF_LEN)
        held = tracemalloc.get_traced_memory()[0] / n
        tracemalloc.stop()
        of_both = rates(ours=memory.sample, limit=drone_gather(columns))
        goal = 10_000 if n < 1_000_000 else 6_000
        yield {"what": f"batches/s of {what}", **of_both, "goal": goal}
        yield {"what": f"bytes of one of {what}", "ours": held, "limit": PAYLOAD_BYTES}
        append = partial(memory.append, Buffer(stream="w", blocks=[block_of(columns, 0, 100)]))
        appended_ms = [1e3 * timed(append) for _ in range(100)]
        yield {"what": f"100 samples appended to {what}, ms", "ours": appended_ms, "goal": 0.2}
        yield {
            "what": f"batches/s through a user's `get_transition`, {what}",
            **rates(ours=filled(ListMemory, columns).sample),
            "goal": "2 × tmrl's",
        }
    columns = image_columns(options.images)
    memory = filled(ReplayMemory, columns, frame_stack=FRAMES)
    of_both = rates(ours=memory.sample, limit=image_gather(columns))
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
