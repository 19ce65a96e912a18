"""How old samples are: those that come too late stay outside, those in the memory are watched."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from tmrl_like.errors import ConfigError
from tmrl_like.types import Buffer

log = logging.getLogger("tmrl_like.trainer")

_MAX_GAPS = 10_000
_ENTRIES = 512


class StaleFilter:
    """Keeps packets that are too old out of the memory.

    A packet goes as a whole, by its oldest sample. What follows it in its stream gets another stream's name,
    so that no memory joins it to what came before.

    Attributes:
        dropped_samples: since the beginning, earlier runs of a resumed training included.
    """

    def __init__(self, max_age_s: float = math.inf, max_lag_versions: float = math.inf) -> None:
        """Set the limits.

        Args:
            max_age_s: from the observation, by the worker's clock, to now, by the trainer's.
            max_lag_versions: newest version published minus the one that chose the action; samples of
                version 0, which is no published policy, have no lag.

        Raises:
            ConfigError: a limit is not positive.
        """
        for name, limit in (("max_sample_age_s", max_age_s), ("max_policy_lag_versions", max_lag_versions)):
            if not limit > 0:
                raise ConfigError(f"{name} is {limit}; it must be above 0")
        self._max_age_s = max_age_s
        self._max_lag_versions = max_lag_versions
        self._gaps: dict[str, int | str] = {}  # per stream: how many samples had been dropped at its latest gap
        self._resumed_at: str | None = None
        self._has_said = False
        self.dropped_samples = 0

    def admit(self, buffer: Buffer, newest_version: int) -> Buffer | None:
        """What the memory may store of a packet: all of it, under the name of its stream, or None."""
        reason = self._staleness(buffer, newest_version)
        if not reason:
            gap = self._gaps.get(buffer.stream, self._resumed_at)
            return buffer if gap is None else buffer.renamed(f"{buffer.stream}/{gap}")
        if not self._has_said:
            self._has_said = True
            log.warning("samples of %s are dropped: %s; more of the kind are only counted", buffer.stream, reason)
        self.dropped_samples += len(buffer)
        self._gaps.pop(buffer.stream, None)
        self._gaps[buffer.stream] = self.dropped_samples
        if len(self._gaps) > _MAX_GAPS:
            del self._gaps[next(iter(self._gaps))]
        return None

    def _staleness(self, buffer: Buffer, newest_version: int) -> str:
        """Why a packet is too old; empty: it is not."""
        if self._max_age_s < math.inf:
            age_s = max((time.time() - float(b.timing.observed_at_s.min()) for b in buffer.blocks if len(b)), default=0)
            if age_s > self._max_age_s:
                return (
                    f"{age_s:.3g} s old, at most {self._max_age_s:g} are allowed (max_sample_age_s); the clocks of "
                    "worker and trainer count"
                )
        if self._max_lag_versions < math.inf:
            versions = [b.timing.policy_version for b in buffer.blocks]
            lag = newest_version - min((int(v[v > 0].min()) for v in versions if (v > 0).any()), default=newest_version)
            if lag > self._max_lag_versions:
                return (
                    f"made {lag} versions ago, at most {self._max_lag_versions:g} are allowed (max_policy_lag_versions)"
                )
        return ""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"dropped_samples": self.dropped_samples, "gaps": dict(self._gaps)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken."""
        self.dropped_samples = int(state["dropped_samples"])
        self._gaps = dict(state["gaps"])

    def resume_at(self, written: int) -> None:
        """The memory holds more than this filter's state knows of: what comes continues nothing in it.

        Args:
            written: samples ever written to the memory.
        """
        if min(self._max_age_s, self._max_lag_versions) < math.inf:
            self._resumed_at = f"resumed at {written}"
            self._gaps = dict.fromkeys(self._gaps, self._resumed_at)


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
