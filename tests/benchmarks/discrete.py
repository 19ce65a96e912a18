"""How much `IQNAgent` learns per step of tasks with Discrete actions, with the norms of its network and without.

    python tests/benchmarks/discrete.py --file RESULTS [--tasks CartPole-v1 LunarLander-v3] [--variants "as it ships" …]
                                        [--seeds 0 1 2 3 4] [--jobs 1] [--show]

Agent and memory in a plain loop; the mean return of ten test episodes without exploration, each tenth of a task's
steps. CartPole's best return is 500, and LunarLander, which needs the extra `box2d`, counts as solved with 200.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from _harness import Row, benchmark
from _runs import OPTIONS, Point, Run, learned, mean_return, practise

from tmrl_like.agents import IQNActor, IQNAgent
from tmrl_like.base.functional import partial
from tmrl_like.envs import GenericGymEnv
from tmrl_like.replay import ReplayMemory


class Task(NamedTuple):
    steps: int
    first_steps: int  # before training begins
    exploring_steps: int  # until epsilon has fallen to its least
    lr: float
    polyak: float


TASKS = {
    "CartPole-v1": Task(15_000, 500, 5000, lr=1e-3, polyak=0.99),
    "LunarLander-v3": Task(100_000, 1000, 20_000, lr=5e-4, polyak=0.995),
}
STEPS = {name: task.steps for name, task in TASKS.items()}
BESIDE: dict[str, Row] = {"CartPole-v1": {"goal": 500}, "LunarLander-v3": {"goal": 200}}
EPSILON = 1.0, 0.02  # at first, at last
GAMMA, N_STEPS, BATCH, ACTOR_POLYAK = 0.99, 3, 64, 0.995
NETS = {"as it ships": {}, "no norms": {"layer_norm": False}}


def learn(options: argparse.Namespace, run: Run, steps: int) -> Iterator[Point]:
    name, variant, seed = run
    task = TASKS[name]
    torch.manual_seed(seed)
    np.random.seed(seed)
    env, tests = GenericGymEnv(name), GenericGymEnv(name)
    spaces = env.observation_space, env.action_space
    actor_cls = partial(IQNActor, width=128, hidden_size=128, **NETS[variant])
    rates = {"lr": task.lr, "polyak": task.polyak, "actor_polyak": ACTOR_POLYAK}
    agent = IQNAgent(*spaces, actor_cls=actor_cls, gamma=GAMMA, **rates)
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

    return practise(env, memory, choose, train, steps, options.every, test, seed=seed)


def measure(options: argparse.Namespace) -> Iterator[Row]:
    return learned(options, learn, STEPS, BESIDE)


if __name__ == "__main__":
    quick = {"tasks": ["CartPole-v1"], "variants": ["as it ships"], "seeds": [0], "steps": 700, "autogroup": 0}
    benchmark(__doc__, measure, tasks=list(STEPS), variants=list(NETS), **OPTIONS, quick=quick)
