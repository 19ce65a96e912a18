"""The condition of the workers as the trainer knows it, from their heartbeats."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import msgspec

from tmrl_like.base.budgets import Lines
from tmrl_like.wire import messages as m
from tmrl_like.wire.condition import FIGURES, Condition

log = logging.getLogger("tmrl_like.trainer")

_GONE_AFTER_S = 5.0
_WORKERS_KEPT = 10_000
_GROWING = [field for field, figure in FIGURES.items() if figure.is_summed and figure.grows]
_CURRENT = [field for field, figure in FIGURES.items() if figure.is_summed and not figure.grows]
_OF_THE_WORST = ("policy_lag_versions", "log_fails")  # metrics of which the largest counts
_DESCRIBED = 5
_LINES = 20  # log lines about one worker, at first; …
_LINES_PER_S = 0.1  # … and later
_NEW_WORKERS = 1000  # new workers that are logged by name, at first; later one a second
_TOLD = (  # (fact, level, line if it changes, line if it is over)
    ("ended", logging.WARNING, "worker %(worker)s no longer drives: %(ended)s", ""),
    (
        "alarm",
        logging.ERROR,
        "worker %(worker)s: %(alarm)s",
        "worker %(worker)s: all is well again",
    ),
    (
        "env_faults",
        logging.WARNING,
        "worker %(worker)s: its environment failed; faults so far: %(env_faults)d",
        "",
    ),
    ("env_rebuilds", logging.INFO, "worker %(worker)s: its environment was rebuilt", ""),
    (
        "lags",
        logging.ERROR,
        "worker %(worker)s drives version %(policy_version)d, and the newest is %(newest)d: "
        "%(max_lag_versions)g versions behind are allowed (max_policy_lag_versions), its samples "
        "are dropped",
        "worker %(worker)s drives version %(policy_version)d: no longer too far behind",
    ),
)


@dataclass
class _Worker:
    name: str
    condition: Condition
    heard_at: float
    facts: dict[str, Any]  # the figures of the condition, and what `_TOLD` needs besides

    @property
    def is_alive(self) -> bool:
        return time.monotonic() - self.heard_at < _GONE_AFTER_S


class Fleet:
    """Collects heartbeats, and logs once when something is wrong with a worker, and once when it is
    over.
    """

    def __init__(self, max_lag_versions: float = math.inf) -> None:
        """Start without workers.

        `max_lag_versions` is `max_policy_lag_versions` in `Schedule`. Experts, which ignore
        policies, and workers that keep one policy are never behind.
        """
        self._max_lag_versions = max_lag_versions
        # any thread may read it; a worker in it is never changed, only replaced as a whole
        self._workers: dict[str, _Worker] = {}
        self._totals = Counter[str]()  # sums of growing figures since the workers started
        self._driven = Counter[str]()  # what they have done since the last call of `metrics`
        self._say = Lines(log, _LINES, _LINES_PER_S)
        self._say_new = Lines(log, _NEW_WORKERS, 1.0)

    def on_beat(self, beat: m.Beat, newest: int) -> None:
        """Take a worker's heartbeat (connection's thread). `newest` is the version published last;
        0: none.
        """
        name = beat.worker
        condition = beat.condition
        facts = msgspec.structs.asdict(condition) | {
            "worker": name,
            "newest": newest,
            "max_lag_versions": self._max_lag_versions,
            "lags": _lag(condition, newest) > self._max_lag_versions,
        }
        known = self._workers.get(name)
        before = {} if known is None else known.facts
        grown = {}
        # a new process that has taken the name counts from 0
        counted = {} if facts["env_steps"] < before.get("env_steps", 0) else before
        for figure in (*_GROWING, "env_steps"):
            now, then = facts[figure], counted.get(figure, 0)
            grown[figure] = now - then if now >= then else now
        self._totals.update(grown)
        if known is None:
            self._say_new("new workers", logging.INFO, "worker %s is here", name)
        else:
            self._driven.update(grown)
        worker = _Worker(name, condition, time.monotonic(), facts)
        self._workers[name] = worker
        self._tell(worker, before)
        if len(self._workers) > _WORKERS_KEPT:
            gone = next((other for other in self._workers.values() if not other.is_alive), None)
            if gone is not None:
                del self._workers[gone.name]

    def _tell(self, worker: _Worker, before: dict[str, Any]) -> None:
        for fact, level, line, over in _TOLD:
            now = worker.facts[fact]
            then = before.get(fact)
            if now and now != then:
                self._say(worker.name, level, line, worker.facts)
            elif then and not now and over:
                self._say(worker.name, logging.INFO, over, worker.facts)

    def _alive(self) -> list[_Worker]:
        return [worker for worker in list(self._workers.values()) if worker.is_alive]

    def is_driving(self) -> bool:
        """Whether any living worker still drives."""
        return any(not worker.condition.ended for worker in self._alive())

    def describe(self) -> str:
        """Describe the newest known state of each worker, the one heard from last first; empty if
        there never was one.
        """
        known = sorted(self._workers.values(), key=lambda worker: -worker.heard_at)
        return "; ".join(map(_describe, known[:_DESCRIBED]))

    def versions(self) -> dict[str, int]:
        """Return the version that each living worker drives with now."""
        return {worker.name: worker.condition.policy_version for worker in self._alive()}

    def metrics(self, newest: int) -> dict[str, float]:
        """Return the workers' condition, and what they did since the last call. `newest` is the
        version published last.
        """
        alive = self._alive()
        driven = self._driven
        self._driven = Counter()
        metrics: dict[str, float] = {
            "workers": len(alive),
            "workers_with_alarm": sum(
                bool(worker.facts["alarm"] or worker.facts["lags"]) for worker in alive
            ),
            "policy_lag_versions": max(
                (_lag(worker.condition, newest) for worker in alive), default=0
            ),
        }
        metrics |= {FIGURES[field].metric_of(field): self._totals[field] for field in _GROWING}
        metrics |= {field: sum(worker.facts[field] for worker in alive) for field in _CURRENT}
        if driven["env_steps"]:
            metrics["deadline_miss_share"] = driven["overruns"] / driven["env_steps"]
        return metrics


def together(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of two ranks as those of both."""
    both = {**one, **other}
    for name in one.keys() & other.keys():
        pair = one[name], other[name]
        if name == "deadline_miss_share":
            both[name] = fmean(pair, [max(1, rank["workers"]) for rank in (one, other)])
        else:
            both[name] = max(pair) if name in _OF_THE_WORST else sum(pair)
    return both


def _lag(condition: Condition, newest: int) -> int:
    """Return how many versions a worker is behind; one that keeps its policy never is."""
    return 0 if condition.keeps_policy else max(0, newest - condition.policy_version)


def _describe(worker: _Worker) -> str:
    condition = worker.condition
    if condition.ended:
        return f"worker {worker.name} no longer drives ({condition.ended})"
    if not worker.is_alive:
        return (
            f"worker {worker.name} has not been heard of for "
            f"{time.monotonic() - worker.heard_at:.0f} s"
        )
    return f"worker {worker.name} is here, and sends none" + (
        f" ({condition.alarm})" if condition.alarm else ""
    )
