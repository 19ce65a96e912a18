"""Training steps per second of SAC, alone and in the whole loop, compared with SBX.

    python tests/benchmarks/learner.py [--threads 1 2] [--widths 64 256] [--rounds 30]
                                       [--steps 40] [--peer PYTHON]

Observations have 17 numbers, actions 6. All compared variants take turns in slices of a few steps.
"SAC" is configured as in the peers, "as it ships" is the agent with its defaults. `--peer` names
the Python of a virtual environment with sbx-rl, which then runs in a process of its own, with the
same number of threads.
"""

import numpy as np
import torch
from _harness import Peer, benchmark, in_turns, rate, ratios, timed
from kit.boxes import box
from memory import filled

from tmrl_like.agents import EnsembleCritic, SACAgent, SquashedGaussianActor
from tmrl_like.agents.process import tune_process
from tmrl_like.base.functional import partial
from tmrl_like.replay import ReplayMemory
from tmrl_like.trainer.interface import TrainerInterface
from tmrl_like.trainer.schedule import TrainingOffline
from tmrl_like.types import Batch

OBS, ACT = 17, 6
BATCHES = {64: 128, 256: 256}  # by the width of the layers
SPACES = box(1.0, OBS), box(1.0, ACT)
SAMPLES = 100_000


def batch(width):
    size = BATCHES[width]
    zeros, (obs, next_obs) = torch.zeros(size), torch.rand(2, size, OBS) * 2 - 1
    return Batch(obs, torch.rand(size, ACT) * 2 - 1, torch.rand(size), next_obs, zeros, zeros)


def agents(width):
    actor = partial(SquashedGaussianActor, hidden_sizes=(width, width))
    plain = {
        "actor_cls": partial(actor, normalize_obs=False),
        "critic_cls": partial(EnsembleCritic, normalize_obs=False, layer_norm=False),
        "actor_polyak": 0.0,
    }
    return {
        "sac": SACAgent(*SPACES, **plain),
        "ships": SACAgent(*SPACES, actor_cls=actor),
    }


def training_of(width, steps):
    """Return a training whose round does what the trainer does: sampling, training, counting,
    looking for samples.
    """
    observed, acted = (space.sample() for space in SPACES)
    samples = [(acted, observed, 1.0, False, False, {})] * 1000
    memory = partial(filled, ReplayMemory, samples, SAMPLES, batch_size=BATCHES[width])
    return TrainingOffline(
        env_cls=SPACES,
        memory_cls=memory,
        training_agent_cls=partial(
            SACAgent, actor_cls=partial(SquashedGaussianActor, hidden_sizes=(width, width))
        ),
        rounds=1,
        steps=steps,
        max_training_steps_per_env_step=np.inf,
        device="cpu",
    )


def compared(width, steps, rounds, peer):
    """Return the rates of all variants, turn by turn."""
    of_all = batch(width)
    calls = {
        name: partial(rate, partial(agent.train, of_all), steps)
        for name, agent in agents(width).items()
    }
    training = training_of(width, steps)
    calls["loop"] = lambda: steps / timed(lambda: training.run_epoch(TrainerInterface(None, 0)))
    if peer:
        calls["sbx"] = partial(peer.ask, f"{width} {BATCHES[width]} {steps}")
    in_turns(min(3, rounds), **calls)
    return in_turns(rounds, **calls)


def measure(options):
    tune_process()
    for threads in options.threads:
        torch.set_num_threads(threads)
        of_threads = f"{threads} threads" if threads > 1 else "1 thread"
        peer = None
        if options.peer:
            xla = (
                f"--xla_cpu_multi_thread_eigen={str(threads > 1).lower()} "
                f"intra_op_parallelism_threads={threads}"
            )
            environment = {"XLA_FLAGS": xla, "OMP_NUM_THREADS": str(threads)}
            peer = Peer(options.peer, "_peer_learner.py", str(threads), **environment)
        for width in options.widths:
            found = compared(width, options.steps, options.rounds, peer)
            row = {
                "what": (
                    f"SAC's steps/s, times SBX's: {width}×{width}, batch {BATCHES[width]}, "
                    f"{of_threads}"
                ),
                "SAC, steps/s": found["sac"],
                "whole loop, share of the step": ratios(found["loop"], found["ships"]),
            }
            if peer:
                row["ours"] = ratios(found["sac"], found["sbx"])
                row["as it ships × SBX's SAC"] = ratios(found["ships"], found["sbx"])
            yield row
        if peer:
            peer.close()


if __name__ == "__main__":
    quick = {"threads": [1], "widths": [64], "rounds": 1, "steps": 4}
    benchmark(
        __doc__,
        measure,
        threads=[1, 2],
        widths=[64, 256],
        rounds=30,
        steps=40,
        peer=None,
        quick=quick,
    )
