"""What the trainer knows of its workers' condition, from their signs of life."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass

from tmrl_like.base.budgets import Lines
from tmrl_like.wire import messages as m
from tmrl_like.wire.condition import FIGURES, Condition

log = logging.getLogger("tmrl_like.trainer")

_GONE_AFTER_S = 5.0
_WORKERS_KEPT = 10_000
_SUMMED = {field: figure for field, figure in FIGURES.items() if figure.is_summed}
_DESCRIBED = 5
_LINES = 20  # of log about one worker, at first; …
_LINES_PER_S = 0.1  # … and then
_NEW_WORKERS = 1000  # that a line names, at first; then one a second


@dataclass
class _Worker:
    name: str
    condition: Condition
    heard_at: float
    behind_since: float | None = None  # it has driven this version since then, and another one is the newest
    stalled: bool = False
    lags: bool = False  # by more versions than are allowed

    @property
    def is_unwell(self) -> bool:
        return bool(self.condition.alarm) or self.stalled or self.lags


class Fleet:
    """Collects beats; says once what is wrong with a worker, and once that it is over."""

    def __init__(self, stalled_after_s: float, max_lag_versions: float = math.inf) -> None:
        """Start with no worker; experts, which ignore policies, are never late.

        `stalled_after_s` is as in `TrainerOptions`, `max_lag_versions` as `max_policy_lag_versions` in `Schedule`.
        """
        self._stalled_after_s = stalled_after_s
        self._max_lag_versions = max_lag_versions
        self._workers: dict[str, _Worker] = {}
        self._forgotten = dict.fromkeys(_SUMMED, 0)  # of workers that are not among those any more
        self._say = Lines(log, _LINES, _LINES_PER_S)
        self._say_new = Lines(log, _NEW_WORKERS, 1.0)
        self._driven = 0, 0  # environment steps that beats have reported and, of these, overruns
        self._driven_before = 0, 0  # when `metrics` was called last

    def on_beat(self, beat: m.Beat, newest: int) -> None:
        """Take a worker's sign of life (connection's thread); `newest`: the version published last; 0: none."""
        worker = _Worker(beat.worker, beat.condition, time.monotonic())
        known = self._workers.get(worker.name)
        if known is None:
            self._say_new("new workers", logging.INFO, "worker %s is here", worker.name)
        else:
            self._count_steps(worker.condition, known.condition)
        self._tell_changes(worker.name, worker.condition, known.condition if known else Condition())
        self._watch_version(worker, known, newest)
        self._watch_lag(worker, known, newest)
        self._workers[worker.name] = worker
        if len(self._workers) > _WORKERS_KEPT:
            self._forget_the_gone(worker.heard_at)

    def _count_steps(self, now: Condition, before: Condition) -> None:
        if now.env_steps >= before.env_steps:  # else it is a new process under the old name
            steps, overruns = self._driven
            overruns += max(0, now.overruns - before.overruns)
            self._driven = steps + now.env_steps - before.env_steps, overruns

    def _forget_the_gone(self, now: float) -> None:
        """Down to nine tenths of what is kept, so that this is rare."""
        gone = [worker for worker in self._workers.values() if now - worker.heard_at > _GONE_AFTER_S]
        gone.sort(key=lambda worker: worker.heard_at)
        for worker in gone[: len(self._workers) - _WORKERS_KEPT * 9 // 10]:
            del self._workers[worker.name]
            for field in _SUMMED:
                self._forgotten[field] += getattr(worker.condition, field)

    def _watch_version(self, worker: _Worker, known: _Worker | None, newest: int) -> None:
        name, version = worker.name, worker.condition.policy_version
        if newest and version != newest and not worker.condition.expert:
            goes_on = known is not None and worker.heard_at - known.heard_at < _GONE_AFTER_S
            if known is not None and goes_on and known.condition.policy_version == version:
                worker.behind_since = known.behind_since
            worker.behind_since = worker.behind_since or worker.heard_at
            worker.stalled = worker.heard_at - worker.behind_since > self._stalled_after_s
        was_stalled = known is not None and known.stalled
        if worker.stalled and not was_stalled:
            line = "worker %s has not taken a new policy for %.0f s: it drives version %d, the newest is %d; its own "
            values = (name, self._stalled_after_s, version, newest)
            self._say(name, logging.ERROR, line + "log may say why", *values)
        elif was_stalled and not worker.stalled:
            self._say(name, logging.INFO, "worker %s takes new policies again: it drives version %d", name, version)

    def _watch_lag(self, worker: _Worker, known: _Worker | None, newest: int) -> None:
        name, version = worker.name, worker.condition.policy_version
        worker.lags = _lag(worker.condition, newest) > self._max_lag_versions
        had_lagged = known is not None and known.lags
        if worker.lags and not had_lagged:
            line = "worker %s drives version %d, and the newest is %d: %g versions behind are allowed "
            values = (name, version, newest, self._max_lag_versions)
            self._say(name, logging.ERROR, line + "(max_policy_lag_versions), its samples are dropped", *values)
        elif had_lagged and not worker.lags:
            self._say(name, logging.INFO, "worker %s drives version %d: no longer too far behind", name, version)

    def _tell_changes(self, name: str, now: Condition, before: Condition) -> None:
        def say(level: int, line: str, *values: object) -> None:
            self._say(name, level, line, name, *values)

        if now.ended and not before.ended:
            say(logging.WARNING, "worker %s no longer drives: %s", now.ended)
        if now.alarm and now.alarm != before.alarm:
            say(logging.ERROR, "worker %s: %s", now.alarm)
        elif before.alarm and not now.alarm:
            say(logging.INFO, "worker %s: all is well again")
        if now.env_faults > before.env_faults:
            say(logging.WARNING, "worker %s: its environment failed; faults so far: %d", now.env_faults)
        if now.env_rebuilds > before.env_rebuilds:
            say(logging.INFO, "worker %s: its environment was rebuilt")

    def _alive(self) -> list[_Worker]:
        now = time.monotonic()
        return [worker for worker in list(self._workers.values()) if now - worker.heard_at < _GONE_AFTER_S]

    def is_driving(self) -> bool:
        """Whether any worker is alive that has not said that it no longer drives."""
        return any(not worker.condition.ended for worker in self._alive())

    def describe(self) -> str:
        """Where each worker is, the one that was heard of last first; empty: there never was one."""
        now = time.monotonic()
        known = sorted(self._workers.values(), key=lambda worker: -worker.heard_at)
        return "; ".join(_describe(worker, now - worker.heard_at) for worker in known[:_DESCRIBED])

    def versions(self) -> dict[str, int]:
        """The version that drives now, of each living worker."""
        return {worker.name: worker.condition.policy_version for worker in self._alive()}

    def metrics(self, newest: int) -> dict[str, float]:
        """The workers' condition, and what they did since the last call; `newest`: the version published last."""
        known, alive = list(self._workers.values()), self._alive()
        metrics: dict[str, float] = {
            "workers": len(alive),
            "workers_with_alarm": sum(worker.is_unwell for worker in alive),
            "workers_stalled": sum(worker.stalled for worker in alive),
            "policy_lag_versions": max((_lag(worker.condition, newest) for worker in alive), default=0),
        }
        for field, figure in _SUMMED.items():
            counted = sum(getattr(worker.condition, field) for worker in (known if figure.grows else alive))
            metrics[figure.metric_of(field)] = counted + self._forgotten[field] * figure.grows
        driven, before = self._driven, self._driven_before
        if steps := driven[0] - before[0]:
            metrics["deadline_miss_share"] = (driven[1] - before[1]) / steps
        self._driven_before = driven
        return metrics


def _lag(condition: Condition, newest: int) -> int:
    """Versions by which a worker is behind; an expert never is."""
    return 0 if condition.expert else max(0, newest - condition.policy_version)


def _describe(worker: _Worker, silent_s: float) -> str:
    condition = worker.condition
    if condition.ended:
        return f"worker {worker.name} no longer drives ({condition.ended})"
    if silent_s >= _GONE_AFTER_S:
        return f"worker {worker.name} has not been heard of for {silent_s:.0f} s"
    return f"worker {worker.name} is here, and sends none" + (f" ({condition.alarm})" if condition.alarm else "")
