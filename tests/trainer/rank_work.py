"""The work of two ranks in `test_ranks`, each a process started as by torchrun. Rank 0 prints the
results.
"""

import json
import sys
from unittest import mock

import numpy as np
import torch
from gymnasium import spaces
from kit.boxes import box
from kit.fakes import CountingAgent
from kit.learners import batch_of, tensors_of

from tmrl_like.agents import CrossQAgent, DiscreteSACAgent, IQNAgent, SACAgent
from tmrl_like.errors import ConfigError, RankError
from tmrl_like.trainer.options import RankOptions
from tmrl_like.trainer.ranks import Vote, meet

ROWS, STEPS = 16, 10
OBS = spaces.Dict({"free": box(np.inf, 3), "bound": box(1, 2)})
KINDS = {
    "continuous": (SACAgent, box(2, 2), {"scale_rewards": True}),
    "discrete": (
        DiscreteSACAgent,
        spaces.MultiDiscrete([3, 2]),
        {"scale_rewards": True, "acceleration": "off"},
    ),
}


def batches(act):
    """Return batches of twice `ROWS` rows."""
    return [batch_of((OBS, act), seed, 2 * ROWS) for seed in range(STEPS)]


def half(batch, rank):
    return batch.map(lambda leaf: leaf[rank * ROWS : (rank + 1) * ROWS])


def training(agent, rows):
    """Return a function that trains, with the noise of these rows of whole batches."""
    noise = iter(torch.randn(2 * STEPS, 2 * ROWS, 2, generator=torch.Generator().manual_seed(3)))

    def train(batch):
        with mock.patch.object(torch, "randn", lambda *size: next(noise)[rows].reshape(size)):
            agent.train(batch)

    return train


def learn(kind, ranks):
    """Train on halves of batches together with another rank and, at rank 0, also alone on whole
    batches; return the difference of the results.
    """
    cls, act, options = KINDS[kind]
    torch.manual_seed(0)
    both = cls(OBS, act, **options)
    torch.manual_seed(0)
    alone = cls(OBS, act, **options)
    both.join(ranks)
    train_both = training(both, slice(ranks.rank * ROWS, (ranks.rank + 1) * ROWS))
    train_alone = training(alone, slice(None))
    for step, batch in enumerate(batches(act), start=1):
        train_both(half(batch, ranks.rank))
        ranks.check(both, step)
        if ranks.rank == 0:
            train_alone(batch)
    ours, theirs = tensors_of(both), tensors_of(alone)
    return max(
        float((value.double() - theirs[name].double()).abs().max()) for name, value in ours.items()
    )


def by_its_own_numbers(ranks, cls, act, **options):
    """Train an agent for which each rank draws numbers, or normalises batches, of its own; return
    the error of a check of equality, or an empty string.
    """
    torch.manual_seed(0)
    agent = cls(OBS, act, **options)
    agent.join(ranks)
    torch.manual_seed(ranks.rank)
    for batch in batches(act):
        agent.train(half(batch, ranks.rank))
    return refusal(agent, ranks, STEPS)


def refusal(agent, ranks, step):
    try:
        ranks.check(agent, step)
    except (ConfigError, RankError) as error:
        return str(error)
    return ""


def votes(ranks):
    """Vote along with averages; return what each rank sees in each step: samples, whether to stop,
    and its own counted samples.
    """
    heard = []
    for step in range(4):
        mine = Vote(stop=ranks.rank == 1 and step == 2, samples=10 * step)
        of_all, counted = ranks.vote(mine, may_be_late=True)
        heard.append([of_all.samples, of_all.stop, counted.samples])
        average = torch.full((3,), float(ranks.rank))
        ranks.mean(average)
        assert average.tolist() == [0.5] * 3
    of_all, counted = ranks.vote(Vote(samples=40))
    heard.append([of_all.samples, of_all.stop, counted.samples])
    return [json.loads(said) for said in ranks.gather(json.dumps(heard).encode())]


def main():
    torch.set_num_threads(1)
    ranks = meet(RankOptions(check_every_steps=10, timeout_s=20))
    ranks.begin()
    space = box(1, 2)
    said = {"lonely": refusal(CountingAgent(space, space), ranks, 1)}
    said |= {kind: learn(kind, ranks) for kind in KINDS}
    said["batches"] = by_its_own_numbers(ranks, CrossQAgent, box(2, 2), acceleration="off")
    said["quantiles"] = by_its_own_numbers(ranks, IQNAgent, spaces.Discrete(3))
    torch.manual_seed(ranks.rank)
    said["differing"] = refusal(SACAgent(space, space), ranks, STEPS)
    said["gathered"] = [text.decode() for text in ranks.gather(b"zero" if ranks.rank == 0 else b"")]
    said["votes"] = votes(ranks)
    said["sum"] = ranks.sum(1, ranks.rank, 10**15)
    if ranks.rank == 0:
        print(json.dumps(said), flush=True)
    if ranks.rank == 1:
        sys.exit(9)
    try:
        ranks.sum(1)
    except RankError as error:
        print(json.dumps(str(error)), flush=True)
    ranks.leave()


if __name__ == "__main__":
    main()
