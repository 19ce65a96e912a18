"""Training steps of SBX and stable-baselines3, for `learner.py --peer`: "NAME WIDTH BATCH STEPS" -> steps per second.

Needs nothing of this package. SBX draws its batches in what is measured, as its compiled loop does; the batch of
stable-baselines3 is drawn beforehand.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

OBS, ACT = 17, 6


class Nothing(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(-1.0, 1.0, (OBS,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (ACT,), np.float32)

    def reset(self, **_: Any) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.5, False, False, {}


def sbx(width: int, batch: int, steps: int) -> Callable[[], Any]:
    import jax
    from sbx import SAC

    sizes = {"net_arch": [width, width]}
    model = SAC(
        "MlpPolicy", Nothing(), batch_size=batch, learning_starts=100, gradient_steps=steps, policy_kwargs=sizes
    )
    model.learn(150)

    def run() -> None:
        model.train(gradient_steps=steps, batch_size=batch)  # one call of the compiled loop
        jax.block_until_ready(model.policy.qf_state.params)

    return run


def stable_baselines3(width: int, batch: int, steps: int) -> Callable[[], Any]:
    from stable_baselines3 import SAC
    from stable_baselines3.common.buffers import ReplayBufferSamples
    from stable_baselines3.common.logger import Logger

    model = SAC("MlpPolicy", Nothing(), device="cpu", policy_kwargs={"net_arch": [width, width]})
    model.set_logger(Logger(None, []))
    column, flags = torch.randn(batch, 1), torch.zeros(batch, 1)
    samples = ReplayBufferSamples(
        torch.randn(batch, OBS), torch.rand(batch, ACT) * 2 - 1, torch.randn(batch, OBS), flags, column
    )
    model.replay_buffer.sample = lambda *_, **__: samples
    return lambda: model.train(gradient_steps=steps, batch_size=batch)


def main() -> None:
    threads = int(sys.argv[1])
    torch.set_num_threads(threads)
    if threads == 1 and hasattr(os, "sched_setaffinity"):  # XLA has threads of its own beside that one
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    made: dict[str, Callable[[], Any]] = {}
    for line in sys.stdin:
        name, *numbers = line.split()
        if line not in made:
            made[line] = globals()[name](*map(int, numbers))
            made[line]()
        started = time.perf_counter()
        made[line]()
        print(f"answer {int(numbers[-1]) / (time.perf_counter() - started)}", flush=True)


if __name__ == "__main__":
    main()
