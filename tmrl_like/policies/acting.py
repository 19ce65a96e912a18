"""The interface of actors for the code that drives with them, which needs no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from tmrl_like.errors import PolicyError
from tmrl_like.policies.layers import Floats
from tmrl_like.policies.network import Network, NetworkSpec
from tmrl_like.policies.weight_file import Manifest, Weights, read_weights, write_weights
from tmrl_like.types import Action, Observation


class Actor(Protocol):
    """An actor, in torch or without it; see `ActorModule`."""

    extras: Mapping[str, Any]

    def act_(self, obs: Observation, test: bool = False) -> Action:
        """Return the action for one raw observation; `test` asks for the best one."""

    def reset(self) -> None:
        """Begin an episode: forget recurrent state."""

    def carry_over(self, previous: Self) -> None:
        """Take over recurrent state from the instance that acted until now."""

    def manifest(self) -> Manifest:
        """Return the dtype and shape of each parameter, by name."""

    def weights(self) -> Weights:
        """Return a copy of the parameters."""

    def load_weights(self, weights: Weights) -> None:
        """Replace the parameters. Raise PolicyError if these do not fit."""

    def in_torch(self) -> Any:
        """Return an `ActorModule` that does the same: self, if it is one."""

    def to_device(self, device: str) -> Actor:
        """Return an actor that computes on `device`. Raise ConfigError if there is no such
        device.
        """

    def in_numpy(self) -> NetworkActor | None:
        """Return an actor that does the same without torch (self, if it is one), or None."""


class NetworkActor(Actor, Protocol):
    """An actor that computes by a `Network`, and makes the network's input from raw
    observations.
    """

    spec: NetworkSpec
    network: Network

    def bind(self, parameters: Mapping[str, Floats]) -> None:
        """Act with these arrays from now on, without a copy. Names, dtypes and shapes must be those
        of the manifest.
        """

    def flatten(self, obs: Observation) -> Floats:
        """Return a raw observation as the network sees it, float32 [R + P]; see `Network`."""


class OnDisk:
    """Mixin that saves the weights of an actor to a file and loads them. It needs the actor's
    `weights`, `load_weights` and `to_device`.
    """

    def save(self: Actor, path: str | os.PathLike[str]) -> None:
        """Write the weights atomically: a process that is killed leaves the whole old file or the
        whole new one.
        """
        write_weights(Path(path), self.weights())

    def load(self: Actor, path: str | os.PathLike[str], device: str = "cpu") -> Actor:
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
