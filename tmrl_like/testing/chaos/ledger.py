"""Exactly once, or not: an environment that numbers its samples, and an audit of what the memory holds."""

from __future__ import annotations

import mmap
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tmrl_like.replay.contract import MemoryDataloading
from tmrl_like.testing.fakes import ListMemory
from tmrl_like.types import Buffer, Sample

Rows = np.ndarray[Any, np.dtype[np.float32]]
Numbers = np.ndarray[Any, np.dtype[np.int64]]
Key = tuple[int, int]  # worker, incarnation

_MOST = 1 << 24  # float32 counts so far without a gap
_COUNTER_BYTES = 8
_EXAMPLES = 5


class NumberedEnv(gymnasium.Env[Any, Rows]):
    """Numbers every sample: the observation is (worker, incarnation, number), float32 [3].

    Number 0 is the first reset's observation; resets count like steps. Each environment that is made for a
    worker is one incarnation: 1, 2, … The count survives a kill at any moment, in a small file of `tally`.

    Args:
        tally: folder for the counts; read them with `produced`.
        worker: number of the worker, below 2**24.
        period_s: duration of a step, in seconds, kept as a real-time environment keeps it; 0: none.
        episode_steps: an episode terminates after so many steps.
        ballast_bytes: size of an info item of noise, which makes the samples as large as one likes.
    """

    def __init__(
        self,
        tally: str | Path,
        worker: int = 0,
        period_s: float = 0.01,
        episode_steps: int = 100,
        ballast_bytes: int = 0,
    ) -> None:
        self.observation_space, self.action_space = NUMBERED_SPACES
        self._tally = Path(tally)
        self._worker = worker
        self._period_s = period_s
        self._episode_steps = episode_steps
        self._ballast_bytes = ballast_bytes
        self._counter: mmap.mmap | None = None
        self._incarnation = 0
        self._number = 0
        self._step = 0
        self._due = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Rows, dict[str, Any]]:
        super().reset(seed=seed)
        if self._counter is None:
            self._incarnation, self._counter = _next_incarnation(self._tally, self._worker)
        self._step = 0
        self._due = time.perf_counter()
        return self._next(), self._info()

    def step(self, action: Rows) -> tuple[Rows, float, bool, bool, dict[str, Any]]:
        self._due = max(self._due + self._period_s, time.perf_counter() - self._period_s)
        time.sleep(max(0.0, self._due - time.perf_counter()))
        self._step += 1
        return self._next(), 0.0, self._step >= self._episode_steps, False, self._info()

    def close(self) -> None:
        if self._counter is not None:
            self._counter.close()
            self._counter = None

    def _next(self) -> Rows:
        assert self._counter is not None
        obs = np.array([self._worker, self._incarnation, self._number], np.float32)
        self._number += 1
        self._counter[:_COUNTER_BYTES] = self._number.to_bytes(_COUNTER_BYTES, "little")
        return obs

    def _info(self) -> dict[str, Any]:
        return {"ballast": self.np_random.bytes(self._ballast_bytes)} if self._ballast_bytes else {}


NUMBERED_SPACES = (spaces.Box(0.0, _MOST, (3,), np.float32), spaces.Box(-1.0, 1.0, (1,), np.float32))
"""Observation and action space of a `NumberedEnv`: `env_cls` of a `TrainingOffline` that is fed by it."""


def _next_incarnation(folder: Path, worker: int) -> tuple[int, mmap.mmap]:
    folder.mkdir(parents=True, exist_ok=True)
    incarnation = 1 + sum(1 for _ in folder.glob(f"{worker}-*.count"))
    path = folder / f"{worker}-{incarnation}.count"
    path.write_bytes(bytes(_COUNTER_BYTES))
    with path.open("r+b") as file:
        return incarnation, mmap.mmap(file.fileno(), _COUNTER_BYTES)


def produced(tally: str | Path) -> dict[Key, int]:
    """How many samples each (worker, incarnation) has produced so far; see `NumberedEnv`."""
    counts = {}
    for path in Path(tally).glob("*-*.count"):
        worker, incarnation = path.stem.split("-")
        counts[int(worker), int(incarnation)] = int.from_bytes(path.read_bytes(), "little")
    return counts


