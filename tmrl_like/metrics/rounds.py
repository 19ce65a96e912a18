"""One round of training in numbers. docs/metrics.md explains each name; every name carries its unit.

Nothing here reads a tensor before the round ends: losses stay on the device until `close`.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tmrl_like.base import clocks
from tmrl_like.types import TAKEN_OVER, ActionSource, Buffer, EpisodeStats

_SHOWN_AS_PERCENTILES = {
    "sample_age": "s",
    "policy_age": "s",
    "policy_staleness": "versions",
    "inference": "s",
    "period_error": "s",
}


class RoundMetrics:
    """Collects during one round, summarises at its end.

    Attributes:
        episodes: reported in this round, of whichever worker.
        samples: that came in this round.
    """

    def __init__(self, epoch: int, round_: int) -> None:
        self.episodes: list[EpisodeStats] = []
        self._epoch = epoch
        self._round = round_
        self._started = time.monotonic()
        self._idle_s = 0.0
        self._steps: dict[str, list[Any]] = defaultdict(list)
        self._num_steps = 0
        self.samples = 0
        self._of_samples: dict[str, list[Any]] = defaultdict(list)  # arrays of values
        self._newest_act: dict[str, Any] = {}  # by stream, [1, *action shape]

    @property
    def duration_s(self) -> float:
        """Since it began."""
        return max(time.monotonic() - self._started, 1e-9)

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
        self._num_steps += 1
        for name, value in metrics.items():
            self._steps[name].append(value)

    def add_samples(
        self,
        buffer: Buffer,
        published_at: Callable[[int], float | None],
        newest_version: int = 0,
        ahead_s: float = 0.0,
    ) -> None:
        """Samples that enter the memory now.

        What is known of policies is as in `TrainerInterface`, `ahead_s` as in `Delivery`.
        """
        now, add = clocks.unix_s(), self._of_samples
        self.samples += len(buffer)
        for block in buffer.blocks:
            timing, is_step = block.timing, ~block.is_reset
            observed_at_s = timing.observed_at_s - ahead_s
            add["sample_age"].append(now - observed_at_s)
            add["inference"].append(timing.inference_s[is_step])
            add["period_error"].append(timing.period_error_s[is_step])
            add["demonstrated"].append(np.isin(timing.source, (*TAKEN_OVER, ActionSource.EXPERT)))
            add["safe"].append(timing.source[is_step] == ActionSource.SAFE)
            add["taken_over"].append(np.isin(timing.source[is_step], TAKEN_OVER))
            published = timing.policy_version[timing.policy_version > 0]
            add["policy_staleness"].append(np.maximum(newest_version - published, 0))
            for version in np.unique(timing.policy_version):
                published_s = published_at(int(version))
                if published_s is not None:
                    add["policy_age"].append(observed_at_s[timing.policy_version == version] - published_s)
            start = 0
            for segment in block.segments:
                act, rows = segment.tree()[0], is_step[start : start + segment.rows]
                start += segment.rows
                if isinstance(act, np.ndarray) and act.dtype.kind == "f":
                    before = self._newest_act.get(buffer.stream, act[:0])
                    change = np.abs(np.diff(np.concatenate((before, act)), axis=0))
                    add["action_change"].append(change[rows[len(rows) - len(change) :]].ravel())
                    self._newest_act[buffer.stream] = act[-1:].copy()

    def close(
        self, total_updates: int, total_samples: int, memory_transitions: int, further: dict[str, Any]
    ) -> dict[str, Any]:
        """Summarise the round as one flat record; `further` metrics go into it as they are."""
        duration_s = self.duration_s
        record: dict[str, Any] = {
            "epoch": self._epoch,
            "round": self._round,
            "round_duration_s": duration_s,
            "idle_s": self._idle_s,
            "training_steps_total": total_updates,
            "training_steps_per_s": self._num_steps / max(duration_s - self._idle_s, 1e-9),
            "env_steps_total": total_samples,
            "env_steps_per_s": self.samples / duration_s,
            "training_steps_per_env_step": total_updates / max(total_samples, 1),
            "memory_transitions": memory_transitions,
        }
        if self.samples:
            record["training_steps_per_env_step_round"] = self._num_steps / self.samples
        values = {name: np.concatenate(parts) for name, parts in self._of_samples.items()}
        for name, unit in _SHOWN_AS_PERCENTILES.items():
            if len(values.get(name, ())):
                shown = np.percentile(values[name], (50, 99, 99.9)).tolist()
                record |= {f"{name}_{p}_{unit}": value for p, value in zip(("p50", "p99", "p999"), shown, strict=True)}
        if len(values.get("safe", ())):
            record["safe_action_share"] = float(values["safe"].mean())
            record["takeover_share"] = float(values["taken_over"].mean())
        if len(values.get("demonstrated", ())):
            record["demonstration_share"] = float(values["demonstrated"].mean())
        if len(values.get("action_change", ())):
            record["action_change_mean"] = float(values["action_change"].mean())
        record |= _episode_summary("test", [e for e in self.episodes if e.test])
        record |= _episode_summary("train", [e for e in self.episodes if not e.test])
        record |= further
        record |= {name: _mean(values) for name, values in self._steps.items()}
        return record


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
    total = sum(float(value) for value in values if not hasattr(value, "detach"))
    if tensors:
        import torch

        total += float(torch.stack([tensor.detach().float().mean() for tensor in tensors]).sum())
    return total / len(values)
