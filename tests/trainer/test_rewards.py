"""The mean reward of the newest decisions."""

import numpy as np
import pytest

from tmrl_like.testing.memories import ActionBufferEnv, packed
from tmrl_like.trainer.rewards import RecentRewards
from tmrl_like.types import Buffer


def episode(*rewards):
    """Its reset, and a sample for each reward."""
    steps = ActionBufferEnv(1).take(1 + len(rewards))
    rewarded = ((step.sample._replace(rew=rew), step) for step, rew in zip(steps, (100.0, *rewards), strict=True))
    given = [step._replace(sample=sample, is_reset=sample.rew == 100.0) for sample, step in rewarded]
    return packed(given, with_originals=False)


def means(recent):
    found = {worker: recent.mean(worker) for worker in ("a", "b", *(f"w{number}" for number in range(5)))}
    return {worker: mean for worker, mean in found.items() if mean is not None}


def test_the_newest_decisions_count_of_each_worker_and_of_all():
    recent = RecentRewards(window=4)
    assert recent.mean() is recent.mean("a") is None
    assert recent.metrics() == means(recent) == {}
    recent.add("a", episode(1.0, 2.0, 3.0))
    recent.add("b", episode(10.0))
    assert (recent.mean("a"), recent.mean("b"), recent.mean()) == (2.0, 10.0, 4.0)
    recent.add("a", episode(4.0, 5.0))
    assert means(recent) == {"a": 3.5, "b": 10.0}
    assert recent.metrics() == {"reward_recent_mean": pytest.approx((3 + 10 + 4 + 5) / 4)}


def test_workers_that_come_and_go_are_forgotten(monkeypatch):
    monkeypatch.setattr("tmrl_like.trainer.rewards._WORKERS", 3)
    recent = RecentRewards(window=4)
    for number in range(5):
        recent.add(f"w{number}", episode(float(number)))
        recent.add("w0", Buffer(blocks=()))
    assert means(recent) == {"w3": 3.0, "w0": 0.0, "w4": 4.0}


def test_a_mean_is_there_while_further_samples_enter(monkeypatch):
    recent, seen, concatenate = RecentRewards(window=4), [], np.concatenate
    recent.add("a", episode(1.0))
    monkeypatch.setattr(np, "concatenate", lambda parts: seen.append(recent.mean("a")) or concatenate(parts))
    recent.add("a", episode(2.0))
    assert set(seen) == {1.0}


def test_a_trainer_gives_the_mean_of_a_worker_and_of_all(zmq_house):
    trainer = zmq_house.trainer()
    assert trainer.average_reward() is None
    trainer.training.recent_rewards.add("arm", episode(2.0, 4.0))
    trainer.training.recent_rewards.add("leg", episode(9.0))
    assert (trainer.average_reward("arm"), trainer.average_reward()) == (3.0, 5.0)
