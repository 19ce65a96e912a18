"""What the trainer knows of its workers' condition, from their signs of life."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass

from tmrl_like.base.budgets import Lines
from tmrl_like.wire import messages as m

log = logging.getLogger("tmrl_like.trainer")

_GONE_AFTER_S = 5.0
_WORKERS_KEPT = 10_000
_TOTALS = ("overruns", "safe_steps", "env_faults", "env_rebuilds")
_DESCRIBED = 5
_LINES = 20  # of log about one worker, at first; …
_LINES_PER_S = 0.1  # … and then
_NEW_WORKERS = 1000  # that a line names, at first; then one a second


@dataclass
class _Condition:
    beat: m.Beat
    at: float
    behind_since: float | None = None  # it has driven this version since then, and another one is the newest
    stalled: bool = False
    lags: bool = False  # by more versions than are allowed


class Fleet:
    """Collects beats; says once what is wrong with a worker, and once that it is over."""

    def __init__(self, stalled_after_s: float, max_lag_versions: float = math.inf) -> None:
        """Start with no worker; experts, which ignore policies, are never late.

        `stalled_after_s` is as in `TrainerOptions`, `max_lag_versions` as `max_policy_lag_versions` in `Schedule`.
        """
        self._stalled_after_s = stalled_after_s
        self._max_lag_versions = max_lag_versions
        self._conditions: dict[str, _Condition] = {}
        self._forgotten = dict.fromkeys(_TOTALS, 0)  # of workers that are not among the conditions any more
        self._say = Lines(log, _LINES, _LINES_PER_S)
        self._say_new = Lines(log, _NEW_WORKERS, 1.0)
        self._driven = 0, 0  # environment steps that beats have reported and, of these, overruns
        self._driven_before = 0, 0  # when `metrics` was called last

    def on_beat(self, beat: m.Beat, newest: int) -> None:
        """Take a worker's sign of life (connection's thread); `newest`: the version published last; 0: none."""
        now = time.monotonic()
        condition = _Condition(beat, now)
        known = self._conditions.get(beat.worker)
        if known is None:
            self._say_new("new workers", logging.INFO, "worker %s is here", beat.worker)
        elif beat.env_steps >= known.beat.env_steps:
            steps, overruns = self._driven
            overruns += max(0, beat.overruns - known.beat.overruns)
            self._driven = steps + beat.env_steps - known.beat.env_steps, overruns
        self._tell_changes(beat, known.beat if known else m.Beat())
        self._watch_version(condition, known, newest)
        self._watch_lag(condition, known, newest)
        self._conditions[beat.worker] = condition
        if len(self._conditions) > _WORKERS_KEPT:
            self._forget_the_gone(now)

    def _forget_the_gone(self, now: float) -> None:
        """Down to nine tenths of what is kept, so that this is rare."""
        gone = sorted((c for c in self._conditions.values() if now - c.at > _GONE_AFTER_S), key=lambda c: c.at)
        for condition in gone[: len(self._conditions) - _WORKERS_KEPT * 9 // 10]:
            del self._conditions[condition.beat.worker]
            for name in _TOTALS:
                self._forgotten[name] += getattr(condition.beat, name)

    def _watch_version(self, condition: _Condition, known: _Condition | None, newest: int) -> None:
        worker, version = condition.beat.worker, condition.beat.policy_version
        if newest and version != newest and not condition.beat.expert:
            goes_on = known and known.beat.policy_version == version and condition.at - known.at < _GONE_AFTER_S
            condition.behind_since = (known.behind_since if known and goes_on else None) or condition.at
            condition.stalled = condition.at - condition.behind_since > self._stalled_after_s
        was_stalled = known is not None and known.stalled
        if condition.stalled and not was_stalled:
            line = "worker %s has not taken a new policy for %.0f s: it drives version %d, the newest is %d; its own "
            values = (worker, self._stalled_after_s, version, newest)
            self._say(worker, logging.ERROR, line + "log may say why", *values)
        elif was_stalled and not condition.stalled:
            line = "worker %s takes new policies again: it drives version %d"
            self._say(worker, logging.INFO, line, worker, version)

    def _watch_lag(self, condition: _Condition, known: _Condition | None, newest: int) -> None:
        worker, version = condition.beat.worker, condition.beat.policy_version
        condition.lags = _lag(condition.beat, newest) > self._max_lag_versions
        had_lagged = known is not None and known.lags
        if condition.lags and not had_lagged:
            line = "worker %s drives version %d, and the newest is %d: %g versions behind are allowed "
            values = (worker, version, newest, self._max_lag_versions)
            self._say(worker, logging.ERROR, line + "(max_policy_lag_versions), its samples are dropped", *values)
        elif had_lagged and not condition.lags:
            self._say(worker, logging.INFO, "worker %s drives version %d: no longer too far behind", worker, version)

    def _tell_changes(self, beat: m.Beat, before: m.Beat) -> None:
        def say(level: int, line: str, *values: object) -> None:
            self._say(beat.worker, level, line, beat.worker, *values)

        if beat.ended and not before.ended:
            say(logging.WARNING, "worker %s no longer drives: %s", beat.ended)
        if beat.alarm and beat.alarm != before.alarm:
            say(logging.ERROR, "worker %s: %s", beat.alarm)
        elif before.alarm and not beat.alarm:
            say(logging.INFO, "worker %s: all is well again")
        if beat.env_faults > before.env_faults:
            say(logging.WARNING, "worker %s: its environment failed; faults so far: %d", beat.env_faults)
        if beat.env_rebuilds > before.env_rebuilds:
            say(logging.INFO, "worker %s: its environment was rebuilt")

    def _alive(self) -> list[_Condition]:
        now = time.monotonic()
        return [c for c in list(self._conditions.values()) if now - c.at < _GONE_AFTER_S]

    def is_driving(self) -> bool:
        """Whether any worker is alive that has not said that it no longer drives."""
        return any(not c.beat.ended for c in self._alive())

    def describe(self) -> str:
        """Where each worker is, the one that was heard of last first; empty: there never was one."""
        now = time.monotonic()
        known = sorted(self._conditions.values(), key=lambda c: -c.at)
        return "; ".join(_describe(c, now - c.at) for c in known[:_DESCRIBED])

    def versions(self) -> dict[str, int]:
        """The version that drives now, of each living worker."""
        return {c.beat.worker: c.beat.policy_version for c in self._alive()}

    def metrics(self, newest: int) -> dict[str, float]:
        """The workers' condition, and what they did since the last call; `newest`: the version published last."""
        alive = self._alive()
        beats = [c.beat for c in alive]
        known = [c.beat for c in list(self._conditions.values())]
        metrics: dict[str, float] = {
            "workers": len(alive),
            "workers_with_alarm": sum(bool(c.beat.alarm) or c.stalled or c.lags for c in alive),
            "workers_stalled": sum(c.stalled for c in alive),
            **{f"{n}_total": self._forgotten[n] + sum(getattr(b, n) for b in known) for n in _TOTALS},
            "unacknowledged_samples": sum(b.unacknowledged_samples for b in beats),
            "policy_lag_versions": max((_lag(beat, newest) for beat in beats), default=0),
        }
        driven, before = self._driven, self._driven_before
        if steps := driven[0] - before[0]:
            metrics["deadline_miss_share"] = (driven[1] - before[1]) / steps
        self._driven_before = driven
        return metrics


def _lag(beat: m.Beat, newest: int) -> int:
    """Versions by which a worker is behind; an expert never is."""
    return 0 if beat.expert else max(0, newest - beat.policy_version)


def _describe(condition: _Condition, silent_s: float) -> str:
    beat = condition.beat
    if beat.ended:
        return f"worker {beat.worker} no longer drives ({beat.ended})"
    if silent_s >= _GONE_AFTER_S:
        return f"worker {beat.worker} has not been heard of for {silent_s:.0f} s"
    return f"worker {beat.worker} is here, and sends none" + (f" ({beat.alarm})" if beat.alarm else "")
