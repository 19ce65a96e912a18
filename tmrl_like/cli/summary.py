"""Test episodes in numbers, as rows of a table."""

from __future__ import annotations

from collections.abc import Sequence

from tmrl_like.types import EpisodeStats

SUMMARY_COLUMNS = ["", "episodes", "return, mean ± std", "terminated", "steps, mean"]


def summary_row(name: str, episodes: Sequence[EpisodeStats]) -> list[str]:
    """A policy's episodes in one row under `SUMMARY_COLUMNS`."""
    if not episodes:
        return [name, "0", "-", "-", "-"]
    mean, std = mean_and_std([e.return_ for e in episodes])
    share = sum(e.terminated for e in episodes) / len(episodes)
    steps = sum(e.steps for e in episodes) / len(episodes)
    return [name, str(len(episodes)), f"{mean:.3f} ± {std:.3f}", f"{share:.0%}", f"{steps:.1f}"]


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (0 for a single value)."""
    mean = sum(values) / len(values)
    spread = sum((v - mean) ** 2 for v in values)
    return mean, (spread / max(1, len(values) - 1)) ** 0.5
