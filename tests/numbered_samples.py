"""Numbered samples, and an audit of which were lost, doubled or out of order on their way to a
memory.
"""

import mmap
import time
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces
from kit.boxes import box

from tmrl_like.replay.contract import MemoryDataloading

NUMBERED_SPACES = spaces.Box(0.0, 1 << 24, (3,), np.float32), box(1.0, 1)
EPISODE_STEPS = 100


class NumberedEnv(gymnasium.Env):
    """An environment that numbers its samples: the observation is (worker, incarnation, number),
    float32 [3].

    Number 0 is the observation of the first reset; resets count like steps. Each environment made
    for a worker is one incarnation: 1, 2, … The count is kept in a small file in the folder
    `tally`, which survives a kill at any moment; see `produced`. `ballast_bytes` of noise in `info`
    make samples larger.
    """

    def __init__(self, tally, worker=0, period_s=0.01, ballast_bytes=0):
        self.observation_space, self.action_space = NUMBERED_SPACES
        self._tally, self._worker, self._period_s = Path(tally), worker, period_s
        self._ballast_bytes = ballast_bytes
        self._counter = None
        self._incarnation = self._number = self._step = 0
        self._due = 0.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self._counter is None:
            self._tally.mkdir(parents=True, exist_ok=True)
            self._incarnation = 1 + sum(1 for _ in self._tally.glob(f"{self._worker}-*.count"))
            self._counter = counter(self._tally / f"{self._worker}-{self._incarnation}.count")
        self._step = 0
        self._due = time.perf_counter()
        return self._next()

    def step(self, action):
        self._due = max(self._due + self._period_s, time.perf_counter() - self._period_s)
        time.sleep(max(0.0, self._due - time.perf_counter()))
        self._step += 1
        obs, info = self._next()
        return obs, 0.0, self._step >= EPISODE_STEPS, False, info

    def _next(self):
        obs = np.array([self._worker, self._incarnation, self._number], np.float32)
        self._number += 1
        self._counter[:] = self._number.to_bytes(8, "little")
        ballast = self.np_random.bytes(self._ballast_bytes)
        return obs, {"ballast": ballast} if ballast else {}


def counter(path):
    """Return a new mapped file of eight bytes for a little-endian counter that survives a kill; see
    `produced`.
    """
    path.write_bytes(bytes(8))
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 8)


def produced(tally):
    """Return how many samples each (worker, incarnation) has produced; see `NumberedEnv`."""
    counts = {}
    for path in Path(tally).glob("*-*.count"):
        worker, incarnation = path.stem.split("-")
        counts[int(worker), int(incarnation)] = int.from_bytes(path.read_bytes(), "little")
    return counts


class Ledger(MemoryDataloading):
    """A mixin in front of a memory class that records every sample given to the memory.

    After a restart of the trainer, the record begins with the samples read from its store.
    """

    def __init__(self, *args, **kwargs):
        self._recorded = [np.zeros((0, 3), np.float32)]
        super().__init__(*args, **kwargs)

    def append(self, buffer):
        super().append(buffer)
        if len(buffer):
            self._recorded.append(np.array([sample.obs for sample in buffer.memory], np.float32))

    def rows(self):
        """Return (worker, incarnation, number) of all samples in order of arrival, float32 [N,
        3].
        """
        return np.concatenate(self._recorded)


@dataclass(frozen=True)
class Audit:
    """The result of an audit; samples are given as (worker, incarnation, number). `str()` is one
    line.

    Attributes:
        produced: how many samples the environments produced.
        lost: samples that were produced but not recorded.
        doubled: samples recorded more than once, one item for each repetition.
        out_of_order: samples recorded after one that was produced later.
    """

    produced: int
    lost: list
    doubled: list
    out_of_order: list

    @property
    def exactly_once(self):
        """Whether every sample was recorded exactly once, in order."""
        return not (self.lost or self.doubled or self.out_of_order)

    def __str__(self):
        text = (
            f"{self.produced} produced, {len(self.lost)} lost, {len(self.doubled)} doubled, "
            f"{len(self.out_of_order)} out of order"
        )
        wrong = (*self.lost, *self.doubled, *self.out_of_order)
        return ": ".join([text, *filter(None, [", ".join(map(str, wrong[:5]))])])


def audit(rows, counts):
    """Compare the samples given to a memory, `Ledger.rows()`, with those produced,
    `produced(tally)`.
    """
    seen = set()
    newest = {}
    doubled, out_of_order = [], []
    for worker, incarnation, number in rows.astype(int).tolist():
        row, last = (worker, incarnation, number), newest.get((worker, incarnation), -1)
        if row in seen:
            doubled.append(row)
        elif number < last:
            out_of_order.append(row)
        seen.add(row)
        newest[worker, incarnation] = max(last, number)
    lost = [
        row
        for key, count in sorted(counts.items())
        for n in range(count)
        if (row := (*key, n)) not in seen
    ]
    return Audit(len(seen) + len(lost), lost, doubled, out_of_order)
