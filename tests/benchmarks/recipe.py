"""How much is learnt per step on MuJoCo's tasks: plain SAC, the agent as it ships, the recipe, and without each part.

    python tests/benchmarks/recipe.py RESULTS [--tasks Hopper-v5 …] [--variants plain recipe …] [--seeds 0 1 2]
                                              [--steps 50000] [--jobs 2]
    python tests/benchmarks/recipe.py RESULTS --table

Agent and memory as they ship, in a plain loop, each run on one thread of a process of its own. Every 5,000 steps a line
of JSON is appended to RESULTS: task, variant, seed, environment steps, seconds of CPU time (of the loop, not of the
test episodes) and the mean return of ten test episodes without exploration. Runs that are in the file are not made
again. Plain SAC at equal wall-clock is read off a longer run: `--variants plain --steps 200000`.

A score is a return divided by plain SAC's after 1,000,000 steps, mean of ten seeds, as the authors of SimbaV2
(arXiv:2502.15280) publish it: github.com/DAVIAN-Robotics/SimbaV2, results/baseline/sac.csv, tasks of version 4. After
50,000 steps it has there 530, 384 and 4,212 on Hopper, Walker2d and HalfCheetah: a mean score of 0.22. REDQ with 20
training steps per environment step has 0.59, DroQ 0.46, CrossQ 0.44.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tmrl_like.agents import EnsembleCritic, SACAgent, SquashedGaussianActor
from tmrl_like.agents.process import tune_process
from tmrl_like.base.functional import partial
from tmrl_like.envs import GenericGymEnv
from tmrl_like.replay import ReplayMemory
from tmrl_like.types import Buffer, Info

SAC_AT_1M = {"Hopper-v5": 2787.0, "Walker2d-v5": 4536.0, "HalfCheetah-v5": 11321.0}
GAMMA, FIRST_STEPS, EVERY, EPISODES = 0.99, 1000, 5000, 10


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What is learnt with.

    Attributes:
        normalize_obs: observations are divided by their running standard deviation.
        layer_norm: in the critics.
        scale_rewards: rewards are divided by the running scale of the returns.
        n_steps: rewards in a transition.
        actor_polyak: share of the average of the actor that stays; 0: there is none.
        updates: training steps per environment step.
        width: of the two hidden layers.
        batch_size: transitions in a batch.
        lr: all three learning rates.
    """

    normalize_obs: bool = True
    layer_norm: bool = True
    scale_rewards: bool = True
    n_steps: int = 3
    actor_polyak: float = 0.995
    updates: int = 4
    width: int = 256
    batch_size: int = 256
    lr: float = 3e-4


RECIPE = Variant()
PLAIN = Variant(
    normalize_obs=False, layer_norm=False, scale_rewards=False, n_steps=1, actor_polyak=0.0, updates=1
)  # as in stable-baselines3 and Spinning Up
AS_IT_SHIPS = replace(RECIPE, scale_rewards=False, n_steps=1, updates=1)
VARIANTS = {"plain": PLAIN, "as it ships": AS_IT_SHIPS, "recipe": RECIPE}
for of, base in (("", RECIPE), ("as it ships, ", AS_IT_SHIPS)):
    for part in ("normalize_obs", "layer_norm", "scale_rewards", "n_steps", "actor_polyak", "updates"):
        if getattr(base, part) != getattr(PLAIN, part):
            VARIANTS[f"{of}without {part.replace('_', ' ')}"] = replace(base, **{part: getattr(PLAIN, part)})


