"""Policies of Stable-Baselines3 as experts."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces

from tmrl_like.base import tree
from tmrl_like.policies.actor import ActorModule
from tmrl_like.types import Action, Observation
from tmrl_like.wire.spaces import Space


class StableBaselinesActor(ActorModule):
    """Acts by a loaded model of Stable-Baselines3, without exploration, for `worker --expert` and
    `record --expert`.

    If the model was trained on a Box, the parts of an observation are put side by side, in the
    order of its space, as `gymnasium.wrappers.FlattenObservation` does. An `obs_preprocessor` may
    leave out what the model was not trained on, an action buffer for example.
    """

    def __init__(self, observation_space: Space, action_space: Space, *, model: Any) -> None:
        """Keep `model`, as the library's `SAC.load(path)` returns it, which unpickles the file."""
        super().__init__(observation_space, action_space)
        self._model = model

    def act(self, obs: Observation, test: bool = False) -> Action:
        """Return the model's best action."""
        space = self._model.observation_space
        if isinstance(space, spaces.Box):
            obs = self._flat(obs).reshape(1, *space.shape)
        return self._model.predict(tree.map_leaves(torch.Tensor.numpy, obs), deterministic=True)[0]

    def _flat(self, obs: Observation) -> torch.Tensor:
        parts: list[torch.Tensor] = []
        for _, space, part in tree.walk(self.observation_space, obs):
            if _is_categorical(space, part):
                parts.append(torch.from_numpy(spaces.flatten(space, part[0].numpy())))
            else:
                parts += tree.leaves(part)
        return torch.cat([part.reshape(1, -1) for part in parts], dim=1)


def _is_categorical(space: Space, part: Any) -> bool:
    """Whether a part holds categories as its space has them: a preprocessor may change them."""
    return (
        isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
        and isinstance(part, torch.Tensor)
        and not part.is_floating_point()
        and space.contains(part[0].numpy())
    )
