"""How old samples are: those that come too late stay outside, those in the memory are watched."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from tmrl_like.base.budgets import Bucket, Buckets
from tmrl_like.wire.messages import SamplePacket

log = logging.getLogger("tmrl_like.trainer")

_ENTRIES = 512
_SAY_AGAIN_S = 600.0
_MAX_SAID = 100


class FreshnessLimits:
    """Keeps packets that are too old out of the memory, each as a whole.

    Attributes:
        dropped_samples: since the start.
    """

    def __init__(self, max_age_s: float = math.inf, max_lag_versions: float = math.inf) -> None:
        """Set the limits.

        Args:
            max_age_s: from the first observation, by the worker's clock, to now, by the trainer's.
            max_lag_versions: newest version published minus the oldest that chose an action; samples of version 0,
                which was never published, have no lag.
        """
        self._max_age_s = max_age_s
        self._max_lag_versions = max_lag_versions
        self._lines = Bucket(_MAX_SAID, _MAX_SAID / _SAY_AGAIN_S)
        self._lines_of = Buckets(1, 1 / _SAY_AGAIN_S)  # one limit and worker
        self.dropped_samples = 0

    def admit(self, packet: SamplePacket, now_s: float, newest_version: int) -> bool:
        """Whether a packet may enter the memory.

        Args:
            packet: its header.
            now_s: Unix time.
            newest_version: the version published last.
        """
        age_s = now_s - packet.observed_at_s
        lag = newest_version - packet.policy_version if packet.policy_version else 0
        if not packet.samples or (age_s <= self._max_age_s and lag <= self._max_lag_versions):
            return True
        self.dropped_samples += packet.samples
        if age_s > self._max_age_s:
            limit, reason = "max_sample_age_s", f"{age_s:.3g} s old, at most {self._max_age_s:g} are allowed"
            reason += ", by the clocks of worker and trainer"
        else:
            limit = "max_policy_lag_versions"
            reason = f"made {lag} versions ago, at most {self._max_lag_versions:g} are allowed"
        if self._lines_of.take(f"{limit} {packet.worker}", 1, now_s) and self._lines.take(1, now_s):
            line = "samples of worker %s are dropped (%s): %s; %d samples dropped so far"
            log.warning(line, packet.worker, limit, reason, self.dropped_samples)
        return False


@dataclass(slots=True)
class _Entry:
    samples: int
    mean_s: float  # Unix time of the observations
    oldest_s: float


class StoredAges:
    """How old the newest `capacity` samples are, from a record of at most about 512 entries."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: deque[_Entry] = deque()
        self._samples = 0

    def add(self, observed_at_s: np.ndarray[Any, Any]) -> None:
        """Samples enter the memory: Unix times [N] of their observations."""
        if not len(observed_at_s):
            return
        new = _Entry(len(observed_at_s), float(observed_at_s.mean()), float(observed_at_s.min()))
        self._samples += new.samples
        last = self._entries[-1] if self._entries else None
        if last is not None and last.samples + new.samples <= self._capacity // _ENTRIES:
            total = last.samples + new.samples
            last.mean_s += (new.mean_s - last.mean_s) * new.samples / total
            last.oldest_s = min(last.oldest_s, new.oldest_s)
            last.samples = total
        else:
            self._entries.append(new)
        while self._samples - self._entries[0].samples >= self._capacity:
            self._samples -= self._entries.popleft().samples

    def metrics(self) -> dict[str, float]:
        """Median and largest age now; nothing when there are no samples."""
        if not self._entries:
            return {}
        now = time.time()
        entries = sorted(self._entries, key=lambda entry: entry.mean_s)
        halfway = np.searchsorted(np.cumsum([entry.samples for entry in entries]), self._samples / 2)
        return {
            "memory_age_p50_s": now - entries[int(halfway)].mean_s,
            "memory_age_max_s": now - min(entry.oldest_s for entry in entries),
        }
