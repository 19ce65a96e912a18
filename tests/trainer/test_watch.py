"""The mean reward of the newest decisions."""

from tmrl_like.testing.memories import ActionBufferEnv, packed
from tmrl_like.trainer.watch import RecentRewards
from tmrl_like.types import Buffer, Delivery


def episode(*rewards):
    """Return an episode's samples: a reset, and a step for each reward."""
    steps = ActionBufferEnv(1).take(1 + len(rewards))
    rewarded = (
        (step.sample._replace(rew=rew), step)
        for step, rew in zip(steps, (100.0, *rewards), strict=True)
    )
    given = [
        step._replace(sample=sample, is_reset=sample.rew == 100.0) for sample, step in rewarded
    ]
    return Delivery(packed(given, with_originals=False))


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


def test_a_trainer_gives_the_mean_at_any_time(zmq_house):
    trainer = zmq_house.trainer()
    assert trainer.average_reward() is None
    trainer.training.recent_rewards.on_samples(episode(2.0, 4.0))
    assert trainer.average_reward() == 3.0
