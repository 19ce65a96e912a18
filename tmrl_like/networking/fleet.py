"""What the trainer knows of its workers' condition, from their signs of life."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from tmrl_like.wire import messages as m

log = logging.getLogger("tmrl_like.trainer")

_GONE_AFTER_S = 5.0


@dataclass
class _Condition:
    beat: m.Beat
    at: float
    behind_since: float | None = None  # it has driven this version since then, and another one is the newest
    stalled: bool = False


class Fleet:
    """Collects beats; says once what is wrong with a worker, and once that it is over."""

    def __init__(self, stalled_after_s: float) -> None:
        """Start with no worker.

        Args:
            stalled_after_s: a worker that drives one version for so long while newer ones are published is
                stalled. Experts, which ignore policies, never are.
        """
        self._stalled_after_s = stalled_after_s
        self._conditions: dict[str, _Condition] = {}
        self._steps = 0
        self._overruns = 0
        self._told = (0, 0)  # of these two, what `metrics` has told

    def on_beat(self, beat: m.Beat, newest: int) -> None:
        """Take a worker's sign of life (connection's thread).

        Args:
            beat: the worker's.
            newest: the version published last; 0: none.
        """
        known = self._conditions.get(beat.worker)
        if known is None:
            log.info("worker %s is here", beat.worker)
        now = time.monotonic()
        condition = _Condition(beat, now)
        _tell_alarm(beat, known.beat.alarm if known else "")
        _tell_faults(beat, known.beat if known else m.Beat())
        self._count(beat, known)
        self._watch_version(condition, known, newest)
        self._conditions[beat.worker] = condition

    def _count(self, beat: m.Beat, known: _Condition | None) -> None:
        if known is not None and beat.env_steps >= known.beat.env_steps:
            self._steps += beat.env_steps - known.beat.env_steps
            self._overruns += max(0, beat.overruns - known.beat.overruns)

    def _watch_version(self, condition: _Condition, known: _Condition | None, newest: int) -> None:
        beat = condition.beat
        if newest and beat.policy_version != newest and not beat.expert:
            goes_on = (
                known is not None
                and known.beat.policy_version == beat.policy_version
                and condition.at - known.at < _GONE_AFTER_S
            )
            condition.behind_since = (known.behind_since if known and goes_on else None) or condition.at
            condition.stalled = condition.at - condition.behind_since > self._stalled_after_s
        if condition.stalled and not (known and known.stalled):
            log.error(
                "worker %s has not taken a new policy for %.0f s: it drives version %d, the newest is %d; its own log "
                "may say why",
                beat.worker,
                self._stalled_after_s,
                beat.policy_version,
                newest,
            )
        elif known is not None and known.stalled and not condition.stalled:
            log.info("worker %s takes new policies again: it drives version %d", beat.worker, beat.policy_version)

    def _alive(self) -> list[_Condition]:
        now = time.monotonic()
        return [c for c in list(self._conditions.values()) if now - c.at < _GONE_AFTER_S]

    def versions(self) -> dict[str, int]:
        """The version that drives now, of each living worker."""
        return {c.beat.worker: c.beat.policy_version for c in self._alive()}

    def metrics(self, newest: int) -> dict[str, float]:
        """The workers' condition, and what they did since the last call.

        Args:
            newest: the version published last.
        """
        alive = self._alive()
        beats = [c.beat for c in alive]
        known = [c.beat for c in list(self._conditions.values())]
        metrics: dict[str, float] = {
            "workers": len(alive),
            "workers_with_alarm": sum(bool(c.beat.alarm) or c.stalled for c in alive),
            "workers_stalled": sum(c.stalled for c in alive),
            "overruns_total": sum(b.overruns for b in known),
            "safe_steps_total": sum(b.safe_steps for b in known),
            "env_faults_total": sum(b.env_faults for b in known),
            "env_rebuilds_total": sum(b.env_rebuilds for b in known),
            "unacknowledged_samples": sum(b.unacknowledged_samples for b in beats),
            "policy_lag_versions": max((max(0, newest - b.policy_version) for b in beats if not b.expert), default=0),
        }
        done, self._told = self._told, (self._steps, self._overruns)
        if self._told[0] > done[0]:
            metrics["deadline_miss_share"] = (self._told[1] - done[1]) / (self._told[0] - done[0])
        return metrics


def _tell_faults(beat: m.Beat, before: m.Beat) -> None:
    if beat.env_faults > before.env_faults:
        log.warning("worker %s: its environment failed; faults so far: %d", beat.worker, beat.env_faults)
    if beat.env_rebuilds > before.env_rebuilds:
        log.info("worker %s: its environment was made anew", beat.worker)


def _tell_alarm(beat: m.Beat, before: str) -> None:
    if beat.alarm and beat.alarm != before:
        log.error("worker %s: %s", beat.worker, beat.alarm)
    elif before and not beat.alarm:
        log.info("worker %s: all is well again", beat.worker)
