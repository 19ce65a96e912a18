"""Policy files."""

import msgspec

from tmrl_like.policies.policy_file import describe, write_policy


def written(path, made, preprocessor=None, **card):
    """The path of a file with an actor's policy, whose card says these things."""
    write_policy(
        path, made.weights(), msgspec.structs.replace(describe(made, preprocessor), **card)
    )
    return path
