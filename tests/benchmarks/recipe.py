"""Learning per step on MuJoCo's tasks: CrossQ as it ships.

    python tests/benchmarks/recipe.py [--tasks Hopper-v5 …] [--seeds 0 1 2 3 4] [--steps 50000]

Agent and memory run in a plain loop, with one thread. After every tenth of the steps, ten test
episodes without exploration give their mean return. The published returns (version 4 of the tasks,
ten seeds) are those of SimbaV2's authors (arXiv:2502.15280; its repository, results/baseline).
"""

import numpy as np
import torch
from _harness import benchmark, text

from tmrl_like.agents import CrossQAgent
from tmrl_like.agents.process import tune_process
from tmrl_like.envs import GenericGymEnv
from tmrl_like.envs.actions import default_action
from tmrl_like.replay import ReplayMemory
from tmrl_like.types import Buffer, Info

BESIDE = {
    "Hopper-v5": {"peer": "SAC 530, CrossQ 1,421", "goal": 2000},
    "Walker2d-v5": {"peer": "SAC 384, CrossQ 1,096", "goal": 1500},
    "HalfCheetah-v5": {"peer": "SAC 4,212, CrossQ 6,345", "goal": 6000},
}
RANDOM_STEPS, TESTS, EPISODES, GAMMA = 1000, 10, 10, 0.99


def learn(task, seed, steps):
    """Train; return the mean returns of all tests."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    env, tests = GenericGymEnv(task), GenericGymEnv(task)
    env.action_space.seed(seed)
    agent = CrossQAgent(env.observation_space, env.action_space, gamma=GAMMA)
    memory = ReplayMemory(memory_size=2 * steps, batch_size=128, gamma=GAMMA)
    memory.seed(seed)
    actor = agent.get_actor().in_numpy()
    returns, over = [], True
    for step in range(1, steps + 1):
        if over:
            obs, info = env.reset(**({"seed": seed} if step == 1 else {}))
            first = default_action(env), obs, 0.0, False, False, Info(info, is_reset=True)
            memory.append(Buffer([first], "worker"))
        explores = step <= RANDOM_STEPS
        action = env.action_space.sample() if explores else actor.act_(obs)
        obs, rew, terminated, truncated, info = env.step(action)
        over = terminated or truncated
        memory.append(Buffer([(action, obs, rew, terminated, truncated, Info(info))], "worker"))
        if not explores:
            agent.train(memory.sample())
        if step % max(1, steps // TESTS) == 0:
            returns.append(mean_return(tests, actor, seed))
    print(f"{task}, seed {seed}:", *map(text, returns), flush=True)
    return returns


def mean_return(env, actor, seed):
    total = 0.0
    for episode in range(EPISODES):
        over = False
        obs, _ = env.reset(seed=1000 * seed + episode)
        while not over:
            obs, rew, terminated, truncated, _ = env.step(actor.act_(obs, test=True))
            total += float(rew)
            over = terminated or truncated
    return total / EPISODES


def measure(options):
    tune_process(threads=1)
    for task in options.tasks:
        ends = [learn(task, seed, options.steps)[-1] for seed in options.seeds]
        yield {
            "what": f"{task}, crossq: after {options.steps:,} steps",
            "ours": f"{text(float(np.mean(ends)))} ± {text(float(np.std(ends)))}",
            "each seed": ", ".join(map(text, ends)),
            **BESIDE[task],
        }


if __name__ == "__main__":
    benchmark(
        __doc__,
        measure,
        tasks=list(BESIDE),
        seeds=[0, 1, 2, 3, 4],
        steps=50_000,
        quick={"tasks": ["Hopper-v5"], "seeds": [0], "steps": 1100},
    )
