"""Networks that are trained with batch renormalisation, and their conversion to plain networks that
do the same.

Shape names: N networks side by side, B batch, I inputs, H hidden width, O outputs.
"""

# Capital suffixes name a tensor's dimensions.
# ruff: noqa: N803, N806
from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmrl_like.agents.ensemble import MLP
from tmrl_like.agents.models import CategoricalCritic, SquashedGaussianActor
from tmrl_like.policies.network import NetworkOptions

EPS = 1e-3
MOMENTUM = 0.99  # share of the running statistics that each batch keeps
MAX_R, MAX_D = 3.0, 5.0


class BatchNormMLP(nn.Module):
    """N networks: normalisation of the inputs, hidden layers (each linear without bias,
    normalisation, ReLU), and a linear head.

    They are for training only: each pass normalises by its batch and updates the running
    statistics. `fold` makes the networks that normalise by these.

    Attributes:
        gains: [N, 1, I] of the inputs, then [N, 1, H] of each hidden layer.
        offsets: [N, 1, H] of each hidden layer; the inputs have none, since the next normalisation
            would cancel it.
        weights: [N, I, H] of each hidden layer, then [N, H, O] of the head; each unit's weights
            have length 1 at first, see `rescale`.
        bias: [N, 1, O], of the head.
        statistics: running means and variances, see `running`.
        count: [], number of batches seen.
    """

    renorm_after = 1000  # batches; before, the running statistics depend on their initial values
    statistics: Tensor
    count: Tensor

    def __init__(self, n: int, widths: Sequence[int], num_outputs: int) -> None:
        """Make N networks; `widths` are those of the inputs and of each hidden layer."""
        super().__init__()
        self.gains = nn.ParameterList(torch.ones(n, 1, width) for width in widths)
        self.offsets = nn.ParameterList(torch.zeros(n, 1, width) for width in widths[1:])
        self.weights = nn.ParameterList(
            torch.empty(n, *shape) for shape in itertools.pairwise([*widths, num_outputs])
        )
        self.bias = nn.Parameter(torch.zeros(n, 1, num_outputs))
        for weight in self.weights:
            for of_one in weight.data:
                nn.init.orthogonal_(of_one)
            weight.data = F.normalize(weight.data, dim=1)
        start = [torch.full((n * width,), value) for width in widths for value in (0.0, 1.0)]
        self.register_buffer("statistics", torch.cat(start))
        self.register_buffer("count", torch.zeros(()))

    def tensors(self) -> tuple[list[Tensor], ...]:
        """Return the tensors that `MLP.tensors` returns, without the inputs' gains. A hidden layer
        has no bias, in whose place its offset stands.
        """
        offsets = [*self.offsets]
        return [*self.weights], [*offsets, self.bias], [*self.gains[1:]], offsets

    def running(self) -> list[tuple[Tensor, Tensor]]:
        """Return mean and variance of each normalisation, [N, 1, H] each, views of `statistics`."""
        parts = torch.split(self.statistics, [2 * gain.numel() for gain in self.gains])
        both = (part.chunk(2) for part in parts)
        return [
            (mean.view_as(gain), var.view_as(gain))
            for gain, (mean, var) in zip(self.gains, both, strict=True)
        ]

    @torch.no_grad()
    def rescale(self) -> None:
        """Give the weights of each hidden unit the length 1 again.

        Normalisation cancels their length, so this changes no output. But a step turns long weights
        less than short ones, and they would grow with each step: Palenicek et al., "Scaling
        Off-Policy Reinforcement Learning with Batch and Weight Normalization", 2025
        (arXiv:2502.07523).
        """
        for weight in self.weights[:-1]:
            weight.div_(torch.linalg.vector_norm(weight, dim=1, keepdim=True))

    def forward(self, x_BI: Tensor) -> Tensor:
        """Map [B, I] to [N, B, O]."""
        is_renormed = self.count >= self.renorm_after
        x = x_BI.expand(len(self.bias), *x_BI.shape)
        for i, (mean, var) in enumerate(self.running()):
            if i > 0:
                x = torch.bmm(x, self.weights[i - 1])
            x = renormalise(x, mean, var, is_renormed) * self.gains[i]
            if i > 0:
                x = F.relu(x + self.offsets[i - 1])
        self.count += 1.0
        return torch.baddbmm(self.bias, x, self.weights[-1])


