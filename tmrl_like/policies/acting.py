"""The interface of actors for the code that drives with them, which needs no torch."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tmrl_like.errors import PolicyError
from tmrl_like.policies.layers import Floats
from tmrl_like.policies.network import Network, NetworkSpec
from tmrl_like.policies.weight_file import Manifest, Weights, read_weights, write_weights
from tmrl_like.types import Action, Observation


class Actor(ABC):
    """An actor, in torch (`ActorModule`) or without it (`NetworkActor`)."""

    extras: Mapping[str, Any] = MappingProxyType({})
    """Numbers and arrays about the newest action, which become items of the sample's `info`. Their
    names, shapes and dtypes must not change. An actor with extras sets this in its constructor, to
    values of these shapes and dtypes, and to a new dict in each `act`."""

    @abstractmethod
    def act_(self, obs: Observation, test: bool = False) -> Action:
        """Return the action for one raw observation; `test` asks for the best one."""

    def reset(self) -> None:  # noqa: B027 - most actors have no state
        """Forget recurrent state at the beginning of an episode. The worker calls it before it
        resets the environment.
        """

    def carry_over(self, previous: Actor) -> None:  # noqa: B027 - as `reset`
        """Take over recurrent state from the instance that acted until now (new weights take effect
        in mid-episode).

        Before that, the worker has called `act(obs, test=True)` on this instance with a few probe
        observations.
        """

    @abstractmethod
    def manifest(self) -> Manifest:
        """Return the dtype and shape of each parameter, by name."""

    @abstractmethod
    def weights(self) -> Weights:
        """Return a copy of the parameters, as `load_weights` takes them."""

    @abstractmethod
    def load_weights(self, weights: Weights) -> None:
        """Replace all parameters. If this raises, nothing has changed.

        Raises:
            PolicyError: names, shapes or dtypes differ from this actor's (the message says which).
        """

    @abstractmethod
    def in_torch(self) -> Any:
        """Return an `ActorModule` that does the same: self, if it is one."""

    @abstractmethod
    def to_device(self, device: str) -> Actor:
        """Return an actor that computes on `device`. Raise ConfigError if there is no such
        device.
        """

    def in_numpy(self) -> NetworkActor | None:
        """Return an actor that does the same without torch on the same memory (self, if it is one),
        or None.
        """
        return None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the weights atomically: a process that is killed leaves the whole old file or the
        whole new one.
        """
        write_weights(Path(path), self.weights())

    def load(self, path: str | os.PathLike[str], device: str = "cpu") -> Actor:
        """Load weights that `save` wrote, and return what `to_device(device)` returns.

        Raises:
            PolicyError: the file is damaged or belongs to another actor; the message names it.
            OSError: the file cannot be read.
        """
        _, weights = read_weights(Path(path))
        try:
            self.load_weights(weights)
        except PolicyError as error:
            raise PolicyError(f"{path}: {error}") from None
        return self.to_device(device)


class NetworkActor(Actor):
    """An actor that computes by a `Network`, and makes the network's input from raw
    observations.
    """

    spec: NetworkSpec
    network: Network

    @abstractmethod
    def flatten(self, obs: Observation) -> Floats:
        """Return a raw observation as the network sees it, float32 [R + P]; see `Network`."""
