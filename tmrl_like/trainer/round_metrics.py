"""The numbers of one round of training. docs/metrics.md explains each name; every name carries its
unit.

Nothing here reads a tensor before the round ends: losses stay on the device until `on_round`.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from tmrl_like.base import clocks
from tmrl_like.errors import ConfigError
from tmrl_like.metrics.reading import Record
from tmrl_like.trainer.watch import Listener, StepMetrics
from tmrl_like.types import TAKEN_OVER, ActionSource, Batch, Block, Delivery, EpisodeStats

Array: TypeAlias = NDArray[Any]

_PERCENTILES = {"p50": 50, "p99": 99, "p999": 99.9}
_VERSIONS_KEPT = 10_000


class RoundMetrics(Listener):
    """Collects numbers during a round, and summarises them at its end.

    Attributes:
        episodes: reported in this round, by any worker.
    """

    def __init__(self) -> None:
        self._published_s: dict[int, float] = {}  # Unix time of publication, by version
        self._newest_version = 0
        self.begin(0, 0, 0, 0)

    def begin(self, epoch: int, round_: int, training_steps: int, samples: int) -> None:
        """Begin a round, after this many training steps and samples."""
        self.episodes: list[EpisodeStats] = []
        self._numbers = {"epoch": epoch, "round": round_}
        self._began = training_steps, samples
        self._started = time.monotonic()
        self._idle_s = 0.0
        self._steps: dict[str, list[float | torch.Tensor]] = defaultdict(list)
        # arrays by metric; a name with {} gives percentiles
        self._of_samples: dict[str, list[Array]] = defaultdict(list)

    def note_published(self, version: int) -> None:
        """Note that a policy is published now."""
        self._newest_version = version
        self._published_s[version] = clocks.unix_s()
        self._published_s.pop(version - _VERSIONS_KEPT, None)

    @property
    def duration_s(self) -> float:
        """Seconds since the round began."""
        return max(time.monotonic() - self._started, 1e-9)

    @contextlib.contextmanager
    def idle(self) -> Iterator[None]:
        """Count the time in the block as waiting for samples."""
        start = time.monotonic()
        try:
            yield
        finally:
            self._idle_s += time.monotonic() - start

    def on_step(self, batch: Batch, metrics: StepMetrics) -> None:
        """Add the metrics of a step: numbers or 0-dimensional tensors."""
        for name, value in metrics.items():
            # without the graph, which would be kept until the round ends
            self._steps[name].append(value.detach() if isinstance(value, torch.Tensor) else value)

    def on_samples(self, delivery: Delivery) -> None:
        self.episodes += delivery.episodes
        for block in delivery.buffer.blocks:
            self._add_timing(block, delivery.ahead_s)

    def _add_timing(self, block: Block, ahead_s: float) -> None:
        timing = block.timing
        is_step = ~block.is_reset
        observed_at_s = timing.observed_at_s - ahead_s
        source = timing.source[is_step]
        versions = timing.policy_version
        policy_age_s = observed_at_s - [
            self._published_s.get(version, np.nan) for version in versions.tolist()
        ]
        values = {
            "sample_age_{}_s": clocks.unix_s() - observed_at_s,
            "inference_{}_s": timing.inference_s[is_step],
            "period_error_{}_s": timing.period_error_s[is_step],
            "demonstration_share": np.isin(timing.source, (*TAKEN_OVER, ActionSource.EXPERT)),
            "safe_action_share": source == ActionSource.SAFE,
            "takeover_share": np.isin(source, TAKEN_OVER),
            "policy_staleness_{}_versions": np.maximum(
                self._newest_version - versions[versions > 0], 0
            ),
            "policy_age_{}_s": policy_age_s[~np.isnan(policy_age_s)],
        }
        for name, found in values.items():
            self._of_samples[name].append(found)

    def on_round(self, record: Record) -> None:
        """Summarise the round; the record already has the totals of training steps and samples."""
        steps = record["training_steps_total"]
        samples = record["env_steps_total"]
        new_steps = steps - self._began[0]
        new_samples = samples - self._began[1]
        record |= self._numbers | {
            "round_duration_s": self.duration_s,
            "idle_s": self._idle_s,
            "training_steps_per_s": new_steps / max(self.duration_s - self._idle_s, 1e-9),
            "env_steps_per_s": new_samples / self.duration_s,
            "training_steps_per_env_step": steps / max(samples, 1),
        }
        if new_samples:
            record["training_steps_per_env_step_round"] = new_steps / new_samples
        for name, parts in self._of_samples.items():
            values = np.concatenate(parts)
            if not len(values):
                continue
            if "{}" not in name:
                record[name] = float(values.mean())
                continue
            for percentile, percent in _PERCENTILES.items():
                record[name.format(percentile)] = float(np.percentile(values, percent))
        record |= _summary("test", [e for e in self.episodes if e.test])
        record |= _summary("train", [e for e in self.episodes if not e.test])
        for name, of_steps in self._steps.items():
            if name in record:
                raise ConfigError(
                    f"the agent returns a metric {name}, which is the trainer's own: rename it"
                )
            record[name] = _mean(name, of_steps)


def _summary(kind: str, episodes: Sequence[EpisodeStats]) -> dict[str, float]:
    whole = [episode for episode in episodes if not episode.fault]
    record: dict[str, float] = {f"episodes_{kind}": len(whole)}
    if episodes:
        record[f"faults_{kind}"] = len(episodes) - len(whole)
    if whole:
        record |= {
            f"return_{kind}_mean": fmean(e.return_ for e in whole),
            f"episode_length_{kind}_steps": fmean(e.steps for e in whole),
            f"terminated_{kind}_share": fmean(e.terminated for e in whole),
        }
    return record


def _mean(name: str, values: Sequence[float | torch.Tensor]) -> float:
    """Return the mean of numbers and tensors. Tensors are still on their device, and are read here,
    once. Raises ConfigError if there is anything else.
    """
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    try:
        total = sum(float(value) for value in values if not isinstance(value, torch.Tensor))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"the metric {name} that the agent returns is no number: {error}"
        ) from None
    if tensors:
        total += float(torch.stack([tensor.float().mean() for tensor in tensors]).sum())
    return total / len(values)
