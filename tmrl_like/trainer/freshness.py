"""Samples that come too late stay outside the memory."""

from __future__ import annotations

import logging
import math

from tmrl_like.base.budgets import Bucket, Buckets
from tmrl_like.wire.messages import SamplePacket

log = logging.getLogger("tmrl_like.trainer")

_SAY_AGAIN_S = 600.0
_MAX_SAID = 100


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
            max_lag_versions: newest version published minus the oldest that chose an action; samples of version 0,
                which was never published, have no lag.
        """
        self._max_age_s = max_age_s
        self.max_lag_versions = max_lag_versions
        self._lines = Bucket(_MAX_SAID, _MAX_SAID / _SAY_AGAIN_S)
        self._lines_of = Buckets(1, 1 / _SAY_AGAIN_S)  # one limit and worker
        self.dropped_samples = 0

    def admit(self, packet: SamplePacket, now_s: float, newest_version: int, ahead_s: float = 0.0) -> bool:
        """Whether a packet with this header may enter the memory at Unix time `now_s`; `ahead_s` as in `Delivery`."""
        age_s = now_s + ahead_s - packet.observed_at_s
        lag = newest_version - packet.policy_version if packet.policy_version else 0
        if not packet.samples or (age_s <= self._max_age_s and lag <= self.max_lag_versions):
            return True
        self.dropped_samples += packet.samples
        if age_s > self._max_age_s:
            limit, reason = "max_sample_age_s", f"{age_s:.3g} s old, at most {self._max_age_s:g} are allowed"
        else:
            limit = "max_policy_lag_versions"
            reason = f"made {lag} versions ago, at most {self.max_lag_versions:g} are allowed"
        if self._lines_of.take(f"{limit} {packet.worker}", 1, now_s) and self._lines.take(1, now_s):
            line = "samples of worker %s are dropped (%s): %s; %d samples dropped so far"
            log.warning(line, packet.worker, limit, reason, self.dropped_samples)
        return False