def learn(task: str, variant: Variant, seed: int, steps: int) -> Iterator[tuple[int, float, float]]:
    """Train; yields environment steps, seconds of CPU time and the return of test episodes, every 5,000 steps."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    env, tests = GenericGymEnv(task), GenericGymEnv(task)
    env.action_space.seed(seed)
    nets = {"hidden_sizes": (variant.width,) * 2, "normalize_obs": variant.normalize_obs}
    agent = SACAgent(
        env.observation_space,
        env.action_space,
        actor_cls=partial(SquashedGaussianActor, **nets),
        critic_cls=partial(EnsembleCritic, **nets, layer_norm=variant.layer_norm),
        gamma=GAMMA,
        actor_polyak=variant.actor_polyak,
        scale_rewards=variant.scale_rewards,
        **{f"lr_{part}": variant.lr for part in ("actor", "critic", "entropy")},
    )
    memory = ReplayMemory(memory_size=2 * steps, batch_size=variant.batch_size, n_steps=variant.n_steps, gamma=GAMMA)
    memory.seed(seed)
    actor, spent_s, over, resets = agent.get_actor().in_numpy(), 0.0, True, {"seed": seed}
    for step in range(1, steps + 1):
        began_s = time.process_time()
        if over:
            obs, info = env.reset(**resets)
            resets = {}
            reset = env.default_action, obs, 0.0, False, False, Info(info, is_reset=True)
            memory.append(Buffer([reset], "worker"))
        action = env.action_space.sample() if step <= FIRST_STEPS else actor.act_(obs)
        obs, rew, terminated, truncated, info = env.step(action)
        over = terminated or truncated
        memory.append(Buffer([(action, obs, rew, terminated, truncated, Info(info))], "worker"))
        for _ in range(variant.updates if step > FIRST_STEPS else 0):
            agent.train(memory.sample())
        spent_s += time.process_time() - began_s
        if step % EVERY == 0:
            yield step, spent_s, np.mean([test_return(tests, actor, 1000 * seed + i) for i in range(EPISODES)]).item()


def test_return(env: GenericGymEnv, actor: Any, seed: int) -> float:
    total, over = 0.0, False
    obs, _ = env.reset(seed=seed)
    while not over:
        obs, rew, terminated, truncated, _ = env.step(actor.act_(obs, test=True))
        total, over = total + float(rew), terminated or truncated
    return total


def run(file: Path, task: str, name: str, seed: int, steps: int) -> str:
    """One run, in a process of its own; returns its last line."""
    tune_process(threads=1)
    line = ""
    for step, spent_s, total in learn(task, VARIANTS[name], seed, steps):
        line = json.dumps(dict(zip(KEYS, (task, name, seed, step, round(spent_s, 1), round(total, 1)), strict=True)))
        with file.open("a") as lines:
            lines.write(line + "\n")
    return line


KEYS = "task", "variant", "seed", "steps", "seconds", "return"
Curve = list[tuple[int, float, float]]  # steps, seconds, return


def read(file: Path) -> dict[tuple[str, str, int], Curve]:
    """(task, variant, seed) -> its evaluations; of two runs of the same, the later."""
    curves: dict[tuple[str, str, int], Curve] = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        *run, step, spent_s, total = (json.loads(line)[key] for key in KEYS)
        curve = [] if step == EVERY else curves.get(tuple(run), [])
        curves[tuple(run)] = [*curve, (step, spent_s, total)]
    return curves


def table(file: Path, steps: int) -> Iterator[str]:
    """The lines of a table in Markdown: returns at `steps`, then scores in relation to plain SAC's.

    Behind a return stands the number of seeds that came so far, the others are left out. Scores, seconds and ratios are
    over the tasks that the variant and plain SAC have runs of; "–": there are none.
    """
    all_curves = read(file)
    curves = {run: curve for run, curve in all_curves.items() if curve[-1][0] >= steps}
    tasks = [task for task in SAC_AT_1M if any(run[0] == task for run in curves)]
    names = [name for name in VARIANTS if any(run[1] == name for run in curves)]

    def runs(name: str, task: str) -> list[Curve]:
        """Up to `steps`."""
        return [[p for p in c if p[0] <= steps] for r, c in curves.items() if r[:2] == (task, name)]

    def total(name: str, task: str) -> float:
        """Over seeds, of the mean of the last three evaluations."""
        return float(np.mean([[p[2] for p in c[-3:]] for c in runs(name, task)]))

    def seconds(name: str, task: str) -> float:
        return float(np.mean([c[-1][1] for c in runs(name, task)]))

    def plain_after(task: str, spent_s: float) -> float:
        """Return of plain SAC after so many seconds; nan where its runs are shorter."""
        curve = [c for r, c in all_curves.items() if r[:2] == (task, "plain") and c[-1][1] >= spent_s]
        last = [[p[2] for p in c if p[1] <= spent_s][-3:] or [c[0][2]] for c in curve]
        return float(np.mean([np.mean(v) for v in last])) if curve else np.nan

    def score(returns: list[float], of: list[str]) -> float:
        return float(np.mean([r / SAC_AT_1M[task] for r, task in zip(returns, of, strict=True)])) if of else np.nan

    yield "| | " + " | ".join(tasks) + " | score | × plain, equal steps | seconds | × plain, equal seconds |"
    yield "|" + "---|" * (len(tasks) + 5)
    for name in names:
        both = [task for task in tasks if runs(name, task) and runs("plain", task)]
        own = score([total(name, task) for task in both], both)
        equal_steps = own / score([total("plain", task) for task in both], both)
        spent_s = [seconds(name, task) for task in both]
        equal_seconds = own / score([plain_after(*pair) for pair in zip(both, spent_s, strict=True)], both)
        cells = [f"{total(name, task):,.0f} ({n})" if (n := len(runs(name, task))) else "–" for task in tasks]
        cells += [_cell(own, ".2f"), _cell(equal_steps, ".2f"), _cell(np.mean(spent_s or np.nan), ",.0f")]
        yield f"| {name} | " + " | ".join([*cells, _cell(equal_seconds, ".2f")]) + " |"


def _cell(number: Any, form: str) -> str:
    return f"{number:{form}}" if np.isfinite(number) else "–"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--tasks", nargs="+", default=list(SAC_AT_1M), help="ids of Gymnasium; the table has these")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="print the table of what is there, and train nothing")
    arguments = parser.parse_args()
    if arguments.table:
        print(*table(arguments.file, arguments.steps), sep="\n")
        return
    done = {run for run, curve in read(arguments.file).items() if curve[-1][0] >= arguments.steps}
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        runs = [
            pool.submit(run, arguments.file, task, name, seed, arguments.steps)
            for seed, name, task in product(arguments.seeds, arguments.variants, arguments.tasks)
            if (task, name, seed) not in done
        ]
        for finished in as_completed(runs):
            print(finished.result(), flush=True)


if __name__ == "__main__":
    main()
