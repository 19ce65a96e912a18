"""How much is learnt per step on MuJoCo's tasks: plain SAC, the agent as it ships, the recipe, and without each part;
what might become the recipe, by the names in `VARIANTS`.

    python tests/benchmarks/recipe.py RESULTS [--tasks Hopper-v5 …] [--variants plain recipe …] [--seeds 0 1 2]
                                              [--steps 50000] [--jobs 1] [--show]

Agent and memory in a plain loop, each run on one thread of a process of its own, which takes what others leave of the
machine and ends with the one that started it. Every 5,000 steps a line of JSON is appended to RESULTS: task, variant,
seed, environment steps, seconds of CPU time (of the loop, not of the test episodes) and the mean return of ten test
episodes without exploration. Runs that are whole in the file are not made again.

A score is a return divided by plain SAC's after 1,000,000 steps, mean of ten seeds, as the authors of SimbaV2
(arXiv:2502.15280) publish it: github.com/DAVIAN-Robotics/SimbaV2, results/baseline/sac.csv, tasks of version 4. After
50,000 steps it has there 530, 384 and 4,212 on Hopper, Walker2d and HalfCheetah: a mean score of 0.22. REDQ with 20
training steps per environment step has 0.59, DroQ 0.46, CrossQ 0.44.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import Options, finish
from _runs import Point, give_way, keep, make, practise, read

from tmrl_like.agents import CrossQAgent, EnsembleCritic, SACAgent, SquashedGaussianActor
from tmrl_like.agents.agent import TrainingAgent
from tmrl_like.base.functional import partial
from tmrl_like.envs import GenericGymEnv
from tmrl_like.replay import ReplayMemory

SAC_AT_1M = {"Hopper-v5": 2787.0, "Walker2d-v5": 4536.0, "HalfCheetah-v5": 11321.0}
FIRST_STEPS, EPISODES = 1000, 10


PLAIN = {
    "agent": "sac",
    "gamma": 0.99,
    "normalize_obs": False,
    "layer_norm": False,  # in the critics
    "scale_rewards": False,
    "n_steps": 1,  # rewards in a transition
    "actor_polyak": 0.0,  # share of the average of the actor that stays
    "updates": 1,  # training steps per environment step
    "entropy": -1.0,  # nats per action dimension, the target
    "alpha": None,  # the entropy coefficient at first
    "batch": 256,
}  # as in stable-baselines3 and Spinning Up
HALF = PLAIN | {"entropy": -0.5}
LOW = HALF | {"alpha": 0.01}
AS_IT_SHIPS = PLAIN | {"normalize_obs": True, "layer_norm": True, "actor_polyak": 0.995}
RECIPE = AS_IT_SHIPS | {"scale_rewards": True, "n_steps": 3, "updates": 4}
CROSSQ = PLAIN | {"agent": "crossq", "batch": 128}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": PLAIN,
    "half entropy": HALF,
    "half entropy, low alpha": LOW,
    "low, n = 3": LOW | {"n_steps": 3},
    "low, average": LOW | {"actor_polyak": 0.995},
    "low, norms": LOW | {"normalize_obs": True, "layer_norm": True},
    "as it ships": AS_IT_SHIPS,
    "as it ships, half entropy, low alpha": AS_IT_SHIPS | {"entropy": -0.5, "alpha": 0.01},
    "recipe": RECIPE,
    "recipe, half entropy": RECIPE | {"entropy": -0.5},
    "recipe, half entropy, n = 1": RECIPE | {"entropy": -0.5, "n_steps": 1},
    "crossq": CROSSQ,
}
PARTS = [part for part, value in RECIPE.items() if value != PLAIN[part]]
VARIANTS |= {f"without {part}": RECIPE | {part: PLAIN[part]} for part in PARTS}


def make_agent(env: GenericGymEnv, variant: dict[str, Any]) -> TrainingAgent:
    spaces, num_actions = (env.observation_space, env.action_space), int(np.prod(env.action_space.shape or (1,)))
    if variant["agent"] == "crossq":
        return CrossQAgent(*spaces, gamma=variant["gamma"])
    nets = {"hidden_sizes": (256, 256), "normalize_obs": variant["normalize_obs"]}
    return SACAgent(
        *spaces,
        actor_cls=partial(SquashedGaussianActor, **nets),
        critic_cls=partial(EnsembleCritic, **nets, layer_norm=variant["layer_norm"]),
        gamma=variant["gamma"],
        actor_polyak=variant["actor_polyak"],
        scale_rewards=variant["scale_rewards"],
        target_entropy=variant["entropy"] * num_actions,
        entropy_coef=variant["alpha"],
    )


def learn(task: str, variant: dict[str, Any], seed: int, steps: int, every: int) -> Iterator[Point]:
    """Train; yields environment steps, seconds of CPU time and the return of test episodes, every so many steps."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    env, tests = GenericGymEnv(task), GenericGymEnv(task)
    env.action_space.seed(seed)
    agent = make_agent(env, variant)
    memory = ReplayMemory(
        memory_size=2 * steps, batch_size=variant["batch"], n_steps=variant["n_steps"], gamma=variant["gamma"]
    )
    memory.seed(seed)
    actor: Any = agent.get_actor().in_numpy()

    def choose(step: int, obs: Any) -> Any:
        return env.action_space.sample() if step <= FIRST_STEPS else actor.act_(obs)

    def train(step: int) -> None:
        for _ in range(variant["updates"] if step > FIRST_STEPS else 0):
            agent.train(memory.sample())

    return practise(env, memory, choose, train, steps, every, lambda: mean_return(tests, actor, seed), seed=seed)