class Ledger(MemoryDataloading):
    """Put it in front of a memory class: keeps a record of every sample that the memory was given.

    ::

        class AuditedMemory(Ledger, MyMemory): ...

    The record grows without bound; that of a restarted trainer begins with what its log holds. Override `row_of`
    where a compressor changes the observation of a `NumberedEnv`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._recorded: list[Rows] = []
        super().__init__(*args, **kwargs)

    def append(self, buffer: Buffer) -> None:
        super().append(buffer)
        if len(buffer):
            self._recorded.append(np.array([self.row_of(sample) for sample in buffer.memory], np.float32))

    def row_of(self, sample: Sample) -> Any:
        """(worker, incarnation, number) of a sample."""
        return sample.obs

    def rows(self) -> Rows:
        """(worker, incarnation, number) of all samples, in the order in which they came: float32 [N, 3]."""
        return np.concatenate([np.zeros((0, 3), np.float32), *self._recorded])


class LedgerMemory(Ledger, ListMemory):
    """A small memory to train on, with a record of everything."""


@dataclass(frozen=True)
class Audit:
    """What an audit found. `str()` is one line.

    Attributes:
        produced: samples that the environments produced.
        held: samples in the record, doubled ones counted once.
        lost: samples that were produced and are not in the record.
        lost_at_end: those among them that come after the last recorded one of their incarnation: of a worker that
            was killed, what it had produced last.
        doubled: how many times a sample is in the record that is already there.
        out_of_order: how many times a sample comes after one that was produced later.
        examples: the first few that are lost, doubled or out of order, in words.
    """

    produced: int
    held: int
    lost: int
    lost_at_end: int
    doubled: int
    out_of_order: int
    examples: tuple[str, ...] = ()

    @property
    def exactly_once(self) -> bool:
        """Whether every sample is there once, in order."""
        return not (self.lost or self.doubled or self.out_of_order)

    def __str__(self) -> str:
        numbers = (
            f"{self.produced} produced, {self.lost} lost ({self.lost_at_end} of them last), {self.doubled} doubled, "
            f"{self.out_of_order} out of order"
        )
        return "; ".join((numbers, *self.examples))


def audit(rows: Rows, counts: Mapping[Key, int]) -> Audit:
    """Compare what a memory was given with what was produced.

    Args:
        rows: float32 [N, 3], as `Ledger.rows` returns it.
        counts: as `produced` returns it. What the record holds beyond it does not count as lost.

    Returns:
        The findings over all incarnations.
    """
    whole = rows.astype(np.int64)
    keys = {(int(worker), int(incarnation)) for worker, incarnation in np.unique(whole[:, :2], axis=0)}
    parts = []
    for key in sorted(keys | set(counts)):
        numbers = whole[(whole[:, 0] == key[0]) & (whole[:, 1] == key[1]), 2]
        parts.append(_audit_one(key, numbers, counts.get(key, 0)))
    names = ("produced", "held", "lost", "lost_at_end", "doubled", "out_of_order")
    total = {name: sum(getattr(part, name) for part in parts) for name in names}
    return Audit(**total, examples=tuple(line for part in parts for line in part.examples)[:_EXAMPLES])


def _audit_one(key: Key, numbers: Numbers, count: int) -> Audit:
    held, times = np.unique(numbers, return_counts=True)
    missing = np.setdiff1d(np.arange(count), held, assume_unique=True)
    last = int(held[-1]) if len(held) else -1
    later = np.flatnonzero(np.diff(numbers) < 0) + 1
    doubled = held[times > 1]
    what = (("lost", missing), ("doubled", doubled), ("out of order", numbers[later]))
    lines = [f"worker {key[0]}, incarnation {key[1]}: {word} {_ranges(found)}" for word, found in what if len(found)]
    return Audit(
        produced=max(count, last + 1),
        held=len(held),
        lost=len(missing),
        lost_at_end=int((missing > last).sum()),
        doubled=int((times - 1).sum()),
        out_of_order=len(later),
        examples=tuple(lines),
    )


def _ranges(numbers: Numbers) -> str:
    """`3-7, 12, …`"""
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 2) != 1)
    ends = np.append(starts[1:], len(numbers)) - 1
    texts = [
        f"{numbers[a]}" if a == b else f"{numbers[a]}-{numbers[b]}" for a, b in zip(starts[:4], ends[:4], strict=True)
    ]
    return ", ".join(texts) + (", …" if len(starts) > 4 else "")
