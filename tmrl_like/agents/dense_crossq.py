"""The gradients of CrossQ's losses, compiled for the CPU.

What networks compute with their running statistics is left to plain networks, see `fold`; this
module has the networks in training. Shape names: N networks side by side, B batch, R rows of a pass
(B, or 2 B), S rows of the actor's pass in training, A actions, I inputs, H hidden width, O outputs
of a network, K bins.
"""

# Capital suffixes name a tensor's dimensions.
# ruff: noqa: N803, N806
from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
from torch import Tensor

from tmrl_like.agents import batch_norm
from tmrl_like.agents.acceleration import Flat
from tmrl_like.agents.batch_norm import BatchNormActor, BatchNormCritic
from tmrl_like.agents.dense import (
    FIRST,
    ONE,
    ZERO,
    DenseNetwork,
    Integers,
    add_bias,
    compiled,
    compiled_part,
    layer_of,
    multiply,
    network_of,
    sum_rows,
)
from tmrl_like.agents.dense_sac import (
    BINS,
    CompiledSAC,
    act,
    least_of,
    mean_of,
    policy_errors,
    put_inputs,
    put_rows,
    read_values,
    softmax,
)
from tmrl_like.agents.models import CategoricalCritic, SquashedGaussianActor
from tmrl_like.policies.layers import Floats

EPS, NEW = np.float32(batch_norm.EPS), np.float32(1.0 - batch_norm.MOMENTUM)
NO_BOUND = -np.float32(np.inf)
MAX_R, MAX_D = np.float32(batch_norm.MAX_R), np.float32(batch_norm.MAX_D)


class NormedNetwork(NamedTuple):
    """A `BatchNormMLP` as compiled functions take it."""

    layers: DenseNetwork  # its normalisation is that of batches
    gain: Floats  # [N, I], of the inputs
    d_gain: Floats  # [N, I], its gradient
    statistics: Floats  # running means and variances
    batches: Floats  # [], number of batches seen
    renorm_after: int


class NormedPass(NamedTuple):
    """What a forward pass of one network keeps of a normalisation for the backward pass."""

    y: Floats  # [R, H], after ReLU
    normed: Floats  # [R, H], before r, d, gain and offset
    scale: Floats  # [H], 1 / standard deviation
    r: Floats  # [H], of batch renormalisation
    d: Floats  # [H], of batch renormalisation


def compiled_crossq(
    plain: tuple[SquashedGaussianActor, CategoricalCritic],
    flat_plain: tuple[Flat, Flat],
    normed: tuple[BatchNormActor, BatchNormCritic],
    flat_normed: tuple[Flat, Flat],
) -> CompiledSAC:
    """Use the plain actor and critics, and those in training, whose parameters stay where they
    are.
    """
    networks: tuple[NamedTuple, ...] = (
        *map(network_of, plain, flat_plain),
        _network_of(normed[0], flat_normed[0]),
        _network_of(normed[1], flat_normed[1]),
    )
    return CompiledSAC(*plain, networks, (_critic_gradients, _actor_gradients))


def _network_of(made: BatchNormActor | BatchNormCritic, flat: Flat) -> NormedNetwork:
    module = made.network
    gain = module.gains[0].detach()
    place = gain.shape, gain.stride(), gain.storage_offset()
    return NormedNetwork(
        network_of(module, flat),
        gain[:, 0].numpy(),
        cast(Tensor, flat.parameter.grad).as_strided(*place)[:, 0].numpy(),
        module.statistics.numpy(),
        module.count.numpy(),
        module.renorm_after,
    )


@compiled
def _critic_gradients(
    networks: tuple[DenseNetwork, DenseNetwork, NormedNetwork, NormedNetwork],
    members: Integers,
    noise_BA: Floats,
    seen: tuple[Floats, Floats, Floats],
    outcome: tuple[Floats, Floats, Floats],
    entropy_coef: float,
) -> tuple[float, float, float]:
    """Compute the gradients of `categorical_loss`; return the loss, and the means of values and
    targets. Arguments as in `dense_sac`.
    """
    plain_actor, _, _, critics = networks
    features_BF, next_features_BF, act_BA = seen
    drawn = act(plain_actor, noise_BA, next_features_BF)
    num_rows, num_inputs = drawn.x_BI.shape
    x_RI = np.empty((2 * num_rows, num_inputs), np.float32)
    put_inputs(features_BF, act_BA, x_RI[:num_rows])
    put_rows(drawn.x_BI, x_RI[num_rows:])
    logits_NRK, passes = _forward(critics, x_RI)
    metrics = _distribution_errors(logits_NRK, drawn.log_prob_B, outcome, entropy_coef)
    for n in range(len(passes)):
        _backward(critics, n, passes[n], logits_NRK[n][:num_rows])  # none flows through the target
    return metrics


