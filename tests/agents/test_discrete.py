"""SAC for discrete actions: a categorical policy, critics of all values, exact expectations."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from kit.boxes import box
from kit.learners import batch_of, small, train
from kit.refusals import one_line
from torch.testing import assert_close

from tmrl_like.agents import CategoricalActor, DiscreteEnsembleCritic, DiscreteSACAgent
from tmrl_like.policies.actor import to_batch_of_one

OBS = box(1, 3)
ONE = spaces.Discrete(4, start=-1)
SEVERAL = spaces.MultiDiscrete([2, 3], start=[0, 5])


def agent_for(space, **options):
    return small(
        DiscreteSACAgent, (OBS, space), CategoricalActor, DiscreteEnsembleCritic, **options
    )


def test_a_test_action_is_the_likeliest_and_others_are_drawn_by_their_probabilities():
    actor, obs, first = CategoricalActor(OBS, SEVERAL), OBS.sample(), SEVERAL.start
    acting = actor.in_numpy()
    with torch.no_grad():
        prob = actor(to_batch_of_one(obs))[0].exp()
    drawn = np.stack([acting.act_(obs) for _ in range(2500)]) - first
    best = acting.act_(obs, test=True) - first
    for k, part in enumerate(torch.split(prob, actor.spec.sizes)):
        counted = np.bincount(drawn[:, k], minlength=len(part)) / len(drawn)
        np.testing.assert_allclose(counted, part.numpy(), atol=0.05)
        assert best[k] == part.argmax().item()


def test_the_smallest_random_number_makes_an_action_too():
    """A float32 exponential number is exactly 0 once in eight million draws."""
    actor = CategoricalActor(OBS, ONE)
    actor.random.bit_generator.state |= {"has_uint32": 1, "uinteger": 0}
    assert ONE.contains(actor.act_(OBS.sample()))


def test_the_losses_are_those_of_the_paper_written_out():
    options = {"gamma": 0.5, "entropy_coef": 0.3, "learn_entropy_coef": False}
    agent, batch = agent_for(SEVERAL, **options), batch_of((OBS, SEVERAL))
    train(agent, 1)  # so that the targets are others

    def soft_value(obs, critic):
        log_prob = agent.actor(obs)
        q = critic(obs, log_prob.exp())
        return torch.minimum(q[0], q[1]) - 0.3 * (log_prob.exp() * log_prob).sum(1)

    with torch.no_grad():
        target = batch.rew + 0.5 * (1 - batch.terminated) * soft_value(
            batch.next_obs, agent.critic_target
        )
        expected = {
            "loss_critic": 0.5
            * (agent.critic(batch.obs, batch.act) - target).square().mean(1).sum(),
            "loss_actor": -soft_value(batch.obs, agent.critic).mean(),
        }
    assert_close(agent.evaluate(batch), expected)


def test_the_usual_target_is_half_of_the_largest_entropy():
    assert agent_for(ONE).target_entropy == pytest.approx(0.5 * np.log(4))
    assert agent_for(SEVERAL).target_entropy == pytest.approx(0.5 * np.log(6))


@pytest.mark.parametrize("space", [box(1, 2), spaces.Discrete(20_000)], ids=str)
def test_actions_that_are_not_choices_are_refused_by_name(space):
    for cls in (CategoricalActor, DiscreteSACAgent):
        with one_line(r"the action space is .*; this agent needs Discrete"):
            cls(OBS, space)
