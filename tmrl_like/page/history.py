"""The history of a run: curves over its time, the newest round, and incidents in order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeAlias

from tmrl_like.base.budgets import Newest
from tmrl_like.metrics.reading import Record, numbers_of, return_of
from tmrl_like.types import TAKEN_OVER
from tmrl_like.wire.condition import Condition
from tmrl_like.wire.messages import Beat

Incident: TypeAlias = tuple[float, str, str]
"""Unix time, kind ("good", "note" or "bad"), a sentence."""

Points: TypeAlias = list[tuple[float, float]]
"""Seconds of training and a value, in order."""

DRAWN = (
    "return",
    "training_steps_per_env_step",
    "loss_",
    "q_",
    "entropy_",
    "sample_age_p",
    "demonstration_share",
)
"""Prefixes of the metrics that have a curve."""

_MAX_POINTS = 600  # of a curve
_MAX_INCIDENTS = 300
_MAX_CURVES = 100
_NAMED = 5  # up to this many workers get a line each
# people and programs that take over, as a condition names them
_PEOPLE = tuple(source.name.lower() for source in TAKEN_OVER)


class RunHistory:
    """Collects records of the metrics, and workers' heartbeats.

    Attributes:
        curves: of numbers of the rounds by their names, and "return" and "return_test".
        round: the newest round's record; empty before the first one.
        time_s: of the newest record.
        incidents: the newest ones, oldest first.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Start empty; `clock` returns Unix time in seconds."""
        self._clock = clock
        self.curves: dict[str, Points] = {}
        self.round: Record = {}
        self.time_s = 0.0
        self.incidents: deque[Incident] = deque(maxlen=_MAX_INCIDENTS)
        self._known = Newest[bool]()  # times of rounds
        self._workers: dict[str, Condition] | None = None
        self._trainers: list[str] | None = None

    def add_record(self, record: Record) -> None:
        """Add a record. If it is earlier than the last one, training has resumed there, and values
        from its time on are dropped.
        """
        time_s = float(record.get("time_s") or 0.0)
        if time_s < self.time_s:
            for curve in self.curves.values():
                curve[:] = [point for point in curve if point[0] < time_s]
        self.time_s = time_s
        if record.get("kind") == "round":
            if str(time_s) not in self._known:  # a server shows old records again
                self._tell_of_round(record, self.round)
            self._known[str(time_s)] = True
            self.round = record
            for name, value in numbers_of(record).items():
                self._add(name, value)
        elif (return_ := return_of(record)) is not None:
            self._add("return_test" if record.get("test") else "return", return_)

    def _add(self, name: str, value: float) -> None:
        if not name.startswith(DRAWN):
            return
        # the number of curves is limited because a trainer may send any names
        if name in self.curves or len(self.curves) < _MAX_CURVES:
            curve = self.curves.setdefault(name, [])
            curve.append((self.time_s, value))
            if len(curve) > _MAX_POINTS:
                curve[:] = _thinned(curve)

    def _tell_of_round(self, now: Record, before: Record) -> None:
        learning = now.get("learning")
        if learning and learning != before.get("learning"):
            self.tell("bad" if learning.startswith("not") else "good", learning)
        if before and (now.get("rejected_workers_total") or 0) > (
            before.get("rejected_workers_total") or 0
        ):
            self.tell(
                "bad",
                "the trainer takes no samples of a worker any more: they do not fit its memory",
            )
        if now.get("log_fails") and not before.get("log_fails"):
            self.tell("bad", "the trainer's disk takes no samples")

    def tell(self, kind: str, text: str) -> None:
        """Add an incident that happens now."""
        self.incidents.append((self._clock(), kind, text))

    def see(self, trainers: list[str], beats: Iterable[Beat]) -> None:
        """Note what has changed since the last call, given the names of the trainers and the
        workers' newest beats.
        """
        if self._trainers is not None and trainers != self._trainers:
            self.tell(
                "note" if trainers else "bad",
                f"training: {', '.join(trainers)}" if trainers else "no trainer",
            )
        self._trainers = trainers
        known, self._workers = self._workers, {beat.worker: beat.condition for beat in beats}
        for name, now in self._workers.items():
            before = (known or {}).get(name)
            if before is None:  # its faults may have happened long ago
                before = Condition(env_faults=now.env_faults, env_rebuilds=now.env_rebuilds)
            self._tell_of_worker(name, now, before)
        if known is not None:
            self._tell_who("note", [name for name in self._workers if name not in known], "here")
            self._tell_who("bad", sorted(known.keys() - self._workers.keys()), "gone")

    def _tell_who(self, kind: str, names: list[str], what: str) -> None:
        if len(names) > _NAMED:
            self.tell(kind, f"{len(names)} workers are {what}: {names[0]} to {names[-1]}")
        else:
            for name in names:
                self.tell(kind, f"{name} is {what}")

    def _tell_of_worker(self, name: str, now: Condition, before: Condition) -> None:
        if now.env_faults > before.env_faults:
            self.tell("bad", f"{name}: its environment failed ({now.env_faults} so far)")
        if now.env_rebuilds > before.env_rebuilds:
            self.tell("good", f"{name}: its environment was rebuilt")
        if now.ended != before.ended:
            drives = f"no longer drives: {now.ended}" if now.ended else "drives"
            self.tell("bad" if now.ended else "good", f"{name} {drives}")
        if now.driver != before.driver:
            if now.driver in _PEOPLE:
                self.tell("note", f"{name}: {now.driver} has taken over")
            elif before.driver in _PEOPLE:
                self.tell("note", f"{name}: {before.driver} has given back")
        if now.alarm != before.alarm:
            self.tell("bad" if now.alarm else "good", f"{name}: {now.alarm or 'all is well again'}")


def _thinned(curve: Points) -> Points:
    """Return the points that are far enough apart for half of a curve's room, and the newest."""
    gap_s = 2 * (curve[-1][0] - curve[0][0]) / _MAX_POINTS
    kept = curve[:1]
    for point in curve[:-1]:
        if point[0] - kept[-1][0] > gap_s:
            kept.append(point)
    return [*kept, curve[-1]]
