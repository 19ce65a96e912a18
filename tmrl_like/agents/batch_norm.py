"""Networks with batch normalisation, N side by side, whose weights lie on the unit sphere.

Shape names: N networks, B batch, I inputs, H hidden width, O outputs.
"""

# Capital suffixes name a tensor's dimensions.
# ruff: noqa: N803, N806
from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmrl_like.agents.models import MLPActor

EPS = 1e-3
MOMENTUM = 0.99  # share of the running statistics that stays in one step
MAX_R, MAX_D = 3.0, 5.0


class BatchNorm(nn.Module):
    """N batch normalisations side by side. In training by the statistics of the batch, else by running ones.

    Ioffe and Szegedy, "Batch Normalization", 2015:  gain (x - E[x]) / sqrt(Var[x] + EPS) + offset.

    After so many batches as `renorm_after` says, the batch's statistics are brought towards the running ones, so that
    training sees what acting will: Ioffe, "Batch Renormalization", 2017:  gain (r (x - E[x]) / std + d) + offset,

        r = std / running std within [1 / MAX_R, MAX_R],    d = (E[x] - running mean) / running std within +- MAX_D,

    through neither of which gradients flow.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, n: int, size: int, renorm_after: float) -> None:
        super().__init__()
        self.renorm_after = renorm_after
        self.gain = nn.Parameter(torch.ones(n, 1, size))
        self.offset = nn.Parameter(torch.zeros(n, 1, size))
        self.register_buffer("mean", torch.zeros(n, 1, size))
        self.register_buffer("var", torch.ones(n, 1, size))
        self.register_buffer("count", torch.zeros(1))  # of batches

    def forward(self, x_NBH: Tensor, training: bool) -> Tensor:
        """[N, B, H] -> [N, B, H]; in training the running statistics move towards those of the batch."""
        if not training:
            scale, shift = self.line()
            return x_NBH * scale + shift
        var, mean = torch.var_mean(x_NBH, 1, correction=0, keepdim=True)
        normed = (x_NBH - mean) * (var + EPS).rsqrt()
        with torch.no_grad():
            if self.count >= self.renorm_after:
                running = (self.var + EPS).sqrt()
                r = ((var + EPS).sqrt() / running).clamp(1.0 / MAX_R, MAX_R)
                d = ((mean - self.mean) / running).clamp(-MAX_D, MAX_D)
            else:
                r, d = torch.ones(()), torch.zeros(())
            self.mean.lerp_(mean, 1.0 - MOMENTUM)
            self.var.lerp_(var, 1.0 - MOMENTUM)
            self.count += 1.0
        return (normed * r + d) * self.gain + self.offset

    def line(self) -> tuple[Tensor, Tensor]:
        """Scale and shift, [N, 1, H] each, by which it normalises when it is not in training."""
        scale = self.gain * (self.var + EPS).rsqrt()
        return scale, self.offset - self.mean * scale


class BatchNormMLP(nn.Module):
    """Batch normalisation, then hidden layers: linear without bias, batch normalisation, ReLU; then a linear head.

    Each unit's weights have length 1 at first, and after `to_unit_sphere`.

    Attributes:
        norms: batch normalisations: of the inputs, then of each hidden layer.
        weights: [N, I, H] of each hidden layer, then [N, H, O] of the head.
        bias: [N, 1, O], of the head.
    """

    norms: Any  # to mypy, what is in a ModuleList has no methods

    def __init__(
        self,
        n: int,
        num_inputs: int,
        hidden_sizes: Sequence[int],
        num_outputs: int,
        renorm_after: float = math.inf,
    ) -> None:
        super().__init__()
        widths = [num_inputs, *hidden_sizes]
        self.norms = nn.ModuleList(BatchNorm(n, width, renorm_after) for width in widths)
        self.norms[0].offset.requires_grad_(False)  # the next normalisation would take it away again
        shapes = itertools.pairwise([*widths, num_outputs])
        self.weights = nn.ParameterList(torch.empty(n, *shape) for shape in shapes)
        self.bias = nn.Parameter(torch.zeros(n, 1, num_outputs))
        for weight in self.weights:
            for of_one in weight.detach():
                nn.init.orthogonal_(of_one)
        self.to_unit_sphere()

    @torch.no_grad()
    def to_unit_sphere(self) -> None:
        """Divide the weights of each unit by their length."""
        for weight in self.weights:
            weight.mul_(weight.square().sum(1, keepdim=True).rsqrt_())

    def forward(self, x_BI: Tensor, training: bool) -> Tensor:
        """[B, I] -> [N, B, O]."""
        x = self.norms[0](x_BI.expand(len(self.bias), *x_BI.shape), training)
        *hidden, head = self.weights
        for weight, norm in zip(hidden, list(self.norms)[1:], strict=True):
            x = F.relu(norm(torch.bmm(x, weight), training))
        return torch.baddbmm(self.bias, x, head)


@torch.no_grad()
def fold(network: BatchNormMLP, into: MLPActor) -> None:
    """Write to an actor without normalisation, of the same widths, the parameters with which it does the same.

    What does not train normalises by a scale and a shift, and those are a linear layer's: behind it

        s (W x) + t = (s W) x + t,    and before it    W (s x + t) = (W s) x + W t.
    """
    *hidden, head = (weight[0].T for weight in network.weights)  # [H, I]
    *layers, last = cast(list[nn.Linear], [*into.hidden, into.head])
    lines = [[part[0, 0] for part in norm.line()] for norm in network.norms]
    (scale_I, shift_I), *behind = lines
    for i, (layer, weight_HI, (scale_H, shift_H)) in enumerate(zip(layers, hidden, behind, strict=True)):
        weight_HI = weight_HI * scale_H.unsqueeze(1)
        layer.bias.copy_(shift_H if i else weight_HI @ shift_I + shift_H)
        layer.weight.copy_(weight_HI if i else weight_HI * scale_I)
    last.weight.copy_(head)
    last.bias.copy_(network.bias[0, 0])
