"""N networks side by side, computed together. Shape names: N networks, B batch, I inputs, H hidden width."""

# Capital suffixes name a tensor's dimensions.
# ruff: noqa: N803
from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import gymnasium
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmrl_like.agents.layout import OBS_RANGE
from tmrl_like.agents.observations import Encoder


class EnsembleLinear(nn.Module):
    """N linear layers side by side in one batched matrix product."""

    def __init__(self, n: int, size_in: int, size_out: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(size_in)  # the same as nn.Linear's
        self.weight = nn.Parameter(torch.empty(n, size_in, size_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(n, 1, size_out).uniform_(-bound, bound))

    def forward(self, x_NBI: Tensor, members: Tensor | None = None) -> Tensor:
        """[N, B, in] -> [N, B, out]; with `members` [M] int64, of these only: [M, B, in] -> [M, B, out]."""
        if members is None:
            return torch.baddbmm(self.bias, x_NBI, self.weight)
        return torch.baddbmm(self.bias[members], x_NBI, self.weight[members])


class EnsembleNorm(nn.Module):
    """N layer normalisations side by side."""

    def __init__(self, n: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n, 1, size))
        self.bias = nn.Parameter(torch.zeros(n, 1, size))

    def forward(self, x_NBH: Tensor, members: Tensor | None = None) -> Tensor:
        """[N, B, H] -> [N, B, H]; `members` as in `EnsembleLinear`."""
        weight, bias = (self.weight, self.bias) if members is None else (self.weight[members], self.bias[members])
        return torch.addcmul(bias, F.layer_norm(x_NBH, x_NBH.shape[-1:]), weight)


class EnsembleMLP(nn.Module):
    """What ensembles of critics have in common: an encoder for all of them, and N networks on its features.

    Dropout and layer normalisation follow Hiraoka et al., "Dropout Q-Functions for Doubly Efficient
    Reinforcement Learning", 2022: linear, dropout, layer normalisation, ReLU.
    """

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        n_critics: int = 2,
        hidden_sizes: Sequence[int] = (256, 256),
        layer_norm: bool = True,
        dropout: float = 0.0,
        obs_range: float = OBS_RANGE,
        normalize_obs: bool = True,
    ) -> None:
        """Build the networks.

        Args:
            observation_space: see `Encoder`.
            action_space: as for the actor that goes with these critics.
            n_critics: N.
            hidden_sizes: width of each hidden layer.
            layer_norm: normalise each hidden layer before its ReLU.
            dropout: share of a hidden layer's outputs that is set to 0 in training.
            obs_range: bounded observations are scaled to [-obs_range, obs_range]; 0 leaves them as they are.
            normalize_obs: normalise observed numbers without useful bounds by the running statistics that the agent
                keeps.

        Raises:
            ConfigError: a space that these networks cannot learn from, by name.
        """
        super().__init__()
        num_inputs, num_outputs = self.read_actions(action_space)
        self.n_critics = n_critics
        self.dropout = dropout
        self.encoder = Encoder(observation_space, obs_range, normalize_obs)
        widths = [self.encoder.size + num_inputs, *hidden_sizes]
        self.hidden = nn.ModuleList(EnsembleLinear(n_critics, i, o) for i, o in itertools.pairwise(widths))
        self.norms = nn.ModuleList(EnsembleNorm(n_critics, width) for width in hidden_sizes if layer_norm)
        self.head = EnsembleLinear(n_critics, widths[-1], num_outputs)

    @abstractmethod
    def read_actions(self, action_space: gymnasium.Space[Any]) -> tuple[int, int]:
        """Take what is needed of the action space: how many inputs stand beside the features, how many outputs."""

    def outputs(self, x_BI: Tensor, members: Tensor | None) -> Tensor:
        """[B, I] -> [N, B, outputs]; `members` as in `EnsembleLinear`."""
        n = self.n_critics if members is None else len(members)
        x = x_BI.expand(n, *x_BI.shape)  # [N, B, I]
        for i, layer in enumerate(self.hidden):
            x = layer(x, members)
            if self.dropout:
                x = F.dropout(x, self.dropout, self.training)
            x = F.relu(self.norms[i](x, members) if self.norms else x, inplace=True)
        return self.head(x, members)  # type: ignore[no-any-return]
