"""Training steps per second of `IQNAgent` from pictures, beside its arithmetic; and its decisions.

    python tests/benchmarks/iqn.py [--threads 1 2] [--rounds 15] [--compiled]

A batch of 512 transitions: a grey picture of 64×64 and 8 numbers, 9 actions. All that is compared takes turns. The
arithmetic of a step is its convolutions and matrix products, at the best rates that `conv2d`, of the three layers,
and `torch.mm` reach in this run. `--compiled` also measures what `torch.compile` makes of both; it needs a C++
compiler, and minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from _common import Options, finish, median, repeat
from gymnasium import spaces

from tmrl_like.agents import IQNActor, IQNAgent
from tmrl_like.agents.process import tune_process
from tmrl_like.base.functional import partial
from tmrl_like.types import Batch

BATCH, ACTIONS, NUMBERS, SIDE = 512, 9, 8, 64
OBSERVATIONS = spaces.Tuple((spaces.Box(0, 255, (1, SIDE, SIDE), np.uint8), spaces.Box(-1.0, 1.0, (NUMBERS,))))
CONVOLUTIONS = ((1, 32, 8, 4, 64, 15), (32, 64, 4, 2, 15, 6), (64, 64, 3, 1, 6, 4))  # in, out, kernel, stride, sides
POOLED, WIDTH, HIDDEN, COSINES, QUANTILES = 2, 256, 2 * 256, 64, 8
GOALS = {"share_of_arithmetic": 0.6}


def seconds(call: Callable[[], Any], times: int = 1) -> float:
    """Of the processor where one thread works, so that others on the machine matter less; else of the clock."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    started = clock()
    for _ in range(times):
        call()
    return (clock() - started) / times


def arithmetic() -> tuple[float, float]:
    """FLOP of a step: of convolutions, and of products. A pass backwards is two, but for what needs no gradient."""
    layers = [2.0 * side * side * n_out * n_in * kernel**2 for n_in, n_out, kernel, _, _, side in CONVOLUTIONS]
    state = 2.0 * (CONVOLUTIONS[-1][1] * POOLED**2 + NUMBERS + 1) * WIDTH
    embedding, hidden, heads = (2.0 * n for n in (COSINES * WIDTH, WIDTH * HIDDEN, HIDDEN * ACTIONS))
    in_training, of_target = 3 * (hidden + heads) + 2 * embedding, embedding + hidden + heads
    quantiles = QUANTILES * (in_training + of_target + hidden)  # the last: what the next action is chosen by
    return BATCH * (5 * sum(layers) - layers[0]), BATCH * (5 * state + quantiles)


def convolution(n_in: int, n_out: int, kernel: int, stride: int, side: int, side_out: int) -> Callable[[], float]:
    """FLOP/s."""
    x = torch.rand(BATCH, side, side, n_in).movedim(-1, 1)
    weight, bias = torch.rand(n_out, n_in, kernel, kernel), torch.rand(n_out)
    flop = 2.0 * BATCH * side_out**2 * n_out * n_in * kernel**2
    return lambda: flop / seconds(lambda: torch.nn.functional.conv2d(x, weight, bias, stride))


def product() -> Callable[[], float]:
    """FLOP/s of a matrix product of the size that a step is made of."""
    a, b, c = torch.rand(BATCH, 1024), torch.rand(1024, WIDTH), torch.empty(BATCH, WIDTH)
    return lambda: 2.0 * BATCH * 1024 * WIDTH / seconds(lambda: torch.mm(a, b, out=c))


def batch() -> Batch:
    def obs() -> Any:
        return torch.randint(0, 256, (BATCH, 1, SIDE, SIDE), dtype=torch.uint8), torch.rand(BATCH, NUMBERS) * 2 - 1

    zeros = torch.zeros(BATCH)
    return Batch(obs(), torch.randint(0, ACTIONS, (BATCH,)), torch.rand(BATCH), obs(), zeros, zeros)


def measure(rounds: int, compiled: bool) -> Iterator[tuple[str, float]]:
    agents, its_batch = {"step": IQNAgent(OBSERVATIONS, spaces.Discrete(ACTIONS))}, batch()
    actors = {"act": IQNActor(OBSERVATIONS, spaces.Discrete(ACTIONS))}
    obs = np.zeros((1, SIDE, SIDE), np.uint8), np.zeros(NUMBERS, np.float32)
    if compiled:
        agents["step_compiled"], actors["act_compiled"] = map(_compiled, (agents["step"], actors["act"]))
    rates = {f"conv_{n}": convolution(*layer) for n, layer in enumerate(CONVOLUTIONS)} | {"mm": product()}
    calls = dict(rates)
    calls |= {name: partial(seconds, partial(agent.train, its_batch)) for name, agent in agents.items()}
    calls |= {name: partial(seconds, partial(actor.act_, obs, test=True), 20) for name, actor in actors.items()}
    repeat(min(3, rounds), *calls.values())
    measured = dict(zip(calls, repeat(rounds, *calls.values()), strict=True))
    of_convolutions, of_products = arithmetic()
    best = max(rate for name in rates if name != "mm" for rate in measured[name])
    least_s = of_convolutions / best + of_products / max(measured["mm"])
    for name in rates:
        yield f"{name}_gflop_per_s", median(measured[name]) / 1e9
    for name in agents:
        yield f"{name}s_per_s", 1.0 / median(measured[name])
        yield f"{name}_share_of_arithmetic", least_s / median(measured[name])
    for name in actors:
        yield f"{name}_ms", median(measured[name]) * 1e3


def _compiled(made: Any) -> Any:
    """Another one whose network is compiled."""
    other = type(made)(made.observation_space, made.action_space)
    name = "_quantiles" if isinstance(made, IQNAgent) else "forward"
    setattr(other, name, torch.compile(getattr(other, name), dynamic=False))
    return other


def main() -> None:
    parser = Options(__doc__, threads=[1], rounds=1)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--compiled", action="store_true")
    arguments = parser.parse()
    tune_process()
    result: dict[str, Any] = {"goals": GOALS}
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        for name, value in measure(arguments.rounds, arguments.compiled):
            result[f"threads_{threads}_{name}"] = value
    finish(result)


if __name__ == "__main__":
    main()
