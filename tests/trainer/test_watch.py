"""The mean reward of the newest decisions."""

import numpy as np
import pytest
from kit.packets import TIMING

from tmrl_like.trainer.watch import RecentRewards
from tmrl_like.types import Buffer, Delivery
from tmrl_like.wire.packet import PacketWriter


def episode(*rewards):
    """Return an episode's samples: a reset, and a step for each reward. Each third sample has an
    action of a new form.
    """
    writer = PacketWriter()
    for k, rew in enumerate((100.0, *rewards)):
        writer.append((np.zeros(k // 3), 0, rew, False, False, {}), TIMING, is_reset=k == 0)
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


@pytest.mark.parametrize(
    ("rewards", "mean"),
    [([None] * 3, None), ([np.ones(2, np.float32)] * 3, None), ([4.0, 4.0, None, 4.0], 4.0)],
)
def test_rewards_that_are_no_single_numbers_do_not_count(rewards, mean):
    recent = RecentRewards(window=9)
    recent.on_samples(episode(*rewards))
    assert recent.mean() == mean


def test_a_trainer_gives_the_mean_at_any_time(inproc_house):
    trainer = inproc_house.trainer()
    assert trainer.average_reward() is None
    trainer.training.recent_rewards.on_samples(episode(2.0, 4.0))
    assert trainer.average_reward() == 3.0
