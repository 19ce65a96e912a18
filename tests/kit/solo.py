"""Acting and training in one loop, without worker and wire."""

from tmrl_like.envs.actions import actions_of_reset, held_actions
from tmrl_like.replay import DropHistory
from tmrl_like.types import Buffer, Info, Sample


def same(obs):
    return obs


def episode(env, act, seed=None, extras=dict):
    """Yield the samples of an episode, those of its reset first. After each step, `extras` returns
    what else its `info` gets.
    """
    obs, info = env.reset() if seed is None else env.reset(seed=seed)
    for action in actions_of_reset(env, obs):
        yield Sample(action, obs, 0.0, False, False, Info(info, is_reset=True))
    over = False
    while not over:
        action = act(obs)
        obs, rew, terminated, truncated, info = env.step(action)
        yield Sample(action, obs, rew, terminated, truncated, Info(info | extras()))
        over = terminated or truncated


def drive(env, actor, seed=None, view=same):
    """Return the samples of an episode without exploration."""
    return list(episode(env, lambda obs: actor.act_(view(obs), test=True), seed))


def return_of(samples):
    return sum(float(sample.rew) for sample in samples)


def practise(env, actor, memory, steps, *, random_steps=0, seed=None, view=same, compress=None):
    """Act, and yield the number of each step when its sample is in the memory.

    Args:
        env: the environment.
        actor: chooses the actions; the memory also gets its `extras`.
        memory: gets all samples.
        steps: number of environment steps.
        random_steps: how many of the first actions are drawn from the action space instead.
        seed: of the first reset; None: none.
        view: returns what the actor gets of an observation.
        compress: the sample compressor; None: the one that drops the action buffer.
    """
    compress, step = compress or DropHistory(held_actions(env) or 0), 0

    def act(obs):
        return env.action_space.sample() if step < random_steps else actor.act_(view(obs))

    while True:
        actor.reset()
        for sample in episode(env, act, seed, lambda: actor.extras):
            memory.append(Buffer([compress(*sample)], "solo"))
            if not sample.info.is_reset:
                step += 1
                yield step
            if step == steps:
                return
        seed = None


def learn(env, agent, memory, steps, first_steps, ratio, view=same):
    """Practise, and beyond `first_steps` train `ratio` times for each step so far; return the
    actor.
    """
    actor, trained = agent.get_actor(), 0
    for step in practise(env, actor, memory, steps, view=view):
        while step > first_steps and trained < ratio * step:
            agent.train(memory.sample())
            trained += 1
    return actor
