"""The interface for policies: an observation in, an action out."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Self

import gymnasium
import numpy as np
import torch

from tmrl_like.base import tree
from tmrl_like.base.factories import signature_of
from tmrl_like.base.text import one_line
from tmrl_like.errors import ConfigError, PolicyError
from tmrl_like.policies.acting import Actor
from tmrl_like.policies.weight_file import Manifest, Weights, refuse_misfit
from tmrl_like.policies.weights import copied, manifest_of, tensors_of
from tmrl_like.types import Action, Observation
from tmrl_like.wire.schema import Array
from tmrl_like.wire.spaces import Space

_SPACES = "observation_space", "action_space"


class ActorModule(Actor, torch.nn.Module):
    """Base class of policies. Subclass it and call `super().__init__(observation_space,
    action_space)` first.

    The trainer and the workers build their instances from the same class with the same arguments.
    Only the contents of `state_dict()` travel between them, never code.
    """

    made_with: dict[str, Any]
    """The arguments that the class was called with, by name, without the two spaces."""

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Create the actor, and keep the arguments for its policy file."""
        self = super().__new__(cls)
        given = dict(zip(signature_of(cls).parameters, args, strict=False)) | options
        self.__dict__["made_with"] = {
            name: value for name, value in given.items() if name not in _SPACES
        }
        return self

    def __init__(self, observation_space: Space, action_space: Space) -> None:
        super().__init__()
        self.observation_space = observation_space
        self.action_space = action_space
        self.device = "cpu"

    @abstractmethod
    def act(self, obs: Observation, test: bool = False) -> Array:
        """Choose an action. Runs without gradients.

        Args:
            obs: the observation's structure with tensors [1, ...] on `self.device` as leaves (a Box
                observation is one tensor, a Tuple space a tuple of tensors).
            test: True asks for the best action, False for one to explore with.

        Returns:
            The action as a numpy array of the action space's shape (a leading dimension of 1 is
            fine).
        """

    def best_actions(self, obs: Observation) -> torch.Tensor:
        """Choose the best actions for a batch, as `act` does with `test=True`, by torch operations
        only. Optional: `write_onnx` needs it.

        Args:
            obs: the observation's structure with tensors [N, ...] as leaves.

        Returns:
            The actions, [N, …] in the shape of the action space.

        Raises:
            NotImplementedError: the actor does not implement it.
        """
        raise NotImplementedError

    def log_prob(self, obs: Observation, act: torch.Tensor) -> torch.Tensor:
        """Return the log-probability of actions, with gradients. Optional: `tmrl-like clone` needs
        it.

        Args:
            obs: the observation's structure with tensors [N, ...] as leaves.
            act: [N, …] in the shape of the action space.

        Returns:
            log pi(a | s), float32 [N].

        Raises:
            NotImplementedError: the actor does not implement it.
        """
        raise NotImplementedError

    def act_(self, obs: Observation, test: bool = False) -> Action:
        """Make a batch of one raw observation, call `act`, and return the action in the action
        space's shape.
        """
        with torch.inference_mode():
            action = self.act(to_batch_of_one(obs, self.device), test)
        return fit_action(action, self.action_space)

    def to_device(self, device: str) -> ActorModule:
        """Move parameters and future observations to `device`, and return self. Raise ConfigError
        if torch has no such device.
        """
        refuse_device(device)
        self.device = device
        return self.to(device)

    def manifest(self) -> Manifest:
        """Return the dtype and shape of each parameter and buffer, by name."""
        return manifest_of(self.state_dict())

    def in_torch(self) -> ActorModule:
        """Return self."""
        return self

    def weights(self) -> Weights:
        """Return a copy of parameters and buffers, as `load_weights` takes them."""
        manifest, data = copied(self.state_dict()).content
        return Weights(manifest, bytes(data))

    def load_weights(self, weights: Weights) -> None:
        """Replace all parameters and buffers. If this raises, nothing has changed.

        Raises:
            PolicyError: names, shapes or dtypes differ from this actor's (the message says which).
        """
        refuse_misfit(type(self).__name__, self.manifest(), weights.manifest)
        own, new = self.state_dict(), tensors_of(weights)
        if own:
            # one call for all tensors: each torch call may hand the interpreter to another thread
            with torch.no_grad():
                torch._foreach_copy_(list(own.values()), [new[name] for name in own])


def refuse_device(device: str) -> None:
    """Raise ConfigError for a device that torch does not have on this machine."""
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        problem = one_line(str(error).partition("\n")[0], 200)
        raise ConfigError(
            f"device is {device!r}; torch has no such device on this machine: {problem}"
        ) from None


def to_batch_of_one(obs: Observation, device: str = "cpu") -> Observation:
    """Convert a structure of arrays and numbers to one of tensors [1, ...] on `device`."""

    def tensor(leaf: Observation) -> torch.Tensor:
        if isinstance(leaf, torch.Tensor):
            return leaf[None].to(device)
        # a copy: environments may reuse the array of an earlier observation
        return torch.from_numpy(np.array(leaf)[None]).to(device)

    return tree.map_leaves(tensor, obs)


def fit_action(action: Action, space: Space) -> Action:
    """Give an action the shape of its space, by adding or removing dimensions of 1, and its dtype;
    numbers that an integer dtype cannot hold stay as they are.

    An action of a Discrete space becomes a number, since environments use it as a key. Actions of
    spaces without a shape (Tuple, Dict) stay as they are.

    Raises:
        PolicyError: the number of elements differs.
    """
    shape, dtype = space.shape, space.dtype
    if isinstance(action, torch.Tensor):
        action = action.detach().cpu().numpy()
    if shape is None or dtype is None or (not shape and type(action) is int):
        return action
    if isinstance(action, np.ndarray) and shape and (action.shape, action.dtype) == (shape, dtype):
        return action
    try:
        fitted = np.asarray(action).reshape(shape)
    except ValueError:
        is_array = isinstance(action, np.ndarray)
        found = f"an array of shape {action.shape}" if is_array else one_line(action, 80)
        raise PolicyError(
            f"act() returned {found}; the action space wants an array of shape {shape}"
        ) from None
    if fitted.dtype.kind in "fiub":
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite does not drive
            typed = fitted.astype(dtype)
        fitted = typed if typed.dtype.kind == "f" or (typed == fitted).all() else fitted
    return fitted[()] if isinstance(space, gymnasium.spaces.Discrete) else fitted
