"""Small agents, batches for them, and comparisons of their parameters."""

from functools import partial

import numpy as np
import torch
from gymnasium.vector.utils import batch_space

from tmrl_like.agents import EnsembleCritic, SquashedGaussianActor
from tmrl_like.agents.agent import modules_of
from tmrl_like.base import tree
from tmrl_like.types import Batch

HIDDEN = (24, 16)


def rows_of(space, rows, seed=0):
    """Return random samples of a space as tensors [rows, ...] in its structure."""
    samples = batch_space(space, rows)
    samples.seed(seed)
    return tree.map_leaves(torch.from_numpy, samples.sample())


def batch_of(spaces, seed=0, rows=32, **said):
    """Return random transitions, one in five of them terminal; `said` replaces fields."""
    observation_space, action_space = spaces
    random = torch.Generator().manual_seed(seed)
    transitions = {
        "obs": rows_of(observation_space, rows, 2 * seed),
        "act": rows_of(action_space, rows, seed),
        "rew": torch.randn(rows, generator=random),
        "next_obs": rows_of(observation_space, rows, 2 * seed + 1),
        "terminated": (torch.rand(rows, generator=random) < 0.2).float(),
        "truncated": torch.zeros(rows),
    }
    return Batch(**transitions | said)


def small(
    cls,
    spaces,
    actor=SquashedGaussianActor,
    critic=EnsembleCritic,
    **options,
):
    """Return an agent with narrow networks, which are the same at each call."""
    torch.manual_seed(0)
    networks = {
        "actor_cls": partial(actor, hidden_sizes=HIDDEN),
        "critic_cls": partial(critic, hidden_sizes=HIDDEN),
    }
    return cls(*spaces, **networks | options)


def train(agent, steps, first=0, **said):
    """Train on batches of the agent's spaces, with noise seeded by the step; return the metrics of
    each step.
    """
    spaces, found = (agent.observation_space, agent.action_space), []
    for step in range(first, first + steps):
        torch.manual_seed(step)
        metrics = agent.train(batch_of(spaces, step, **said))
        found.append({name: float(value) for name, value in metrics.items()})
    return found


def tensors_of(agent):
    """Return a copy of each parameter and buffer of an agent's modules, by module and name."""
    return {
        f"{name} {key}": value.clone()
        for name, module in modules_of(agent).items()
        for key, value in module.state_dict().items()
    }


def assert_same(one, other, rtol=0.0, atol=0.0, but=""):
    """Assert that two agents hold the same numbers, except in the module `but`."""
    ours, theirs = tensors_of(one), tensors_of(other)
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        if key.split()[0] != but:
            np.testing.assert_allclose(ours[key], value, rtol=rtol, atol=atol, err_msg=key)
