"""Two trainers that learn as one, compared with two independent ones.

    python tests/benchmarks/trainers.py [--width 256] [--steps 50] [--turns 41] [--realtime]

Both are processes with one thread each that train SAC on a batch of random numbers, as `learner.py`
does. They take turns: together, alone, together, … In other turns they wait for each other as often
but exchange nothing: no averaging can be faster than that. `--realtime` keeps the machine's other
work from disturbing the figures (Linux, root).
"""

import os
from pathlib import Path

from _harness import Part, benchmark, in_turns, ratios, timed
from kit.ports import free_port


class Waiting:
    """An average that only waits for the other trainer and leaves the gradients as they are."""

    def __init__(self, ranks):
        self._ranks = ranks

    def mean(self, tensor):
        self._ranks.sum(1)


def run_rank(rank, port, options, pipe):
    """Run one of the two trainers; send its figures, turn by turn."""
    there = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    os.environ |= there | {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
    }
    import torch
    from learner import BATCHES, agents, batch

    from tmrl_like.agents.process import tune_process
    from tmrl_like.trainer.options import RankOptions
    from tmrl_like.trainer.ranks import Ranks, Vote

    tune_process(1)
    ranks = Ranks(RankOptions())
    torch.manual_seed(rank)
    of_all, samples = batch(options.width), options.steps * BATCHES[options.width]
    alone, both, waiting = (agents(options.width)["ships"] for _ in range(3))
    both.join(ranks)
    waiting.join(Waiting(ranks))

    def train(agent):
        """Train; return the samples per second of both trainers together."""

        def all_steps():
            for _ in range(options.steps):
                if agent is both:
                    ranks.vote(Vote(), may_be_late=True)
                agent.train(of_all)

        ranks.sum(1)
        own_us = int(1e6 * timed(all_steps))
        times_us = [
            int.from_bytes(data, "little") for data in ranks.gather(own_us.to_bytes(8, "little"))
        ]
        return sum(samples * 1e6 / us for us in times_us)

    for agent in (both, alone, waiting, both):
        train(agent)
    if options.realtime:
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setscheduler(int(thread.name), os.SCHED_RR, os.sched_param(1))
    rates = in_turns(
        options.turns,
        both=lambda: train(both),
        alone=lambda: train(alone),
        waiting=lambda: train(waiting),
    )
    pipe.send(rates)
    ranks.leave()


def measure(options):
    port = free_port()
    with Part(run_rank, 0, port, options) as first, Part(run_rank, 1, port, options) as second:
        found = first.hear(3600.0)
        second.hear()
    yield {
        "what": "samples trained/s, two that learn as one",
        "ours": found["both"],
        "limit": found["alone"],
    }
    share, limit = (ratios(found[name], found["alone"]) for name in ("both", "waiting"))
    yield {
        "what": "share of two that do not speak to each other",
        "ours": share,
        "limit": limit,
        "goal": 0.85,
    }


if __name__ == "__main__":
    quick = {"width": 64, "steps": 10, "turns": 3}
    benchmark(__doc__, measure, width=256, steps=50, turns=41, realtime=False, quick=quick)
