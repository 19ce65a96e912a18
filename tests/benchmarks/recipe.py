"""Learning per step on MuJoCo's tasks: CrossQ, and an older set-up of SAC.

    python tests/benchmarks/recipe.py --file RESULTS [--tasks Hopper-v5 …]
                                      [--variants crossq recipe] [--seeds 0 1 2] [--steps 50000]
                                      [--jobs 1] [--show]

Agent and memory run in a plain loop, with low priority. After each tenth of the steps, ten test
episodes without exploration give their mean return. Each run uses one thread of a process of its
own. RESULTS has a line of JSON for each test: task, variant, seed, environment steps, seconds of
CPU time (of the loop, without the tests) and the mean return. Runs that are complete there are not
repeated; `--show` makes none. The published returns (version 4 of the tasks, ten seeds) are those
of SimbaV2's authors (arXiv:2502.15280; its repository, results/baseline).
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
import torch
from _harness import SPAWN, benchmark, text

from tmrl_like.agents import CrossQAgent, EnsembleCritic, SACAgent, SquashedGaussianActor
from tmrl_like.agents.process import tune_process
from tmrl_like.base.functional import partial
from tmrl_like.envs import GenericGymEnv
from tmrl_like.envs.actions import default_action
from tmrl_like.replay import ReplayMemory
from tmrl_like.types import Buffer, Info

TASKS = {
    "Hopper-v5": {"peer": "SAC 530, CrossQ 1,421, XQC 2,735", "goal": 2000},
    "Walker2d-v5": {"peer": "SAC 384, CrossQ 1,096, XQC 2,374", "goal": 1500},
    "HalfCheetah-v5": {"peer": "SAC 4,212, CrossQ 6,345, XQC 6,754", "goal": 6000},
}
VARIANTS = {  # training steps per environment step, and options of the memory
    "crossq": (2, {"batch_size": 128}),
    "recipe": (4, {"batch_size": 256, "n_steps": 3}),
}
FIRST_STEPS, GAMMA, EPISODES = 1000, 0.99, 10


def make_agent(env, variant):
    spaces = env.observation_space, env.action_space
    if variant == "crossq":
        return CrossQAgent(*spaces, gamma=GAMMA)
    return SACAgent(
        *spaces,
        actor_cls=partial(SquashedGaussianActor, hidden_sizes=(256, 256)),
        critic_cls=partial(EnsembleCritic, hidden_sizes=(256, 256)),
        gamma=GAMMA,
        actor_polyak=0.995,
        scale_rewards=True,
        target_entropy=-1.0 * int(np.prod(env.action_space.shape)),
    )


def learn(task, variant, seed, steps):
    """Act and train; yield the steps so far, the CPU seconds of that, and the test's result."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    env, tests = GenericGymEnv(task), GenericGymEnv(task)
    env.action_space.seed(seed)
    agent, (updates, of_memory) = make_agent(env, variant), VARIANTS[variant]
    memory = ReplayMemory(memory_size=2 * steps, gamma=GAMMA, **of_memory)
    memory.seed(seed)
    actor = agent.get_actor().in_numpy()
    spent_s, over = 0.0, True
    for step in range(1, steps + 1):
        began_s = time.process_time()
        if over:
            obs, info = env.reset(seed=seed if step == 1 else None)
            reset = default_action(env), obs, 0.0, False, False, Info(info, is_reset=True)
            memory.append(Buffer([reset], "worker"))
        action = env.action_space.sample() if step <= FIRST_STEPS else actor.act_(obs)
        obs, rew, terminated, truncated, info = env.step(action)
        over = terminated or truncated
        memory.append(Buffer([(action, obs, rew, terminated, truncated, Info(info))], "worker"))
        for _ in range(updates if step > FIRST_STEPS else 0):
            agent.train(memory.sample())
        spent_s += time.process_time() - began_s
        if step % (steps // 10) == 0:
            yield step, spent_s, mean_return(tests, actor, seed)


def mean_return(env, actor, seed):
    """Return the mean return of the test episodes of a run with this seed."""
    total = 0.0
    for episode in range(EPISODES):
        obs, _ = env.reset(seed=1000 * seed + episode)
        over = False
        while not over:
            obs, rew, terminated, truncated, _ = env.step(actor.act_(obs, test=True))
            total += float(rew)
            over = terminated or truncated
    return total / EPISODES


def make(run, steps, autogroup, file):
    """Make a run, in a process of its own, and append its lines to the file."""
    give_way(autogroup)
    for step, spent_s, value in learn(*run, steps):
        line = json.dumps((*run, step, round(spent_s, 1), round(value, 3)))
        print(line, flush=True)
        with file.open("a") as lines:
            lines.write(line + "\n")


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


def read(file):
    """Return the points of each run, by their steps; a later run replaces an earlier one of the
    same name.
    """
    curves = defaultdict(dict)
    for line in file.read_text().splitlines() if file.exists() else ():
        *run, step, spent_s, value = json.loads(line)
        curves[tuple(run)][step] = spent_s, value
    return curves


def measure(options):
    file, steps = Path(options.file), options.steps
    whole = {run for run, curve in read(file).items() if max(curve) >= steps}
    wanted = [
        (task, variant, seed)
        for seed, task, variant in product(options.seeds, options.tasks, options.variants)
        if (task, variant, seed) not in whole and not options.show
    ]
    with ProcessPoolExecutor(options.jobs, SPAWN, max_tasks_per_child=1) as pool:
        for made in as_completed(
            [pool.submit(make, run, steps, options.autogroup, file) for run in wanted]
        ):
            made.result()
    ended = defaultdict(list)
    for (task, variant, seed), curve in sorted(read(file).items()):
        values = (text(value) for _, value in curve.values())
        print(f"{task}, {variant}, seed {seed}, {max(curve):,} steps:", *values)
        if steps in curve:
            ended[task, variant].append(curve[steps])
    for (task, variant), points in ended.items():
        values = [value for _, value in points]
        yield {
            "what": f"{task}, {variant}: after {steps:,} steps",
            "ours": f"{text(float(np.mean(values)))} ± {text(float(np.std(values)))}",
            "each seed": ", ".join(map(text, values)),
            "CPU, ms a step": float(np.mean([1e3 * spent_s / steps for spent_s, _ in points])),
            **TASKS[task],
        }


if __name__ == "__main__":
    benchmark(
        __doc__,
        measure,
        file="runs.jsonl",
        tasks=list(TASKS),
        variants=list(VARIANTS),
        seeds=[0, 1, 2, 3, 4],
        steps=50_000,
        jobs=1,  # runs at a time
        autogroup=19,  # nice value of a run's session, on Linux
        show=False,
        quick={
            "tasks": ["Hopper-v5"],
            "variants": ["recipe"],
            "seeds": [0],
            "steps": 1200,
            "autogroup": 0,
        },
    )
