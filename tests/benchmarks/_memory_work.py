"""Samples for every memory that `memory.py` measures, here and in tmrl's own environment. Needs
numpy only.
"""

import gc
import time
from pathlib import Path

import numpy as np

ACT_BUF_LEN = 4
FRAMES = 4
BATCH = 256
EPISODE = 40
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


def drone_rows(columns, whole_obs=False):
    """Return drone columns as samples (act, obs, rew, terminated, truncated, info), with action
    buffer if `whole_obs`.
    """
    acts = [row.copy() for row in columns["act"]]
    observed = zip(*([row.copy() for row in leaf] for leaf in columns["obs"]), strict=True)
    flags = zip(
        columns["rew"], columns["terminated"].tolist(), columns["truncated"].tolist(), strict=True
    )
    rows = []
    for k, (obs, (rew, terminated, truncated)) in enumerate(zip(observed, flags, strict=True)):
        buffered = (
            tuple(acts[max(0, k - i)].copy() for i in range(ACT_BUF_LEN - 1, -1, -1))
            if whole_obs
            else ()
        )
        rows.append((acts[k], (*obs, *buffered), rew, terminated, truncated, {}))
    return rows


def tutorial_memory(base):
    """Return a memory class as users write it: lists, from which action buffers are joined (without
    regard to resets).
    """

    class Memory(base):
        def append_buffer(self, buffer):
            self.data = self.data or [[] for _ in range(6)]
            for column, values in zip(self.data, zip(*buffer.memory, strict=True), strict=True):
                column.extend(values)
                del column[: max(0, len(column) - self.memory_size)]

        def __len__(self):
            return max(0, len(self.data[0]) - ACT_BUF_LEN - 1) if self.data else 0

        def get_transition(self, item):
            acts, obs, rews, terminated, truncated, infos = self.data
            new = item + ACT_BUF_LEN + 1
            last_obs = (*obs[new - 1], *acts[new - ACT_BUF_LEN : new])
            new_obs = (*obs[new], *acts[new - ACT_BUF_LEN + 1 : new + 1])
            ended = [terminated[k] or truncated[k] for k in range(item, new)]
            assert len(ended) == ACT_BUF_LEN + 1
            return (
                last_obs,
                acts[new],
                rews[new],
                new_obs,
                terminated[new],
                truncated[new],
                infos[new],
            )

    return Memory


def per_second(call, seconds):
    """Return how often `call` runs in a second."""
    call()
    count, started = 0, time.perf_counter()
    while (passed := time.perf_counter() - started) < seconds:
        call()
        count += 1
    return count / passed


def resident_bytes():
    """Return this process's resident memory in bytes, or 0 on systems other than Linux."""
    gc.collect()
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * 4096 if statm.exists() else 0
