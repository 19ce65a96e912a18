"""Policy files, and an actor that raises."""

import msgspec
from kit.fakes import LinearActor

from tmrl_like.policies.policy_file import describe, write_policy


class Moody(LinearActor):
    """An actor that raises if its bias is large."""

    def act(self, obs, test=False):
        if self.layer.bias.item() > 1:
            raise RuntimeError("not today\nand not tomorrow")
        return super().act(obs, test)


def written(path, made, preprocessor=None, **card):
    """Write an actor's policy, with these fields in its card; return the path."""
    write_policy(
        path, made.weights(), msgspec.structs.replace(describe(made, preprocessor), **card)
    )
    return path
