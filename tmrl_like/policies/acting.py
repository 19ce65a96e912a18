"""What acts, as whoever drives with it sees it: without torch."""

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
    """What acts, in torch (`ActorModule`) or without; see there."""

    extras: Mapping[str, Any]

    def act_(self, obs: Observation, test: bool = False) -> Action:
        """The action for one raw observation; `test` asks for the best one."""

    def reset(self) -> None:
        """An episode begins."""

    def carry_over(self, previous: Self) -> None:
        """Take over what the instance remembers that acted until now."""

    def manifest(self) -> Manifest:
        """What its parameters are."""

    def weights(self) -> Weights:
        """A copy of its parameters."""

    def load_weights(self, weights: Weights) -> None:
        """Replace them; PolicyError: they do not fit."""

    def in_torch(self) -> Any:
        """An `ActorModule` that does the same; itself, if it is one."""

    def to_device(self, device: str) -> Actor:
        """One that computes there; ConfigError: there is none like it."""

    def in_numpy(self) -> NetworkActor | None:
        """An actor that does the same without torch; itself, if it is one; None: there is none."""


class NetworkActor(Actor, Protocol):
    """An actor that is such a network, and what makes its input of a raw observation."""

    spec: NetworkSpec
    network: Network

    def bind(self, parameters: Mapping[str, Floats]) -> None:
        """Act with these arrays from now on, without a copy; names, dtypes and shapes are the
        manifest's.
        """

    def flatten(self, obs: Observation) -> Floats:
        """A raw observation as the network sees it, float32 [R]."""


class OnDisk:
    """What an actor has beside `weights`, `load_weights` and `to_device`: weights in a file."""

    def save(self: Actor, path: str | os.PathLike[str]) -> None:
        """Write the weights atomically: after a kill the file is the old one or the new one,
        whole.
        """
        write_weights(Path(path), self.weights())

    def load(self: Actor, path: str | os.PathLike[str], device: str = "cpu") -> Actor:
        """Read weights written by `save`; returns what `to_device(device)` does.

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
