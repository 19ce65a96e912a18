"""What sees success in a picture, from a file, without torch: a policy whose action is a probability."""

from __future__ import annotations

import logging

import numpy as np
from gymnasium import spaces

from tmrl_like.base import tree
from tmrl_like.base.text import one_line
from tmrl_like.errors import ConfigError, PolicyError
from tmrl_like.policies.load_policy import load_policy
from tmrl_like.types import Observation
from tmrl_like.wire.spaces import Space

PROBABILITY = spaces.Box(0.0, 1.0, (1,))
"""What such a policy gives."""

_log = logging.getLogger(__name__)


class SuccessModel:
    """A model of success for a `SuccessEnv`, from a file of `tmrl-like success-model`.

    Attributes:
        policy: what the file holds.
    """

    def __init__(self, file: str, observation_space: Space) -> None:
        """Load it, and say in the log how often it was right.

        Args:
            file: its path.
            observation_space: of the environment. The first pictures in it that are as those it has learnt from, or a
                history of such, are what it looks at.

        Raises:
            PolicyError: there is no such file, or it is damaged, or of something else.
            ConfigError: the environment has no such pictures.
        """
        self.policy = load_policy(file)
        if self.policy.action_space != PROBABILITY:
            raise PolicyError(f"{file} is no model of success: `tmrl-like success-model` makes one")
        space = self.policy.observation_space
        self._shape = space.shape
        for path, leaf in tree.walk(observation_space):
            if isinstance(leaf, spaces.Box) and leaf.dtype == np.uint8 and self._shape in (leaf.shape, leaf.shape[1:]):
                self._place = path
                break
        else:
            raise ConfigError(f"the observation space is {one_line(observation_space)}; {file} looks at a {space}")
        _log.info("%s: %s", file, self.policy.metadata.note)

    def __call__(self, obs: Observation) -> float:
        """How likely this observation shows success, 0 to 1; of a history of pictures the newest."""
        picture = np.asarray(tree.part_at(obs, self._place))
        return float(self.policy.act(picture if picture.shape == self._shape else picture[-1])[0])
