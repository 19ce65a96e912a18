"""How much `IQNAgent` learns per step of tasks with Discrete actions, and what the norms of its network do for it.

    python tests/benchmarks/discrete.py RESULTS [--tasks CartPole-v1 LunarLander-v3] [--variants "as it ships" …]
                                        [--seeds 0 1 2 3 4] [--jobs 1] [--show]

Agent and memory in a plain loop, as in recipe.py: each run on one thread of a process of its own, which takes what
others leave of the machine. Each tenth of a task's steps a line of JSON is appended to RESULTS: task, variant, seed,
environment steps, seconds of CPU time (of the loop, not of the test episodes) and the mean return of ten test episodes
without exploration. Runs that are whole in the file are not made again. LunarLander needs the extra `box2d`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from _common import Options, finish
from _runs import Point, give_way, keep, make, practise, read
from recipe import KEYS, mean_return

from tmrl_like.agents import IQNActor, IQNAgent
from tmrl_like.base.functional import partial
from tmrl_like.envs import GenericGymEnv
from tmrl_like.replay import ReplayMemory


class Task(NamedTuple):
    """What is learnt, and how: CartPole's best return is 500, and LunarLander counts as solved with 200."""

    steps: int
    first_steps: int  # before training begins
    exploring_steps: int  # until epsilon has fallen to its least
    lr: float
    polyak: float


TASKS = {
    "CartPole-v1": Task(15_000, 500, 5000, lr=1e-3, polyak=0.99),
    "LunarLander-v3": Task(100_000, 1000, 20_000, lr=5e-4, polyak=0.995),
}
EPSILON = 1.0, 0.02  # at first, at last
GAMMA, N_STEPS, BATCH, ACTOR_POLYAK = 0.99, 3, 64, 0.995
NET = {"width": 128, "hidden_size": 128}


class StateNormalised(IQNActor):
    """The network as it was: the state alone is normalised, the hidden layer is not."""

    def __init__(self, *spaces: Any, **options: Any) -> None:
        super().__init__(*spaces, **options)
        self.hidden_norm = None


VARIANTS: dict[str, Any] = {
    "as it ships": partial(IQNActor, **NET),
    "state normalised": partial(StateNormalised, **NET),
    "no norms": partial(IQNActor, layer_norm=False, **NET),
}


def learn(name: str, variant: str, seed: int, steps: int, every: int) -> Iterator[Point]:
    """Train; yields environment steps, seconds of CPU time and the return of test episodes, every so many steps."""
    task = TASKS[name]
    torch.manual_seed(seed)
    np.random.seed(seed)
    env, tests = GenericGymEnv(name), GenericGymEnv(name)
    spaces = env.observation_space, env.action_space
    rates = {"lr": task.lr, "polyak": task.polyak, "actor_polyak": ACTOR_POLYAK}
    agent = IQNAgent(*spaces, actor_cls=VARIANTS[variant], gamma=GAMMA, **rates)
    memory = ReplayMemory(memory_size=2 * steps, batch_size=BATCH, n_steps=N_STEPS, gamma=GAMMA)
    memory.seed(seed)

    def choose(step: int, obs: Any) -> Any:
        explored = min(1.0, step / task.exploring_steps)
        agent.tune(epsilon=EPSILON[0] * (EPSILON[1] / EPSILON[0]) ** explored)
        return agent.get_actor().act_(obs)

    def train(step: int) -> None:
        if step > task.first_steps:
            agent.train(memory.sample())

    def test() -> float:
        return mean_return(tests, agent.get_actor(), seed)

    return practise(env, memory, choose, train, steps, every, test, seed=seed)


def run(file: Path, task: str, variant: str, seed: int, steps: int, autogroup: int) -> str:
    """One run, in a process of its own; returns its last line."""
    give_way(autogroup)
    return keep(file, KEYS, (task, variant, seed), learn(task, variant, seed, steps, max(1, steps // 10)))


def reached(file: Path) -> dict[str, float]:
    """At the end of each task: the mean return over seeds, their deviation and the worst; milliseconds a step."""
    ended: dict[str, list[tuple[float, float]]] = {}
    for (task, variant, _), curve in sorted(read(file, KEYS).items()):
        if task in TASKS and curve[-1][0] >= TASKS[task].steps:
            steps, spent_s, total = curve[-1]
            ended.setdefault(f"{task}, {variant}", []).append((total, 1e3 * spent_s / steps))
    found: dict[str, float] = {}
    for name, runs in ended.items():
        returns, step_ms = np.array(runs).T
        found[f"{name}: return"] = float(returns.mean())
        found[f"{name}: deviation of {len(runs)}"] = float(returns.std())
        found[f"{name}: worst"] = float(returns.min())
        found[f"{name}: CPU ms a step"] = float(step_ms.mean())
    return found


def show(file: Path) -> None:
    """A line for each run: the returns of its evaluations."""
    for (task, variant, seed), curve in sorted(read(file, KEYS).items()):
        returns = " ".join(f"{total:6.0f}" for _, _, total in curve)
        last, spent_s, _ = curve[-1]
        print(f"{task:16}{variant:18}{seed:3}{returns}  {1e3 * spent_s / last:6.1f} CPU ms a step")


def main() -> None:
    parser = Options(__doc__, tasks=["CartPole-v1"], variants=["as it ships"], seeds=[0], steps=700, autogroup=0)
    parser.add_argument("file", type=Path, nargs="?", default=Path("discrete.jsonl"))
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, help="in place of each task's own")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--autogroup", type=int, default=19, help="nice value of a run's session, on Linux")
    parser.add_argument("--show", action="store_true", help="only what is in the file")
    asked = parser.parse()
    steps = {task: asked.steps or TASKS[task].steps for task in asked.tasks}
    made = {key for key, curve in read(asked.file, KEYS).items() if curve[-1][0] >= steps.get(key[0], 0)}
    runs = [
        (asked.file, task, variant, seed, steps[task], asked.autogroup)
        for seed, task, variant in product(asked.seeds, asked.tasks, asked.variants)
        if (task, variant, seed) not in made and not asked.show
    ]
    make(run, asked.jobs, runs)
    show(asked.file)
    finish(reached(asked.file))


if __name__ == "__main__":
    main()