def mean_return(env: GenericGymEnv, actor: Any, seed: int) -> float:
    """Of the test episodes of a run with this seed."""
    return np.mean([test_return(env, actor, 1000 * seed + i) for i in range(EPISODES)]).item()


def test_return(env: GenericGymEnv, actor: Any, seed: int) -> float:
    total, over = 0.0, False
    obs, _ = env.reset(seed=seed)
    while not over:
        obs, rew, terminated, truncated, _ = env.step(actor.act_(obs, test=True))
        total, over = total + float(rew), terminated or truncated
    return total


def run(file: Path, task: str, name: str, seed: int, steps: int, every: int, autogroup: int) -> str:
    """One run, in a process of its own; returns its last line."""
    give_way(autogroup)
    return keep(file, KEYS, (task, name, seed), learn(task, VARIANTS[name], seed, steps, every))


KEYS = "task", "variant", "seed", "steps", "seconds", "return"


def reached(file: Path, steps: int) -> dict[str, float]:
    """After `steps`: returns (the mean over seeds, and their deviation), scores, seconds."""
    found: dict[str, float] = {}
    points: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for (task, name, _), curve in read(file, KEYS).items():
        if curve[-1][0] >= steps:
            _, spent_s, total = max(point for point in curve if point[0] <= steps)
            points[name][task].append((total, spent_s))
    for name, by_task in points.items():
        means = {task: np.mean(of_seeds, axis=0) for task, of_seeds in by_task.items()}
        for task, of_seeds in by_task.items():
            found[f"{name}: {task}, return"] = float(means[task][0])
            found[f"{name}: {task}, deviation of {len(of_seeds)}"] = float(np.std(of_seeds, axis=0)[0])
        found[f"{name}: score"] = float(np.mean([mean[0] / SAC_AT_1M[task] for task, mean in means.items()]))
        found[f"{name}: seconds"] = float(np.mean([mean[1] for mean in means.values()]))
    return found


def show(file: Path, steps: int) -> None:
    """A line for each run: its return after half of `steps` and after all of them, and what a step took."""
    print(f"{'task':16}{'variant':38}{'seed':>4}{'at half':>9}{'at all':>9}{'reached':>9}{'CPU ms a step':>15}")
    for (task, name, seed), curve in sorted(read(file, KEYS).items()):
        returns = {step: f"{total:,.0f}" for step, _, total in curve}
        half, whole = (returns.get(step, "–") for step in (steps // 2, steps))
        last, spent_s, _ = curve[-1]
        print(f"{task:16}{name:38}{seed:4}{half:>9}{whole:>9}{last:9,}{1e3 * spent_s / last:15.1f}")


def main() -> None:
    parser = Options(
        __doc__, tasks=["Hopper-v5"], variants=["as it ships"], seeds=[0], steps=1200, every=600, autogroup=0
    )
    parser.add_argument("file", type=Path, nargs="?", default=Path("recipe.jsonl"))
    parser.add_argument("--tasks", nargs="+", choices=SAC_AT_1M, default=list(SAC_AT_1M))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--every", type=int, default=5000, help="steps between two evaluations")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--autogroup", type=int, default=19, help="nice value of a run's session, on Linux")
    parser.add_argument("--show", action="store_true", help="only what is in the file")
    asked = parser.parse()
    made = {key for key, curve in read(asked.file, KEYS).items() if curve[-1][0] >= asked.steps}
    runs = [
        (asked.file, task, name, seed, asked.steps, asked.every, asked.autogroup)
        for seed, task, name in product(asked.seeds, asked.tasks, asked.variants)
        if (task, name, seed) not in made and not asked.show
    ]
    make(run, asked.jobs, runs)
    show(asked.file, asked.steps)
    finish(reached(asked.file, asked.steps))


if __name__ == "__main__":
    main()
