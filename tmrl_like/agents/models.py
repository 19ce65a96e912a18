"""Networks for observations made of vectors and pictures: a squashed Gaussian actor and an ensemble of critics.

Shape names: B batch, F features of an observation, A flat action, H hidden width, N critics.
"""

# Capital suffixes name a tensor's dimensions.
# ruff: noqa: N803, N806
from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

from tmrl_like.actor import ActorModule
from tmrl_like.agents.functions import EnsembleReluMLP, SquashedGaussian
from tmrl_like.agents.observations import OBS_RANGE, Encoder, Rescale, box_bounds
from tmrl_like.errors import ConfigError
from tmrl_like.util import cached_property


class SamplingActor(ActorModule):
    """A policy that SAC can train: it draws actions with gradients and says how likely they were."""

    @abstractmethod
    def sample(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Draw actions by reparameterisation: gradients reach the parameters through both results.

        Args:
            obs: structure of [B, ...].

        Returns:
            Actions [B, *action shape] in the action space's units and their log-density [B] in those units.
        """


class SquashedGaussianActor(SamplingActor):
    """A Gaussian policy squashed by tanh to the bounds of a Box action space.

    Haarnoja et al., "Soft Actor-Critic: Off-Policy Maximum Entropy Deep Reinforcement Learning with a
    Stochastic Actor", 2018, appendix C:  a = center + half * tanh(u),  u ~ N(mean(s), std(s)).

    `act` repeats `forward` with fewer operations: a subclass that overrides one overrides both.
    """

    act_center: Tensor  # [A] float32
    act_half: Tensor  # [A] float32, half the width of the bounds

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        hidden_sizes: Sequence[int] = (256, 256),
        layer_norm: bool = False,
        log_std_min: float = -10.0,
        log_std_max: float = 2.0,
        obs_range: float = OBS_RANGE,
    ) -> None:
        """Build the network.

        Args:
            observation_space: vectors and pictures, see `Encoder`.
            action_space: Box with finite bounds, of any shape.
            hidden_sizes: width of each hidden layer.
            layer_norm: normalise each hidden layer before its ReLU.
            log_std_min: lower bound of the logarithm of u's standard deviation.
            log_std_max: its upper bound.
            obs_range: bounded observations are scaled to [-obs_range, obs_range]; 0 leaves them as they are.

        Raises:
            ConfigError: a space that this network cannot learn from, by name.
        """
        super().__init__(observation_space, action_space)
        center, half = action_bounds(action_space)
        self.encoder = Encoder(observation_space, obs_range)
        widths = [self.encoder.size, *hidden_sizes]
        self.hidden = nn.ModuleList(nn.Linear(i, o) for i, o in itertools.pairwise(widths))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in hidden_sizes if layer_norm)
        self.head = nn.Linear(widths[-1], 2 * len(center))
        self.log_std_min = log_std_min
        self.log_std_max = log_std_max
        self.register_buffer("act_center", torch.as_tensor(center), persistent=False)
        self.register_buffer("act_half", torch.as_tensor(half), persistent=False)
        self._log_half_sum = float(np.log(half.astype(np.float64)).sum())

    def forward(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Structure of [B, ...] -> mean and log standard deviation of u, each [B, A]."""
        return self._gaussian(self.encoder(obs))

    def sample(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Draw actions and their log-density; see `SamplingActor.sample`."""
        mean_BA, log_std_BA = self(obs)
        noise_BA = torch.randn_like(mean_BA)
        bounds = self.act_center, self.act_half
        act_BA, log_prob_B = SquashedGaussian.apply(mean_BA, log_std_BA, noise_BA, *bounds)  # type: ignore[no-untyped-call]
        return act_BA.view(-1, *self.action_space.shape), log_prob_B - self._log_half_sum  # type: ignore[misc]

    @torch.inference_mode()
    def act(self, obs: Any, test: bool = False) -> np.ndarray[Any, Any]:
        """Choose an action; see `ActorModule.act`. `test` takes u's mean. Returns float32 [*action shape]."""
        return self._act(self.encoder(obs)[0], test)

    def act_(self, obs: Any, test: bool = False) -> Any:
        """Choose an action for one raw observation; on the CPU without a tensor per leaf."""
        if self.device != "cpu" or self.encoder.pictures or type(self).act is not SquashedGaussianActor.act:
            return super().act_(obs, test)
        with torch.inference_mode():
            return self._act(self.encoder.one(obs), test)

    def _act(self, x: Tensor, test: bool) -> np.ndarray[Any, Any]:
        """Features [F] -> action. Matrix-vector products and in-place steps: on a CPU each operation avoided counts."""
        *hidden, (head_weight, head_bias) = self._linear_parameters
        norms = self.norms
        for i, (weight, bias) in enumerate(hidden):
            x = torch.addmv(bias, weight, x)
            x = (norms[i](x) if norms else x).relu_()
        mean_A, log_std_A = torch.addmv(head_bias, head_weight, x).chunk(2)
        if not test:
            std_A = log_std_A.clamp_(self.log_std_min, self.log_std_max).exp_()
            mean_A = torch.addcmul(mean_A, torch.randn(len(mean_A), device=mean_A.device), std_A)
        act_A = torch.addcmul(self.act_center, self.act_half, mean_A.tanh_())
        action: np.ndarray[Any, Any] = act_A.cpu().numpy().reshape(self.action_space.shape)
        return action

    _linear_parameters = cached_property(
        lambda self: [(layer.weight, layer.bias) for layer in (*self.hidden, self.head)]
    )

    def _gaussian(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[B, F] -> mean and log standard deviation, each [B, A]."""
        for i, layer in enumerate(self.hidden):
            x = layer(x)
            x = F.relu(self.norms[i](x) if self.norms else x, inplace=True)
        mean, log_std = self.head(x).chunk(2, dim=-1)
        return mean, log_std.clamp(self.log_std_min, self.log_std_max)


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


class EnsembleCritic(nn.Module):
    """N action values Q_i(s, a), computed together. Pictures go through one encoder for all N.

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
        layer_norm: bool = False,
        dropout: float = 0.0,
        obs_range: float = OBS_RANGE,
    ) -> None:
        """Build the networks; spaces and errors as in `SquashedGaussianActor`."""
        super().__init__()
        center, half = action_bounds(action_space)
        self.n_critics = n_critics
        self.dropout = dropout
        self.encoder = Encoder(observation_space, obs_range)
        self.rescale_act = Rescale(center - half, center + half, np.ones_like(half))
        widths = [self.encoder.size + len(center), *hidden_sizes]
        self.hidden = nn.ModuleList(EnsembleLinear(n_critics, i, o) for i, o in itertools.pairwise(widths))
        self.head = EnsembleHead(n_critics, widths[-1])
        self.norms = nn.ModuleList(EnsembleNorm(n_critics, width) for width in hidden_sizes if layer_norm)
        self._layers = [p for layer in (*self.hidden, self.head) for p in (layer.weight, layer.bias)]  # found once

    def forward(self, obs: Any, act: Tensor, members: Tensor | None = None) -> Tensor:
        """Value actions.

        Args:
            obs: structure of [B, ...].
            act: [B, *action shape] in the action space's units.
            members: int64 [M], which critics to ask; None asks all.

        Returns:
            float32 [N, B] (or [M, B]).
        """
        features_BF, act_BA = self.encoder(obs), self.rescale_act(act.flatten(1).float())
        if self.norms or self.dropout:
            return self._layer_by_layer(torch.cat((features_BF, act_BA), dim=1), members)
        chosen = self._layers if members is None else (p[members] for p in self._layers)
        q_NB: Tensor = EnsembleReluMLP.apply(features_BF, act_BA, *chosen)  # type: ignore[no-untyped-call]
        return q_NB

    def _layer_by_layer(self, x_BI: Tensor, members: Tensor | None) -> Tensor:
        """[B, I] -> [N, B]."""
        n = self.n_critics if members is None else len(members)
        x = x_BI.expand(n, *x_BI.shape)  # [N, B, I]
        for i, layer in enumerate(self.hidden):
            x = layer(x, members)
            if self.dropout:
                x = F.dropout(x, self.dropout, self.training)
            x = F.relu(self.norms[i](x, members) if self.norms else x, inplace=True)
        q_NB: Tensor = self.head(x, members)
        return q_NB


def action_bounds(space: gymnasium.Space[Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Center and half width of a Box, each float32 [A].

    Raises:
        ConfigError: not a Box, or a bound that is infinite or empty.
    """
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        raise ConfigError(f"the action space is {space}; this agent needs a Box of floats with finite bounds")
    low, high = box_bounds(space)
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise ConfigError(f"the action space {space} has no finite bounds; give it a low and a high for each entry")
    center, half = (low + high) / 2, (high - low) / 2
    outside = (center + half > high) | (center - half < low)  # by rounding
    return center, np.where(outside, half - np.spacing(np.maximum(abs(low), abs(high))), half)
