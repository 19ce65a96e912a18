"""N networks side by side, computed together. Shape names: N networks, B batch, I inputs, H hidden width."""

# Capital suffixes name a tensor's dimensions.
# ruff: noqa: N803
from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import gymnasium
import torch
import torch.nn.functional as F
from torch import Tensor, nn

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


class EnsembleHead(nn.Module):
    """N linear layers with one output each. A product and a sum: batched matrix products are slow at width 1."""

    def __init__(self, n: int, size_in: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(size_in)
        self.weight = nn.Parameter(torch.empty(n, 1, size_in).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(n, 1).uniform_(-bound, bound))

    def forward(self, x_NBI: Tensor, members: Tensor | None = None) -> Tensor:
        """[N, B, in] -> [N, B]; `members` as in `EnsembleLinear`."""
        weight, bias = (self.weight, self.bias) if members is None else (self.weight[members], self.bias[members])
        return (x_NBI * weight).sum(dim=-1) + bias


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
    """What ensembles of critics have in common: an encoder for all of them, and N stacks of hidden layers.

    Dropout and layer normalisation follow Hiraoka et al., "Dropout Q-Functions for Doubly Efficient
    Reinforcement Learning", 2022: linear, dropout, layer normalisation, ReLU.
    """

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        n_action_inputs: int,
        *,
        n_critics: int,
        hidden_sizes: Sequence[int],
        layer_norm: bool,
        dropout: float,
        obs_range: float,
    ) -> None:
        """Build encoder and hidden layers, which get the features and `n_action_inputs` numbers beside them."""
        super().__init__()
        self.n_critics = n_critics
        self.dropout = dropout
        self.encoder = Encoder(observation_space, obs_range)
        widths = [self.encoder.size + n_action_inputs, *hidden_sizes]
        self.width = widths[-1]
        self.hidden = nn.ModuleList(EnsembleLinear(n_critics, i, o) for i, o in itertools.pairwise(widths))
        self.norms = nn.ModuleList(EnsembleNorm(n_critics, width) for width in hidden_sizes if layer_norm)

    def through_hidden(self, x_BI: Tensor, members: Tensor | None) -> Tensor:
        """[B, I] -> [N, B, H]; `members` as in `EnsembleLinear`."""
        n = self.n_critics if members is None else len(members)
        x = x_BI.expand(n, *x_BI.shape)  # [N, B, I]
        for i, layer in enumerate(self.hidden):
            x = layer(x, members)
            if self.dropout:
                x = F.dropout(x, self.dropout, self.training)
            x = F.relu(self.norms[i](x, members) if self.norms else x, inplace=True)
        return x