@compiled_part
def _distribution_errors(
    logits_NRK: Floats,
    next_log_prob_B: Floats,
    outcome: tuple[Floats, Floats, Floats],
    entropy_coef: float,
) -> tuple[float, float, float]:
    """Turn the logits of (s, a), which those of (s', a') follow, into the gradient of
    `categorical_loss`, in place; return the loss, and the means of values and targets. `outcome` is
    rew, terminated and gamma [B].
    """
    rew_B, terminated_B, gamma_B = outcome
    num_critics, num_rows, loss, q_sum, target_sum = len(logits_NRK), len(rew_B), 0.0, 0.0, 0.0
    next_q_NB = np.empty((num_critics, num_rows), np.float32)
    for n in range(num_critics):
        read_values(logits_NRK[n, num_rows:], next_q_NB[n])
    target_K = np.empty(len(BINS), np.float32)
    for b in range(num_rows):
        least = least_of(next_q_NB, b)
        scale = gamma_B[b] * (ONE - terminated_B[b])
        shift = rew_B[b] - scale * np.float32(entropy_coef) * next_log_prob_B[b]
        _project(logits_NRK[least, num_rows + b], shift, scale, target_K)
        target_sum += mean_of(target_K)
        for n in range(num_critics):
            p_K = logits_NRK[n, b]
            for k in range(len(p_K)):
                loss -= target_K[k] * p_K[k]  # these are the logits
            loss += softmax(p_K)
            q_sum += mean_of(p_K)
            for k in range(len(p_K)):
                p_K[k] = (p_K[k] - target_K[k]) / np.float32(num_rows)
    return loss / num_rows, q_sum / (num_critics * num_rows), target_sum / num_rows


@compiled_part
def _project(p_K: Floats, shift: np.float32, scale: np.float32, into_K: Floats) -> None:
    """Write the projection of a distribution over `shift + scale * BINS` on the bins, see
    `categorical_target`.
    """
    for k in range(len(into_K)):
        into_K[k] = ZERO
    for k in range(len(into_K)):
        value = min(max(shift + scale * BINS[k], BINS[0]), BINS[-1])
        place = (value - BINS[0]) / (BINS[1] - BINS[0])
        low = max(0, min(int(place), len(into_K) - 2))  # NaN has no place
        share = place - np.float32(low)
        into_K[low] += p_K[k] * (ONE - share)
        into_K[low + 1] += p_K[k] * share


@compiled
def _actor_gradients(
    networks: tuple[DenseNetwork, DenseNetwork, NormedNetwork, NormedNetwork],
    noise_BA: Floats,
    features_SF: Floats,
    entropy_coef: float,
    of_mean: bool,
    smoothness: float,
) -> tuple[float, float]:
    """Compute the gradients of `actor_loss` and `smoothness_loss`; return the loss and the entropy.
    Arguments as in `dense_sac`.
    """
    _, plain_critics, actor, _ = networks
    outputs_1SO, passes = _forward(actor, features_SF)
    d_outputs_SO, loss, entropy = policy_errors(
        plain_critics, noise_BA, outputs_1SO[0], features_SF, (entropy_coef, of_mean, smoothness)
    )
    _backward(actor, FIRST, passes[0], d_outputs_SO)
    return loss, entropy


@compiled_part
def _forward(network: NormedNetwork, x_RI: Floats) -> tuple[Floats, list[list[NormedPass]]]:
    """Do what `BatchNormMLP.forward` does, which updates the running statistics. Return the outputs
    [N, R, O], and what the passes keep.
    """
    layers = network.layers
    out_NRO = np.empty((layers.num_networks, len(x_RI), layers.widths[-1]), np.float32)
    passes = []
    for n in range(len(out_NRO)):
        gain = network.gain[n]
        passed = [_normalised(network, FIRST, n, x_RI.copy(), gain, np.zeros_like(gain), NO_BOUND)]
        for i in range(len(layers.places) - 1):
            layer = layer_of(layers, layers.parameters, i, n)
            x = np.empty((len(x_RI), len(layer.gain)), np.float32)
            multiply(passed[i].y, layer.weight, x, False, False)
            passed.append(_normalised(network, i + 1, n, x, layer.gain, layer.offset, ZERO))
        head = layer_of(layers, layers.parameters, len(layers.places) - 1, n)
        multiply(passed[-1].y, head.weight, out_NRO[n], False, False)
        add_bias(out_NRO[n], head.bias, False)
        passes.append(passed)
    network.batches[()] += ONE
    return out_NRO, passes


