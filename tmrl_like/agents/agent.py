"""The interface for learning algorithms: one batch in, a few metrics out, an actor on request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar, Protocol

import torch

from tmrl_like.agents.space_layout import Space
from tmrl_like.base.tunable import Tunable
from tmrl_like.errors import ConfigError
from tmrl_like.policies.actor import ActorModule
from tmrl_like.policies.weight_file import Weights
from tmrl_like.types import Batch


class Averaging(Protocol):
    """Collective operations over all ranks, the trainers that train one agent together. All ranks
    must call them in the same order.
    """

    def mean(self, tensor: torch.Tensor) -> None:
        """Average a tensor of floats over all ranks, in place. Raise RankError if one is gone."""

    def largest(self, tensor: torch.Tensor) -> None:
        """Take the maximum of each element over all ranks, in place. Raise RankError if one is
        gone.
        """


class TrainingAgent(Tunable, ABC):
    """Base class of learning algorithms. Subclass it and call `super().__init__` with its three
    arguments.

    Checkpoints save the instance's attributes: modules, optimisers, tensors, numbers, and lists,
    tuples and dicts of these. An agent with other state defines `state_dict` and
    `load_state_dict`.

    Attributes:
        ranks: the ranks that `join` was given, or None if the agent trains alone.
        takes_time_left: whether the agent's values depend on `Batch.time_left`. Mini-races need an
            agent for which this is True.
    """

    ranks: Averaging | None = None
    takes_time_left: ClassVar[bool] = False

    def __init__(self, observation_space: Space, action_space: Space, device: str = "cpu") -> None:
        """Store the spaces and the device ("cpu", "cuda", "cuda:1", …) on which batches arrive."""
        self.observation_space = observation_space
        self.action_space = action_space
        self.device = device

    def join(self, ranks: Averaging) -> None:
        """Train together with other ranks. Called before the first step if there are several
        trainers.
        """
        self.ranks = ranks

    @abstractmethod
    def train(self, batch: Batch) -> Mapping[str, float | torch.Tensor]:
        """Do one training step.

        Args:
            batch: see `Batch`; it unpacks as (obs, act, rew, next_obs, terminated, truncated).
                Where `batch.discount` is not None, it replaces gamma.

        Returns:
            Metrics of this step, numbers or 0-dimensional tensors. Tensors may stay on the device:
            they are read once per round.
        """

    def evaluate(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the losses of `train`, under the same names, on a batch that is held out from
        training. The default returns none.

        Must not change the agent, but for buffers of its modules (statistics of batches), which the
        schedule restores. It may draw torch's random numbers, which are the same each time: the
        schedule seeds their generators, and restores their state.
        """
        return {}

    def start_from(self, weights: Weights, training_steps: int = 0) -> None:
        """Begin with the policy of another training run (`init_policy`). Called before the first
        training step.

        The default loads the weights into the actor that `get_actor` returns. Override it in an
        agent that holds further copies of the actor, such as a moving average.

        Args:
            weights: as `ActorModule.load_weights` takes them.
            training_steps: number of training steps that led to the weights, 0 if it is not known.

        Raises:
            PolicyError: the weights do not fit; nothing has changed.
            ConfigError: they have no effect, since `get_actor` returns a copy.
        """
        self.get_actor().load_weights(weights)
        found = self.get_actor().weights().arrays()
        if any((found[name] != array).any() for name, array in weights.arrays().items()):
            raise ConfigError(
                f"{type(self).__name__}.get_actor returns a copy, so that no policy can be loaded "
                "into what is trained: override start_from"
            )

    def average_gradients(self, *holders: torch.nn.Module | torch.optim.Optimizer) -> None:
        """Average the gradients of modules, or of optimisers' parameters, over all ranks. An agent
        that trains alone is left as it is.

        To train on several ranks, call it between `backward` and each optimiser's step, with the
        same parameters on all ranks.
        """
        if self.ranks is None:
            return
        gradients = [
            p.grad for holder in holders for p in _parameters_of(holder) if p.grad is not None
        ]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        self.ranks.mean(flat)
        parts = torch.split(flat, [gradient.numel() for gradient in gradients])
        torch._foreach_copy_(
            gradients, [p.view_as(g) for p, g in zip(parts, gradients, strict=True)]
        )

    @abstractmethod
    def get_actor(self) -> ActorModule:
        """Return the actor whose weights go to the workers. It may share parameters with
        training.
        """


def modules_of(agent: TrainingAgent) -> dict[str, torch.nn.Module]:
    """Return all modules among an agent's attributes by name, those in lists, tuples and dicts
    too.
    """
    found: dict[str, object] = {}
    for name, value in vars(agent).items():
        found[name] = value
        if isinstance(value, list | tuple | dict):
            parts = value.items() if isinstance(value, dict) else enumerate(value)
            found |= {f"{name}[{key!r}]": part for key, part in parts}
    return {name: module for name, module in found.items() if isinstance(module, torch.nn.Module)}


def _parameters_of(holder: torch.nn.Module | torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    if isinstance(holder, torch.nn.Module):
        return holder.parameters()
    return (parameter for group in holder.param_groups for parameter in group["params"])
