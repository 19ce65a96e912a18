"""The gradients of XQC's losses, compiled for the CPU.

The losses are those of `tmrl_like.agents.xqc`; their derivatives are written out. Shape names: N networks side by side,
B batch, R rows of a pass (B, or 2 B), F features of an observation, A actions, I inputs, H hidden width, O outputs of a
network, K bins.
"""

# Capital suffixes name a tensor's dimensions.
# ruff: noqa: N803, N806
from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from tmrl_like.agents import batch_norm
from tmrl_like.agents.batch_norm import BatchNormMLP
from tmrl_like.agents.dense import ONE, ZERO, compiled, find_sgemm, multiply, sum_rows, zeros
from tmrl_like.policies.network import Floats
from tmrl_like.types import Batch

Limits: TypeAlias = tuple[np.float32, np.float32]
Drawing: TypeAlias = tuple[Floats, Limits]
"""What actions are drawn with: noise [B, A], standard normal; bounds of log std."""

TWO, HALF = np.float32(2.0), np.float32(0.5)
EPS, STEP = np.float32(batch_norm.EPS), np.float32(1.0 - batch_norm.MOMENTUM)
MAX_R, MAX_D = np.float32(batch_norm.MAX_R), np.float32(batch_norm.MAX_D)


class NormedParameters(NamedTuple):
    """Those of N networks, or their gradients. Place 0 of the normalisations is that of the inputs."""

    gains: tuple[Floats, ...]  # [N, H]
    offsets: tuple[Floats, ...]  # [N, H]
    weights: tuple[Floats, ...]  # [N, I, H]
    bias: Floats  # [N, O], of the head


class NormStatistics(NamedTuple):
    """Running ones, of each normalisation."""

    means: tuple[Floats, ...]  # [N, H]
    vars: tuple[Floats, ...]  # [N, H]
    counts: tuple[Floats, ...]  # [1], of batches
    renorm_after: float


class NormedTrace(NamedTuple):
    """What a pass leaves behind each normalisation, for the way back, and what comes back there."""

    normed: tuple[Floats, ...]  # [N, R, H], before gain and offset
    y: tuple[Floats, ...]  # [N, R, H], behind them, and behind ReLU
    scale: tuple[Floats, ...]  # [N, H], 1 / standard deviation; without batch statistics times the gain
    r: tuple[Floats, ...]  # [N, H], of batch renormalisation; 1: there is none
    shift: tuple[Floats, ...]  # [N, H], its d; 0: there is none
    d: tuple[Floats, ...]  # [N, R, H], the derivative by y, then that by what is normalised
    out: Floats  # [N, B, O]
    d_out: Floats  # [N, B, O]


class NormedNetwork(NamedTuple):
    """N networks as compiled functions take them."""

    parameters: NormedParameters
    gradients: NormedParameters
    statistics: NormStatistics
    trace: NormedTrace


def network_of(module: BatchNormMLP, num_rows: int, num_out: int) -> NormedNetwork:
    """Make the description, and room for passes of `num_rows`, of which `num_out` go through the head."""
    parameters = _parameters_of(module, lambda p: p.detach())
    is_trained = module.bias.requires_grad
    gradients = _parameters_of(module, _gradient_of) if is_trained else parameters
    means, variances = (tuple(_flat(getattr(norm, name)) for norm in module.norms) for name in ("mean", "var"))
    shapes = [gain.shape for gain in parameters.gains]
    normed, y, d = (tuple(zeros(n, num_rows, width) for n, width in shapes) for _ in range(3))
    scale, r, shift = (tuple(zeros(*shape) for shape in shapes) for _ in range(3))
    statistics = NormStatistics(
        means, variances, tuple(norm.count.numpy() for norm in module.norms), float(module.norms[0].renorm_after)
    )
    out, d_out = (zeros(len(parameters.bias), num_out, parameters.bias.shape[1]) for _ in range(2))
    return NormedNetwork(parameters, gradients, statistics, NormedTrace(normed, y, scale, r, shift, d, out, d_out))


def _parameters_of(module: BatchNormMLP, see: Callable[[Tensor], Tensor]) -> NormedParameters:
    gains, offsets = (tuple(_flat(see(getattr(norm, name))) for norm in module.norms) for name in ("gain", "offset"))
    weights = tuple(see(weight).numpy() for weight in module.weights)
    return NormedParameters(gains, offsets, weights, _flat(see(module.bias)))


