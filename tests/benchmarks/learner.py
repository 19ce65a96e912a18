"""Training steps per second: SAC and REDQ alone, in the whole loop, and beside their matrix products alone.

    python tests/benchmarks/learner.py [--threads 1 2] [--rounds 30] [--peer PYTHON]

MLP of 256 x 256, batch of 256, observations of 17 and actions of 6 numbers. All that is compared takes turns in
slices of a few steps. The floor is a SAC step's matrix products and nothing else. `--peer` names the Python of
a virtual environment with stable-baselines3 and tmrl 0.7.1, which then run in a process of their own.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import finish, median, repeat
from gymnasium import spaces

from tmrl_like.agents import EnsembleCritic, REDQAgent, SACAgent, SquashedGaussianActor
from tmrl_like.agents.agent import TrainingAgent
from tmrl_like.agents.process import tune_process
from tmrl_like.base.functional import partial
from tmrl_like.policies.actor import ActorModule
from tmrl_like.replay import ReplayMemory
from tmrl_like.trainer.schedule import TrainingOffline
from tmrl_like.types import Batch, Buffer, Delivery, Info, Receipt

OBS, ACT, WIDTH, BATCH = 17, 6, 256, 256
SPACES = spaces.Box(-np.inf, np.inf, (OBS,)), spaces.Box(-1.0, 1.0, (ACT,))
SAMPLES = 100_000
GOALS = {"sac_per_s": {1: 180.0, 2: 290.0}, "sac_x_sb3": 1.9, "redq_x_tmrl": 2.0, "loop_share": 0.95}
PLAIN: dict[str, Any] = {  # SAC as in the papers and in what it is compared with
    "actor_cls": partial(SquashedGaussianActor, normalize_obs=False),
    "critic_cls": partial(EnsembleCritic, normalize_obs=False, layer_norm=False),
    "actor_polyak": 0.0,
    "scale_rewards": False,
}
EQUAL = {"policy_delay": 1}  # tmrl's REDQ trains its actor in each step


class Silence:
    """A network on which nothing arrives."""

    def retrieve(self, timeout_s: float = 0.0) -> Sequence[Delivery]:
        return []

    def confirm(self, deliveries: Sequence[Delivery], stored: bool = False) -> None:
        pass

    def reject(self, receipt: Receipt, reason: str) -> None:
        pass

    def broadcast_model(self, model: ActorModule) -> int:
        return 0

    def published_at(self, version: int) -> float | None:
        return None

    def fleet(self) -> dict[str, float]:
        return {}

    def overruns(self) -> tuple[int, int]:
        return 0, 0

    def who_is_missing(self) -> str:
        return ""


class Peer:
    """Another package's learner, in a process of its own."""

    def __init__(self, python: str) -> None:
        script = Path(__file__).with_name("peer_learner.py")
        self._process = subprocess.Popen(
            [python, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def __call__(self, name: str, threads: int, steps: int) -> float:
        """Steps per second."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name} {threads} {steps}\n")
        for line in self._process.stdout:
            if line.startswith("rate "):
                return float(line.split()[1])
        raise SystemExit(f"{name} does not run in that environment; its messages are above")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def filled_memory(nb_steps: int, device: str) -> ReplayMemory:
    memory = ReplayMemory(device=device, nb_steps=nb_steps, memory_size=SAMPLES, batch_size=BATCH)
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


def matrix_products() -> Callable[[], None]:
    """A SAC step's products: two actors' and three critics' passes forward, one and a half of each backward."""
    x_BH, w_HH = torch.randn(BATCH, WIDTH), torch.randn(WIDTH, WIDTH)
    x_NBH, w_NHH = torch.randn(2, BATCH, WIDTH), torch.randn(2, WIDTH, WIDTH)
    obs_BO, w_OH = torch.randn(BATCH, OBS), torch.randn(OBS, WIDTH)
    both_NBI, w_NIH = torch.randn(2, BATCH, OBS + ACT), torch.randn(2, OBS + ACT, WIDTH)

    def products() -> None:
        for _ in range(3):  # the critics: target, in training, for the actor
            torch.bmm(both_NBI, w_NIH)
            torch.bmm(x_NBH, w_NHH)
        for _ in range(3):  # back: to the weights, to the layer before; for the actor, to the layer before only
            torch.bmm(x_NBH, w_NHH)
        torch.bmm(both_NBI.mT, x_NBH)
        torch.bmm(x_NBH, w_NIH.mT)
        for _ in range(2):  # the actor: on the next observation, on the observation
            torch.mm(obs_BO, w_OH)
            torch.mm(x_BH, w_HH)
        for _ in range(2):  # back: to the weights, to the layer before
            torch.mm(x_BH, w_HH)
        torch.mm(obs_BO.T, x_BH)

    return products


def whole_loop(training: TrainingOffline) -> float:
    """Steps per second of a round as the trainer runs it: sampling, training, counting, looking for samples."""
    started = time.perf_counter()
    training.run_epoch(Silence())
    return training.steps / (time.perf_counter() - started)


def measure(threads: int, rounds: int, steps: int, peer: Peer | None) -> Iterator[tuple[str, Any]]:
    torch.set_num_threads(threads)
    agents: dict[str, TrainingAgent] = {"sac": SACAgent(*SPACES, **PLAIN), "redq": REDQAgent(*SPACES, **PLAIN, **EQUAL)}
    training = TrainingOffline(
        env_cls=SPACES,
        memory_cls=filled_memory,
        training_agent_cls=partial(SACAgent, **PLAIN),
        rounds=1,
        steps=steps,
        max_training_steps_per_env_step=np.inf,
        device="cpu",
    )
    batch: Batch = training.memory.sample()
    calls: dict[str, Callable[[], float]] = {"floor": partial(rate, matrix_products(), steps)}
    for name, agent in agents.items():
        calls[name] = partial(rate, partial(agent.train, batch), steps)
    calls["loop"] = partial(whole_loop, training)
    calls["memory"] = partial(rate, training.memory.sample, 10 * steps)
    for name in ("sb3_sac", "tmrl_sac", "tmrl_redq") if peer else ():
        calls[name] = partial(peer, name, threads, steps)
    repeat(3, *calls.values())
    measured = dict(zip(calls, repeat(rounds, *calls.values()), strict=True))
    for name, rates in measured.items():
        yield f"{name}_per_s", median(rates)
    pairs = {"sac_share_of_floor": ("sac", "floor"), "loop_share_of_sac": ("loop", "sac")}
    if peer:
        pairs |= {
            "sac_x_sb3": ("sac", "sb3_sac"),
            "sac_x_tmrl": ("sac", "tmrl_sac"),
            "redq_x_tmrl": ("redq", "tmrl_redq"),
        }
    for name, (over, under) in pairs.items():
        yield name, median([a / b for a, b in zip(measured[over], measured[under], strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--steps", type=int, default=20, help="per slice")
    parser.add_argument("--peer", help="the Python of an environment with stable-baselines3 and tmrl")
    arguments = parser.parse_args()
    tune_process()
    peer = Peer(arguments.peer) if arguments.peer else None
    result: dict[str, Any] = {"goals": GOALS}
    for threads in arguments.threads:
        for name, value in measure(threads, arguments.rounds, arguments.steps, peer):
            result[f"threads_{threads}_{name}"] = value
    if peer:
        peer.close()
    finish(result)


if __name__ == "__main__":
    main()
