"""Learning per step on MuJoCo's tasks: plain SAC, SAC as it ships, CrossQ, the recipe, and the
recipe without each of its parts.

    python tests/benchmarks/recipe.py --file RESULTS [--tasks Hopper-v5 …]
                                      [--variants plain recipe …] [--seeds 0 1 2] [--steps 50000]
                                      [--jobs 1] [--show]

Agent and memory run in a plain loop. Every 5,000 steps, ten test episodes without exploration give
their mean return. The published returns (version 4 of the tasks, ten seeds) are those of SimbaV2's
authors (arXiv:2502.15280; its repository, results/baseline).
"""

import numpy as np
import torch
from _harness import benchmark
from _runs import OPTIONS, learned, mean_return
from kit.solo import practise

from tmrl_like.agents import CrossQAgent, EnsembleCritic, SACAgent, SquashedGaussianActor
from tmrl_like.base.functional import partial
from tmrl_like.envs import GenericGymEnv
from tmrl_like.replay import ReplayMemory

STEPS = {"Hopper-v5": 50_000, "Walker2d-v5": 50_000, "HalfCheetah-v5": 50_000}
BESIDE = {
    "Hopper-v5": {"peer": "SAC 530, CrossQ 1,421, XQC 2,735", "goal": 2000},
    "Walker2d-v5": {"peer": "SAC 384, CrossQ 1,096, XQC 2,374", "goal": 1500},
    "HalfCheetah-v5": {"peer": "SAC 4,212, CrossQ 6,345, XQC 6,754", "goal": 6000},
}
FIRST_STEPS, GAMMA = 1000, 0.99

PLAIN = {
    "normalize_obs": False,
    "layer_norm": False,  # in the critics
    "scale_rewards": False,
    "n_steps": 1,  # rewards in a transition
    "actor_polyak": 0.0,  # share of the actor's moving average that is kept in each step
    "updates": 1,  # training steps per environment step
}  # as in stable-baselines3 and Spinning Up
AS_IT_SHIPS = PLAIN | {"normalize_obs": True, "layer_norm": True, "actor_polyak": 0.995}
RECIPE = AS_IT_SHIPS | {"scale_rewards": True, "n_steps": 3, "updates": 4}
VARIANTS = {
    "plain": PLAIN,
    "as it ships": AS_IT_SHIPS,
    "recipe": RECIPE,
    "crossq": PLAIN | {"updates": 2},
}
VARIANTS |= {f"without {part}": RECIPE | {part: value} for part, value in PLAIN.items()}


def make_agent(env, name):
    spaces, variant = (env.observation_space, env.action_space), VARIANTS[name]
    if name == "crossq":
        return CrossQAgent(*spaces, gamma=GAMMA)
    nets = {"hidden_sizes": (256, 256), "normalize_obs": variant["normalize_obs"]}
    return SACAgent(
        *spaces,
        actor_cls=partial(SquashedGaussianActor, **nets),
        critic_cls=partial(EnsembleCritic, **nets, layer_norm=variant["layer_norm"]),
        gamma=GAMMA,
        actor_polyak=variant["actor_polyak"],
        scale_rewards=variant["scale_rewards"],
        target_entropy=-1.0 * int(np.prod(env.action_space.shape)),
    )


def learn(options, run, steps):
    task, name, seed = run
    torch.manual_seed(seed)
    np.random.seed(seed)
    env, tests = GenericGymEnv(task), GenericGymEnv(task)
    env.action_space.seed(seed)
    agent, variant = make_agent(env, name), VARIANTS[name]
    batch_size = 128 if name == "crossq" else 256
    memory = ReplayMemory(
        memory_size=2 * steps, batch_size=batch_size, n_steps=variant["n_steps"], gamma=GAMMA
    )
    memory.seed(seed)
    actor = agent.get_actor().in_numpy()

    def test():
        return mean_return(tests, actor, seed)

    for step in practise(env, actor, memory, steps, random_steps=FIRST_STEPS, seed=seed):
        for _ in range(variant["updates"] if step > FIRST_STEPS else 0):
            agent.train(memory.sample())
        yield step, test


def measure(options):
    return learned(options, learn, STEPS, BESIDE)


if __name__ == "__main__":
    quick = {
        "tasks": ["Hopper-v5"],
        "variants": ["as it ships", "crossq"],
        "seeds": [0],
        "steps": 1020,
        "every": 1020,
        "autogroup": 0,
    }
    benchmark(__doc__, measure, tasks=list(STEPS), variants=list(VARIANTS), **OPTIONS, quick=quick)
