"""`tmrl-like benchmark`: does the environment keep its time-step?"""

from __future__ import annotations

from typing import Any

from tmrl_like.base.text import counted
from tmrl_like.cli.arguments import Arguments
from tmrl_like.cli.stopping import Stopper
from tmrl_like.cli.tables import print_table
from tmrl_like.cli.worker import prepare

_MEANING = {
    "period": "from observation to observation",
    "inference": "the policy's decision",
    "env_step": "env.step()",
}


def main(arguments: Arguments) -> int:
    """Measure, and show percentiles."""
    Stopper(arguments.supervised)
    experiment = prepare(arguments, "benchmark", ("env", "actor", "obs_preprocessor"))
    with experiment.make_standalone() as worker:
        result = worker.run_env_benchmark(arguments.steps, verbose=False)
        show(result, getattr(worker.env, "time_step_s", None))
    return 0


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
