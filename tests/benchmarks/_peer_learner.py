"""Training steps of SBX's SAC, for `learner.py --peer`: "WIDTH BATCH STEPS" -> steps per second.

Needs nothing of this package. The time includes drawing batches, which is part of SBX's training
loop.
"""

import os
import sys
import time

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

OBS, ACT = 17, 6


class Nothing(gymnasium.Env):
    observation_space = spaces.Box(-1.0, 1.0, (OBS,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (ACT,), np.float32)

    def reset(self, **_):
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.5, False, False, {}


def sbx(width, batch, steps):
    import jax
    from sbx import SAC

    sizes = {"net_arch": [width, width]}
    model = SAC(
        "MlpPolicy",
        Nothing(),
        batch_size=batch,
        learning_starts=100,
        gradient_steps=steps,
        policy_kwargs=sizes,
    )
    model.learn(150)

    def run():
        model.train(gradient_steps=steps, batch_size=batch)  # one call of the compiled loop
        jax.block_until_ready(model.policy.qf_state.params)

    return run


def main():
    threads = int(sys.argv[1])
    torch.set_num_threads(threads)
    # XLA starts more threads of its own
    if threads == 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    made = {}
    for line in sys.stdin:
        width, batch, steps = map(int, line.split())
        if line not in made:
            made[line] = sbx(width, batch, steps)
            made[line]()
        started = time.perf_counter()
        made[line]()
        print(f"answer {steps / (time.perf_counter() - started)}", flush=True)


if __name__ == "__main__":
    main()
