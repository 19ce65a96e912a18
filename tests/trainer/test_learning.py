"""The figures on which the diagnosis is based, of samples and actors whose correct figures are
known.
"""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from kit.fakes import CountingAgent
from kit.learners import small
from kit.packets import TIMING

from tmrl_like.agents import CrossQAgent, EnsembleCritic, SACAgent, SquashedGaussianActor
from tmrl_like.base.functional import partial
from tmrl_like.replay import ReplayMemory
from tmrl_like.trainer.diagnosis import Diagnosis
from tmrl_like.trainer.learning import (
    ActorFigures,
    LearningWatch,
    SampleFigures,
    known_figures,
    same_noise,
)
from tmrl_like.trainer.watch import RecentRewards
from tmrl_like.types import Batch, Buffer, Delivery
from tmrl_like.wire.packet import PacketWriter

OBSERVATIONS, ACTIONS = Box(-1.0, 1.0, (3,)), Box(-2.0, 2.0, (2,))


def samples(count, moves=True, stream="a/1/1/0", rew=0.0):
    writer = PacketWriter()
    for k in range(count):
        obs = np.full(3, k if moves else 0, np.float32)
        writer.append((np.zeros(2, np.float32), obs, rew, False, False, {}), TIMING)
    return Buffer(blocks=[writer.block()], stream=stream)


def test_samples_are_looked_at_when_enough_have_come():
    figures = SampleFigures()
    figures.add(samples(60))
    assert figures.figures() == {}
    figures.add(samples(60))
    assert figures.figures()["observation_moves_share"] == 1.0
    assert figures.figures() == {}


def test_a_worker_that_stands_still_is_seen_and_one_stream_at_a_time_is_followed():
    figures = SampleFigures()
    figures.add(samples(200, moves=False))
    figures.add(samples(200, stream="b/1/1/0"))
    assert figures.figures() == {"observation_moves_share": 0.0}
    figures.figures()  # a round without samples of that stream
    figures.add(samples(200, stream="b/1/1/0"))
    assert figures.figures()["observation_moves_share"] == 1.0


def agent(**options):
    return small(SACAgent, (OBSERVATIONS, ACTIONS), acceleration="off", **options)


def batch(scale=1.0, **beside):
    obs = scale * (torch.rand(64, 3) * 2 - 1)
    rew, flags = torch.linspace(-1.0, 0.5, 64), torch.zeros(64)
    return Batch(obs, torch.zeros(64, 2), rew, obs, flags, flags, **beside)


def test_of_an_actor_it_is_seen_how_its_actions_depend_on_observations_and_on_training():
    sac, figures = agent(gamma=0.9), ActorFigures()
    first = figures.figures(sac, batch())
    assert 0.02 < first["action_spread"] < 1.0
    assert first["observation_largest"] == pytest.approx(3 / 3**0.5, rel=0.2)
    assert (first["value_low"], first["value_high"]) == (pytest.approx(-10.0), pytest.approx(5.0))
    assert "policy_change" not in first
    assert figures.figures(sac, batch())["policy_change"] == 0.0
    sac.train(batch())
    assert 0.0 < figures.figures(sac, batch())["policy_change"] < 0.1
    with torch.no_grad():
        sac.get_actor().head.weight.zero_()
        sac.get_actor().head.bias.copy_(torch.tensor([20.0, 20.0, 0.0, 0.0]))
    blind = figures.figures(sac, batch(1000.0))
    assert blind["action_spread"] == 0.0
    assert blind["observation_largest"] > 1000


def test_an_actor_that_does_not_sample_has_no_spread_and_actions_may_have_any_structure():
    drawn = batch()
    named = drawn._replace(act={"arm": drawn.act, "hand": drawn.act[:, :1]})
    figures = ActorFigures().figures(CountingAgent(OBSERVATIONS, ACTIONS), named)
    assert figures == {"reward_low": -1.0, "reward_high": 0.5}


def test_a_batch_of_one_has_no_spread():
    one = batch().map(lambda leaf: leaf[:1])
    figures = ActorFigures().figures(agent(gamma=0.9), one)
    assert figures.keys() == {"reward_low", "reward_high", "value_low", "value_high"}


def test_an_action_may_have_no_dimensions():
    sac = SACAgent(OBSERVATIONS, Box(-1.0, 1.0, ()), acceleration="off")
    drawn = batch()._replace(act=torch.zeros(64))
    assert ActorFigures().figures(sac, drawn)["action_spread"] > 0.0


