"""Tasks that the agents must learn, and their learning curves.

    python tests/benchmarks/tasks.py --file RESULTS [--tasks pendulum …] [--seeds 0 1 2]
                                     [--steps 8000] [--jobs 1] [--show]
                                     [--picture docs/figures/learning.png]

Agent and memory run in a plain loop. After every tenth of the steps, test episodes without
exploration give their mean return; `--picture` draws them. MuJoCo's task needs the extra `mujoco`,
the lander `box2d`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from _harness import benchmark
from _runs import OPTIONS, file_of, learned, mean_return, read
from kit.solo import practise

from tmrl_like.agents import (
    CategoricalActor,
    DiscreteEnsembleCritic,
    DiscreteSACAgent,
    EnsembleCritic,
    IQNActor,
    IQNAgent,
    SACAgent,
    SquashedGaussianActor,
)
from tmrl_like.base.functional import partial
from tmrl_like.envs import GenericGymEnv
from tmrl_like.metrics.curves import new_figure
from tmrl_like.replay import ReplayMemory


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task, the agent that learns it, and the return that it must reach.

    Attributes:
        env: makes the environment.
        steps: environment steps of the training.
        goal: mean return that test episodes must reach at the end; None: some seeds fail.
        classes: of the agent, the actor and, if it has any, the critics.
        agent: options of the agent.
        nets: options of actor and critics.
        critics: more options of the critics.
        memory: options of `ReplayMemory`.
        tuned: from the environment steps so far, what the agent is tuned to every 500 of them.
        first_steps: random steps before training begins; then the training steps catch up with the
            environment steps.
        episodes: number of episodes of a test.
    """

    env: Callable[[], Any]
    steps: int
    goal: float | None
    classes: tuple[Any, ...] = (SACAgent, SquashedGaussianActor, EnsembleCritic)
    agent: dict[str, Any] = field(default_factory=dict)
    nets: dict[str, Any] = field(default_factory=lambda: {"hidden_sizes": (64, 64)})
    critics: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    tuned: Callable[[int], dict[str, float]] | None = None
    first_steps: int = 1000
    episodes: int = 5


FAST = {"lr_actor": 1e-3, "lr_critic": 1e-3, "lr_entropy": 1e-3}
CHOICES = DiscreteSACAgent, CategoricalActor, DiscreteEnsembleCritic
TASKS = {
    "pendulum": Task(
        env=lambda: GenericGymEnv("Pendulum-v1"),
        steps=8000,
        goal=-200.0,
        agent={"gamma": 0.98, "polyak": 0.99, **FAST},
        nets={"hidden_sizes": (128, 128)},
        critics={"layer_norm": False},  # with it, what is learnt in 2,000 steps is lost again
        episodes=20,  # their returns depend on where they start: -1 to -400
    ),
    "inverted pendulum (MuJoCo)": Task(
        # with rates of 1e-3 it is learnt sooner, and lost again more often
        env=lambda: GenericGymEnv("InvertedPendulum-v5"),
        steps=20_000,
        goal=950.0,
    ),
    "cart pole": Task(
        env=lambda: GenericGymEnv("CartPole-v1"),
        classes=CHOICES,
        steps=15_000,
        goal=350.0,
        agent={"polyak": 0.99, **FAST},
        nets={"hidden_sizes": (64, 64), "normalize_obs": False},
    ),
    "frozen lake": Task(
        env=lambda: GenericGymEnv("FrozenLake-v1", {"is_slippery": False}),
        classes=CHOICES,
        steps=6000,
        goal=0.9,
        agent={
            "polyak": 0.98,
            "gamma": 0.95,
            **FAST,
            "entropy_coef": 0.01,
            "learn_entropy_coef": False,
        },
        first_steps=3000,
    ),
    "lunar lander": Task(
        env=lambda: GenericGymEnv("LunarLander-v3"),
        classes=(IQNAgent, IQNActor),
        steps=100_000,
        goal=None,
        # rewards are up to 100
        agent={"gamma": 0.99, "lr": 1e-3, "actor_polyak": 0.998, "kappa": 10.0},
        nets={"width": 128, "hidden_size": 128, "longest_hold": 50},
        memory={"batch_size": 128, "n_steps": 3, "gamma": 0.99},
        # with fewer random actions, or shorter ones, more seeds learn to hover, and not to land
        tuned=lambda steps: {"epsilon": max(0.1, 1.0 - steps / 20_000)},
        episodes=10,
    ),
}


def practised(task, seed, steps):
    """Learn a task; after each step, yield its number and a function that makes a test and returns
    the mean return.
    """
    torch.manual_seed(seed)
    np.random.seed(seed)
    env, tests = task.env(), task.env()
    env.action_space.seed(seed)
    agent_cls, actor_cls, *critic_cls = task.classes
    networks = {"actor_cls": partial(actor_cls, **task.nets)}
    if critic_cls:
        networks["critic_cls"] = partial(critic_cls[0], **task.nets, **task.critics)
    agent = agent_cls(env.observation_space, env.action_space, **networks, **task.agent)
    actor = agent.get_actor()
    memory = ReplayMemory(memory_size=steps + 1000, **task.memory)
    memory.seed(seed)
    trained = 0
    for step in practise(env, actor, memory, steps, random_steps=task.first_steps, seed=seed):
        if task.tuned is not None and step % 500 == 0:
            agent.tune(**task.tuned(step))
        while task.first_steps < step and trained < step:
            agent.train(memory.sample())
            trained += 1
        yield step, partial(mean_return, tests, actor, seed + 1, task.episodes)


def learn(options, run, steps):
    name, _, seed = run
    return practised(TASKS[name], seed, steps)


def draw(runs, file):
    """Draw one plot per task, with one line per seed."""
    curves = defaultdict(dict)
    for (name, _, seed), points in runs.items():
        curves[name][seed] = [(steps, value) for steps, _, value in points]
    figure = new_figure(4.5 * len(curves), 3.5)
    all_axes = figure.subplots(1, len(curves), squeeze=False)[0]
    for axes, (name, seeds) in zip(all_axes, curves.items(), strict=True):
        for seed, points in seeds.items():
            axes.plot(*zip(*points, strict=True), label=f"seed {seed}")
        if (goal := TASKS[name].goal) is not None:
            axes.axhline(goal, color="grey", linestyle="--", label="goal")
        axes.set(title=name, xlabel="environment steps", ylabel="mean return of test episodes")
        axes.legend()
    figure.savefig(file, dpi=110)


def measure(options):
    options.variants = ["as it is"]
    goals = {name: {"goal": task.goal} for name, task in TASKS.items() if task.goal is not None}
    yield from learned(options, learn, {name: task.steps for name, task in TASKS.items()}, goals)
    if options.picture:
        draw(read(file_of(options)), options.picture)


if __name__ == "__main__":
    small = {"steps": 1010, "every": 1010, "autogroup": 0, "picture": "curves.png"}
    quick = {"tasks": ["lunar lander"], "seeds": [0], **small}
    benchmark(__doc__, measure, tasks=list(TASKS), picture="", **OPTIONS, quick=quick)
