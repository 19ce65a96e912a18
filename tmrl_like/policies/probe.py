"""A few observations for which a policy must give valid actions before it drives."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import gymnasium
import numpy as np

from tmrl_like.base import tree
from tmrl_like.base.text import one_line
from tmrl_like.errors import PolicyError
from tmrl_like.policies.acting import Actor
from tmrl_like.policies.action_check import action_problem, is_finite
from tmrl_like.policies.weight_file import Weights
from tmrl_like.types import Observation, ObsPreprocessor
from tmrl_like.wire.spaces import Space

_SAMPLED = 3
_SEED = 0
# limit of samples from wider spaces: what a network can be expected to bear
_LARGEST = 1e3


class PolicyProbe:
    """Asks an actor for actions on observations sampled from the space, and on the newest real one.

    Attributes:
        sampled: observations sampled from the space, as an actor gets them.
        newest: the newest observation that an actor got, or None before the first. The
            environment's thread sets it.
    """

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        obs_preprocessor: ObsPreprocessor | None = None,
    ) -> None:
        """Sample the observations, always the same ones.

        Args:
            observation_space: observation space of the environment.
            action_space: the space that actions must be in.
            obs_preprocessor: applied to the sampled observations, but not to `newest`, which has
                gone through it.
        """
        self.newest: Observation | None = None
        self._action_space = action_space
        self.sampled: list[Observation] = list(_samples(observation_space, obs_preprocessor))
        self._calibrated = False

    def load(self, actor: Actor, weights: Weights) -> None:
        """Load weights into an actor, and check it.

        Raises:
            PolicyError: the weights do not fit, or the actor does not pass `check` with them.
        """
        self.calibrate(actor)
        actor.load_weights(weights)
        self.check(actor)

    def calibrate(self, actor: Actor) -> None:
        """Leave out observations for which not even an untrained actor gives a finite action."""
        if not self._calibrated:
            self._calibrated = True
            self.sampled = [obs for obs in self.sampled if _has_answer(actor, obs)]

    def check(self, actor: Actor) -> None:
        """Check an actor's best actions on the observations.

        Raises:
            PolicyError: `act` raised, or an action is not finite or not in the action space.
        """
        newest = self.newest
        real = [] if newest is None or not is_finite(newest) else [newest]
        for obs in real + self.sampled:
            try:
                action = actor.act_(obs, test=True)
            except Exception as error:
                raise PolicyError(
                    f"act() raised {one_line(error, 200)} on a probe observation"
                ) from error
            problem = action_problem(action, self._action_space)
            if problem:
                raise PolicyError(
                    f"its action on a probe observation is not in the action space: {problem}"
                )


def _samples(space: Space, obs_preprocessor: ObsPreprocessor | None) -> Iterator[Observation]:
    own = copy.deepcopy(space)  # seeding the environment's would change what it does
    own.seed(_SEED)
    for _ in range(_SAMPLED):
        obs = tree.map_leaves(_moderate, own, own.sample())
        try:
            yield obs if obs_preprocessor is None else obs_preprocessor(obs)
        except Exception:  # it may refuse what no environment returns
            pass


def _moderate(space: Space, obs: Observation) -> Observation:
    if isinstance(space, gymnasium.spaces.Box) and obs.dtype.kind == "f":
        return np.clip(np.clip(obs, -_LARGEST, _LARGEST), space.low, space.high).astype(obs.dtype)
    return obs


def _has_answer(actor: Actor, obs: Observation) -> bool:
    try:
        return is_finite(actor.act_(obs, test=True))
    except Exception:
        return False
