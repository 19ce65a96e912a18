"""A policy of Stable-Baselines3 as an expert."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import nn

from tmrl_like.base import tree
from tmrl_like.policies.actor import ActorModule
from tmrl_like.types import Action, Observation
from tmrl_like.wire.spaces import Space


class StableBaselinesActor(ActorModule):
    """Acts as a loaded model of Stable-Baselines3 does, without exploring: for `worker --expert`,
    `record --expert`.

    Where the model was trained on a Box, what an observation holds is put side by side, in its
    space's order, as by `gymnasium.wrappers.FlattenObservation`; an `obs_preprocessor` may leave
    out what the policy never knew, an action buffer, say.
    """

    def __init__(self, observation_space: Space, action_space: Space, *, model: Any) -> None:
        """`model`: what `SAC.load(path)` of the library gives, which unpickles."""
        super().__init__(observation_space, action_space)
        self._model = model

    def act(self, obs: Observation, test: bool = False) -> Action:
        """The policy's best action."""
        space = self._model.observation_space
        if isinstance(space, spaces.Box):
            obs = self._flat(obs).reshape(1, *space.shape)
        return self._model.predict(tree.map_leaves(torch.Tensor.numpy, obs), deterministic=True)[0]

    def _flat(self, obs: Observation) -> torch.Tensor:
        if isinstance(self.observation_space, spaces.Discrete):
            number = obs.long() - int(self.observation_space.start)
            return nn.functional.one_hot(number, int(self.observation_space.n))
        return torch.cat([leaf.reshape(1, -1) for leaf in tree.leaves(obs)], dim=1)
