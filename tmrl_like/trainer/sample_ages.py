"""How old samples are, whatever the workers' clocks show, and which samples are too old for the
memory.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from tmrl_like.base import clocks
from tmrl_like.base.budgets import Bucket, Buckets, Newest
from tmrl_like.wire import messages as m

log = logging.getLogger("tmrl_like.trainer")

_HALF_WINDOW_S = 150.0
# a beat that another server held up may arrive this much after a beat that was sent later
_REBOOT_S = 5.0
_LARGEST_S = 1e11  # no clock of an honest worker exceeds this
_SAY_AGAIN_S = 600.0
_MAX_SAID = 100


@dataclass
class _Clock:
    """The known state of a worker's clock."""

    up_s: float = 0.0  # in the newest beat
    epoch_s: float = 0.0  # when `up_s` was 0, by the worker's clock as it is set now
    half_window: float = -1.0  # number of the newest one with any beats
    # when `up_s` was 0, by the trainer's clock: the earliest time that the beats of this
    # half-window allow, and those of the one with any beats before it
    start_s: float = math.inf
    start_before_s: float = math.inf

    def take(self, beat: m.Beat, now_s: float) -> None:
        self.up_s = beat.up_s
        self.epoch_s = beat.at_s - beat.up_s
        half_window = now_s // _HALF_WINDOW_S
        if half_window != self.half_window:
            self.half_window = half_window
            self.start_before_s = self.start_s
            self.start_s = math.inf
        self.start_s = min(self.start_s, now_s - beat.up_s)


class WorkerClocks:
    """Estimates how far the Unix times of each worker's samples are ahead of the trainer's.

    A beat contains a clock that has run evenly since the worker's machine was started. By the
    trainer's clock, that start can only seem too late, by the time that the beat was on its way. So
    the earliest start that the beats of a window allow is used, and samples do not look younger
    because beats were held up with them. The window is this half-window of two and a half minutes
    and the one before it, of those with any beats. Ages are too low by the travel time of the
    fastest of these beats, and up to 30 ms too high or too low as the two clocks drift (100 ppm).
    """

    def __init__(self) -> None:
        self._clocks = Newest[_Clock]()

    def on_beat(self, beat: m.Beat) -> None:
        """Take a worker's heartbeat as soon as it arrives (connection's thread)."""
        if not (0.0 < beat.up_s < _LARGEST_S and abs(beat.at_s) < _LARGEST_S):
            return
        known = self._clocks.get(beat.worker, _Clock())
        # the worker's machine was restarted, or it is another machine
        if beat.up_s < known.up_s - _REBOOT_S:
            known = _Clock()
        self._clocks[beat.worker] = known
        known.take(beat, clocks.unix_s())

    def ahead_s(self, worker: str, epoch_s: float) -> float:
        """Return how far the Unix times of a worker's samples are ahead of `base.clocks.unix_s`; 0
        before its first beat.

        `epoch_s` is as in `SamplePacket`. Samples that a dead process has left are timed by its
        machine's clock as it is set now.
        """
        known = self._clocks.get(worker)
        if known is None or not abs(epoch_s) < _LARGEST_S:
            return 0.0
        return (epoch_s or known.epoch_s) - min(known.start_s, known.start_before_s)


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
