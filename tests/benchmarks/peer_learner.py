"""Training steps of stable-baselines3 and tmrl, for `learner.py --peer`: reads "NAME THREADS STEPS", says "rate R".

Needs nothing of this package. tmrl's own `__init__` downloads files and reads a configuration; its agents need
neither, so they are imported around it.
"""

from __future__ import annotations

import importlib.util
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

OBS, ACT, BATCH = 17, 6, 256
OBSERVATIONS, ACTIONS = spaces.Box(-np.inf, np.inf, (OBS,)), spaces.Box(-1.0, 1.0, (ACT,))


class Nothing(gymnasium.Env[Any, Any]):
    observation_space, action_space = OBSERVATIONS, ACTIONS


def stable_baselines3() -> Callable[[int], Any]:
    from stable_baselines3 import SAC
    from stable_baselines3.common.buffers import ReplayBufferSamples
    from stable_baselines3.common.logger import Logger

    model = SAC("MlpPolicy", Nothing(), device="cpu")
    model.set_logger(Logger(None, []))
    column, flags = torch.randn(BATCH, 1), torch.zeros(BATCH, 1)
    batch = ReplayBufferSamples(
        torch.randn(BATCH, OBS), torch.rand(BATCH, ACT) * 2 - 1, torch.randn(BATCH, OBS), flags, column
    )
    model.replay_buffer.sample = lambda *_, **__: batch
    return lambda steps: model.train(gradient_steps=steps, batch_size=BATCH)


def tmrl(agent: str) -> Callable[[int], Any]:
    if "tmrl" not in sys.modules:
        spec = importlib.util.find_spec("tmrl")
        assert spec is not None
        package = types.ModuleType("tmrl")
        package.__path__ = list(spec.submodule_search_locations or ())
        sys.modules["tmrl"] = package
        constants = types.ModuleType("tmrl.config.config_constants")
        constants.__getattr__ = lambda _: False  # DEBUG_MODE and the like
        sys.modules["tmrl.config.config_constants"] = constants
        config = types.ModuleType("tmrl.config")
        config.config_constants = constants
        sys.modules["tmrl.config"] = config
    from tmrl.custom import custom_algorithms

    made = getattr(custom_algorithms, agent)(observation_space=OBSERVATIONS, action_space=ACTIONS, device="cpu")
    numbers, flags = torch.randn(BATCH), torch.zeros(BATCH)
    batch = torch.randn(BATCH, OBS), torch.rand(BATCH, ACT) * 2 - 1, numbers, torch.randn(BATCH, OBS), flags, flags
    return lambda steps: [made.train(batch) for _ in range(steps)]


MAKERS: dict[str, Callable[[], Callable[[int], Any]]] = {
    "sb3_sac": stable_baselines3,
    "tmrl_sac": lambda: tmrl("SpinupSacAgent"),
    "tmrl_redq": lambda: tmrl("REDQSACAgent"),
}


def main() -> None:
    made: dict[str, Callable[[int], Any]] = {}
    for line in sys.stdin:
        name, threads, steps = line.split()
        torch.set_num_threads(int(threads))
        run = made[name] if name in made else made.setdefault(name, MAKERS[name]())
        started = time.perf_counter()
        run(int(steps))
        print(f"rate {int(steps) / (time.perf_counter() - started)}", flush=True)


if __name__ == "__main__":
    main()
