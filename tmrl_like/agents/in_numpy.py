"""The actors that ship, in numpy: they act in microseconds, and need no torch."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import gymnasium
import numpy as np

from tmrl_like.agents.layout import OBS_RANGE, action_bounds, action_categories, numbers_of, read_leaves
from tmrl_like.base import tree
from tmrl_like.errors import MissingExtraError
from tmrl_like.policies.network import CategoricalSpec, GaussianSpec, Network, NetworkSpec
from tmrl_like.policies.noise import ColouredNoise
from tmrl_like.policies.weight_file import (
    Manifest,
    OnDisk,
    layout_of,
    manifest_of,
    read_file,
    refuse_misfit,
)

_Array = np.ndarray[Any, Any]


class NumpyActor(OnDisk, ABC):
    """What the two have in common. Takes the arguments, and has the parameters, of the torch actor of its name.

    One of observations with images is the torch actor itself.

    Attributes:
        spec: all of it but the parameters, as plain data.
        network: does the arithmetic.
        device: "cpu".
        torch_name: of the torch actor in `tmrl_like.agents`.
        extras: it says nothing beside its actions.
    """

    torch_name: ClassVar[str]
    extras: Mapping[str, Any] = MappingProxyType({})

    def __new__(cls, observation_space: gymnasium.Space[Any], *args: Any, **options: Any) -> Any:
        """Make it; with images among the observations, make the torch actor."""
        if read_leaves(observation_space)[1]:
            return cls.torch_class()(observation_space, *args, **options)
        return super().__new__(cls)

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        hidden_sizes: Sequence[int] = (256, 256),
        layer_norm: bool = False,
        obs_range: float = OBS_RANGE,
        normalize_obs: bool = True,
    ) -> None:
        """Build the network; the arguments are those of the torch actor.

        Raises:
            ConfigError: a space that this network cannot learn from, by name.
        """
        self.observation_space = observation_space
        self.action_space = action_space
        self.device = "cpu"
        leaves, _ = read_leaves(observation_space)
        low, high, num_categories = (tuple(column.tolist()) for column in numbers_of(leaves))
        action = self.read_actions(action_space)
        self.spec = NetworkSpec(
            low, high, num_categories, obs_range, normalize_obs, tuple(hidden_sizes), layer_norm, action
        )
        self.network = Network(self.spec)
        self._paths = [path for path, _ in leaves]
        self._is_flat = self._paths == [(i,) for i in range(len(leaves))]  # a Tuple of leaves, as most are

    @abstractmethod
    def read_actions(self, action_space: gymnasium.Space[Any]) -> GaussianSpec | CategoricalSpec:
        """Take what is needed of the action space."""

    @classmethod
    def torch_class(cls) -> Any:
        """The class in torch; if torch is imported for that, what it draws follows from numpy's seed."""
        is_new = "torch" not in sys.modules
        if is_new and importlib.util.find_spec("torch") is None:
            raise MissingExtraError("an actor that sees images, or is not on the CPU, needs torch: pip install torch")
        found = getattr(importlib.import_module("tmrl_like.agents"), cls.torch_name)
        if is_new:
            sys.modules["torch"].manual_seed(np.random.randint(1 << 31))
        return found

    def _parts(self, obs: Any) -> Any:
        return obs if self._is_flat else [tree.part_at(obs, path) for path in self._paths]

    def act_(self, obs: Any, test: bool = False) -> Any:
        """Choose an action for one raw observation; one that is not finite makes the action NaN."""
        np.concatenate(self._parts(obs), None, self.network.input, casting="unsafe")
        return self.network.act(test)

    act = act_

    def flatten(self, obs: Any) -> _Array:
        """A raw observation as the network sees it, float32 [R], in the order of the space."""
        return np.concatenate(self._parts(obs), None, dtype=np.float32, casting="unsafe")

    def carry_over(self, previous: Any) -> None:
        """It has no state but the noise, which `NumpyIntake` lets all instances share."""

    def reset(self) -> None:
        """An episode begins, and with it a new sequence of noise that is correlated over time."""
        if isinstance(self.network.random, ColouredNoise):
            self.network.random.reset()

    def to_device(self, device: str) -> Any:
        """Itself on the CPU; elsewhere the torch actor, with the same weights."""
        return self if device == "cpu" else self.in_torch().to_device(device)

    def in_torch(self) -> Any:
        """The torch actor, with a copy of its weights."""
        actor = self.torch_class()(self.observation_space, self.action_space, **self._options())
        actor.load_weights(self.weights())
        return actor

    def _options(self) -> dict[str, Any]:
        return {n: getattr(self.spec, n) for n in ("hidden_sizes", "layer_norm", "obs_range", "normalize_obs")}

    def in_numpy(self) -> Any:
        """Itself."""
        return self

    def manifest(self) -> Manifest:
        """What a file of its weights holds: of each parameter, by name, dtype and shape."""
        return self.network.manifest

    def weights(self) -> bytes:
        """The parameters as safetensors bytes."""
        header, _ = layout_of(self.manifest())
        return b"".join((header, *(values.tobytes() for values in self.network.parameters.values())))

    def load_weights(self, weights: bytes | bytearray | memoryview) -> None:
        """Replace the parameters, all of them or, when an error is raised, none.

        Raises:
            PolicyError: not safetensors, or names, shapes or dtypes differ from this actor's (the message says which).
        """
        new = read_file(weights)
        refuse_misfit(type(self).__name__, self.manifest(), manifest_of(new))
        for name, values in self.network.parameters.items():
            np.copyto(values, new[name].array())

    def bind(self, parameters: Mapping[str, _Array]) -> None:
        """Act with these arrays from now on, without a copy; names, dtypes and shapes are the manifest's."""
        self.network.bind(parameters)


class SquashedGaussianActor(NumpyActor):
    """`tmrl_like.agents.SquashedGaussianActor` in numpy."""

    torch_name = "SquashedGaussianActor"

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        log_std_min: float = -10.0,
        log_std_max: float = 2.0,
        noise_beta: float = 0.0,
        noise_steps: int = 1000,
        **options: Any,
    ) -> None:
        """Build the network; the arguments are those of the torch actor.

        Raises:
            ConfigError: a space that this network cannot learn from, by name; the noise is out of range.
        """
        self._gaussian: dict[str, Any] = {"log_std_min": log_std_min, "log_std_max": log_std_max}
        self._gaussian |= {"noise_beta": noise_beta, "noise_steps": noise_steps}
        super().__init__(observation_space, action_space, **options)

    def read_actions(self, action_space: gymnasium.Space[Any]) -> GaussianSpec:
        """A Box with finite bounds."""
        center, half = action_bounds(action_space)
        return GaussianSpec(action_space.shape or (), tuple(center.tolist()), tuple(half.tolist()), **self._gaussian)

    def _options(self) -> dict[str, Any]:
        return super()._options() | self._gaussian


class CategoricalActor(NumpyActor):
    """`tmrl_like.agents.CategoricalActor` in numpy."""

    torch_name = "CategoricalActor"

    def read_actions(self, action_space: gymnasium.Space[Any]) -> CategoricalSpec:
        """Discrete or MultiDiscrete."""
        values, first = action_categories(action_space)
        shape = action_space.shape or ()
        return CategoricalSpec(shape, str(action_space.dtype), tuple(values.tolist()), tuple(first.tolist()))
