"""Tasks that the agents must learn, in one process, and their learning curves.

    python tests/learning/tasks.py [--tasks pendulum …] [--seeds 0 1 2]
                                   [--picture docs/figures/learning.png]

Prints the returns of test episodes over environment steps and draws them. MuJoCo's task needs the
extra `mujoco`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from solo import episode

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
from tmrl_like.agents.process import tune_process
from tmrl_like.base.functional import partial
from tmrl_like.envs import GenericGymEnv
from tmrl_like.metrics.curves import new_figure
from tmrl_like.replay import ReplayMemory
from tmrl_like.types import Buffer


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task, the agent that learns it, and the return that it must reach.

    Attributes:
        env: makes the environment from a seed, for its first reset.
        steps: environment steps of the training.
        goal: mean return that test episodes must reach at the end; None: some seeds fail.
        classes: of the agent, the actor and, if it has any, the critics.
        agent: options of the agent.
        nets: options of actor and critics.
        memory: options of `ReplayMemory`.
        tuned: from the environment steps so far, what the agent is tuned to every 500 of them.
        first_steps: random steps before training begins; then the training steps catch up with the
            environment steps.
        episodes: test episodes per evaluation.
        evaluations: how many there are, evenly spread over `steps`.
    """

    env: Callable[[int], Any]
    steps: int
    goal: float | None
    classes: tuple[Any, ...] = (SACAgent, SquashedGaussianActor, EnsembleCritic)
    agent: dict[str, Any] = field(default_factory=dict)
    nets: dict[str, Any] = field(default_factory=lambda: {"hidden_sizes": (64, 64)})
    memory: dict[str, Any] = field(default_factory=dict)
    tuned: Callable[[int], dict[str, float]] | None = None
    first_steps: int = 1000
    episodes: int = 5
    evaluations: int = 10


FAST = {"lr_actor": 1e-3, "lr_critic": 1e-3, "lr_entropy": 1e-3}
CHOICES = DiscreteSACAgent, CategoricalActor, DiscreteEnsembleCritic
TASKS = {
    "pendulum": Task(
        env=lambda seed: GenericGymEnv("Pendulum-v1"),
        steps=8000,
        goal=-200.0,
        agent={"gamma": 0.98, "polyak": 0.99, **FAST},
        episodes=20,  # their returns depend on where they start: -1 to -400
    ),
    "inverted pendulum (MuJoCo)": Task(
        env=lambda seed: GenericGymEnv("InvertedPendulum-v5"), steps=20_000, goal=950.0, agent=FAST
    ),
    "cart pole": Task(
        env=lambda seed: GenericGymEnv("CartPole-v1"),
        classes=CHOICES,
        steps=15_000,
        goal=350.0,
        agent={"polyak": 0.99, **FAST},
        nets={"hidden_sizes": (64, 64), "normalize_obs": False},
    ),
    "frozen lake": Task(
        env=lambda seed: GenericGymEnv("FrozenLake-v1", {"is_slippery": False}),
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
        env=lambda seed: GenericGymEnv("LunarLander-v3"),
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
        evaluations=20,
    ),
}


def learn(task, seed):
    """Train; yield the environment steps so far and the returns of test episodes at each
    evaluation, the last one at the end.
    """
    torch.manual_seed(seed)
    np.random.seed(seed)
    env = task.env(seed)
    env.reset(seed=seed)
    env.action_space.seed(seed)
    agent_cls, *network_classes = task.classes
    networks = {
        name: partial(network_cls, **task.nets)
        for name, network_cls in zip(("actor_cls", "critic_cls"), network_classes, strict=False)
    }
    agent = agent_cls(env.observation_space, env.action_space, **networks, **task.agent)
    actor = agent.get_actor()
    memory = ReplayMemory(memory_size=task.steps + 1000, **task.memory)
    memory.seed(seed)
    steps = trained = evaluated = 0
    while evaluated < task.evaluations:
        explores = steps < task.first_steps
        act = (lambda obs: env.action_space.sample()) if explores else actor.act_
        for sample in episode(env, act):
            memory.append(Buffer([sample], "worker"))
            steps += not sample.info.is_reset
            if task.tuned is not None and steps % 500 == 0:
                agent.tune(**task.tuned(steps))
                agent.get_actor()  # writes it to the networks
            while task.first_steps < steps and trained < steps:
                agent.train(memory.sample())
                trained += 1
            is_due = steps * task.evaluations >= task.steps * (evaluated + 1)
            if is_due and evaluated < task.evaluations:
                evaluated += 1
                yield steps, returns(task, actor, 1000 * (seed + 1))


def returns(task, actor, seed):
    """Return the returns of one evaluation's test episodes."""
    totals = []
    for number in range(seed, seed + task.episodes):
        env = task.env(number)
        samples = episode(env, partial(actor.act_, test=True), number)
        totals.append(sum(float(sample.rew) for sample in samples))
        env.close()
    return totals


def draw(curves, file):
    """Draw one plot per task, with one line per seed."""
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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--picture", type=Path, help="where to draw the curves, as PNG")
    arguments = parser.parse_args()
    tune_process(threads=1)
    curves = {name: {} for name in arguments.tasks}
    for name in arguments.tasks:
        for seed in arguments.seeds:
            points = curves[name][seed] = []
            for steps, totals in learn(TASKS[name], seed):
                points.append((steps, float(np.mean(totals))))
                print(f"{name}, seed {seed}: {steps} steps, return {points[-1][1]:.1f}", flush=True)
    if arguments.picture:
        draw(curves, arguments.picture)


if __name__ == "__main__":
    main()
