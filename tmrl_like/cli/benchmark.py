"""`tmrl-like benchmark`: does the environment keep its time-step?"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tmrl_like.base.factories import signature_of
from tmrl_like.base.text import counted, name_of
from tmrl_like.cli.app import INTERRUPTED
from tmrl_like.cli.arguments import Arguments
from tmrl_like.cli.stopping import Stopper
from tmrl_like.cli.tables import print_table
from tmrl_like.cli.worker import make_standalone, prepare
from tmrl_like.errors import ConfigError

if TYPE_CHECKING:
    from tmrl_like.worker.timing import StepTimes
    from tmrl_like.worker.worker import RolloutWorker

_MEANING = {
    "period": "from observation to observation",
    "inference": "the policy's decision",
    "env_step": "env.step()",
}
_SHOWN_WITHIN_S = 60.0  # after Ctrl-C, on a machine that is busy


def main(arguments: Arguments) -> int:
    """Measure, and show percentiles; with `--minutes`, the machine's floor and histograms as well."""
    stopper = Stopper(arguments.supervised, _SHOWN_WITHIN_S)
    experiment = prepare(arguments, "benchmark", ("env", "actor", "obs_preprocessor"))
    if arguments.hz:
        env = experiment.env
        if "time_step_duration" not in signature_of(env).parameters:
            what = "--hz sets the environment's time_step_duration"
            raise ConfigError(f"{what}, and {name_of(env)} takes no such argument")
        env = functools.partial(env, time_step_duration=1 / arguments.hz)
        experiment = dataclasses.replace(experiment, env=env)
    with make_standalone(experiment, None) as worker:
        if arguments.minutes:
            stopper.on_stop = worker.stop
            times, floor = _measure(worker, arguments.minutes)
        else:
            result = worker.run_env_benchmark(arguments.steps, verbose=False)
            show(result, getattr(worker.env, "time_step_s", None))
            return 0
    if floor.steps:
        from tmrl_like.cli.histograms import plot, show_in_turns

        show_in_turns(times, floor)
        plot(Path(arguments.plot or experiment.paths.folder / "benchmark.png"), times, floor)
    return INTERRUPTED if stopper.requested else 0


def _measure(worker: RolloutWorker, minutes: float) -> tuple[StepTimes, StepTimes]:
    from tmrl_like.cli.histograms import readable
    from tmrl_like.worker.timing import StepTimes

    env = worker.loop.env
    if not env.time_step_s:
        raise ConfigError("--minutes measures how a time-step is kept, and the environment has none: use --steps")
    steps = max(1, round(60 * minutes / env.time_step_s))
    times, floor = (StepTimes(steps, env.time_step_s, env.overrun_after_s) for _ in range(2))
    what = f"{steps:,} steps of {readable(env.time_step_s)} and, in turns, as many of a bare loop that sleeps and spins"
    print(f"measuring {what}: {2 * minutes:g} minutes in all; Ctrl-C shows what there is", flush=True)
    worker.measure(times, floor)
    return times, floor


def show(result: dict[str, Any], nominal_s: float | None) -> None:
    """Print what `RolloutWorker.run_env_benchmark` returned."""
    rows = [
        [f"{name}: {meaning}", *(f"{result[f'{name}_p{q}_ms']:.2f}" for q in ("50", "99", "99.9"))]
        for name, meaning in _MEANING.items()
    ]
    print_table(f"{counted(result['steps'], 'step')}, milliseconds", ["", "median", "p99", "p99.9"], rows)
    print(describe_deadline(nominal_s, result["overruns"], result["steps"]))
    for name, value in result.get("rtgym", {}).items():
        print(f"rtgym {name}: {value}")


def describe_deadline(nominal_s: float | None, overruns: int, steps: int) -> str:
    """One sentence about the time-step that was asked for and how often it was missed."""
    if nominal_s is None:
        return "the environment names no time-step: it does not run in real time"
    missed = f"{counted(overruns, 'overrun')} in {counted(steps, 'step')} ({overruns / steps:.2%})"
    return f"time-step asked for: {nominal_s * 1e3:.1f} ms; {missed}"
