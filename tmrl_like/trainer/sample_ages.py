"""How old samples are, whatever the workers' clocks show, and which are too old to enter the
memory.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field

from tmrl_like.base import clocks
from tmrl_like.base.budgets import Bucket, Buckets, Lines
from tmrl_like.wire import messages as m

log = logging.getLogger("tmrl_like.trainer")

_MINUTES = 5
# a beat that another server held up may come so much later than one that was said after it
_REBOOT_S = 5.0
_WORTH_SAYING_S = 2.0
_BEATS_BEFORE = 5  # the first ones may have been held up
_WORKERS_KEPT = 10_000
_LARGEST_S = 1e11  # no clock of an honest worker shows more
_SAY_AGAIN_S = 600.0
_MAX_SAID = 100
_LINES, _LINES_PER_S = 20, 0.1  # about all workers: the trainer's clock may be the one that jumps


@dataclass
class _Clock:
    """What is known of a worker's."""

    up_s: float = 0.0  # in the newest beat
    epoch_s: float = 0.0  # when `up_s` was 0: by the worker's clock as it is set now
    starts_s: dict[int, float] = field(default_factory=dict)  # by minute
    # when `up_s` was 0: the earliest that the beats of a minute allow, by the trainer's clock, of
    # the newest minutes in which there were any
    beats: int = 0
    said_s: float = 0.0  # by how much it was said to be ahead

    @property
    def start_s(self) -> float:
        return min(self.starts_s.values())

    def take(self, beat: m.Beat, now_s: float) -> None:
        self.up_s, self.epoch_s, self.beats = beat.up_s, beat.at_s - beat.up_s, self.beats + 1
        minute, start_s = int(now_s // 60), now_s - beat.up_s
        self.starts_s[minute] = min(start_s, self.starts_s.get(minute, start_s))
        if len(self.starts_s) > _MINUTES:
            del self.starts_s[next(iter(self.starts_s))]


class WorkerClocks:
    """By how much the Unix times of samples are ahead of the trainer's.

    A beat says what a clock shows that runs evenly since the worker's machine was started. When
    that was, by the trainer's clock, can only seem too late, by as long as the beat was on its way:
    what counts is the earliest moment that the beats allow of the newest five minutes in which
    there were any. So beats that were held up do not make the samples young that come with them.
    Ages are too low by the time that the fastest of these beats took, and up to 30 ms too high or
    too low as the two clocks drift (100 ppm).
    """

    def __init__(self, says: bool = True) -> None:
        """Start with no worker; `says` which clocks are wrong, once for each change of more than
        two seconds.
        """
        self._clocks: dict[str, _Clock] = {}  # the one heard of longest ago comes first
        self._says = says
        self._say = Lines(log, _LINES, _LINES_PER_S, clocks.up_s)

    def on_beat(self, beat: m.Beat) -> None:
        """Take a worker's sign of life (connection's thread), right when it arrives."""
        if not (0.0 < beat.up_s < _LARGEST_S and abs(beat.at_s) < _LARGEST_S):
            return
        known = self._clocks.pop(beat.worker, _Clock())
        # its machine was started again, or it is another one
        if beat.up_s < known.up_s - _REBOOT_S:
            known = _Clock(said_s=known.said_s)
        self._clocks[beat.worker] = known
        if len(self._clocks) > _WORKERS_KEPT:
            del self._clocks[next(iter(self._clocks))]
        now_s = clocks.unix_s()
        known.take(beat, now_s)
        if self._says and known.beats > _BEATS_BEFORE:
            self._compare(beat.worker, known, now_s)

    def _compare(self, worker: str, known: _Clock, now_s: float) -> None:
        ahead_s = known.epoch_s - known.start_s + now_s - time.time()
        if abs(ahead_s - known.said_s) <= _WORTH_SAYING_S:
            return
        if abs(ahead_s) <= _WORTH_SAYING_S:
            known.said_s = 0.0
            self._say(
                "clocks",
                logging.INFO,
                "the clocks of worker %s and of this trainer agree again",
                worker,
            )
            return
        known.said_s = ahead_s
        line = (
            "the clock of worker %s is %.0f s %s this trainer's: ages of samples allow for it; set "
            "both by NTP"
        )
        self._say(
            "clocks",
            logging.WARNING,
            line,
            worker,
            abs(ahead_s),
            "ahead of" if ahead_s > 0 else "behind",
        )

    def ahead_s(self, worker: str, epoch_s: float) -> float:
        """By how much the Unix times of samples are ahead of `base.clocks.unix_s`; 0 before there
        was a beat.

        `epoch_s` is as in `SamplePacket`. What a dead process has left goes by its machine's clock
        as it is set now.
        """
        known = self._clocks.get(worker)
        if known is None or not abs(epoch_s) < _LARGEST_S:
            return 0.0
        return (epoch_s or known.epoch_s) - known.start_s


class FreshnessLimits:
    """Keeps packets that are too old out of the memory, each as a whole.

    Attributes:
        max_lag_versions: as in the constructor.
        dropped_samples: since the start.
    """

    def __init__(self, max_age_s: float = math.inf, max_lag_versions: float = math.inf) -> None:
        """Set the limits.

        Args:
            max_age_s: from the first observation to now.
            max_lag_versions: newest version published minus the oldest that chose an action;
                samples of version 0, which was never published, have no lag.
        """
        self._max_age_s = max_age_s
        self.max_lag_versions = max_lag_versions
        self._lines = Bucket(_MAX_SAID, _MAX_SAID / _SAY_AGAIN_S)
        self._lines_of = Buckets(1, 1 / _SAY_AGAIN_S)  # one limit and worker
        self.dropped_samples = 0

    def admit(
        self, packet: m.SamplePacket, now_s: float, newest_version: int, ahead_s: float = 0.0
    ) -> bool:
        """Whether a packet with this header may enter the memory at Unix time `now_s`; `ahead_s` as
        in `Delivery`.
        """
        age_s = now_s + ahead_s - packet.observed_at_s
        lag = newest_version - packet.policy_version if packet.policy_version else 0
        if not packet.samples or (age_s <= self._max_age_s and lag <= self.max_lag_versions):
            return True
        self.dropped_samples += packet.samples
        if age_s > self._max_age_s:
            limit, reason = (
                "max_sample_age_s",
                f"{age_s:.3g} s old, at most {self._max_age_s:g} are allowed",
            )
        else:
            limit = "max_policy_lag_versions"
            reason = f"made {lag} versions ago, at most {self.max_lag_versions:g} are allowed"
        if self._lines_of.take(f"{limit} {packet.worker}", 1, now_s) and self._lines.take(1, now_s):
            line = "samples of worker %s are dropped (%s): %s; %d samples dropped so far"
            log.warning(line, packet.worker, limit, reason, self.dropped_samples)
        return False
