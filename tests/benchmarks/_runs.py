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

from tmrl_like.agents.process import tune_process
from tmrl_like.envs.actions import default_action
from tmrl_like.types import Buffer, Info

KEYS = "task", "variant", "seed", "steps", "seconds", "return"
EPISODES = 10  # of a test
OPTIONS = {
    "file": "",  # holds the lines
    "seeds": [0, 1, 2, 3, 4],
    "steps": 0,  # in place of each task's own
    "every": 0,  # steps between two tests; 0: a tenth of them
    "jobs": 1,  # runs at a time
    "autogroup": 19,  # nice value of a run's session, on Linux
    "show": False,  # make no runs, show what is in the file
}


def practise(
    env,
    memory,
    choose,
    train,
    steps,
    every,
    test,
    *,
    seed=None,
    extras=dict,
    compress=lambda *sample: sample,
    tests_in_env=False,
):
    """Act and train in a plain loop, with regular tests. Yield the steps so far, the CPU seconds of
    the loop without the tests, and the test's result.

    Args:
        env: the environment.
        memory: gets all samples.
        choose: returns the action, given the number of the step and an observation.
        train: called after each step, with its number.
        steps: number of environment steps.
        every: steps between two tests; 0: a tenth of `steps`.
        test: makes a test and returns its result.
        seed: of the first reset; None: none.
        extras: returns what else `info` gets, after a step.
        compress: the sample compressor.
        tests_in_env: whether the tests use `env`, so that a new episode begins after each.
    """
    spent_s, over = 0.0, True
    resets = {} if seed is None else {"seed": seed}
    for step in range(1, steps + 1):
        began_s = time.process_time()
        if over:
            obs, info = env.reset(**resets)
            resets = {}
            reset = default_action(env), obs, 0.0, False, False, Info(info, is_reset=True)
            memory.append(Buffer([compress(*reset)], "worker"))
        action = choose(step, obs)
        obs, rew, terminated, truncated, info = env.step(action)
        over = terminated or truncated
        info = Info(info | extras())
        memory.append(Buffer([compress(action, obs, rew, terminated, truncated, info)], "worker"))
        train(step)
        spent_s += time.process_time() - began_s
        if step % (every or max(1, steps // 10)) == 0:
            yield step, spent_s, test()
            over |= tests_in_env


def drive(env, actor, seed=None):
    """Run an episode without exploration; return its return and its last info."""
    total, over = 0.0, False
    obs, _ = env.reset(seed=seed)
    while not over:
        obs, rew, terminated, truncated, info = env.step(actor.act_(obs, test=True))
        total += float(rew)
        over = terminated or truncated
    return total, info


def mean_return(env, actor, seed):
    """Return the mean return of the test episodes of a run with this seed."""
    seeds = range(1000 * seed, 1000 * seed + EPISODES)
    return float(np.mean([drive(env, actor, each)[0] for each in seeds]))


def learned(options, learn, steps_of, beside=None):
    """Make the runs of `options` that are not complete in the file; yield a row of results for each
    task and variant.

    Args:
        options: `OPTIONS`, `tasks`, and `variants`.
        learn: makes a run of a given number of steps.
        steps_of: number of steps by task.
        beside: more columns for a task's rows.
    """
    steps = {task: options.steps or steps_of[task] for task in options.tasks}
    file = Path(options.file or "runs.jsonl")
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


def make(options, learn, run, steps, file):
    """Make a run, in a process of its own, and append its lines to the file."""
    give_way(options.autogroup)
    for step, spent_s, value in learn(options, run, steps):
        line = json.dumps(
            dict(zip(KEYS, (*run, step, round(spent_s, 1), round(value, 3)), strict=True))
        )
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
