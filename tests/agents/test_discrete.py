"""SAC for discrete actions: a categorical policy, critics of all values, exact expectations."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from kit.boxes import box
from kit.learners import small
from kit.refusals import one_line

from tmrl_like.agents import CategoricalActor, DiscreteEnsembleCritic, DiscreteSACAgent
from tmrl_like.policies.actor import to_batch_of_one

OBS = box(1, 3)
ONE = spaces.Discrete(4, start=-1)
SEVERAL = spaces.MultiDiscrete([2, 3], start=[0, 5])


def agent_for(space, **options):
    return small(
        DiscreteSACAgent, (OBS, space), CategoricalActor, DiscreteEnsembleCritic, **options
    )


def test_actions_are_drawn_by_their_probabilities():
    actor, obs, first = CategoricalActor(OBS, SEVERAL), OBS.sample(), SEVERAL.start
    acting = actor.in_numpy()
    with torch.no_grad():
        prob = actor(to_batch_of_one(obs))[0].exp()
    drawn = np.stack([acting.act_(obs) for _ in range(2500)]) - first
    for k, part in enumerate(torch.split(prob, actor.spec.sizes)):
        counted = np.bincount(drawn[:, k], minlength=len(part)) / len(drawn)
        np.testing.assert_allclose(counted, part.numpy(), atol=0.05)


def test_the_smallest_random_number_makes_an_action_too():
    """A float32 exponential number is exactly 0 once in eight million draws."""
    actor = CategoricalActor(OBS, ONE)
    actor.random.bit_generator.state |= {"has_uint32": 1, "uinteger": 0}
    assert ONE.contains(actor.act_(OBS.sample()))


def test_the_usual_target_is_half_of_the_largest_entropy():
    assert agent_for(ONE).target_entropy == pytest.approx(0.5 * np.log(4))
    assert agent_for(SEVERAL).target_entropy == pytest.approx(0.5 * np.log(6))


@pytest.mark.parametrize("space", [box(1, 2), spaces.Discrete(20_000)], ids=str)
def test_actions_that_are_not_choices_are_refused_by_name(space):
    for cls in (CategoricalActor, DiscreteSACAgent):
        with one_line(r"the action space is .*; this agent needs Discrete"):
            cls(OBS, space)
