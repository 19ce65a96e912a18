"""The seam for learning algorithms: one batch in, a few numbers out, an actor on request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Protocol

import torch

from tmrl_like.agents.space_layout import Space
from tmrl_like.base.tunable import Tunable
from tmrl_like.policies.actor import ActorModule
from tmrl_like.policies.weight_file import Weights
from tmrl_like.types import Batch


class Averaging(Protocol):
    """What an agent sees of the other processes that train with it; all call these in the same
    order.
    """

    def mean(self, tensor: torch.Tensor) -> None:
        """Average a tensor of floats over all ranks, in place; RankError: one of them is gone."""

    def largest(self, tensor: torch.Tensor) -> None:
        """The same with the maximum."""


class TrainingAgent(Tunable, ABC):
    """A learning algorithm. Subclass it and call `super().__init__` with the three arguments.

    Everything that a restart needs is found by walking the instance's attributes: modules,
    optimisers, tensors, numbers, and lists, tuples and dicts of these. An agent with other state
    overrides `state_dict` and `load_state_dict`.

    Attributes:
        ranks: those that `join` was given; None: it trains alone.
        takes_time_left: whether its values depend on `Batch.time_left`; mini-races need an agent
            that says so.
    """

    ranks: Averaging | None = None
    takes_time_left: ClassVar[bool] = False

    def __init__(self, observation_space: Space, action_space: Space, device: str = "cpu") -> None:
        """Keep the spaces and the device ("cpu", "cuda", "cuda:1", …) on which batches arrive."""
        self.observation_space = observation_space
        self.action_space = action_space
        self.device = device

    def join(self, ranks: Averaging) -> None:
        """Train together with others from the first step on: called before it, where there are
        several trainers.
        """
        self.ranks = ranks

    @abstractmethod
    def train(self, batch: Batch) -> Mapping[str, float | torch.Tensor]:
        """Do one training step.

        Args:
            batch: see `Batch`; it unpacks as (obs, act, rew, next_obs, terminated, truncated).
                Where `batch.discount` is not None it stands for gamma.

        Returns:
            Metrics of this step, numbers or 0-dimensional tensors. Tensors may stay on the device:
            they are read once per round.
        """

    def evaluate(self, batch: Batch) -> dict[str, torch.Tensor]:
        """The losses of `train`, under the same names, on a batch that is held out from training:
        here none.

        Nothing changes, but torch's random numbers may be drawn: the schedule puts their generators
        back.
        """
        return {}

    def start_from(self, weights: Weights, training_steps: int = 0) -> None:
        """Begin with the policy of another training, before the first training step
        (`init_policy`).

        Here its weights become those of what `get_actor` returns; an agent that has more than that
        of its actor, an average for example, has its own way.

        Args:
            weights: as `ActorModule.load_weights` takes them.
            training_steps: that they were trained for.

        Raises:
            PolicyError: they do not fit; nothing has changed.
        """
        self.get_actor().load_weights(weights)

    def average_gradients(self, *holders: torch.nn.Module | torch.optim.Optimizer) -> None:
        """Average the gradients of modules, or of what optimisers step, over all ranks; alone:
        nothing.

        An agent that is to train on several ranks calls it between `backward` and each optimiser's
        step, with the same parameters on all ranks.
        """
        if self.ranks is None:
            return
        gradients = [
            p.grad for holder in holders for p in _parameters_of(holder) if p.grad is not None
        ]
        if len(gradients) == 1:
            self.ranks.mean(gradients[0])
            return
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


def refuse_out_of_range(
    agent: TrainingAgent, page: Callable[..., object], values: Mapping[str, float]
) -> None:
    """Raise ConfigError for a value that is to be tuned and is out of its range on the agent's page
    of options.
    """
    page(**{name: value for name, value in values.items() if name in agent.tunable})


def modules_of(agent: TrainingAgent) -> dict[str, torch.nn.Module]:
    """All modules among an agent's attributes, in lists and tuples too, by name."""
    found: dict[str, object] = {}
    for name, value in vars(agent).items():
        found[name] = value
        if isinstance(value, list | tuple):
            found |= {f"{name}[{i}]": part for i, part in enumerate(value)}
    return {name: module for name, module in found.items() if isinstance(module, torch.nn.Module)}


def _parameters_of(holder: torch.nn.Module | torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    if isinstance(holder, torch.nn.Module):
        return holder.parameters()
    return (parameter for group in holder.param_groups for parameter in group["params"])
