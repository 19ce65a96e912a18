"""Episodes as workers report them."""

from tmrl_like.types import EpisodeStats


def episode(worker="w", *, test=False, terminated=True, **fields):
    """Return the report of an episode of ten steps and return 1, changed by `fields`."""
    known = {"return_": 1.0, "steps": 10, "finished_at_s": 0.0, "policy_version": 1} | fields
    return EpisodeStats(
        worker=worker, test=test, terminated=terminated, truncated=not terminated, **known
    )
