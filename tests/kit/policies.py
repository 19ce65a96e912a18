"""Policy files."""

import msgspec

from tmrl_like.policies.policy_file import describe, write_policy


def written(path, made, preprocessor=None, **card):
    """Write an actor's policy, with these fields in its card; return the path."""
    write_policy(
        path, made.weights(), msgspec.structs.replace(describe(made, preprocessor), **card)
    )
    return path
