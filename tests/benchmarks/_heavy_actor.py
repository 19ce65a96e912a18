"""An actor with many weights, in torch."""

import torch
from _recorded import Timed

from tmrl_like.policies.actor import ActorModule


class HeavyActor(Timed, ActorModule):
    """An actor with `width` x `width` weights, 10 MB by default. Its action ignores them and most
    of the observation, so that inference does not affect the figures.
    """

    def __init__(self, observation_space, action_space, width=1600):
        super().__init__(observation_space, action_space)
        self.ballast = torch.nn.Parameter(torch.zeros(width, width))
        self.head = torch.nn.Linear(8, 2)

    def act(self, obs, test=False):
        first = obs[0] if isinstance(obs, tuple) else obs
        return torch.tanh(self.head(first.reshape(1, -1)[:, :8].float())).numpy()