def test_of_the_critics_the_one_that_tells_least_apart_is_seen():
    sac, seen = agent(critic_cls=partial(EnsembleCritic, dropout=0.5)), batch()
    figures = ActorFigures()
    state = torch.get_rng_state()
    assert figures.figures(sac, seen)["critic_spread"] > 0.01
    with torch.no_grad():
        sac.critic.hidden[-1].weight[1] = sac.critic.norms[-1].weight[1] = 0.0
        sac.critic.norms[-1].bias[1] = -1.0
    assert figures.figures(sac, seen)["critic_spread"] == 0.0
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("agent_cls", [SACAgent, CrossQAgent])
def test_of_the_critics_it_is_seen_whether_training_changes_what_they_say_and_looking_does_not(
    agent_cls,
):
    one, figures = agent_cls(OBSERVATIONS, ACTIONS, acceleration="off"), ActorFigures()
    one.train(batch())
    assert "critic_change" not in figures.figures(one, batch())
    assert figures.figures(one, batch())["critic_change"] == 0.0
    one.train(batch())
    assert figures.figures(one, batch())["critic_change"] > 1e-5


class Centred(torch.nn.Module):
    """A user's own normalisation by statistics of batches, which assigns them."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean()
        return x - self.mean


def normed(cls):
    """Return a user's own network, with statistics of batches."""

    class Normed(cls):
        def __init__(self, *both_spaces, **options):
            super().__init__(*both_spaces, **options)
            self.norm = Centred()

        def forward(self, obs, *act):
            return super().forward(self.norm(obs), *act)

    return Normed


def statistics_of(one):
    return [network.norm.mean.item() for network in (one.actor, one.critic, one.critic_frozen)]


class WithHeldOut(ReplayMemory):
    def sample_held_out(self):
        return batch()


def test_looking_and_what_is_held_out_change_no_statistics_of_networks_of_ones_own():
    networks = {"actor_cls": normed(SquashedGaussianActor), "critic_cls": normed(EnsembleCritic)}
    one = SACAgent(OBSERVATIONS, ACTIONS, **networks)
    one.train(batch())
    before = statistics_of(one)
    watch = LearningWatch(one, WithHeldOut(), Diagnosis(), RecentRewards(100))
    watch.on_step(batch(), {})
    record = {"training_steps_total": 1000, "env_steps_total": 1}
    watch.on_round(record)
    assert record.keys() >= {"critic_spread", "action_spread", "loss_actor_held_out"}
    assert statistics_of(one) == before


def test_statistics_are_restored_after_an_error_too():
    network = Centred()
    mean = network.mean
    with pytest.raises(ZeroDivisionError), same_noise("cpu", network):
        network(torch.ones(4, 3))
        1 / 0  # noqa: B018 - of a user's network
    assert network.mean is mean
    assert mean == 0


def test_of_sums_over_several_steps_the_returns_are_known_and_no_rewards():
    figures = ActorFigures().figures(agent(gamma=0.9), batch(discount=torch.full((64,), 0.81)))
    assert figures["value_low"] == pytest.approx(-1 / 0.19)
    assert not figures.keys() & {"reward_low", "reward_high"}
    assert "value_low" not in ActorFigures().figures(agent(gamma=1.0), batch())


@pytest.mark.parametrize("gamma", [1.0, 0.999, 0.9999])
def test_the_lowest_and_highest_reward_are_those_of_single_steps(gamma):
    memory = ReplayMemory(memory_size=500, batch_size=64, n_steps=3, gamma=gamma)
    rewards, diagnosis = RecentRewards(100), Diagnosis()
    watch = LearningWatch(agent(gamma=gamma), memory, diagnosis, rewards)
    buffer = samples(200, rew=-1.0)
    memory.append(buffer)
    rewards.on_samples(Delivery(buffer))
    for k in range(1, 4):
        watch.on_step(memory.sample(), {})
        record = {"training_steps_total": 500 * k, "env_steps_total": 300}
        record |= {"idle_s": 0.0, "round_duration_s": 1.0}
        watch.on_round(record)
    assert record["reward_low"] == record["reward_high"] == -1.0
    assert diagnosis.line.startswith(
        "not learning because the reward has been -1 in each of 300 samples"
    )


def test_what_is_not_measured_is_read_from_agent_and_memory_of_all_ranks():
    known = known_figures(
        agent(gamma=0.9), ReplayMemory(act_buf_len=4, batch_size=32, memory_size=500), 2
    )
    assert known == {
        "batch_size": 64,
        "memory_size": 1000,
        "gamma": 0.9,
        "max_entropy": pytest.approx(1.386, abs=1e-3),
    }
