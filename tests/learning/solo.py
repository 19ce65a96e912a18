"""Acting and training in one loop, without worker and wire."""

from tmrl_like.envs.actions import actions_of_reset, held_actions
from tmrl_like.replay import DropHistory
from tmrl_like.types import Buffer, Info, Sample


def episode(env, act, seed=None):
    """Yield the samples of an episode, those of its reset first."""
    obs, info = env.reset() if seed is None else env.reset(seed=seed)
    for action in actions_of_reset(env, obs):
        yield Sample(action, obs, 0.0, False, False, Info(info, is_reset=True))
    over = False
    while not over:
        action = act(obs)
        obs, rew, terminated, truncated, info = env.step(action)
        yield Sample(action, obs, rew, terminated, truncated, Info(info))
        over = terminated or truncated


def drive(env, actor, test, view=lambda obs: obs):
    """Run an episode; return its samples, its return, whether it terminated, and the last info."""
    compress, total, samples = DropHistory(held_actions(env) or 0), 0.0, []
    actor.reset()
    for sample in episode(env, lambda obs: actor.act_(view(obs), test)):
        samples.append(compress(*sample))
        total += float(sample.rew)
    return samples, total, sample.terminated, sample.info


def practise(env, actor, agent, memory, steps, first_steps, ratio, view=lambda obs: obs):
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
