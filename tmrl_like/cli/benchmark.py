"""`tmrl-like benchmark`: does the environment keep its time-step?"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import math
from pathlib import Path
from typing import Any

from tmrl_like.base.factories import signature_of
from tmrl_like.base.text import name_of
from tmrl_like.cli.app import INTERRUPTED
from tmrl_like.cli.arguments import Arguments
from tmrl_like.cli.stopping import Stopper
from tmrl_like.cli.tables import print_table
from tmrl_like.cli.worker import make_standalone, prepare
from tmrl_like.config.experiment import Experiment
from tmrl_like.errors import ConfigError
from tmrl_like.worker.timing import EDGES_S, Seconds, StepTimes, histogram, percentiles
from tmrl_like.worker.worker import RolloutWorker

log = logging.getLogger("tmrl_like.benchmark")

_MEANING = {
    "period": "from observation to observation",
    "inference": "the policy's decision",
    "env_step": "env.step()",
}
_SHOWN_WITHIN_S = 60.0  # after Ctrl-C, on a machine that is busy
_BAR = 24  # characters


def main(arguments: Arguments) -> int:
    """Measure, and show percentiles; with `--minutes`, the machine's floor and histograms as well."""
    stopper = Stopper(arguments.supervised, _SHOWN_WITHIN_S)
    experiment = prepare(arguments, "benchmark", ("env", "actor", "obs_preprocessor"))
    if arguments.hz:
        experiment = _at_rate(experiment, arguments.hz)
    with make_standalone(experiment, None) as worker:
        if arguments.minutes:
            stopper.on_stop = worker.stop
            times, floor = _measure(worker, arguments.minutes)
        else:
            result = worker.run_env_benchmark(arguments.steps, verbose=False)
            show(result, getattr(worker.env, "time_step_s", None))
            return 0
    if floor.steps:
        show_in_turns(times, floor)
        _plot(Path(arguments.plot or experiment.paths.folder / "benchmark.png"), times, floor)
    return INTERRUPTED if stopper.requested else 0


def _at_rate(experiment: Experiment, hz: float) -> Experiment:
    env = experiment.env
    if "time_step_duration" not in signature_of(env).parameters:
        raise ConfigError(f"--hz sets the environment's time_step_duration, and {name_of(env)} takes no such argument")
    return dataclasses.replace(experiment, env=functools.partial(env, time_step_duration=1 / hz))


def _measure(worker: RolloutWorker, minutes: float) -> tuple[StepTimes, StepTimes]:
    env = worker.loop.env
    if not env.time_step_s:
        raise ConfigError("--minutes measures how a time-step is kept, and the environment has none: use --steps")
    steps = max(1, round(60 * minutes / env.time_step_s))
    times, floor = (StepTimes(steps, env.time_step_s, env.overrun_after_s) for _ in range(2))
    what = (
        f"{steps:,} steps of {_readable(env.time_step_s)} and, in turns, as many of a bare loop that sleeps and spins"
    )
    print(f"measuring {what}: {2 * minutes:g} minutes in all; Ctrl-C shows what there is", flush=True)
    worker.measure(times, floor)
    return times, floor


def show(result: dict[str, Any], nominal_s: float | None) -> None:
    """Print what `RolloutWorker.run_env_benchmark` returned."""
    rows = [
        [f"{name}: {meaning}", *(f"{result[f'{name}_p{q}_ms']:.2f}" for q in ("50", "99", "99.9"))]
        for name, meaning in _MEANING.items()
    ]
    print_table(f"{result['steps']} steps, milliseconds", ["", "median", "p99", "p99.9"], rows)
    print(describe_deadline(nominal_s, result["overruns"], result["steps"]))
    for name, value in result.get("rtgym", {}).items():
        print(f"rtgym {name}: {value}")


def describe_deadline(nominal_s: float | None, overruns: int, steps: int) -> str:
    """One sentence about the time-step that was asked for and how often it was missed."""
    if nominal_s is None:
        return "the environment names no time-step: it does not run in real time"
    return (
        f"time-step asked for: {nominal_s * 1e3:.1f} ms; {overruns} overruns in {steps} steps ({overruns / steps:.2%})"
    )


def show_in_turns(times: StepTimes, floor: StepTimes) -> None:
    """Print percentiles, overruns and histograms of a worker's loop and of a bare one; each has a step."""
    rows = []
    for name, of_worker, of_floor in _quantities(times, floor):
        for who, values_s in (("worker", of_worker), ("bare loop", of_floor)):
            numbers = [f"{value_s * 1e6:,.1f}" for value_s in percentiles(values_s, (50, 99, 99.9, 100))]
            rows.append([f"{name}, {who}", *numbers])
    title = f"{times.steps:,} steps of {_readable(times.time_step_s)}, microseconds"
    print_table(title, ["", "median", "p99", "p99.9", "longest"], rows)
    misses = [f"{1e3 * each.overruns / each.steps:.3g} per 1,000" for each in (times, floor)]
    limit = _readable(times.overrun_after_s)
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
    borders = list(map(_readable, EDGES_S))
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


def _readable(duration_s: float) -> str:
    for unit, in_s in (("s", 1.0), ("ms", 1e-3)):
        if duration_s >= 0.9995 * in_s:
            return f"{duration_s / in_s:.3g} {unit}"
    return f"{duration_s * 1e6:.3g} µs"


def _plot(path: Path, times: StepTimes, floor: StepTimes) -> None:
    """Draw the histograms; a line in the log where matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        log.warning("no picture: matplotlib is not installed (pip install 'tmrl_like[plot]')")
        return
    figure = Figure(figsize=(8, 6), layout="constrained")
    FigureCanvasAgg(figure)
    borders_us = [1e6 * edge for edge in (EDGES_S[0] / 2, *EDGES_S, 2 * EDGES_S[-1])]
    for number, (name, *both) in enumerate(_quantities(times, floor), 1):
        axes = figure.add_subplot(2, 1, number)
        for values_s, who, colour in zip(both, ("worker", "bare loop"), ("tab:blue", "tab:gray"), strict=True):
            axes.stairs(histogram(values_s), borders_us, label=who, color=colour)
        axes.set(xscale="log", yscale="symlog", xlabel=f"{name}, microseconds", ylabel="steps")
        axes.legend(fontsize="small")
    figure.suptitle(f"{times.steps:,} steps of {_readable(times.time_step_s)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")