def renormalise(
    x_NBH: Tensor, running_mean: Tensor, running_var: Tensor, is_renormed: Tensor
) -> Tensor:
    """Normalise by the batch, [N, B, H], and update the running statistics, [N, 1, H] each, in
    place.

    Ioffe and Szegedy, "Batch Normalization", 2015. If `is_renormed` [], the result is corrected
    towards the running statistics, so that training sees what acting will see: Ioffe, "Batch
    Renormalization", 2017:

        r (x - E[x]) / std + d,                  std = sqrt(Var[x] + EPS)
        r = std / running std                within [1 / MAX_R, MAX_R]
        d = (E[x] - running mean) / running std  within +- MAX_D,

    and gradients flow through neither r nor d.
    """
    var, mean = torch.var_mean(x_NBH, 1, correction=0, keepdim=True)
    normed = (x_NBH - mean) * (var + EPS).rsqrt()
    with torch.no_grad():
        running_std = (running_var + EPS).sqrt()
        r = ((var + EPS).sqrt() / running_std).clamp(1.0 / MAX_R, MAX_R).where(is_renormed, 1.0)
        d = ((mean - running_mean) / running_std).clamp(-MAX_D, MAX_D).where(is_renormed, 0.0)
        running_mean.lerp_(mean, 1.0 - MOMENTUM)
        running_var.lerp_(var, 1.0 - MOMENTUM)
    return normed * r + d


@torch.no_grad()
def fold(network: BatchNormMLP, into: MLP) -> None:
    """Write parameters to plain networks of the same widths, so that they do what `network` does
    with its running statistics.

    Normalisation by running statistics is a scale s and a shift t, which the linear layer W before
    or after it can absorb:

        s (W x) + t = (s W) x + t,    W (s x + t) = (W s) x + W t.
    """
    lines: list[Any] = []
    offsets = 0.0, *network.offsets
    for gain, (mean, var), offset in zip(network.gains, network.running(), offsets, strict=True):
        scale = gain * (var + EPS).rsqrt()
        lines.append((scale, -mean * scale + offset))
    lines.append((1.0, network.bias))
    (scale_I, shift_I), *behind = lines
    for i, layer in enumerate([*into.hidden, into.head]):
        scale_O, bias_N1O = behind[i]
        weight_NIO = network.weights[i] * scale_O
        if i == 0:
            bias_N1O = bias_N1O + torch.bmm(shift_I, weight_NIO)
            weight_NIO = weight_NIO * scale_I.mT
        _write(layer, weight_NIO, bias_N1O)


def _write(layer: Any, weight_NIO: Tensor, bias_N1O: Tensor) -> None:
    """Write to a layer of N networks, or of a single one."""
    if isinstance(layer, nn.Linear):
        weight_NIO, bias_N1O = weight_NIO[0].T, bias_N1O[0, 0]
    layer.weight.copy_(weight_NIO)
    layer.bias.copy_(bias_N1O)


class BatchNormActor(SquashedGaussianActor):
    """`SquashedGaussianActor` in training, with the layers of `BatchNormMLP`."""

    def make_layers(  # type: ignore[override]
        self, num_inputs: int, num_outputs: int, options: NetworkOptions
    ) -> None:
        """Make `network`."""
        self.network = BatchNormMLP(1, [num_inputs, *options.hidden_sizes], num_outputs)

    def outputs(self, x: Tensor) -> Tensor:
        """Map [B, I] to [B, O]."""
        return self.network.forward(x)[0]


class BatchNormCritic(CategoricalCritic):
    """`CategoricalCritic` in training, with the layers of `BatchNormMLP`."""

    def make_layers(
        self, num_inputs: int, num_outputs: int, options: NetworkOptions, *_: object
    ) -> None:
        """Make `network`."""
        self.network = BatchNormMLP(
            self.n_critics, [num_inputs, *options.hidden_sizes], num_outputs
        )

    def outputs(self, x: Tensor) -> Tensor:
        """Map [B, I] to [N, B, O]."""
        return self.network.forward(x)
