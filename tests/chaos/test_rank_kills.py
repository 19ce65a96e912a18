"""One of several trainers is killed at random, and all of them are started again."""

import random
import time

import pytest
import torch
from chaos_rig import MANY, wait_for_checkpoint, wait_until
from kit.fakes import CountingAgent
from kit.ports import free_port

WORKERS, RANKS = 4, 2


class AveragingAgent(CountingAgent):
    """A `CountingAgent` whose weights change by gradients averaged over all ranks."""

    def train(self, batch):
        self.steps += 1
        bias = self.actor.layer.bias
        bias.grad = torch.ones_like(bias)
        self.average_gradients(self.actor)
        with torch.no_grad():
            bias.add_(bias.grad)
        return {"loss": float(self.steps)}


def started(rig, monkeypatch):
    """Start all ranks, each with the environment that torchrun would give it; return their
    processes.
    """
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    ranks = []
    for rank in range(RANKS):
        for name, number in {"RANK": rank, "WORLD_SIZE": RANKS}.items():
            monkeypatch.setenv(name, str(number))
            monkeypatch.setenv(f"LOCAL_{name}", str(number))
        training = {"training_agent_cls": AveragingAgent}
        ranks.append(rig.trainer_part(name=None, training=training))
    return ranks


@pytest.mark.fault(
    "processes",
    "one of several trainers is killed",
    "no sample is lost or doubled; the others end in one line",
)
@pytest.mark.parametrize(
    "count",
    [
        pytest.param(50, marks=MANY),
        pytest.param(3, marks=[pytest.mark.long, pytest.mark.timeout(300)]),
    ],
)
def test_a_killed_rank_costs_no_sample(rigs, seed, figure, monkeypatch, count):
    rig, rng, survived_s = rigs("zmq"), random.Random(seed), []
    rig.server()
    for number in range(1, WORKERS + 1):
        rig.worker(number)
    with monkeypatch.context() as patch:
        ranks = started(rig, patch)
    for _ in range(count):
        wait_for_checkpoint(rig.place)
        time.sleep(rng.uniform(0.0, 4.0))
        assert all(rank.alive for rank in ranks)
        rng.choice(ranks).kill()
        survived_s.append(
            wait_until(lambda: not any(rank.alive for rank in ranks), 60, "the others end")
        )
        for rank in ranks:
            rank.start()
    wait_for_checkpoint(rig.place)
    for rank in ranks:
        rank.kill()
    last = rig.trainer(checkpoint_path=rig.place.checkpoint)
    rig.wait_for_samples(last)
    found = rig.settle(last)
    figure(
        f"{count} kills of a rank, the others lived on for {max(survived_s):.1f} s at most: {found}"
    )
    assert not found.lost
    assert not found.doubled
    assert max(survived_s) < 15
