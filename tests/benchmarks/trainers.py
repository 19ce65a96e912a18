"""Two trainers that learn as one, against two that do not speak to each other: `python tests/benchmarks/trainers.py`.

Both are processes with one thread each, train SAC on a batch of random numbers, and take turns: together, alone,
together, … Between them, what the same two come to that wait for each other as often and exchange nothing: no way to
average can be faster. Beside it, how long an all-reduce of the gradients takes, and how long the same bytes take each
way over the loopback at once.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _common import Options, finish, median, repeat, timed
from kit.ports import free_port

OBS, ACT = 17, 6


def part(options: argparse.Namespace) -> None:
    """One of the two; rank 0 prints what came out."""
    import torch
    from gymnasium import spaces

    from tmrl_like.agents import EnsembleCritic, SACAgent, SquashedGaussianActor
    from tmrl_like.agents.process import tune_process
    from tmrl_like.base.functional import partial
    from tmrl_like.trainer.options import RankOptions
    from tmrl_like.trainer.ranks import Ranks, Vote
    from tmrl_like.types import Batch

    tune_process(1)
    ranks = Ranks(RankOptions())
    torch.manual_seed(ranks.rank)
    sizes, rows = (options.width, options.width), options.batch
    alone, both, waiting = (
        SACAgent(
            spaces.Box(-1.0, 1.0, (OBS,)),
            spaces.Box(-1.0, 1.0, (ACT,)),
            actor_cls=partial(SquashedGaussianActor, hidden_sizes=sizes),
            critic_cls=partial(EnsembleCritic, hidden_sizes=sizes),
        )
        for _ in range(3)
    )
    both.join(ranks)
    waiting.join(Waiting(ranks))
    batch = Batch(
        torch.randn(rows, OBS),
        torch.rand(rows, ACT) * 2 - 1,
        torch.randn(rows),
        torch.randn(rows, OBS),
        torch.zeros(rows),
        torch.zeros(rows),
    )

    def train(agent: SACAgent) -> float:
        ranks.sum(1)
        started = time.perf_counter()
        for _ in range(options.steps):
            if agent is both:
                ranks.vote(Vote(), may_be_late=True)
            agent.train(batch)
        took_s = time.perf_counter() - started
        return rows * sum(options.steps * 1e6 / us for us in said(ranks, took_s))

    gradients = [torch.zeros(sum(p.numel() for p in module.parameters())) for module in (both.critic, both.actor)]
    size_bytes = sum(4 * gradient.numel() for gradient in gradients)
    exchange = exchange_of(ranks, size_bytes)

    def all_reduce() -> float:
        return timed(lambda: [ranks.mean(gradient) for gradient in gradients])

    def vote() -> float:
        return timed(lambda: ranks.vote(Vote()))

    for agent in (both, alone, waiting, both):
        train(agent)
    if options.realtime:
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setscheduler(int(thread.name), os.SCHED_RR, os.sched_param(1))
    together, apart, waited = repeat(options.turns, lambda: train(both), lambda: train(alone), lambda: train(waiting))
    reduced_s, exchanged_s, voted_s = repeat(4 * options.turns, all_reduce, lambda: timed(exchange), vote)
    if ranks.rank == 0:
        shares = sorted(a / b for a, b in zip(together, apart, strict=True))
        limits = sorted(a / b for a, b in zip(waited, apart, strict=True))
        print(
            json.dumps(
                {
                    "samples trained/s, two that learn as one": median(together),
                    "samples trained/s, two that do not speak": median(apart),
                    "share": median(shares),
                    "share, smallest and largest of the turns": f"{shares[0]:.3f} to {shares[-1]:.3f}",
                    "share of two that wait for each other alone": median(limits),
                    "gradients, MB": size_bytes / 1e6,
                    "all-reduce of them, ms": 1e3 * median(reduced_s),
                    "the same bytes each way over the loopback, ms": 1e3 * median(exchanged_s),
                    "all-reduce against that": median(reduced_s) / median(exchanged_s),
                    "vote, ms": 1e3 * median(voted_s),
                }
            ),
            flush=True,
        )
    ranks.leave()


class Waiting:
    """An average that waits for the other one, and leaves each its own."""

    def __init__(self, ranks: Any) -> None:
        self._ranks = ranks

    def mean(self, tensor: Any) -> None:
        self._ranks.sum(1)


def said(ranks: Any, took_s: float) -> list[int]:
    return [int.from_bytes(data, "little") for data in ranks.gather(int(1e6 * took_s).to_bytes(8, "little"))]


def exchange_of(ranks: Any, size_bytes: int) -> Callable[[], None]:
    """What sends so many bytes to the other process and takes as many from it, at the same time."""
    if ranks.rank == 0:
        with socket.create_server(("127.0.0.1", 0)) as server:
            ranks.broadcast(server.getsockname()[1].to_bytes(4, "little"))
            link, _ = server.accept()
    else:
        link = socket.create_connection(("127.0.0.1", int.from_bytes(ranks.broadcast(b""), "little")))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    outgoing, incoming = bytes(size_bytes), bytearray(size_bytes)

    def exchange() -> None:
        sender = threading.Thread(target=link.sendall, args=(outgoing,))
        sender.start()
        view = memoryview(incoming)
        while view:
            view = view[link.recv_into(view) :]
        sender.join()

    return exchange


def main() -> None:
    parser = Options(__doc__, width=64, steps=10, turns=3)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=50, help="per turn")
    parser.add_argument("--turns", type=int, default=41)
    about = "keep other work on the machine out of it (Linux, root); nothing else runs meanwhile"
    parser.add_argument("--realtime", action="store_true", help=about)
    parser.add_argument("--part", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse()
    if options.part:
        part(options)
        return
    port = free_port()
    both = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    parts = [
        subprocess.Popen(
            [sys.executable, *sys.argv, "--part"],
            env=os.environ | both | {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    out, _ = parts[0].communicate()
    parts[1].communicate()
    finish(json.loads(out.splitlines()[-1]))


if __name__ == "__main__":
    main()
