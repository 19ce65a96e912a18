"""What is known of a run: curves over its time, the newest round, and what happened, in order."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeAlias

from tmrl_like.metrics.reading import Record
from tmrl_like.types import TAKEN_OVER
from tmrl_like.wire.messages import Beat

Incident: TypeAlias = tuple[float, str, str]
"""Unix time, "good", "note" or "bad", a sentence."""

_MAX_BINS = 300
_MAX_INCIDENTS = 300
_MAX_CURVES = 100
_DRAWN = ("return", "training_steps_per_env_step", "loss_", "q_", "entropy_", "sample_age_p", "demonstration_share")
_NAMED = 5  # workers in one line
_PEOPLE = tuple(source.name.lower() for source in TAKEN_OVER)  # and programs, as a beat names them


class Curve:
    """A quantity over time, in at most 300 bins, which become wider as time goes on."""

    def __init__(self) -> None:
        self._width_s = 1.0
        self._bins: dict[int, tuple[int, float, float]] = {}  # number, mean, sum of squares of what differs from it

    def add(self, time_s: float, value: float) -> None:
        """Add a value; times do not fall."""
        self._merge(int(time_s / self._width_s), (1, value, 0.0))
        if len(self._bins) > _MAX_BINS:
            self._width_s *= 2
            bins, self._bins = self._bins, {}
            for i, some in bins.items():
                self._merge(i // 2, some)

    def _merge(self, i: int, more: tuple[int, float, float]) -> None:
        n, mean, squares = self._bins.get(i, (0, 0.0, 0.0))
        n_more, mean_more, squares_more = more
        total, change = n + n_more, mean_more - mean
        squares += squares_more + change**2 * n * n_more / total
        self._bins[i] = total, mean + change * n_more / total, squares

    def cut(self, time_s: float) -> None:
        """Forget what came at that time or later."""
        self._bins = {i: some for i, some in self._bins.items() if i * self._width_s < time_s}

    def columns(self) -> tuple[list[float], list[float], list[float]]:
        """The middle of each bin in seconds, mean, standard deviation."""
        times = [(i + 0.5) * self._width_s for i in self._bins]
        return times, [b[1] for b in self._bins.values()], [math.sqrt(b[2] / b[0]) for b in self._bins.values()]


class Figures:
    """Collects records of the metrics, and workers' signs of life.

    Attributes:
        curves: over the time of training: of numbers of the rounds by their names, and "return" and "return_test".
        round: the newest round's record; empty: there was none.
        time_s: of the newest record.
        incidents: the newest, oldest first.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Start with nothing; `clock` gives Unix time in seconds."""
        self._clock = clock
        self.curves: dict[str, Curve] = {}
        self.round: Record = {}
        self.time_s = 0.0
        self.incidents: deque[Incident] = deque(maxlen=_MAX_INCIDENTS)
        self._beats: dict[str, Beat] | None = None  # the newest, by worker
        self._trainers: list[str] | None = None

    def add_record(self, record: Record) -> None:
        """Add a record. One that is earlier than the last stands for it and all since: training began again there."""
        time_s = float(record.get("time_s") or 0.0)
        if time_s < self.time_s:
            for curve in self.curves.values():
                curve.cut(time_s)
        self.time_s = time_s
        if record.get("kind") == "round":
            self._tell_of_round(record)
            self.round = record
            for name, value in record.items():
                self._add(name, value)
        elif record.get("kind") == "episode":
            self._add("return_test" if record.get("test") else "return", record.get("return"))

    def _add(self, name: str, value: object) -> None:
        if not name.startswith(_DRAWN) or not isinstance(value, int | float) or isinstance(value, bool):
            return
        if name in self.curves or len(self.curves) < _MAX_CURVES:  # a trainer may send whatever names it likes
            self.curves.setdefault(name, Curve()).add(self.time_s, value)

    def _tell_of_round(self, record: Record) -> None:
        before = self.round
        learning = record.get("learning")
        if learning and learning != before.get("learning"):
            self.tell("bad" if learning.startswith("not") else "good", learning)
        if before and (record.get("rejected_workers_total") or 0) > (before.get("rejected_workers_total") or 0):
            self.tell("bad", "the trainer takes no samples of a worker any more: they do not fit its memory")
        if record.get("log_fails") and not before.get("log_fails"):
            self.tell("bad", "the trainer's disk takes no samples")

    def tell(self, kind: str, text: str) -> None:
        """Add an incident of now."""
        self.incidents.append((self._clock(), kind, text))

    def see(self, trainers: list[str], beats: Iterable[Beat]) -> None:
        """Note what has changed since the last look, from the names of the trainers and the workers' newest beats."""
        if self._trainers is not None and trainers != self._trainers:
            self.tell("note" if trainers else "bad", f"training: {', '.join(trainers)}" if trainers else "no trainer")
        self._trainers = trainers
        known, self._beats = self._beats, {beat.worker: beat for beat in beats}
        for name, beat in self._beats.items():
            before = (known or {}).get(name)
            if before is None:  # its faults may be of long ago
                before = Beat(env_faults=beat.env_faults, env_rebuilds=beat.env_rebuilds)
            self._tell_of(beat, before)
        if known is not None:
            self._tell_who("note", [name for name in self._beats if name not in known], "here")
            self._tell_who("bad", sorted(known.keys() - self._beats.keys()), "gone")

    def _tell_who(self, kind: str, names: list[str], what: str) -> None:
        if len(names) > _NAMED:
            self.tell(kind, f"{len(names)} workers are {what}: {names[0]} to {names[-1]}")
        else:
            for name in names:
                self.tell(kind, f"{name} is {what}")

    def _tell_of(self, beat: Beat, before: Beat) -> None:
        name = beat.worker
        if beat.env_faults > before.env_faults:
            self.tell("bad", f"{name}: its environment failed ({beat.env_faults} so far)")
        if beat.env_rebuilds > before.env_rebuilds:
            self.tell("good", f"{name}: its environment was rebuilt")
        if beat.ended != before.ended:
            drives = f"no longer drives: {beat.ended}" if beat.ended else "drives"
            self.tell("bad" if beat.ended else "good", f"{name} {drives}")
        if beat.driver != before.driver:
            if beat.driver in _PEOPLE:
                self.tell("note", f"{name}: {beat.driver} has taken over")
            elif before.driver in _PEOPLE:
                self.tell("note", f"{name}: {before.driver} has given back")
        if beat.alarm != before.alarm:
            self.tell("bad" if beat.alarm else "good", f"{name}: {beat.alarm or 'all is well again'}")
