"""An actor in an environment without worker and wire, and an agent that is trained beside it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tmrl_like.envs.actions import actions_of_reset
from tmrl_like.policies.actor import ActorModule
from tmrl_like.replay import DropHistory, ReplayMemory
from tmrl_like.types import Buffer, Info

View = Callable[[Any], Any]


def drive(
    env: Any, actor: ActorModule, act_buf_len: int, test: bool, view: View = lambda obs: obs
) -> tuple[list[Any], float, bool, dict[str, Any]]:
    """One episode: its samples, its return, whether it was terminated, and the last info."""
    compress = DropHistory(act_buf_len)
    actor.reset()
    obs, info = env.reset()
    resets = [
        (act, obs, 0.0, False, False, Info(info, is_reset=True))
        for act in actions_of_reset(env, obs)
    ]
    samples = [compress(*reset) for reset in resets]
    total, terminated, truncated = 0.0, False, False
    while not (terminated or truncated):
        action = actor.act_(view(obs), test)
        obs, rew, terminated, truncated, info = env.step(action)
        samples.append(compress(action, obs, rew, terminated, truncated, Info(info)))
        total += float(rew)
    return samples, total, terminated, info


def learn(
    agent: Any,
    memory: ReplayMemory,
    collect: Callable[[], list[Any]],
    steps: int,
    first_steps: int,
    ratio: int,
) -> None:
    """Collect episodes until there are so many steps; after the first ones, train `ratio` times for
    each.
    """
    collected = trained = 0
    while collected < steps:
        samples = collect()
        memory.append(Buffer(samples, "solo"))
        collected += len(samples) - 1
        while collected > first_steps and trained < ratio * collected:
            agent.train(memory.sample())
            trained += 1


def seen_alike(view: View, obs: tuple[Any, ...]) -> tuple[Any, ...]:
    """What the view makes of an observation; the same of a batch, in the observation's own
    shapes.
    """
    alone = view(obs)
    batch = view(tuple(torch.from_numpy(o)[None] for o in obs))
    assert [a.shape for a in alone] == [o.shape for o in obs]
    for one, many in zip(alone, batch, strict=True):
        assert one.dtype == np.float32
        assert torch.allclose(torch.from_numpy(one), many[0])
    return alone
