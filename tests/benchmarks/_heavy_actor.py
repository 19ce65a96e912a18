"""An actor with 10 MB of weights, in torch."""

import torch
from _recorded import Timed

from tmrl_like.policies.actor import ActorModule

_WIDTH = 1600  # width**2 float32: 10 MB


class HeavyActor(Timed, ActorModule):
    """An actor whose action ignores most of the weights and of the observation, so that inference
    does not affect the figures.
    """

    def __init__(self, observation_space, action_space):
        super().__init__(observation_space, action_space)
        self.ballast = torch.nn.Parameter(torch.zeros(_WIDTH, _WIDTH))
        self.head = torch.nn.Linear(8, 2)

    def act(self, obs, test=False):
        first = obs[0] if isinstance(obs, tuple) else obs
        return torch.tanh(self.head(first.reshape(1, -1)[:, :8].float())).numpy()
