"""The mean reward of the newest decisions."""

import numpy as np
import pytest
from kit.packets import TIMING, packet_of
from kit.trainings import FREE, Network, feed, taken, training

from tmrl_like.delivery.receiver import Receiver
from tmrl_like.trainer.watch import RecentRewards
from tmrl_like.types import Buffer, Delivery
from tmrl_like.wire.packet import PacketWriter


def episode(*rewards):
    """Return an episode's samples: a reset, and a step for each reward."""
    writer = PacketWriter()
    for k, rew in enumerate((100.0, *rewards)):
        writer.append((0, 0, rew, False, False, {}), TIMING, is_reset=k == 0)
    return Delivery(Buffer(blocks=[writer.block()]))


def test_the_newest_decisions_count():
    recent = RecentRewards(window=4)
    assert recent.mean() is None
    recent.on_round(record := {})
    assert record == {}
    recent.on_samples(episode(1.0, 2.0, 3.0))
    recent.on_samples(Delivery(Buffer(blocks=())))
    assert recent.mean() == 2.0
    recent.on_samples(episode(4.0, 5.0))
    recent.on_round(record)
    assert record == {"reward_recent_mean": 3.5}


ONE, TWO = np.zeros(1, np.float32), np.ones(2, np.float32)


@pytest.mark.parametrize(
    "actions_and_rewards",
    [
        [(ONE, None)] * 3,
        [(ONE, TWO)] * 3,
        [(ONE, "good")] * 3,
        [(ONE, (1.0, TWO))] * 3,
        [(ONE, 4.0), (TWO, 4.0), (ONE, 4.0), (ONE, None)],
    ],
)
def test_what_a_memory_takes_is_counted_whatever_its_rewards_and_actions(actions_and_rewards):
    samples = [(act, TWO, rew, False, False, {}) for act, rew in actions_and_rewards]
    to = training(**FREE)
    record = feed(to, Network(*taken(Receiver(), packet_of(1, *samples))))
    assert to.total_samples == len(samples)
    rewards = [rew for _, rew in actions_and_rewards if isinstance(rew, float)]
    assert record.get("reward_recent_mean") == (4.0 if rewards else None)


def test_a_trainer_gives_the_mean_at_any_time(inproc_house):
    trainer = inproc_house.trainer()
    assert trainer.average_reward() is None
    trainer.training.recent_rewards.on_samples(episode(2.0, 4.0))
    assert trainer.average_reward() == 3.0