def _gradient_of(parameter: Tensor) -> Tensor:
    """Where there is none, room for what nobody reads."""
    return parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)


def _flat(values: Tensor) -> Floats:
    """[N, 1, H] -> [N, H]."""
    rows: Floats = values.detach().squeeze(1).numpy()
    return rows


class CompiledXQC:
    """Leaves the gradients of the losses in the parameters of critics and actor, as autograd does."""

    def __init__(
        self,
        actor: BatchNormMLP,
        critic: BatchNormMLP,
        target: BatchNormMLP,
        bins_K: Tensor,
        limits: tuple[float, float],
    ) -> None:
        """Take networks whose parameters and gradients stay where they are from the first call on.

        Args:
            actor: its outputs are means and logarithms of standard deviations.
            critic: its outputs are logits of the bins.
            target: the critics' moving average, or the critics themselves.
            bins_K: the values of the bins, equally far from each other.
            limits: of the logarithm of the standard deviation.

        Raises:
            ImportError: there is no BLAS.
        """
        find_sgemm()
        self._made_of = actor, critic, target, bins_K, limits
        self._bins_K = bins_K.numpy()
        self._limits = np.float32(limits[0]), np.float32(limits[1])
        self._num_rows = 0  # that there is room for

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledXQC:
        return CompiledXQC(*copy.deepcopy(self._made_of, memo))

    def of_critics(
        self,
        features_BF: Tensor,
        act_BA: Tensor,
        next_features_BF: Tensor,
        batch: Batch,
        entropy_coef: float,
        gamma: float | Tensor,
    ) -> dict[str, float]:
        """Of `critic_loss`, by the critics, for actions in [-1, 1]; returns the metrics."""
        self._make_room(len(features_BF))
        self._noise_BA.normal_()
        gamma_B: Floats = gamma.numpy() if isinstance(gamma, Tensor) else np.full(self._num_rows, gamma, np.float32)
        loss, q, target = _critic_gradients(
            (self._actor, self._critic, self._target),
            (self._noise_BA.numpy(), self._limits),
            (features_BF.numpy(), act_BA.numpy(), next_features_BF.numpy()),
            (batch.rew.numpy(), batch.terminated.float().numpy(), gamma_B),
            self._bins_K,
            entropy_coef,
        )
        return {"loss_critic": loss, "q_mean": q, "q_target_mean": target}

    def of_actor(self, features_BF: Tensor, entropy_coef: float) -> dict[str, float]:
        """Of `actor_loss`, by the actor; returns the metrics."""
        self._make_room(len(features_BF))
        self._noise_BA.normal_()
        loss, entropy = _actor_gradients(
            (self._actor, self._critic),
            (self._noise_BA.numpy(), self._limits),
            features_BF.numpy(),
            self._bins_K,
            entropy_coef,
        )
        return {"loss_actor": loss, "entropy_nats": entropy}

    def _make_room(self, num_rows: int) -> None:
        if num_rows == self._num_rows:
            return
        self._num_rows = num_rows
        actor, critic, target, *_ = self._made_of
        self._actor = network_of(actor, num_rows, num_rows)
        num_out = 2 * num_rows if target is critic else num_rows  # the critics themselves say what follows
        self._critic = network_of(critic, 2 * num_rows, num_out)
        self._target = self._critic if target is critic else network_of(target, 2 * num_rows, num_out)
        self._noise_BA = torch.zeros(num_rows, actor.bias.shape[-1] // 2)


@compiled
def _forward(network: NormedNetwork, x_RI: Floats, first: int) -> Floats:
    """In training: normalises by the statistics of the rows, and moves the running ones.

    Returns:
        The head's outputs for B rows from the `first` one on, [N, B, O]; they hold until the next call.
    """
    (gains, offsets, weights, bias), trace = network.parameters, network.trace
    means, variances, counts, renorm_after = network.statistics
    out, last = trace.out, len(weights) - 1
    for n in range(len(bias)):
        trace.normed[0][n][:] = x_RI
        for i in range(last + 1):
            if i > 0:
                multiply(trace.y[i - 1][n], weights[i - 1][n], trace.normed[i][n], False, False)
            r, shift = trace.r[i][n], trace.shift[i][n]
            is_renormed = counts[i][0] >= renorm_after
            _normalise(trace.normed[i][n], means[i][n], variances[i][n], trace.scale[i][n], is_renormed, r, shift)
            gain = gains[i][n]
            _rescale(trace.normed[i][n], gain * r, offsets[i][n] + gain * shift, i > 0, trace.y[i][n])
        multiply(trace.y[last][n][first : first + out.shape[1]], weights[last][n], out[n], False, False)
        _add(out[n], bias[n])
    for i in range(last + 1):
        counts[i][0] += ONE
    return out


@compiled
def _normalise(
    x: Floats,
    running_mean: Floats,
    running_var: Floats,
    scale: Floats,
    is_renormed: bool,
    r: Floats,
    shift: Floats,
) -> None:
    """In place of x [R, H]; fills in `scale`, `r` and `shift`, and moves the running statistics."""
    size = np.float32(x.shape[0])
    mean, var = np.zeros_like(scale), np.zeros_like(scale)
    for b in range(x.shape[0]):
        for h in range(x.shape[1]):
            mean[h] += x[b, h]
    for h in range(len(mean)):
        mean[h] /= size
    for b in range(x.shape[0]):
        for h in range(x.shape[1]):
            apart = x[b, h] - mean[h]
            var[h] += apart * apart
    for h in range(len(mean)):
        var[h] /= size
        scale[h] = ONE / np.sqrt(var[h] + EPS)
        r[h], shift[h] = ONE, ZERO
        if is_renormed:
            running = np.sqrt(running_var[h] + EPS)
            r[h] = min(max(ONE / (scale[h] * running), ONE / MAX_R), MAX_R)
            shift[h] = min(max((mean[h] - running_mean[h]) / running, -MAX_D), MAX_D)
        running_mean[h] += STEP * (mean[h] - running_mean[h])
        running_var[h] += STEP * (var[h] - running_var[h])
    for b in range(x.shape[0]):
        for h in range(x.shape[1]):
            x[b, h] = (x[b, h] - mean[h]) * scale[h]


@compiled
def _rescale(x: Floats, scale: Floats, shift: Floats, rectify: bool, y: Floats) -> None:
    """Each column of x [R, H] times a scale plus a shift, and ReLU, to y, which may be x."""
    least = ZERO if rectify else -np.float32(np.inf)
    for r in range(x.shape[0]):
        for h in range(x.shape[1]):
            value = x[r, h] * scale[h] + shift[h]
            y[r, h] = least if value < least else value


@compiled
def _add(y: Floats, bias: Floats) -> None:
    for r in range(y.shape[0]):
        for o in range(y.shape[1]):
            y[r, o] += bias[o]


@compiled
def _backward(network: NormedNetwork, first: int) -> None:
    """After `_forward`: from the derivative by the outputs, `d_out`, to the gradients of the parameters."""
    gains, _, weights, bias = network.parameters
    d_gains, d_offsets, d_weights, d_bias = network.gradients
    trace, last = network.trace, len(weights) - 1
    end = first + trace.out.shape[1]
    for n in range(len(bias)):
        d_out, d = trace.d_out[n], trace.d[last][n]
        sum_rows(d_out, d_bias[n])
        multiply(trace.y[last][n][first:end], d_out, d_weights[last][n], True, False)
        d[:first] = ZERO
        d[end:] = ZERO
        multiply(d_out, weights[last][n], d[first:end], False, True)
        for i in range(last, -1, -1):
            d, normed, gain = trace.d[i][n], trace.normed[i][n], gains[i][n]
            along, total = d_gains[i][n], d_offsets[i][n]
            _sum_back(d, normed, trace.y[i][n], i > 0, along, total)
            if i > 0:
                _back_through_norm(d, normed, gain * trace.r[i][n] * trace.scale[i][n], along, total)
                multiply(trace.y[i - 1][n], d, d_weights[i - 1][n], True, False)
                multiply(d, weights[i - 1][n], trace.d[i - 1][n], False, True)
            along[:] = trace.r[i][n] * along + trace.shift[i][n] * total


@compiled
def _sum_back(d: Floats, normed: Floats, y: Floats, rectify: bool, along: Floats, total: Floats) -> None:
    """Back through ReLU, in place of d [R, H]; the sums [H] of what comes through, and of that times `normed`."""
    along[:] = ZERO
    total[:] = ZERO
    least = ZERO if rectify else -np.float32(np.inf)
    for r in range(d.shape[0]):
        for h in range(d.shape[1]):
            d[r, h] = d[r, h] if y[r, h] > least else ZERO
            along[h] += d[r, h] * normed[r, h]
            total[h] += d[r, h]


@compiled
def _back_through_norm(d: Floats, normed: Floats, scale: Floats, along: Floats, total: Floats) -> None:
    """In place of d [R, H], the derivative behind the normalisation by statistics of all rows: that before it."""
    size = np.float32(d.shape[0])
    for r in range(d.shape[0]):
        for h in range(d.shape[1]):
            d[r, h] = (d[r, h] - (total[h] + normed[r, h] * along[h]) / size) * scale[h]


@compiled
def _forward_fixed(network: NormedNetwork, x_BI: Floats) -> Floats:
    """Not in training: normalises by running statistics, a scale and a shift, and changes none; [N, B, O]."""
    (gains, offsets, weights, bias), trace = network.parameters, network.trace
    means, variances, _, _ = network.statistics
    num_rows, last = len(x_BI), len(weights) - 1
    for n in range(len(bias)):
        for i in range(last + 1):
            y, scale = trace.y[i][n][:num_rows], trace.scale[i][n]
            if i == 0:
                y[:] = x_BI
            else:
                multiply(trace.y[i - 1][n][:num_rows], weights[i - 1][n], y, False, False)
            scale[:] = gains[i][n] / np.sqrt(variances[i][n] + EPS)
            _rescale(y, scale, offsets[i][n] - means[i][n] * scale, i > 0, y)
        out = trace.out[n][:num_rows]
        multiply(trace.y[last][n][:num_rows], weights[last][n], out, False, False)
        _add(out, bias[n])
    return trace.out[:, :num_rows]


@compiled
def _backward_fixed(network: NormedNetwork, num_rows: int) -> tuple[Floats, ...]:
    """After `_forward_fixed` of so many rows: from `d_out` to the derivative by the inputs.

    Returns:
        In place 0, [N, R, I], of which the first rows hold it.
    """
    weights, trace = network.parameters.weights, network.trace
    last = len(weights) - 1
    for n in range(len(trace.out)):
        multiply(trace.d_out[n][:num_rows], weights[last][n], trace.d[last][n][:num_rows], False, True)
        for i in range(last, -1, -1):
            d, y, scale = trace.d[i][n][:num_rows], trace.y[i][n], trace.scale[i][n]
            for r in range(num_rows):
                for h in range(d.shape[1]):
                    d[r, h] = d[r, h] * scale[h] if i == 0 or y[r, h] > ZERO else ZERO
            if i > 0:
                multiply(d, weights[i - 1][n], trace.d[i - 1][n][:num_rows], False, True)
    return trace.d


@compiled
def _draw(outputs_BO: Floats, noise_BA: Floats, limits: Limits, act_BA: Floats, std_BA: Floats) -> Floats:
    """Fill in actions tanh(u) and std; log pi [B] as in `squashed_log_prob`, without cancellation:

    log(1 - tanh(u)^2) = 2 (log 2 - |u| - log(1 + exp(-2 |u|)))
    """
    num_rows, num_actions = noise_BA.shape
    low, high = limits
    log_prob_B = np.empty(num_rows, np.float32)
    constant = np.float32(num_actions * (2.0 * math.log(2.0) + 0.5 * math.log(2.0 * math.pi)))
    for b in range(num_rows):
        total = -constant
        for a in range(num_actions):
            noise, log_std = noise_BA[b, a], min(max(outputs_BO[b, num_actions + a], low), high)
            std_BA[b, a] = np.exp(log_std)
            u = outputs_BO[b, a] + std_BA[b, a] * noise
            small = np.exp(-TWO * abs(u))
            tanh = (ONE - small) / (ONE + small)
            act_BA[b, a] = tanh if u >= ZERO else -tanh
            total += TWO * (abs(u) + np.log(ONE + small)) - log_std - HALF * noise * noise
        log_prob_B[b] = total
    return log_prob_B


@compiled
def _softmax(logits_K: Floats, prob_K: Floats) -> np.float32:
    """Fill in probabilities; returns the logarithm of the sum of exponentials."""
    largest = logits_K[0]
    for k in range(len(logits_K)):
        largest = max(largest, logits_K[k])
    total = ZERO
    for k in range(len(logits_K)):
        prob_K[k] = np.exp(logits_K[k] - largest)
        total += prob_K[k]
    for k in range(len(logits_K)):
        prob_K[k] /= total
    log_total: np.float32 = largest + np.log(total)
    return log_total


@compiled
def _project(
    prob_K: Floats, rew: np.float32, discount: np.float32, cost: np.float32, bins_K: Floats, to_K: Floats
) -> None:
    """Fill in where probabilities go when each bin z moves to rew + discount (z - cost); see `target_distribution`."""
    low, high, last = bins_K[0], bins_K[-1], len(bins_K) - 1
    per_bin = np.float32(last) / (high - low)
    to_K[:] = ZERO
    for k in range(len(bins_K)):
        moved = min(max(rew + discount * (bins_K[k] - cost), low), high)
        place = (moved - low) * per_bin
        lower = min(max(int(place), 0), last - 1)  # whatever NaN becomes
        share = place - np.float32(lower)
        to_K[lower] += prob_K[k] * (ONE - share)
        to_K[lower + 1] += prob_K[k] * share


@compiled
def _critic_gradients(
    networks: tuple[NormedNetwork, NormedNetwork, NormedNetwork],
    drawing: Drawing,
    seen: tuple[Floats, Floats, Floats],
    rewards: tuple[Floats, Floats, Floats],
    bins_K: Floats,
    entropy_coef: float,
) -> tuple[float, float, float]:
    """Of `target_distribution` and `critic_loss`; returns the loss, and the means of values and targets.

    Args:
        networks: actor, critics and their targets.
        drawing: for the actions that follow.
        seen: features [B, F], act [B, A], next_features [B, F].
        rewards: rew, terminated, gamma [B].
        bins_K: the values of the bins.
        entropy_coef: alpha.
    """
    actor, critics, targets = networks
    noise_BA, limits = drawing
    features_BF, act_BA, next_features_BF = seen
    rew_B, terminated_B, gamma_B = rewards
    num_rows, num_features = features_BF.shape
    next_act_BA, std_BA = np.empty_like(act_BA), np.empty_like(act_BA)
    log_prob_B = _draw(_forward_fixed(actor, next_features_BF)[0], noise_BA, limits, next_act_BA, std_BA)
    x_RI = np.empty((2 * num_rows, num_features + act_BA.shape[1]), np.float32)
    x_RI[:num_rows, :num_features] = features_BF
    x_RI[:num_rows, num_features:] = act_BA
    x_RI[num_rows:, :num_features] = next_features_BF
    x_RI[num_rows:, num_features:] = next_act_BA
    outputs = _forward(critics, x_RI, 0)
    followers = outputs if targets.trace.out.shape[1] > num_rows else _forward(targets, x_RI, num_rows)
    next_NBK, now_NBK = followers[:, followers.shape[1] - num_rows :], outputs[:, :num_rows]
    critics.trace.d_out[:] = ZERO
    discount_B = gamma_B * (ONE - terminated_B)
    cost_B = np.float32(entropy_coef) * log_prob_B
    d_NBK = critics.trace.d_out
    if len(bins_K) == 1:
        loss, q_sum, target_sum = _squared_errors(next_NBK, now_NBK, rew_B, discount_B, cost_B, d_NBK)
    else:
        loss, q_sum, target_sum = _cross_entropies(next_NBK, now_NBK, rew_B, discount_B, cost_B, bins_K, d_NBK)
    _backward(critics, 0)
    return loss / num_rows, q_sum / (num_rows * len(now_NBK)), target_sum / num_rows


@compiled
def _squared_errors(
    next_NBK: Floats, now_NBK: Floats, rew_B: Floats, discount_B: Floats, cost_B: Floats, d_NBK: Floats
) -> tuple[float, float, float]:
    """Fill in the derivative of the mean; returns sums: of the loss, of values, of targets."""
    num_rows, loss, q_sum, target_sum = len(rew_B), 0.0, 0.0, 0.0
    for b in range(num_rows):
        target = rew_B[b] + discount_B[b] * (next_NBK[:, b, 0].min() - cost_B[b])
        target_sum += float(target)
        for n in range(len(now_NBK)):
            error = now_NBK[n, b, 0] - target
            loss += float(HALF * error * error)
            q_sum += float(now_NBK[n, b, 0])
            d_NBK[n, b, 0] = error / np.float32(num_rows)
    return loss, q_sum, target_sum


@compiled
def _cross_entropies(
    next_NBK: Floats, now_NBK: Floats, rew_B: Floats, discount_B: Floats, cost_B: Floats, bins_K: Floats, d_NBK: Floats
) -> tuple[float, float, float]:
    """Fill in the derivative of the mean; returns sums: of the loss, of values, of targets."""
    num_rows, num_critics = len(rew_B), len(now_NBK)
    prob_K, least_K, to_K = np.empty_like(bins_K), np.empty_like(bins_K), np.empty_like(bins_K)
    loss, q_sum, target_sum = 0.0, 0.0, 0.0
    for b in range(num_rows):
        least = np.float32(np.inf)
        least_K[:] = np.float32(np.nan)
        for n in range(num_critics):
            _softmax(next_NBK[n, b], prob_K)
            value = _dot(prob_K, bins_K)
            if value < least:
                least = value
                least_K[:] = prob_K
        _project(least_K, rew_B[b], discount_B[b], cost_B[b], bins_K, to_K)
        target_sum += float(_dot(to_K, bins_K))
        for n in range(num_critics):
            log_total = _softmax(now_NBK[n, b], prob_K)
            q_sum += float(_dot(prob_K, bins_K))
            loss += float(log_total - _dot(to_K, now_NBK[n, b]))
            for k in range(len(bins_K)):
                d_NBK[n, b, k] = (prob_K[k] - to_K[k]) / np.float32(num_rows)
    return loss, q_sum, target_sum


@compiled
def _dot(x: Floats, y: Floats) -> np.float32:
    total = ZERO
    for i in range(len(x)):
        total += x[i] * y[i]
    return total


@compiled
def _actor_gradients(
    networks: tuple[NormedNetwork, NormedNetwork],
    drawing: Drawing,
    features_BF: Floats,
    bins_K: Floats,
    entropy_coef: float,
) -> tuple[float, float]:
    """Of `actor_loss`; returns the loss and the policy's entropy."""
    actor, critics = networks
    noise_BA, limits = drawing
    num_rows, num_features = features_BF.shape
    num_actions = noise_BA.shape[1]
    act_BA, std_BA = np.empty_like(noise_BA), np.empty_like(noise_BA)
    outputs_BO = _forward(actor, features_BF, 0)[0]
    log_prob_B = _draw(outputs_BO, noise_BA, limits, act_BA, std_BA)
    x_BI = np.empty((num_rows, num_features + num_actions), np.float32)
    x_BI[:, :num_features] = features_BF
    x_BI[:, num_features:] = act_BA
    logits_NBK, d_NBK = _forward_fixed(critics, x_BI), critics.trace.d_out
    num_critics, num_bins = len(logits_NBK), len(bins_K)
    prob_NK, q_N = np.empty((num_critics, num_bins), np.float32), np.empty(num_critics, np.float32)
    q_sum, log_prob_sum = 0.0, 0.0
    d_NBK[:] = ZERO
    for b in range(num_rows):
        for n in range(num_critics):
            _softmax(logits_NBK[n, b], prob_NK[n])
            q_N[n] = logits_NBK[n, b, 0] if num_bins == 1 else _dot(prob_NK[n], bins_K)
        least = q_N.argmin()
        for k in range(num_bins):
            d_value = -ONE if num_bins == 1 else prob_NK[least, k] * (q_N[least] - bins_K[k])
            d_NBK[least, b, k] = d_value / np.float32(num_rows)
        q_sum += float(q_N[least])
        log_prob_sum += float(log_prob_B[b])
    d_x_NBI, d_out = _backward_fixed(critics, num_rows)[0], actor.trace.d_out[0]
    weight, (low, high) = np.float32(entropy_coef / num_rows), limits
    for b in range(num_rows):
        for a in range(num_actions):
            d_act, act = ZERO, act_BA[b, a]
            for n in range(num_critics):
                d_act += d_x_NBI[n, b, num_features + a]
            d_u = d_act * (ONE - act * act) + TWO * weight * act
            d_out[b, a] = d_u
            inside = low <= outputs_BO[b, num_actions + a] <= high
            d_out[b, num_actions + a] = d_u * std_BA[b, a] * noise_BA[b, a] - weight if inside else ZERO
    _backward(actor, 0)
    return (entropy_coef * log_prob_sum - q_sum) / num_rows, -log_prob_sum / num_rows
