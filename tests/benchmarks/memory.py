"""Batches of 256 from the memory, appending to it, and its size, compared with plain numpy and with
tmrl's memory.

    python tests/benchmarks/memory.py [--seconds 1] [--repeats 5] [--sizes 100000 1000000]
                                      [--images 100000] [--peer PYTHON]

Drone transitions have 4 numbers and 4 buffered actions in each observation. Image stacks are 4
frames of 64 x 64 uint8, stored as single frames, with two stacks per transition. A user's own
`get_transition` works on lists. The limit is plain numpy: precomputed columns, one gather each,
without structure and without regard to episodes.

With `--peer` the same runs on tmrl's memories under another Python (torch, numpy, pandas, and
`tmrl==0.7.1` without its dependencies), in turns with ours.
"""

import tracemalloc
from functools import partial

import numpy as np
import torch
from _harness import Peer, benchmark, in_turns, timed
from _memory_work import (
    ACT_BUF_LEN,
    BATCH,
    FRAMES,
    PAYLOAD_BYTES,
    drone_columns,
    drone_rows,
    image_columns,
    per_second,
    tutorial_memory,
)

from tmrl_like.replay import ReplayMemory
from tmrl_like.replay.contract import MemoryDataloading
from tmrl_like.types import Buffer, Info
from tmrl_like.wire.columns import Columns
from tmrl_like.wire.packet import SampleBlock, Timing
from tmrl_like.wire.schema import schema_of

BLOCK = 10_000


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


def filled(columns, **options):
    """Return our memory, filled with these samples."""
    n = len(columns["rew"])
    memory = ReplayMemory(memory_size=n, batch_size=BATCH, **options)
    for start in range(0, n, BLOCK):
        memory.append(Buffer(stream="w", blocks=[block_of(columns, start, min(n, start + BLOCK))]))
    return memory


def filled_tutorial(columns):
    memory = tutorial_memory(MemoryDataloading)(memory_size=len(columns["rew"]), batch_size=BATCH)
    resets = columns["is_reset"].tolist()
    rows = [
        (*row[:5], Info(is_reset=reset))
        for row, reset in zip(drone_rows(columns), resets, strict=True)
    ]
    for start in range(0, len(rows), BLOCK):
        memory.append(Buffer(rows[start : start + BLOCK], "w"))
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


def measure(options):
    torch.set_num_threads(1)
    peer = Peer(options.peer, "_peer_memory.py") if options.peer else None

    def compared(**calls):
        """Measure batches per second of each call, and of the tmrl memory that was built last."""
        rates = {name: partial(per_second, call, options.seconds) for name, call in calls.items()}
        if peer is not None:
            rates["tmrl 0.7.1"] = partial(peer.ask, f"rate {options.seconds}")
        return in_turns(options.repeats, **rates)

    def built(line):
        """Build tmrl's memory, if there is a peer; return its bytes per transition."""
        return {"tmrl 0.7.1": peer.ask(f"build {line}")} if peer is not None else {}

    for n in options.sizes:
        what, columns = f"{n:,} drone transitions", drone_columns(n)
        tracemalloc.start()
        memory = filled(columns, act_buf_len=ACT_BUF_LEN)
        held = tracemalloc.get_traced_memory()[0] / n
        tracemalloc.stop()
        tmrl_held = built(f"drone {n}")
        rates = compared(ours=memory.sample, limit=drone_gather(columns))
        yield {"what": f"batches/s of {what}", **rates, "goal": 10_000 if n < 1_000_000 else 6_000}
        yield {"what": f"bytes of one of {what}", "ours": held, "limit": PAYLOAD_BYTES, **tmrl_held}
        packet = Buffer(stream="w", blocks=[block_of(columns, 0, 100)])
        append = partial(memory.append, packet)
        appended_ms = [1e3 * timed(append) for _ in range(100)]
        tmrl_ms = {"tmrl 0.7.1": peer.ask("append")} if peer is not None else {}
        yield {
            "what": f"100 samples appended to {what}, ms",
            "ours": appended_ms,
            **tmrl_ms,
            "goal": 0.2,
        }
        built(f"tutorial {n}")
        rates = compared(ours=filled_tutorial(columns).sample)
        yield {
            "what": f"batches/s through a user's `get_transition`, {what}",
            **rates,
            "goal": "2 × tmrl's",
        }
    columns = image_columns(options.images)
    memory = filled(columns, frame_stack=FRAMES)
    built(f"images {options.images}")
    rates = compared(ours=memory.sample, limit=image_gather(columns))
    yield {"what": f"batches/s of {options.images:,} image stacks", **rates, "goal": 1_000}
    if peer is not None:
        peer.close()


if __name__ == "__main__":
    quick = {"seconds": 0.2, "repeats": 1, "sizes": [10_000], "images": 5_000}
    defaults = {
        "seconds": 1.0,
        "repeats": 5,
        "sizes": [100_000, 1_000_000],
        "images": 100_000,
        "peer": None,
    }
    benchmark(__doc__, measure, quick=quick, **defaults)
