"""The seam for learning algorithms: one batch in, a few numbers out, an actor on request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import gymnasium

from tmrl_like.policies.actor import ActorModule
from tmrl_like.types import Batch


class TrainingAgent(ABC):
    """A learning algorithm. Subclass it and call `super().__init__` with the three arguments.

    Everything that a restart needs is found by walking the instance's attributes: modules, optimisers,
    tensors, numbers, and lists, tuples and dicts of these. An agent with other state overrides
    `state_dict` and `load_state_dict`.
    """

    def __init__(
        self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], device: str = "cpu"
    ) -> None:
        """Keep the spaces and the device ("cpu", "cuda", "cuda:1", …) on which batches arrive."""
        self.observation_space = observation_space
        self.action_space = action_space
        self.device = device

    @abstractmethod
    def train(self, batch: Batch) -> dict[str, Any]:
        """Do one training step.

        Args:
            batch: see `Batch`; it unpacks as (obs, act, rew, next_obs, terminated, truncated). Where
                `batch.discount` is not None it stands for gamma; where `batch.weight` is not None the loss of
                each transition is multiplied by it.

        Returns:
            Metrics of this step: numbers or 0-dimensional tensors. Tensors may stay on the device;
            they are read once per round. Where `batch.drawn` is not None, `td_error` [B] is among them: how far
            the agent was off on each transition; it goes to the memory and into no metric.
        """

    def start_from(self, weights: bytes, training_steps: int = 0) -> None:
        """Begin with the policy of another training, before the first training step (`init_policy`).

        Here its weights become those of what `get_actor` returns; an agent that has more than that of its actor, an
        average for example, has its own way.

        Args:
            weights: as `ActorModule.load_weights` takes them.
            training_steps: that they were trained for.

        Raises:
            PolicyError: they do not fit; nothing has changed.
        """
        self.get_actor().load_weights(weights)

    @abstractmethod
    def get_actor(self) -> ActorModule:
        """Return the actor whose weights go to the workers. It may share parameters with training."""
