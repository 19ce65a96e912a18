"""What is known of a run: curves over its time, the newest round, and what happened, in order."""

from __future__ import annotations

import math
import operator
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from tmrl_like.metrics.reading import Record
from tmrl_like.wire.messages import Beat

Incident: TypeAlias = tuple[float, str, str]
"""Unix time, "good", "note" or "bad", a sentence."""

FIELDS = ("", *Beat.__struct_fields__)
"""What the items of a beat are, as it travels: behind its type's name, the fields."""

_MAX_BINS = 300
_MAX_INCIDENTS = 300
_MAX_CURVES, _LONGEST_NAME = 500, 100
_NAMED = 5  # workers in one line
_WATCHED = ("alarm", "ended", "env_faults", "env_rebuilds", "driver")
_NOBODY = ("", "policy", "expert", "safe")  # drivers that have not taken over
_condition: Callable[[Sequence[Any]], tuple[Any, ...]] = operator.itemgetter(*map(FIELDS.index, _WATCHED))


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
        curves: over the time of training: of the numbers of the rounds by their names, and "return" and "return_test".
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
        self._conditions: dict[str, tuple[Any, ...]] | None = None
        self._trainers: list[str] | None = None
        self._has_left_out = False

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
            left_out = [name for name, value in record.items() if not self._add(name, value)]
            if left_out and not self._has_left_out:
                self._has_left_out = True
                self.tell(
                    "bad",
                    f"{len(left_out)} of the trainer's figures have no curve, the first {left_out[0]:.40}: "
                    f"expected at most {_MAX_CURVES}, with names of at most {_LONGEST_NAME} characters",
                )
        elif record.get("kind") == "episode":
            self._add("return_test" if record.get("test") else "return", record.get("return"))

    def _add(self, name: str, value: object) -> bool:
        """Whether there is room for it: a trainer may send whatever names it likes."""
        if not isinstance(value, int | float) or isinstance(value, bool):
            return True
        if name not in self.curves and (len(self.curves) >= _MAX_CURVES or len(name) > _LONGEST_NAME):
            return False
        self.curves.setdefault(name, Curve()).add(self.time_s, value)
        return True

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

    def see(self, trainers: list[str], workers: Iterable[tuple[float, Sequence[Any]]]) -> None:
        """Note what has changed since the last look, from the names of the trainers and the workers' newest beats.

        Of each worker: the age of its newest beat in seconds, and that beat, as `FIELDS` names its items.
        """
        if self._trainers is not None and trainers != self._trainers:
            self.tell("note" if trainers else "bad", f"training: {', '.join(trainers)}" if trainers else "no trainer")
        self._trainers = trainers
        known, self._conditions = self._conditions, {}
        new = []
        for _, beat in workers:
            name, condition = beat[1], _condition(beat)
            self._conditions[name] = condition
            before = (known or {}).get(name)
            if before is None:
                new.append(name)
            if condition != before:
                self._tell_of(name, condition, before)
        if known is not None:
            self._tell_who("note", new, "here")
            self._tell_who("bad", sorted(known.keys() - self._conditions.keys()), "gone")

    def _tell_who(self, kind: str, names: list[str], what: str) -> None:
        if len(names) > _NAMED:
            self.tell(kind, f"{len(names)} workers are {what}: {names[0]} to {names[-1]}")
        else:
            for name in names:
                self.tell(kind, f"{name} is {what}")

    def _tell_of(self, name: str, condition: tuple[Any, ...], before: tuple[Any, ...] | None) -> None:
        alarm, ended, faults, rebuilds, driver = condition
        alarm_before, ended_before, faults_before, rebuilds_before, driver_before = before or (
            "",
            "",
            faults,
            rebuilds,
            "",
        )
        if faults > faults_before:
            self.tell("bad", f"{name}: its environment failed ({faults} so far)")
        if rebuilds > rebuilds_before:
            self.tell("good", f"{name}: its environment was rebuilt")
        if ended != ended_before:
            self.tell("bad" if ended else "good", f"{name} no longer drives: {ended}" if ended else f"{name} drives")
        if driver != driver_before and driver not in _NOBODY:
            self.tell("note", f"{name}: {driver} has taken over")
        elif driver != driver_before and driver_before not in _NOBODY:
            self.tell("note", f"{name}: {driver_before} has given back")
        if alarm != alarm_before:
            self.tell("bad" if alarm else "good", f"{name}: {alarm or 'all is well again'}")
