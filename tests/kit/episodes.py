"""Episodes as workers report them, and what a trainer gets of them."""

from tmrl_like.types import EpisodeStats


def episode(worker="w", *, test=False, terminated=True, **fields):
    """Return the report of an episode of ten steps and return 1, changed by `fields`."""
    known = {"return_": 1.0, "steps": 10, "finished_at_s": 0.0, "policy_version": 1} | fields
    return EpisodeStats(
        worker=worker, test=test, terminated=terminated, truncated=not terminated, **known
    )


def of_episodes(steps, length):
    """Return the (episode, step) pairs of `steps` steps of a `CountingEnv` in episodes of `length`
    steps, resets included.
    """
    episodes, rest = divmod(steps, length)
    whole = [(episode, step) for episode in range(1, episodes + 1) for step in range(length + 1)]
    return whole + [(episodes + 1, step) for step in range(rest + 1) if rest]
