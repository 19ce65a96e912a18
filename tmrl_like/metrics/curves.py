"""Returns over time and over samples, drawn as a picture from what trainers wrote to
metrics.jsonl.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tmrl_like.metrics.reading import read_records, return_of

log = logging.getLogger("tmrl_like.metrics")

Points: TypeAlias = NDArray[np.float64]


class Curve(NamedTuple):
    """The episodes of one run, in order: float64 [E] each."""

    minutes: Points  # minutes of training until the episode's end
    samples: Points  # samples in the memory by then
    returns: Points


def curve_of(folder: str | Path) -> Curve:
    """Return the test episodes of the run in a folder, or its training episodes if there were no
    tests.

    If a trainer was killed and another resumed from its checkpoint, episodes between checkpoint and
    kill are left out; if a training started over, those of the one before.
    """
    found: list[tuple[bool, float, float, float]] = []
    for record in read_records(Path(folder, "metrics.jsonl")):
        minutes = (record.get("time_s") or 0.0) / 60
        samples = record.get("env_steps_total", math.inf)
        while found and (found[-1][1] > minutes or found[-1][2] > samples):
            found.pop()
        if (return_ := return_of(record)) is not None:
            found.append((record["test"], minutes, samples, return_))
    has_tests = any(is_test for is_test, *_ in found)
    points = [point for is_test, *point in found if is_test == has_tests]
    return Curve(*np.array(points).reshape(-1, 3).T)


def recent(episodes: int) -> int:
    """Return over how many episodes returns are averaged: a fifth of `episodes`, at most ten."""
    return min(10, 1 + episodes // 5)


def averaged(returns: Points) -> Points:
    """Return running means, float64 [E], each over the newest `recent` returns."""
    sums = np.concatenate(([0.0], np.cumsum(returns)))
    ends = np.arange(1, len(sums))
    starts = np.maximum(ends - recent(len(returns)), 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def plot_returns(
    picture: str | Path,
    runs: Iterable[str | Path],
    levels: Mapping[str, tuple[float, float]] | None = None,
) -> bool:
    """Draw the returns of runs over minutes and over samples, averaged over a fifth of the
    episodes, ten at most.

    Args:
        picture: a PNG file, or another format that matplotlib writes.
        runs: their folders; each is drawn as its episodes and a line.
        levels: means and standard deviations of returns by label, drawn as horizontal lines.

    Returns:
        True; False, with a line in the log, if matplotlib is not installed.

    Raises:
        OSError, ValueError: the picture cannot be written.
    """
    figure = new_figure(11, 4.5)
    if figure is None:
        return False
    panels = figure.subplots(1, 2, sharey=True)
    for folder in runs:
        minutes, samples, returns = curve_of(folder)
        for axes, x in zip(panels, (minutes, samples), strict=True):
            (line,) = axes.plot(x, averaged(returns), label=Path(folder).name)
            axes.plot(x, returns, ".", color=line.get_color(), alpha=0.25)
    for axes, over in zip(panels, ("minutes of training", "samples"), strict=True):
        for number, (label, (mean, std)) in enumerate((levels or {}).items()):
            colour = ("tab:gray", "tab:green")[number % 2]
            axes.axhspan(mean - std, mean + std, color=colour, alpha=0.12)
            axes.axhline(
                mean, color=colour, linestyle="--", label=f"{label}: {mean:.2f} ± {std:.2f}"
            )
        axes.set(xlabel=over)
    panels[0].set(ylabel="return of an episode")
    panels[0].legend(loc="best", fontsize="small")
    Path(picture).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=120)
    return True


def new_figure(width: float, height: float) -> Any:
    """Return a new matplotlib figure with its size in inches; None, with a line in the log, if
    matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        log.warning("no picture: matplotlib is not installed (pip install 'tmrl_like[plot]')")
        return None
    return FigureCanvasAgg(Figure(figsize=(width, height), layout="constrained")).figure
