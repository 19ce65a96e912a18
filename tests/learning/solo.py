"""Acting and training in one loop, without worker and wire."""

from collections.abc import Callable
from typing import Any

from tmrl_like.envs.actions import actions_of_reset, held_actions
from tmrl_like.policies.actor import ActorModule
from tmrl_like.replay import DropHistory, ReplayMemory
from tmrl_like.types import Buffer, Info

View = Callable[[Any], Any]


def drive(
    env: Any, actor: ActorModule, test: bool, view: View = lambda obs: obs
) -> tuple[list[Any], float, bool, dict[str, Any]]:
    """Run an episode; return its samples, its return, whether it terminated, and the last info."""
    compress = DropHistory(held_actions(env) or 0)
    actor.reset()
    obs, info = env.reset()
    samples = [
        compress(act, obs, 0.0, False, False, Info(info, is_reset=True))
        for act in actions_of_reset(env, obs)
    ]
    total, terminated, truncated = 0.0, False, False
    while not (terminated or truncated):
        action = actor.act_(view(obs), test)
        obs, rew, terminated, truncated, info = env.step(action)
        samples.append(compress(action, obs, rew, terminated, truncated, Info(info)))
        total += float(rew)
    return samples, total, terminated, info


def practise(
    env: Any,
    actor: ActorModule,
    agent: Any,
    memory: ReplayMemory,
    steps: int,
    first_steps: int,
    ratio: int,
    view: View = lambda obs: obs,
) -> None:
    """Collect whole episodes of at least `steps` steps; beyond `first_steps`, make `ratio` training
    steps for each step so far.
    """
    collected = trained = 0
    while collected < steps:
        samples, *_ = drive(env, actor, False, view)
        memory.append(Buffer(samples, "solo"))
        collected += len(samples) - 1
        while collected > first_steps and trained < ratio * collected:
            agent.train(memory.sample())
            trained += 1
