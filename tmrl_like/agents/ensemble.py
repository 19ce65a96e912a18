"""Networks of hidden layers: one, or N side by side, computed together.

Shape names: N networks, B batch, I inputs, H hidden width.
"""

# Capital suffixes name a tensor's dimensions.
# ruff: noqa: N803
from __future__ import annotations

import copy
import functools
import itertools
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor, nn

from tmrl_like.agents.observations import Encoder
from tmrl_like.agents.sharing import no_grad
from tmrl_like.agents.space_layout import Space
from tmrl_like.base.options import Positive
from tmrl_like.policies.network import NetworkOptions


class MLP(nn.Module):
    """Hidden layers (each linear, dropout, layer normalisation, ReLU), and a linear layer, the
    head.

    The order follows Hiraoka et al., "Dropout Q-Functions for Doubly Efficient Reinforcement
    Learning", 2022.
    """

    dropout = 0.0

    def make_layers(
        self,
        num_inputs: int,
        num_outputs: int,
        options: NetworkOptions,
        linear: Callable[[int, int], nn.Module] = nn.Linear,
        norm: Callable[[int], nn.Module] = nn.LayerNorm,
    ) -> None:
        """Make `hidden` and `head` of `linear` layers, and `norms` of `norm` layers."""
        widths = [num_inputs, *options.hidden_sizes]
        self.hidden = nn.ModuleList(linear(i, o) for i, o in itertools.pairwise(widths))
        self.norms = nn.ModuleList(
            norm(width) for width in options.hidden_sizes if options.layer_norm
        )
        self.head = linear(widths[-1], num_outputs)

    def tensors(self) -> tuple[list[Tensor], ...]:
        """Return weights and biases of the linear layers, gains and offsets of the
        normalisations.
        """
        linears = [*self.hidden, self.head]
        return tuple(
            [getattr(layer, name) for layer in layers]
            for layers in (linears, self.norms)
            for name in ("weight", "bias")
        )

    def outputs(self, x: Tensor) -> Tensor:
        """Map [..., inputs] to [..., outputs]."""
        for i, layer in enumerate(self.hidden):
            x = layer(x)
            if self.dropout:
                x = F.dropout(x, self.dropout, self.training)
            x = F.relu(self.norms[i](x) if self.norms else x, inplace=True)
        return self.head(x)  # type: ignore[no-any-return]


class AverageMLP(MLP):
    """The moving average of a network's layers.

    Attributes:
        is_used: [], 1 once an agent has updated the average, else 0.
    """

    is_used: Tensor

    def __init__(self, of: MLP) -> None:
        """Begin as a copy."""
        super().__init__()
        self.hidden, self.norms, self.head = copy.deepcopy((of.hidden, of.norms, of.head))
        self.register_buffer("is_used", torch.zeros(()))
        no_grad(self)


class EnsembleLinear(nn.Module):
    """N linear layers side by side in one batched matrix product."""

    def __init__(self, n: int, size_in: int, size_out: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(size_in)  # the same as nn.Linear's
        self.weight = nn.Parameter(torch.empty(n, size_in, size_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(n, 1, size_out).uniform_(-bound, bound))

    def forward(self, x_NBI: Tensor) -> Tensor:
        """Map [N, B, in] to [N, B, out]."""
        return torch.baddbmm(self.bias, x_NBI, self.weight)


class EnsembleNorm(nn.Module):
    """N layer normalisations side by side."""

    def __init__(self, n: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n, 1, size))
        self.bias = nn.Parameter(torch.zeros(n, 1, size))

    def forward(self, x_NBH: Tensor) -> Tensor:
        """Map [N, B, H] to [N, B, H]."""
        normed = F.layer_norm(x_NBH, x_NBH.shape[-1:])
        return torch.addcmul(self.bias, normed, self.weight)


@dataclass(frozen=True)
class CriticOptions(NetworkOptions):
    """Options of an ensemble of critics, in addition to those of all networks.

    Attributes:
        layer_norm: normalise each hidden layer before its ReLU.
        n_critics: number of critics, N.
        dropout: share of a hidden layer's outputs that is set to 0 in training.
    """

    layer_norm: bool = True
    n_critics: Positive = 2
    dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.0


class EnsembleMLP(MLP):
    """Base class of ensembles of critics: one encoder, and N networks on its features."""

    page: ClassVar[type[CriticOptions]] = CriticOptions

    def __init__(self, observation_space: Space, action_space: Space, **options: Any) -> None:
        """Build the networks.

        Args:
            observation_space: see `Encoder`.
            action_space: as for the actor that goes with these critics.
            options: see `CriticOptions`.

        Raises:
            ConfigError: these networks cannot learn from a space, which the message names.
        """
        super().__init__()
        made = self.options = self.page(**options)
        num_inputs, num_outputs = self.read_actions(action_space)
        self.n_critics, self.dropout = made.n_critics, made.dropout
        self.encoder = Encoder(observation_space, made.obs_range, made.normalize_obs)
        linear, norm = (
            functools.partial(kind, made.n_critics) for kind in (EnsembleLinear, EnsembleNorm)
        )
        self.make_layers(self.encoder.size + num_inputs, num_outputs, made, linear, norm)

    @abstractmethod
    def read_actions(self, action_space: Space) -> tuple[int, int]:
        """Read the action space; return the number of inputs beside the features, and of
        outputs.
        """

    def outputs(self, x: Tensor) -> Tensor:
        """Map [B, I] to [N, B, outputs]."""
        return super().outputs(x.expand(self.n_critics, *x.shape))
