"""One round of training in numbers. docs/metrics.md explains each name; every name carries its unit.

Nothing here reads a tensor before the round ends: losses stay on the device until `close`.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tmrl_like.types import ActionSource, Buffer, EpisodeStats


class RoundMetrics:
    """Collects during one round, summarises at its end."""

    def __init__(self, epoch: int, round_: int) -> None:
        self._epoch = epoch
        self._round = round_
        self._started = time.monotonic()
        self._idle_s = 0.0
        self._steps: dict[str, list[Any]] = defaultdict(list)
        self._samples = 0
        self._episodes: list[EpisodeStats] = []
        self._sample_age_s: list[Any] = []
        self._policy_age_s: list[Any] = []
        self._staleness_versions: list[Any] = []
        self._inference_s: list[Any] = []
        self._period_error_s: list[Any] = []
        self._safe: list[Any] = []
        self._n_steps = 0

    @contextlib.contextmanager
    def idle(self) -> Iterator[None]:
        """Time spent in here is waiting for samples."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._idle_s += time.monotonic() - start

    def add_step(self, metrics: dict[str, Any]) -> None:
        """The agent's metrics of one training step: numbers or 0-dimensional tensors."""
        self._n_steps += 1
        for name, value in metrics.items():
            self._steps[name].append(value)

    def add_samples(self, buffer: Buffer, published_at: Callable[[int], float | None], newest_version: int = 0) -> None:
        """Samples that enter the memory now.

        Args:
            buffer: what arrived.
            published_at: Unix time at which a policy version was published, None where unknown.
            newest_version: the one published last; 0: none.
        """
        now = time.time()
        self._samples += len(buffer)
        for block in buffer.blocks:
            timing = block.timing
            self._sample_age_s.append(now - timing.observed_at_s)
            self._inference_s.append(timing.inference_s[~block.is_reset])
            self._period_error_s.append(timing.period_error_s[~block.is_reset])
            self._safe.append(timing.source[~block.is_reset] == ActionSource.SAFE)
            published = timing.policy_version[timing.policy_version > 0]
            self._staleness_versions.append(np.maximum(newest_version - published, 0))
            for version in np.unique(timing.policy_version):
                published_s = published_at(int(version))
                if published_s is not None:
                    own = timing.policy_version == version
                    self._policy_age_s.append(timing.observed_at_s[own] - published_s)

    def add_episodes(self, episodes: Sequence[EpisodeStats]) -> None:
        """Finished episodes, of whichever worker; each counts."""
        self._episodes.extend(episodes)

    @property
    def episodes(self) -> list[EpisodeStats]:
        """Episodes reported in this round."""
        return self._episodes

    def close(
        self,
        total_updates: int,
        total_samples: int,
        memory_transitions: int,
        further: dict[str, float],
    ) -> dict[str, Any]:
        """Summarise the round as one flat record; `further` metrics go into it as they are."""
        duration_s = max(time.monotonic() - self._started, 1e-9)
        record: dict[str, Any] = {
            "epoch": self._epoch,
            "round": self._round,
            "round_duration_s": duration_s,
            "idle_s": self._idle_s,
            "training_steps_total": total_updates,
            "training_steps_per_s": self._n_steps / max(duration_s - self._idle_s, 1e-9),
            "env_steps_total": total_samples,
            "env_steps_per_s": self._samples / duration_s,
            "training_steps_per_env_step": total_updates / max(total_samples, 1),
            "memory_transitions": memory_transitions,
        }
        record |= _percentiles("sample_age", self._sample_age_s)
        record |= _percentiles("policy_age", self._policy_age_s)
        record |= _percentiles("policy_staleness", self._staleness_versions, "versions")
        record |= _percentiles("inference", self._inference_s)
        record |= _percentiles("period_error", self._period_error_s)
        safe = _joined(self._safe)
        if len(safe):
            record["safe_action_share"] = float(safe.mean())
        record |= _episode_summary("test", [e for e in self._episodes if e.test])
        record |= _episode_summary("train", [e for e in self._episodes if not e.test])
        record |= further
        record |= {name: _mean(values) for name, values in self._steps.items()}
        return record


def _percentiles(name: str, parts: list[Any], unit: str = "s") -> dict[str, float]:
    values = _joined(parts)
    if not len(values):
        return {}
    p50, p99, p999 = np.percentile(values, (50, 99, 99.9))
    return {f"{name}_p50_{unit}": float(p50), f"{name}_p99_{unit}": float(p99), f"{name}_p999_{unit}": float(p999)}


def _joined(parts: list[Any]) -> Any:
    return np.concatenate(parts) if parts else np.empty(0)


def _episode_summary(kind: str, episodes: list[EpisodeStats]) -> dict[str, float]:
    if not episodes:
        return {f"episodes_{kind}": 0}
    n = len(episodes)
    return {
        f"episodes_{kind}": n,
        f"return_{kind}_mean": sum(e.return_ for e in episodes) / n,
        f"episode_length_{kind}_steps": sum(e.steps for e in episodes) / n,
        f"terminated_{kind}_share": sum(e.terminated for e in episodes) / n,
        f"faults_{kind}": sum(bool(e.fault) for e in episodes),
    }


def _mean(values: list[Any]) -> float:
    """Mean of numbers and tensors; tensors are still on their device, and are read here, once."""
    tensors = [value for value in values if hasattr(value, "detach")]
    numbers = [float(value) for value in values if not hasattr(value, "detach")]
    total = sum(numbers)
    if tensors:
        import torch

        total += float(torch.stack([tensor.detach().float().mean() for tensor in tensors]).sum())
    return total / len(values)
