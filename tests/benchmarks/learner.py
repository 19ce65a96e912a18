"""Training steps per second: SAC and REDQ, in the whole loop, and beside their arithmetic and SBX.

    python tests/benchmarks/learner.py [--threads 1 2] [--rounds 30] [--peer PYTHON]

Observations of 17 and actions of 6 numbers. All that is compared takes turns in slices of a few steps. "sac" is SAC
as the peers have it, "recipe" is the agent as it ships. The arithmetic of a step is its matrix products, at the best
rate that `torch.mm` reaches in this run. `--peer` names the Python of a virtual environment with sbx-rl (which brings
stable-baselines3), which then run in a process of their own.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import Options, finish, median, peer_has, repeat
from gymnasium import spaces

from tmrl_like.agents import (
    EnsembleCritic,
    REDQAgent,
    SACAgent,
    SquashedGaussianActor,
)
from tmrl_like.agents.agent import TrainingAgent
from tmrl_like.agents.process import tune_process
from tmrl_like.base.functional import partial
from tmrl_like.replay import ReplayMemory
from tmrl_like.trainer.interface import TrainerInterface
from tmrl_like.trainer.schedule import TrainingOffline
from tmrl_like.types import Batch, Buffer, Info

OBS, ACT, BATCH = 17, 6, 256
SIZES = {64: 128, 256: 256}  # width of the layers, batch
OBSERVATIONS, ACTIONS = spaces.Box(-1.0, 1.0, (OBS,)), spaces.Box(-1.0, 1.0, (ACT,))
SPACES = OBSERVATIONS, ACTIONS
SAMPLES = 100_000
GOALS = {"sac_x_sbx": 1.2, "redq_share_of_arithmetic": 0.7, "loop_share": 0.95}


class Peer:
    """Another package's learner, in a process of its own."""

    def __init__(self, python: str, threads: int) -> None:
        xla = f"--xla_cpu_multi_thread_eigen={str(threads > 1).lower()} intra_op_parallelism_threads={threads}"
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name("_peer_learner.py")), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, "XLA_FLAGS": xla, "OMP_NUM_THREADS": str(threads)},
        )

    def __call__(self, name: str, width: int, steps: int) -> float:
        """Steps per second."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name} {width} {SIZES[width]} {steps}\n")
        for line in self._process.stdout:
            if line.startswith("rate "):
                return float(line.split()[1])
        raise SystemExit(f"{name} does not run in that environment; its messages are above")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def filled_memory(nb_steps: int, device: str, batch_size: int = BATCH) -> ReplayMemory:
    memory = ReplayMemory(device=device, nb_steps=nb_steps, memory_size=SAMPLES, batch_size=batch_size)
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((SAMPLES, OBS), np.float32)
    act = rng.uniform(-1, 1, (SAMPLES, ACT)).astype(np.float32)
    for first in range(0, SAMPLES, 1000):
        rows = range(first, first + 1000)
        memory.append(Buffer([(act[i], obs[i], 1.0, False, False, Info(is_reset=i == first)) for i in rows], "w"))
    return memory


def rate(step: Callable[[], Any], steps: int) -> float:
    started = time.perf_counter()
    for _ in range(steps):
        step()
    return steps / (time.perf_counter() - started)


def flop(width: int, critics: int, in_target: int) -> float:
    """Of a step's matrix products, for one transition."""
    inputs, outputs, square = OBS + ACT, 2 * ACT, width * width
    actor, critic = OBS * width + square + width * outputs, inputs * width + square + width
    to_actions = square + width + ACT * width
    forward = 2 * actor + (in_target + 2 * critics) * critic
    backward = critics * (critic + square + width) + critics * to_actions + actor + square + width * outputs
    return 2.0 * (forward + backward)


def best_mm() -> Callable[[], float]:
    """FLOP/s of a matrix product of the size that a step is made of."""
    a, b, c = torch.randn(BATCH, 256), torch.randn(256, 256), torch.empty(BATCH, 256)
    return lambda: 2.0 * BATCH * 256 * 256 * rate(lambda: torch.mm(a, b, out=c), 50)


