"""Learning runs with low priority, kept as lines of JSON. Runs that are complete there are not
repeated.

Each run uses one thread of a process of its own, which ends with the one that started it. A line
is a test: task, variant, seed, environment steps, seconds of CPU time (of the loop, without the
tests) and the test's result. The first three identify the run, the last three are a point of its
curve.
"""

import json
import os
import threading
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from itertools import product
from multiprocessing import parent_process
from pathlib import Path

import numpy as np
from _harness import SPAWN, text
from kit.solo import drive, return_of

from tmrl_like.agents.process import tune_process

KEYS = "task", "variant", "seed", "steps", "seconds", "return"
OPTIONS = {
    "file": "",  # holds the lines
    "seeds": [0, 1, 2, 3, 4],
    "steps": 0,  # in place of each task's own
    "every": 0,  # steps between two tests; 0: a tenth of them
    "jobs": 1,  # runs at a time
    "autogroup": 19,  # nice value of a run's session, on Linux
    "show": False,  # make no runs, show what is in the file
}


def mean_return(env, actor, seed, episodes=10):
    """Return the mean return of the test episodes of a run with this seed."""
    seeds = range(1000 * seed, 1000 * seed + episodes)
    return float(np.mean([return_of(drive(env, actor, each)) for each in seeds]))


def learned(options, learn, steps_of, beside=None):
    """Make the runs of `options` that are not complete in the file; yield a row of results for each
    task and variant.

    Args:
        options: `OPTIONS`, `tasks`, and `variants`.
        learn: makes a run of a given number of steps; after each it yields the number of the step
            and a function that makes a test and returns its result.
        steps_of: number of steps by task.
        beside: more columns for a task's rows.
    """
    steps = {task: options.steps or steps_of[task] for task in options.tasks}
    file = file_of(options)
    whole = {run for run, curve in read(file).items() if curve[-1][0] >= steps.get(run[0], 0)}
    wanted = [
        (task, variant, seed)
        for seed, task, variant in product(options.seeds, options.tasks, options.variants)
        if (task, variant, seed) not in whole and not options.show
    ]
    with ProcessPoolExecutor(options.jobs, SPAWN, max_tasks_per_child=1) as pool:
        for made in as_completed(
            [pool.submit(make, options, learn, run, steps[run[0]], file) for run in wanted]
        ):
            made.result()
    ended = defaultdict(list)
    for (task, variant, seed), curve in sorted(read(file).items()):
        print(
            f"{task}, {variant}, seed {seed}, {curve[-1][0]:,} steps:",
            *(text(value) for _, _, value in curve),
        )
        if task in steps and curve[-1][0] >= steps[task]:
            ended[task, variant].append(max(point for point in curve if point[0] <= steps[task]))
    for (task, variant), points in ended.items():
        values = [value for _, _, value in points]
        yield {
            "what": f"{task}, {variant}: after {steps[task]:,} steps",
            "ours": f"{text(float(np.mean(values)))} ± {text(float(np.std(values)))}",
            "each seed": ", ".join(text(value) for value in values),
            "CPU, ms a step": float(np.mean([1e3 * spent_s / step for step, spent_s, _ in points])),
            **(beside or {}).get(task, {}),
        }


def file_of(options):
    return Path(options.file or "runs.jsonl")


def make(options, learn, run, steps, file):
    """Make a run, in a process of its own, and append its lines to the file."""
    give_way(options.autogroup)
    every = options.every or max(1, steps // 10)
    for step, test in learn(options, run, steps):
        if step == 1:  # everything is set up and compiled
            began_s = time.process_time()
        if step % every == 0:
            spent_s = time.process_time() - began_s
            values = *run, step, round(spent_s, 1), round(test(), 3)
            began_s = time.process_time() - spent_s
            line = json.dumps(dict(zip(KEYS, values, strict=True)))
            print(line, flush=True)
            with file.open("a") as lines:
                lines.write(line + "\n")


def read(file):
    """Return the points of each run; a later run replaces an earlier one of the same name."""
    curves = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        task, variant, seed, step, spent_s, value = (json.loads(line)[key] for key in KEYS)
        known = curves.get((task, variant, seed), [])
        before = [point for point in known if point[0] < step]
        curves[task, variant, seed] = [*before, (step, spent_s, value)]
    return curves


def give_way(autogroup):
    """Give way to all other processes, use one core, and end with the process that started this
    one.

    Linux shares cores between sessions first (autogroups): the nice value of a process counts only
    within its session.
    """
    os.nice(19)
    with suppress(OSError):  # elsewhere there are none
        os.setsid()
        Path("/proc/self/autogroup").write_text(str(autogroup))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    tune_process(threads=1)


def _end_with_parent():
    parent_process().join()
    os._exit(1)