@compiled_part
def _normalised(
    network: NormedNetwork,
    i: int,
    n: int,
    x: Floats,
    gain: Floats,
    offset: Floats,
    least: np.float32,
) -> NormedPass:
    """Normalise x [R, H] over its rows in place, see `renormalise`, by normalisation i of network
    n. The output is at least `least`.
    """
    num_rows, width = x.shape
    size = np.float32(num_rows)
    running_mean, running_var = _running(network, i, n)
    mean, var, scale = np.zeros_like(gain), np.zeros_like(gain), np.empty_like(gain)
    r, d = np.ones_like(gain), np.zeros_like(gain)
    sum_rows(x, mean)
    for h in range(width):
        mean[h] /= size
    for b in range(num_rows):
        for h in range(width):
            x[b, h] -= mean[h]
            var[h] += x[b, h] * x[b, h]
    is_renormed = network.batches[()] >= network.renorm_after
    for h in range(width):
        var[h] /= size
        scale[h] = ONE / np.sqrt(var[h] + EPS)
        change = mean[h] - running_mean[h]
        if is_renormed:
            running_scale = ONE / np.sqrt(running_var[h] + EPS)
            r[h] = min(max(running_scale / scale[h], ONE / MAX_R), MAX_R)
            d[h] = min(max(change * running_scale, -MAX_D), MAX_D)
        running_mean[h] += NEW * change
        running_var[h] += NEW * (var[h] - running_var[h])
    y = np.empty_like(x)
    for b in range(num_rows):
        for h in range(width):
            x[b, h] *= scale[h]
            value = (x[b, h] * r[h] + d[h]) * gain[h] + offset[h]
            y[b, h] = least if value < least else value
    return NormedPass(y, x, scale, r, d)


@compiled_part
def _running(network: NormedNetwork, i: int, n: int) -> tuple[Floats, Floats]:
    """Return the running mean and variance, [H], of normalisation i of network n."""
    widths, num_networks = network.layers.widths, network.layers.num_networks
    size = widths[i]
    mean = 2 * num_networks * widths[:i].sum() + n * size
    var = mean + num_networks * size
    return network.statistics[mean : mean + size], network.statistics[var : var + size]


@compiled_part
def _backward(network: NormedNetwork, n: int, passed: list[NormedPass], d_out_BO: Floats) -> None:
    """Backpropagate the gradient `d_out_BO` of the first outputs of network n, after `_forward`, to
    its parameters. That of the other outputs is 0.
    """
    layers, d = network.layers, d_out_BO
    for i in range(len(passed) - 1, -1, -1):
        layer = layer_of(layers, layers.parameters, i, n)
        gradient = layer_of(layers, layers.gradients, i, n)
        if i == len(passed) - 1:
            sum_rows(d, gradient.bias)
        multiply(passed[i].y[: len(d)], d, gradient.weight, True, False)
        d_y = np.zeros_like(passed[i].y)
        multiply(d, layer.weight, d_y[: len(d)], False, True)
        if i > 0:
            gain = layer_of(layers, layers.parameters, i - 1, n).gain
            d_before = layer_of(layers, layers.gradients, i - 1, n)
            _back_through_norm(d_y, passed[i], gain, ZERO, d_before.gain, d_before.offset)
        else:
            gain, no_offset = network.gain[n], np.empty_like(passed[0].r)
            _back_through_norm(d_y, passed[0], gain, NO_BOUND, network.d_gain[n], no_offset)
        d = d_y


@compiled_part
def _back_through_norm(
    d: Floats,
    passed: NormedPass,
    gain: Floats,
    least: np.float32,
    d_gain: Floats,
    d_offset: Floats,
) -> None:
    """Turn d [R, H], the gradient of what `_normalised` returned, into that of its inputs, in
    place. Write the gradients of gain and offset.
    """
    y, normed, scale, r, shift = passed
    size, along = np.float32(d.shape[0]), np.zeros_like(r)
    for h in range(d.shape[1]):
        d_offset[h] = ZERO
    for b in range(d.shape[0]):
        for h in range(d.shape[1]):
            d[b, h] = d[b, h] if y[b, h] > least else ZERO
            along[h] += d[b, h] * normed[b, h]
            d_offset[h] += d[b, h]
    for h in range(d.shape[1]):
        d_gain[h] = r[h] * along[h] + shift[h] * d_offset[h]
    for b in range(d.shape[0]):
        for h in range(d.shape[1]):
            centred = d[b, h] - (d_offset[h] + normed[b, h] * along[h]) / size
            d[b, h] = centred * gain[h] * r[h] * scale[h]