def batch(width: int) -> Batch:
    size = SIZES[width]
    zeros, (obs, next_obs) = torch.zeros(size), torch.rand(2, size, OBS) * 2 - 1
    return Batch(obs, torch.rand(size, ACT) * 2 - 1, torch.rand(size), next_obs, zeros, zeros)


def agents(width: int) -> dict[str, tuple[TrainingAgent, Batch]]:
    nets = {"hidden_sizes": (width, width)}
    actor = partial(SquashedGaussianActor, **nets)
    plain = {
        "actor_cls": partial(actor, normalize_obs=False),
        "critic_cls": partial(EnsembleCritic, normalize_obs=False, layer_norm=False),
        "actor_polyak": 0.0,
    }
    return {
        "sac": (SACAgent(*SPACES, **plain), batch(width)),
        "sac_page": (SACAgent(*SPACES, **plain, acceleration="off"), batch(width)),
        "recipe": (SACAgent(*SPACES, actor_cls=actor), batch(width)),
        "redq": (REDQAgent(*SPACES, **plain, policy_delay=1), batch(width)),
    }


def whole_loop(training: TrainingOffline) -> float:
    """Steps per second of a round as the trainer runs it: sampling, training, counting, looking for samples."""
    started = time.perf_counter()
    training.run_epoch(TrainerInterface(None, 0))
    return training.steps / (time.perf_counter() - started)


def measure(width: int, rounds: int, steps: int, peer: Peer | None) -> Iterator[tuple[str, Any]]:
    made = agents(width)
    training = TrainingOffline(
        env_cls=SPACES,
        memory_cls=partial(filled_memory, batch_size=SIZES[width]),
        training_agent_cls=partial(SACAgent, actor_cls=partial(SquashedGaussianActor, hidden_sizes=(width, width))),
        rounds=1,
        steps=steps,
        max_training_steps_per_env_step=np.inf,
        device="cpu",
    )
    calls: dict[str, Callable[[], float]] = {"mm": best_mm()}
    for name, (agent, its_batch) in made.items():
        calls[name] = partial(rate, partial(agent.train, its_batch), steps)
    calls["loop"] = partial(whole_loop, training)
    calls["memory"] = partial(rate, training.memory.sample, 10 * steps)
    for name in ("sbx", "stable_baselines3") if peer else ():
        calls[name] = partial(peer, name, width, steps)
    repeat(min(3, rounds), *calls.values())
    measured = dict(zip(calls, repeat(rounds, *calls.values()), strict=True))
    rows = SIZES[width]
    arithmetic = {"sac": flop(width, 2, 2) * rows, "redq": flop(width, 10, 2) * rows}
    for name, rates in measured.items():
        yield f"{name}_gflop_per_s" if name == "mm" else f"{name}_per_s", median(rates) / (1e9 if name == "mm" else 1)
    for name, work in arithmetic.items():
        yield f"{name}_share_of_arithmetic", median(measured[name]) * work / max(measured["mm"])
    pairs = {"loop_share": ("loop", "recipe"), "sac_x_page": ("sac", "sac_page")}
    if peer:
        pairs |= {"sac_x_sbx": ("sac", "sbx"), "recipe_x_sbx": ("recipe", "sbx")}
        pairs |= {"sac_x_sb3": ("sac", "stable_baselines3")}
    for name, (over, under) in pairs.items():
        yield name, median([a / b for a, b in zip(measured[over], measured[under], strict=True)])


def main() -> None:
    parser = Options(__doc__, threads=[1], rounds=1, steps=4)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--steps", type=int, default=40, help="per slice")
    parser.add_argument("--peer", help="the Python of an environment with sbx-rl")
    arguments = parser.parse()
    tune_process()
    result: dict[str, Any] = {"goals": GOALS}
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        peer = Peer(arguments.peer, threads) if peer_has(arguments.peer, "sbx-rl") else None
        for width in [64] if arguments.quick else SIZES:
            for name, value in measure(width, arguments.rounds, arguments.steps, peer):
                result[f"threads_{threads}_width_{width}_{name}"] = value
        if peer:
            peer.close()
    finish(result)


if __name__ == "__main__":
    main()
