"""How old samples are, whatever the workers' clocks show, and which samples are too old for the
memory.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field

from tmrl_like.base import clocks
from tmrl_like.base.budgets import Bucket, Buckets, Lines, Newest
from tmrl_like.wire import messages as m

log = logging.getLogger("tmrl_like.trainer")

_MINUTES = 5
# a beat that another server held up may arrive this much after a beat that was sent later
_REBOOT_S = 5.0
_WORTH_SAYING_S = 2.0
_BEATS_BEFORE = 5  # the first ones may have been held up: clocks are compared only after these
_LARGEST_S = 1e11  # no clock of an honest worker exceeds this
_SAY_AGAIN_S = 600.0
_MAX_SAID = 100
# shared by all workers, because the trainer's clock may be the one that jumps
_LINES = 20
_LINES_PER_S = 0.1


@dataclass
class _Clock:
    """The known state of a worker's clock."""

    up_s: float = 0.0  # in the newest beat
    epoch_s: float = 0.0  # when `up_s` was 0, by the worker's clock as it is set now
    # when `up_s` was 0, by the trainer's clock: the earliest time that the beats of a minute allow,
    # by minute, for the newest minutes with any beats
    starts_s: dict[int, float] = field(default_factory=dict)
    beats: int = 0
    said_s: float = 0.0  # how far ahead it was reported to be

    @property
    def start_s(self) -> float:
        return min(self.starts_s.values())

    def take(self, beat: m.Beat, now_s: float) -> None:
        self.up_s = beat.up_s
        self.epoch_s = beat.at_s - beat.up_s
        self.beats += 1
        minute = int(now_s // 60)
        start_s = now_s - beat.up_s
        self.starts_s[minute] = min(start_s, self.starts_s.get(minute, start_s))
        if len(self.starts_s) > _MINUTES:
            del self.starts_s[next(iter(self.starts_s))]


class WorkerClocks:
    """Estimates how far the Unix times of each worker's samples are ahead of the trainer's.

    A beat contains a clock that has run evenly since the worker's machine was started. By the
    trainer's clock, that start can only seem too late, by the time that the beat was on its way. So
    the earliest start that the beats of the newest five minutes (with any beats) allow is used, and
    samples do not look younger because beats were held up with them. Ages are too low by the travel
    time of the fastest of these beats, and up to 30 ms too high or too low as the two clocks drift
    (100 ppm).
    """

    def __init__(self, says: bool = True) -> None:
        """Start without workers. With `says`, wrong clocks are logged, once for each change of more
        than two seconds.
        """
        self._clocks = Newest[_Clock]()
        self._says = says
        self._say = Lines(log, _LINES, _LINES_PER_S, clocks.up_s)

    def on_beat(self, beat: m.Beat) -> None:
        """Take a worker's heartbeat as soon as it arrives (connection's thread)."""
        if not (0.0 < beat.up_s < _LARGEST_S and abs(beat.at_s) < _LARGEST_S):
            return
        known = self._clocks.get(beat.worker, _Clock())
        # the worker's machine was restarted, or it is another machine
        if beat.up_s < known.up_s - _REBOOT_S:
            known = _Clock(said_s=known.said_s)
        self._clocks[beat.worker] = known
        now_s = clocks.unix_s()
        known.take(beat, now_s)
        if self._says and known.beats > _BEATS_BEFORE:
            self._compare(beat.worker, known, now_s)

    def _compare(self, worker: str, known: _Clock, now_s: float) -> None:
        ahead_s = known.epoch_s - known.start_s + now_s - time.time()
        if abs(ahead_s - known.said_s) <= _WORTH_SAYING_S:
            return
        known.said_s = 0.0
        if abs(ahead_s) > _WORTH_SAYING_S:
            known.said_s = ahead_s
            line = (
                "the clock of worker %s is %.0f s %s this trainer's: ages of samples allow for it; "
                "set both by NTP"
            )
            side = "ahead of" if ahead_s > 0 else "behind"
            self._say("clocks", logging.WARNING, line, worker, abs(ahead_s), side)

    def ahead_s(self, worker: str, epoch_s: float) -> float:
        """Return how far the Unix times of a worker's samples are ahead of `base.clocks.unix_s`; 0
        before its first beat.

        `epoch_s` is as in `SamplePacket`. Samples that a dead process has left are timed by its
        machine's clock as it is set now.
        """
        known = self._clocks.get(worker)
        if known is None or not abs(epoch_s) < _LARGEST_S:
            return 0.0
        return (epoch_s or known.epoch_s) - known.start_s


class FreshnessLimits:
    """Keeps packets that are too old out of the memory, each as a whole.

    Attributes:
        max_lag_versions: as in the constructor.
        dropped_samples: number of samples dropped since the start.
    """

    def __init__(self, max_age_s: float = math.inf, max_lag_versions: float = math.inf) -> None:
        """Set the limits.

        Args:
            max_age_s: from the first observation to now.
            max_lag_versions: newest published version minus the oldest version that chose an
                action; samples of version 0, which was never published, have no lag.
        """
        self._max_age_s = max_age_s
        self.max_lag_versions = max_lag_versions
        self._lines = Bucket(_MAX_SAID, _MAX_SAID / _SAY_AGAIN_S)
        self._lines_of = Buckets(1, 1 / _SAY_AGAIN_S)  # for each limit and worker
        self.dropped_samples = 0

    def admit(
        self, packet: m.SamplePacket, now_s: float, newest_version: int, ahead_s: float = 0.0
    ) -> bool:
        """Whether a packet with this header may enter the memory at Unix time `now_s`; `ahead_s` as
        in `Delivery`. Samples that may not are counted and logged.
        """
        age_s = now_s + ahead_s - packet.observed_at_s
        lag = newest_version - packet.policy_version if packet.policy_version else 0
        if packet.samples and age_s > self._max_age_s:
            limit = "max_sample_age_s"
            reason = f"{age_s:.3g} s old, at most {self._max_age_s:g} are allowed"
        elif packet.samples and lag > self.max_lag_versions:
            limit = "max_policy_lag_versions"
            reason = f"made {lag} versions ago, at most {self.max_lag_versions:g} are allowed"
        else:
            return True
        self.dropped_samples += packet.samples
        if self._lines_of.take(f"{limit} {packet.worker}", 1, now_s) and self._lines.take(1, now_s):
            log.warning(
                "samples of worker %s are dropped (%s): %s; %d samples dropped so far",
                packet.worker,
                limit,
                reason,
                self.dropped_samples,
            )
        return False
