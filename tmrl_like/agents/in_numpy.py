"""Built-in actors in numpy: they act in microseconds and need no torch."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from gymnasium import spaces

from tmrl_like.agents.space_layout import Space, actor_spec, read_observations
from tmrl_like.base import tree
from tmrl_like.errors import MissingExtraError
from tmrl_like.policies.acting import Actor, NetworkActor
from tmrl_like.policies.layers import Floats
from tmrl_like.policies.network import GaussianOptions, Network, NetworkOptions
from tmrl_like.policies.noise import ColouredNoise
from tmrl_like.policies.weight_file import Manifest, Weights, refuse_misfit
from tmrl_like.types import Action, Observation

if TYPE_CHECKING:
    from tmrl_like.policies.actor import ActorModule  # which imports torch


class NumpyActor(NetworkActor):
    """An actor in numpy. It takes the arguments, and has the parameters, of the torch actor that it
    stands for. Its only state is the noise, which `NumpyIntake` lets all instances share.

    Attributes:
        spec: the description of the actor, everything but its parameters, as plain data.
        network: computes the actions.
        device: "cpu".
    """

    page: ClassVar[type[NetworkOptions]]
    """The class of the options that it takes beside the spaces."""

    torch_name: ClassVar[str]
    """The name of the torch actor in `tmrl_like.agents`."""

    device = "cpu"

    def __init__(self, observation_space: Space, action_space: Space, **options: Any) -> None:
        """Build the network; the arguments are those of the torch actor.

        Raises:
            ConfigError: this network cannot learn from a space, which the message names; or the
                noise is out of range.
        """
        self.observation_space = observation_space
        self.action_space = action_space
        layout = read_observations(observation_space)
        self._paths = [*layout.paths, *(path for path, _ in layout.images)]
        # a Tuple of leaves, as most are
        is_tuple = isinstance(observation_space, spaces.Tuple)
        self._is_flat = is_tuple and self._paths == [(i,) for i in range(len(self._paths))]
        self.spec = actor_spec(layout, action_space, self.page(**options))
        self.network = Network(self.spec)

    def _parts(self, obs: Observation) -> Sequence[Observation]:
        parts: Sequence[Observation] = obs
        return parts if self._is_flat else [tree.part_at(obs, path) for path in self._paths]

    def act_(self, obs: Observation, test: bool = False) -> Action:
        """Choose an action for one raw observation; NaN if the observation is not finite."""
        np.concatenate(self._parts(obs), None, self.network.input, casting="unsafe")
        return self.network.act(test)

    act = act_

    def flatten(self, obs: Observation) -> Floats:
        """Return a raw observation as the network sees it, float32 [R + P]: numbers, then images,
        in the space's order.
        """
        return np.concatenate(self._parts(obs), None, dtype=np.float32, casting="unsafe")

    def reset(self) -> None:
        """Begin an episode, with a new sequence of noise if it is correlated over time."""
        if isinstance(self.network.random, ColouredNoise):
            self.network.random.reset()

    def to_device(self, device: str) -> Actor:
        """Return self for the CPU; for other devices the torch actor, with the same weights."""
        return self if device == "cpu" else self.in_torch().to_device(device)

    def in_torch(self) -> ActorModule:
        """Return the torch actor, with a copy of the weights."""
        if importlib.util.find_spec("torch") is None:
            raise MissingExtraError(
                "an actor that is not on the CPU needs torch: pip install torch"
            )
        torch_class = getattr(importlib.import_module("tmrl_like.agents"), self.torch_name)
        actor: ActorModule = torch_class(
            self.observation_space, self.action_space, **vars(self.spec.options)
        )
        actor.load_weights(self.weights())
        return actor

    def in_numpy(self) -> NumpyActor:
        """Return self."""
        return self

    def manifest(self) -> Manifest:
        """See `Actor.manifest`."""
        return self.network.manifest

    def weights(self) -> Weights:
        """See `Actor.weights`."""
        parameters = self.network.parameters.values()  # in the manifest's order
        return Weights(self.manifest(), b"".join(values.tobytes() for values in parameters))

    def load_weights(self, weights: Weights) -> None:
        """See `Actor.load_weights`."""
        refuse_misfit(self.torch_name, self.manifest(), weights.manifest)
        new = weights.arrays()
        for name, values in self.network.parameters.items():
            np.copyto(values, new[name])


class NumpyGaussianActor(NumpyActor):
    """`tmrl_like.agents.SquashedGaussianActor` in numpy."""

    page, torch_name = GaussianOptions, "SquashedGaussianActor"


class NumpyCategoricalActor(NumpyActor):
    """`tmrl_like.agents.CategoricalActor` in numpy."""

    page, torch_name = NetworkOptions, "CategoricalActor"
