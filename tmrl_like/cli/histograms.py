"""What `tmrl-like benchmark --minutes` shows: a worker's loop and a bare one, side by side."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

from tmrl_like.cli.tables import print_table
from tmrl_like.metrics.curves import new_figure
from tmrl_like.worker.timing import EDGES_S, Seconds, StepTimes, histogram, percentiles

_BAR = 24  # characters


def show_in_turns(times: StepTimes, floor: StepTimes) -> None:
    """Print percentiles, overruns and histograms of a worker's loop and of a bare one; each has a step."""
    rows = []
    for name, of_worker, of_floor in _quantities(times, floor):
        for who, values_s in (("worker", of_worker), ("bare loop", of_floor)):
            numbers = [f"{value_s * 1e6:,.1f}" for value_s in percentiles(values_s, (50, 99, 99.9, 100))]
            rows.append([f"{name}, {who}", *numbers])
    title = f"{times.steps:,} steps of {readable(times.time_step_s)}, microseconds"
    print_table(title, ["", "median", "p99", "p99.9", "longest"], rows)
    misses = [f"{1e3 * each.overruns / each.steps:.3g} per 1,000" for each in (times, floor)]
    limit = readable(times.overrun_after_s)
    print(f"overruns (periods of {limit} or more): worker {misses[0]}, bare loop {misses[1]}\n")
    for name, of_worker, of_floor in _quantities(times, floor):
        print(*draw_histogram(name, of_worker, of_floor), sep="\n", end="\n\n")


def _quantities(times: StepTimes, floor: StepTimes) -> list[tuple[str, Seconds, Seconds]]:
    return [
        ("period error", times.period_error_s, floor.period_error_s),
        ("step time without env.step", times.step_s, floor.step_s),
    ]


def draw_histogram(name: str, of_worker: Seconds, of_floor: Seconds) -> list[str]:
    """Lines: bin, count and bar of each loop, from the first bin that holds anything to the last."""
    borders = list(map(readable, EDGES_S))
    bins = [f"below {borders[0]}", *map(" to ".join, itertools.pairwise(borders)), f"{borders[-1]} and more"]
    counts = list(zip(histogram(of_worker), histogram(of_floor), strict=True))
    used = [index for index, both in enumerate(counts) if any(both)]
    most = math.log1p(max(map(max, counts)))
    lines = [f"{name:<30}{'worker':<{_BAR + 12}}bare loop"]
    for index in range(used[0], used[-1] + 1):
        line = f"{bins[index]:>18}"
        for count in counts[index]:
            line += f"{count:>11,} {'#' * round(_BAR * math.log1p(count) / most):<{_BAR}}"
        lines.append(line.rstrip())
    return [*lines, "(steps; the bars are logarithmic)"]


def readable(duration_s: float) -> str:
    """A duration in the unit in which it is at least 1, in three digits."""
    for unit, in_s in (("s", 1.0), ("ms", 1e-3)):
        if duration_s >= 0.9995 * in_s:
            return f"{duration_s / in_s:.3g} {unit}"
    return f"{duration_s * 1e6:.3g} µs"


def plot(path: Path, times: StepTimes, floor: StepTimes) -> None:
    """Draw the histograms; a line in the log where matplotlib is not installed."""
    figure = new_figure(8, 6)
    if figure is None:
        return
    borders_us = [1e6 * edge for edge in (EDGES_S[0] / 2, *EDGES_S, 2 * EDGES_S[-1])]
    for number, (name, *both) in enumerate(_quantities(times, floor), 1):
        axes = figure.add_subplot(2, 1, number)
        for values_s, who, colour in zip(both, ("worker", "bare loop"), ("tab:blue", "tab:gray"), strict=True):
            axes.stairs(histogram(values_s), borders_us, label=who, color=colour)
        axes.set(xscale="log", yscale="symlog", xlabel=f"{name}, microseconds", ylabel="steps")
        axes.legend(fontsize="small")
    figure.suptitle(f"{times.steps:,} steps of {readable(times.time_step_s)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")
