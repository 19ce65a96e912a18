"""Forward and backward passes written by hand, where automatic differentiation does more than is needed.

Each equals the same formula left to autograd (the tests compare them); it runs fewer and smaller operations.
Shape names: B batch, N critics, H hidden width, F features of an observation, A flat action.
"""

# Capital suffixes name a tensor's dimensions.
# ruff: noqa: N803, N806
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_LOG_2 = math.log(2.0)
_FEW = 0.75  # rows with a gradient, as share of all: below, gathering them costs less than computing with zeros


class EnsembleReluMLP(torch.autograd.Function):
    """N networks of linear layers and ReLUs over one input, with one output each.

    The backward pass leaves out what nobody asks for: gradients of frozen parameters, of the observation, and,
    where only the action's gradient is wanted, rows without any. Under a minimum over critics, each row has a
    gradient in one of them only (used with one thread: several are busier with whole matrices).
    """

    @staticmethod
    def forward(ctx: Any, features_BF: Tensor, act_BA: Tensor, *parameters: Tensor) -> Tensor:
        """Value actions.

        Args:
            ctx: torch's.
            features_BF: float32.
            act_BA: float32.
            parameters: weight [N, in, out] and bias [N, 1, out] of each hidden layer, then the head's weight
                [N, 1, H] and bias [N, 1].

        Returns:
            float32 [N, B].
        """
        *hidden, (head_weight, head_bias) = _pairs(parameters)
        x_BI = torch.cat((features_BF, act_BA), dim=1)
        layers = [x_BI.expand(len(head_weight), *x_BI.shape)]
        for weight, bias in hidden:
            layers.append(torch.baddbmm(bias, layers[-1], weight).relu_())
        ctx.save_for_backward(*layers, *parameters)
        ctx.n_layers, ctx.n_features = len(layers), features_BF.shape[1]
        return torch.bmm(layers[-1], head_weight.mT).squeeze(-1).add_(head_bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """[N, B] -> gradients of `forward`'s arguments."""
        (grad_NB,) = grads
        layers, parameters = ctx.saved_tensors[: ctx.n_layers], ctx.saved_tensors[ctx.n_layers :]
        to_features, to_action, *to_parameters = ctx.needs_input_grad
        if not to_features and not any(to_parameters):
            grad_BA = _backward_to_action(grad_NB, layers, parameters, ctx.n_features)
            return None, grad_BA, *(None for _ in parameters)
        grad_NBI, grads_of_parameters = _backward(grad_NB, layers, parameters, to_features or to_action)
        if grad_NBI is None:
            return None, None, *grads_of_parameters
        grad_BI = grad_NBI.sum(dim=0)
        return grad_BI[:, : ctx.n_features], grad_BI[:, ctx.n_features :], *grads_of_parameters


def _backward(
    grad_NB: Tensor, layers: Sequence[Tensor], parameters: Sequence[Tensor], to_input: bool
) -> tuple[Tensor | None, list[Tensor]]:
    """Gradients of the input [N, B, I] (None unless `to_input`) and of all parameters."""
    *hidden, (head_weight, _) = _pairs(parameters)
    grads = [grad_NB.sum(dim=1, keepdim=True), torch.bmm(grad_NB.unsqueeze(1), layers[-1])]  # last first
    grad_NBH = grad_NB.unsqueeze(-1) * head_weight
    for i, (weight, _) in reversed(list(enumerate(hidden))):
        _through_relu(grad_NBH, layers[i + 1])
        grads += grad_NBH.sum(dim=1, keepdim=True), torch.bmm(layers[i].mT, grad_NBH)
        if i or to_input:
            grad_NBH = torch.bmm(grad_NBH, weight.mT)
    return (grad_NBH if to_input else None), grads[::-1]


def _backward_to_action(
    grad_NB: Tensor, layers: Sequence[Tensor], parameters: Sequence[Tensor], n_features: int
) -> Tensor:
    """The action's gradient alone; [B, A]."""
    *hidden, (head_weight, _) = _pairs(parameters)
    weights = [weight for weight, _ in hidden]
    weights[0] = weights[0][:, n_features:]
    if grad_NB.device.type == "cpu" and torch.get_num_threads() == 1 and _few_are_nonzero(grad_NB):
        return _rows_to_action(grad_NB, layers, weights, head_weight)
    grad_NBH = grad_NB.unsqueeze(-1) * head_weight
    for layer, weight in zip(layers[:0:-1], weights[::-1], strict=True):
        _through_relu(grad_NBH, layer)
        grad_NBH = torch.bmm(grad_NBH, weight.mT)
    return grad_NBH.sum(dim=0)


def _few_are_nonzero(grad_NB: Tensor) -> bool:
    return bool(grad_NB.count_nonzero() < _FEW * grad_NB.numel())


def _rows_to_action(
    grad_NB: Tensor, layers: Sequence[Tensor], weights: Sequence[Tensor], head_weight: Tensor
) -> Tensor:
    """The same, critic by critic for the rows that have a gradient; R of them."""
    grad_BA = grad_NB.new_zeros(grad_NB.shape[1], weights[0].shape[1])
    for n, grad_B in enumerate(grad_NB):
        rows_R = grad_B.nonzero().squeeze(1)
        grad_RH = grad_B[rows_R].unsqueeze(1) * head_weight[n]
        for layer, weight in zip(layers[:0:-1], weights[::-1], strict=True):
            _through_relu(grad_RH, layer[n].index_select(0, rows_R))
            grad_RH = torch.mm(grad_RH, weight[n].mT)
        grad_BA.index_add_(0, rows_R, grad_RH)
    return grad_BA


def _through_relu(grad: Tensor, output: Tensor) -> None:
    """Gradient of a ReLU's output -> of its input, in place."""
    torch.ops.aten.threshold_backward.grad_input(grad, output, 0, grad_input=grad)


def _pairs(parameters: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Weight and bias of each layer."""
    return list(zip(parameters[::2], parameters[1::2], strict=True))


class SquashedGaussian(torch.autograd.Function):
    """An action drawn from a Gaussian and squashed by tanh, with the log-density of tanh(u)."""

    @staticmethod
    def forward(
        ctx: Any, mean_BA: Tensor, log_std_BA: Tensor, noise_BA: Tensor, center_A: Tensor, half_A: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Draw actions.

        Args:
            ctx: torch's.
            mean_BA: of u.
            log_std_BA: logarithm of u's standard deviation.
            noise_BA: standard normal.
            center_A: of the action's bounds.
            half_A: half their width.

        Returns:
            Actions [B, A], and the log-density [B] of tanh(u).
        """
        spread_BA = log_std_BA.exp().mul_(noise_BA)
        u_BA = mean_BA + spread_BA
        tanh_BA = u_BA.tanh()
        ctx.save_for_backward(spread_BA, tanh_BA, half_A)
        return torch.addcmul(center_A, half_A, tanh_BA), squashed_log_prob(u_BA, noise_BA, log_std_BA)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Gradients of action [B, A] and log-density [B] -> of `forward`'s arguments.

        d log pi / du = 2 tanh(u),  d tanh(u) / du = 1 - tanh(u)^2,  du / d log std = std * noise.
        """
        grad_act_BA, grad_log_prob_B = grads
        spread_BA, tanh_BA, half_A = ctx.saved_tensors
        grad_log_prob_B1 = grad_log_prob_B.unsqueeze(1)
        grad_u_BA = (grad_act_BA * half_A).mul_(1.0 - tanh_BA.square())
        grad_u_BA.addcmul_(tanh_BA, grad_log_prob_B1, value=2.0)
        return grad_u_BA, (grad_u_BA * spread_BA).sub_(grad_log_prob_B1), None, None, None


def squashed_log_prob(u_BA: Tensor, noise_BA: Tensor, log_std_BA: Tensor) -> Tensor:
    """Log-density of tanh(u), u = mean + std * noise; [B].

    Haarnoja et al. 2018, appendix C, eq. 21:  log pi(a|s) = log mu(u|s) - sum_i log(1 - tanh(u_i)^2),
    with  log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)),  which is exact where 1 - tanh^2 rounds to 0.
    """
    log_jacobian_BA = torch.sub(u_BA, F.softplus(u_BA, beta=-2.0), alpha=2.0)  # torch divides softplus by its beta
    per_dimension_BA = torch.addcmul(log_jacobian_BA * 2.0 - log_std_BA, noise_BA, noise_BA, value=-0.5)
    return per_dimension_BA.sum(dim=-1) - u_BA.shape[-1] * (2.0 * _LOG_2 + _HALF_LOG_2PI)
