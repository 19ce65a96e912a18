"""The gradients of SAC's losses, compiled for the CPU, for the built-in networks of vectors.

The losses are those of `tmrl_like.agents.sac`; their derivatives are written out. Shape names: N
critics, M critics in the target, B batch, S rows that the actor sees in training (B, or 2 B with
smoothness), A actions, R numbers of an observation, F features, I inputs of the critics: features
and actions, O outputs of the actor: means and logarithms of standard deviations.
"""

# Capital suffixes name a tensor's dimensions.
# ruff: noqa: N803, N806, N815
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tmrl_like.agents.acceleration import Flat, Metrics
from tmrl_like.agents.dense import (
    FIRST,
    ONE,
    ZERO,
    DenseNetwork,
    Integers,
    Passed,
    backward,
    compiled,
    compiled_part,
    descend,
    forward,
    network_of,
    threads_for_products,
)
from tmrl_like.agents.models import (
    LARGEST_VALUE,
    NUM_BINS,
    EnsembleCritic,
    SquashedGaussianActor,
)
from tmrl_like.agents.observations import Rescale, RunningNorm
from tmrl_like.policies.layers import Floats
from tmrl_like.policies.network import LOG_STD_MAX, LOG_STD_MIN
from tmrl_like.types import Batch

Doubles: TypeAlias = NDArray[np.float64]

TWO, HALF = np.float32(2.0), np.float32(0.5)
LOW, HIGH = np.float32(LOG_STD_MIN), np.float32(LOG_STD_MAX)
BINS = np.linspace(-LARGEST_VALUE, LARGEST_VALUE, NUM_BINS).astype(np.float32)
HORIZON, SMALLEST_VAR = RunningNorm.HORIZON, RunningNorm.FLOOR**2


class Drawn(NamedTuple):
    """Actions that the actor drew for a batch of observations, and the critics' inputs for them."""

    outputs_BO: Floats  # of the actor
    x_BI: Floats  # features, then actions tanh(u), in [-1, 1]
    std_BA: Floats
    log_prob_B: Floats


class CompiledSAC:
    """Computes the gradients of the losses, and leaves them in the parameters of critics and actor
    as autograd does. The observations of its batches are flat, [B, R], see `Encoder.see`.
    """

    threads = staticmethod(threads_for_products)  # in which a training step runs

    def __init__(
        self,
        actor: SquashedGaussianActor,
        critic: EnsembleCritic,
        networks: tuple[NamedTuple, ...],
        gradients: tuple[Callable[..., Any], Callable[..., Any]],
        obs_norm: RunningNorm | None = None,
    ) -> None:
        """Compute the `gradients` of critics and actor by the `networks`."""
        self._networks = networks
        self._critic_gradients, self._actor_gradients = gradients
        self._encoder = actor.encoder
        self._rescale, self._rescale_act = map(
            _scaling_of, (self._encoder.rescale, critic.rescale_act)
        )
        self._num_actions = actor.spec.num_outputs // 2
        if obs_norm is not None:
            names = "which", "count", "mean", "mean_square", "scale", "shift"
            self._statistics = [getattr(obs_norm, name).numpy() for name in names]

    def count(self, obs_BR: Tensor) -> None:
        """Do what `RunningNorm.update` does, without ranks."""
        _count(obs_BR.numpy(), *self._statistics)

    def of_critics(
        self,
        batch: Batch,
        draw_critics: Callable[[], Tensor],
        entropy_coef: float,
        gamma: float | Tensor,
    ) -> Metrics:
        """Compute the critics' gradients of `critic_loss`, and return the metrics."""
        num_rows = len(batch.rew)
        act_BA = batch.act.reshape(num_rows, -1).float().numpy()
        noise_BA = self._noise(num_rows)
        loss, q, target = self._critic_gradients(
            self._networks,
            draw_critics().numpy(),
            noise_BA,
            (
                self._features(batch.obs),
                self._features(batch.next_obs),
                scaled(act_BA, *self._rescale_act),
            ),
            (
                batch.rew.numpy(),
                batch.terminated.numpy(),
                np.broadcast_to(np.float32(gamma), num_rows),
            ),
            entropy_coef,
        )
        return {"loss_critic": loss, "q_mean": q, "q_target_mean": target}

    def of_actor(
        self, batch: Batch, entropy_coef: float, of_mean: bool, smoothness: float
    ) -> Metrics:
        """Compute the actor's gradients of `actor_loss` plus `smoothness` times `smoothness_loss`,
        and return the metrics. The value of an action is the critics' mean if `of_mean`, else their
        minimum.
        """
        noise_BA = self._noise(len(batch.rew))
        features = self._features(batch.obs)
        if smoothness:
            features = np.concatenate((features, self._features(batch.next_obs)))
        loss, entropy = self._actor_gradients(
            self._networks, noise_BA, features, entropy_coef, of_mean, smoothness
        )
        return {"loss_actor": loss, "entropy_nats": entropy}

    def _features(self, obs_BR: Tensor) -> Floats:
        """Do what the encoder does with flat observations: return features, [B, F]."""
        encoder = self._encoder
        if encoder.one_hot is None:
            return scaled(obs_BR.numpy(), *self._rescale)
        features_BF: Floats = encoder(obs_BR).numpy()
        return features_BF

    def _noise(self, num_rows: int) -> Floats:
        """Draw standard normal numbers, [B, A]."""
        noise_BA: Floats = torch.randn(num_rows, self._num_actions).numpy()
        return noise_BA

    def adam_step(self, optimizer: torch.optim.Adam) -> None:
        """Do what `acceleration.adam_step` does."""
        (group,) = optimizer.param_groups
        (parameter,) = group["params"]
        state = optimizer.state[parameter]
        descend(
            parameter.detach().numpy(),
            parameter.grad.numpy(),
            (state["exp_avg"].numpy(), state["exp_avg_sq"].numpy()),
            state["step"].numpy(),
            (float(group["lr"]), *group["betas"], group["eps"]),
        )


def compiled_sac(
    modules: tuple[SquashedGaussianActor, EnsembleCritic, EnsembleCritic],
    flats: tuple[Flat, Flat, Flat],
    obs_norm: RunningNorm | None,
) -> CompiledSAC:
    """Use an actor, critics and their targets, whose parameters stay where they are."""
    actor, critic, _ = modules
    networks = tuple(map(network_of, modules, flats))
    return CompiledSAC(actor, critic, networks, (_critic_gradients, _actor_gradients), obs_norm)


def _scaling_of(rescale: Rescale) -> tuple[Floats, Floats]:
    return rescale.scale.numpy(), rescale.shift.numpy()


@compiled
def scaled(rows: Floats, scale: Floats, shift: Floats) -> Floats:
    """Do what `Rescale.forward` does for rows, [B, R]."""
    found = np.empty(rows.shape, np.float32)
    for b in range(rows.shape[0]):
        for r in range(rows.shape[1]):
            found[b, r] = rows[b, r] * scale[r] + shift[r]
    return found


@compiled
def _critic_gradients(
    networks: tuple[DenseNetwork, DenseNetwork, DenseNetwork],
    members: Integers,
    noise_BA: Floats,
    seen: tuple[Floats, Floats, Floats],
    outcome: tuple[Floats, Floats, Floats],
    entropy_coef: float,
) -> tuple[float, float, float]:
    """Compute the gradients of `critic_loss` with `td_target`; return the loss, and the means of
    values and targets.

    Args:
        networks: actor, critics and their targets.
        members: [M], the critics that make the target.
        noise_BA: standard normal numbers, by which the next actions are drawn.
        seen: features of obs and next_obs [B, F], act [B, A] in [-1, 1].
        outcome: rew, terminated, gamma [B].
        entropy_coef: alpha.
    """
    actor, critics, targets = networks
    features_BF, next_features_BF, act_BA = seen
    drawn = act(actor, noise_BA, next_features_BF)
    next_q_MB, _ = _values(targets, members, drawn.x_BI)
    x_BI = np.empty_like(drawn.x_BI)
    put_inputs(features_BF, act_BA, x_BI)
    q_NB, passes = _values(critics, np.arange(critics.num_networks), x_BI)
    d_NB, nothing = np.empty_like(q_NB), np.empty((0, 0), np.float32)
    metrics = _td_errors(q_NB, next_q_MB, drawn.log_prob_B, outcome, entropy_coef, d_NB)
    for n in range(len(d_NB)):
        backward(critics, n, passes[n], x_BI, d_NB[n].reshape(-1, 1), nothing)
    return metrics


@compiled_part
def _values(
    critics: DenseNetwork, members: Integers, x_BI: Floats
) -> tuple[Floats, list[list[Passed]]]:
    """Return the values of the critics `members`, [M, B], and what their passes keep."""
    q_MB = np.empty((len(members), len(x_BI)), np.float32)
    passes = []
    for m in range(len(members)):
        passed = forward(critics, members[m], x_BI)
        read_values(passed[-1].y, q_MB[m])
        passes.append(passed)
    return q_MB, passes


@compiled_part
def read_values(outputs_BO: Floats, q_B: Floats) -> None:
    """Write the values for which a critic's outputs stand: the outputs themselves or, if it has
    several, the means of the distributions whose logits they are; the logits become probabilities.
    """
    for b in range(len(outputs_BO)):
        if len(outputs_BO[b]) == 1:
            q_B[b] = outputs_BO[b, 0]
        else:
            softmax(outputs_BO[b])
            q_B[b] = mean_of(outputs_BO[b])


@compiled_part
def softmax(x_K: Floats) -> Any:
    """Turn logits into probabilities in place; return the logarithm of the sum of their
    exponentials.
    """
    largest, total = x_K.max(), ZERO
    for k in range(len(x_K)):
        x_K[k] = np.exp(x_K[k] - largest)
        total += x_K[k]
    for k in range(len(x_K)):
        x_K[k] /= total
    return largest + np.log(total)


@compiled_part
def mean_of(p_K: Floats) -> Any:
    """Return the mean of a distribution over the bins."""
    mean = ZERO
    for k in range(len(p_K)):
        mean += p_K[k] * BINS[k]
    return mean


@compiled_part
def _back_to_outputs(outputs_BO: Floats, q_B: Floats, d_q_B: Floats) -> Floats:
    """Return the gradient of a critic's outputs, [B, O], from that of its values; `outputs_BO` is
    what `read_values` left.
    """
    d_BO = np.empty_like(outputs_BO)
    for b in range(len(outputs_BO)):
        if len(outputs_BO[b]) == 1:
            d_BO[b, 0] = d_q_B[b]
            continue
        for k in range(len(outputs_BO[b])):
            d_BO[b, k] = d_q_B[b] * outputs_BO[b, k] * (BINS[k] - q_B[b])
    return d_BO


@compiled_part
def _td_errors(
    q_NB: Floats,
    next_q_MB: Floats,
    next_log_prob_B: Floats,
    outcome: tuple[Floats, Floats, Floats],
    entropy_coef: float,
    d_NB: Floats,
) -> tuple[float, float, float]:
    """Fill in d_NB, the gradient of `critic_loss` with `td_target` with respect to q; return the
    loss, and the means of values and targets. `outcome` is rew, terminated and gamma [B].
    """
    rew_B, terminated_B, gamma_B = outcome
    num_rows, loss, q_sum, target_sum = len(rew_B), 0.0, 0.0, 0.0
    for b in range(num_rows):
        next_v = (
            next_q_MB[least_of(next_q_MB, b), b] - np.float32(entropy_coef) * next_log_prob_B[b]
        )
        target = rew_B[b] + gamma_B[b] * (ONE - terminated_B[b]) * next_v
        target_sum += target
        for n in range(len(q_NB)):
            error = q_NB[n, b] - target
            d_NB[n, b] = error / np.float32(num_rows)
            loss += 0.5 * error * error
            q_sum += q_NB[n, b]
    return loss / num_rows, q_sum / q_NB.size, target_sum / num_rows


@compiled_part
def least_of(q_MB: Floats, b: int) -> int:
    """Return the row of the least value in column b, or of a NaN if there is one."""
    least = 0
    for m in range(1, len(q_MB)):
        q = q_MB[least, b]
        least = least if q <= q_MB[m, b] or q != q else m
    return least


@compiled
def _actor_gradients(
    networks: tuple[DenseNetwork, DenseNetwork, DenseNetwork],
    noise_BA: Floats,
    features_SF: Floats,
    entropy_coef: float,
    of_mean: bool,
    smoothness: float,
) -> tuple[float, float]:
    """Compute the gradients of `actor_loss` and `smoothness_loss`; return the loss and the entropy.
    Arguments as for `_critic_gradients`. With smoothness, the features of the next observations
    follow the B ones for which actions are drawn.
    """
    actor, critics, _ = networks
    passed = forward(actor, FIRST, features_SF)
    d_outputs_SO, loss, entropy = policy_errors(
        critics, noise_BA, passed[-1].y, features_SF, (entropy_coef, of_mean, smoothness)
    )
    backward(actor, FIRST, passed, features_SF, d_outputs_SO, np.empty((0, 0), np.float32))
    return loss, entropy


@compiled_part
def policy_errors(
    critics: DenseNetwork,
    noise_BA: Floats,
    outputs_SO: Floats,
    features_SF: Floats,
    asked: tuple[float, bool, float],
) -> tuple[Floats, float, float]:
    """Return the gradient of `actor_loss` and `smoothness_loss` with respect to the actor's outputs
    [S, O], the loss and the entropy.

    `asked` is alpha, whether the critics' mean counts (or their minimum), and the smoothness.
    """
    entropy_coef, of_mean, smoothness = asked
    drawn = draw(outputs_SO[: len(noise_BA)], features_SF[: len(noise_BA)], noise_BA)
    q_NB, passes = _values(critics, np.arange(critics.num_networks), drawn.x_BI)
    num_critics, num_rows = q_NB.shape
    d_NB, q_sum, log_prob_sum = np.empty_like(q_NB), 0.0, 0.0
    for b in range(num_rows):
        q, chosen = q_NB[least_of(q_NB, b), b], 0
        for n in range(num_critics):
            chosen += of_mean or not q_NB[n, b] > q
        for n in range(num_critics):
            counts = of_mean or not q_NB[n, b] > q  # all, if q is NaN
            d_NB[n, b] = -ONE / np.float32(chosen * num_rows) if counts else ZERO
            q_sum += q_NB[n, b] / chosen if counts else 0.0
        log_prob_sum += drawn.log_prob_B[b]
    d_act_BA, of_one_BA = np.zeros_like(noise_BA), np.empty_like(noise_BA)
    for n in range(num_critics):
        d_outputs_BO = _back_to_outputs(passes[n][-1].y, q_NB[n], d_NB[n])
        backward(critics, n, passes[n], drawn.x_BI, d_outputs_BO, of_one_BA)
        d_act_BA += of_one_BA
    d_outputs_SO, rough = _smoothness_errors(outputs_SO, noise_BA.shape, smoothness)
    _back_through_squash(
        noise_BA, drawn, d_act_BA, np.float32(entropy_coef / num_rows), d_outputs_SO
    )
    entropy = -log_prob_sum / num_rows
    return d_outputs_SO, rough - entropy_coef * entropy - q_sum / num_rows, entropy


@compiled_part
def _smoothness_errors(
    outputs_SO: Floats, shape: tuple[int, int], smoothness: float
) -> tuple[Floats, float]:
    """Return the gradient of the weighted `smoothness_loss` with respect to the actor's outputs,
    and the loss. Both are 0 if `outputs_SO` has only the B rows of a batch of the `shape` [B, A],
    without those of the next observations.
    """
    num_rows, num_actions = shape
    d_outputs_SO, loss, weight = np.zeros_like(outputs_SO), 0.0, np.float32(smoothness / num_rows)
    for b in range(len(outputs_SO) - num_rows):
        for a in range(num_actions):
            mean, next_mean = np.tanh(outputs_SO[b, a]), np.tanh(outputs_SO[num_rows + b, a])
            change = weight * (mean - next_mean)
            loss += change * (mean - next_mean)
            d_outputs_SO[b, a] = TWO * change * (ONE - mean * mean)
            d_outputs_SO[num_rows + b, a] = -TWO * change * (ONE - next_mean * next_mean)
    return d_outputs_SO, loss


@compiled
def _count(
    x_BR: Floats,
    which_U: Integers,
    count: Doubles,
    mean_U: Doubles,
    mean_square_U: Doubles,
    scale_R: Floats,
    shift_R: Floats,
) -> None:
    """Add a batch to the statistics of a `RunningNorm`, and write the scale and shift that they
    give.
    """
    count[()] += 1.0
    weight = 1.0 / min(float(count[()]), HORIZON)
    for u in range(len(which_U)):
        r, total, total_square = which_U[u], 0.0, 0.0
        for b in range(len(x_BR)):
            x = np.float64(x_BR[b, r])
            total += x
            total_square += x * x
        mean_U[u] += weight * (total / len(x_BR) - mean_U[u])
        mean_square_U[u] += weight * (total_square / len(x_BR) - mean_square_U[u])
        scale = 1.0 / math.sqrt(max(mean_square_U[u] - mean_U[u] * mean_U[u], SMALLEST_VAR))
        scale_R[r], shift_R[r] = scale, -scale * mean_U[u]


@compiled_part
def put_rows(rows: Floats, into: Floats) -> None:
    """Write the rows to the first columns."""
    for b in range(rows.shape[0]):
        for r in range(rows.shape[1]):
            into[b, r] = rows[b, r]


@compiled_part
def put_inputs(features_BF: Floats, act_BA: Floats, x_BI: Floats) -> None:
    """Fill in the critics' inputs."""
    put_rows(features_BF, x_BI)
    put_rows(act_BA, x_BI[:, features_BF.shape[1] :])


@compiled_part
def act(actor: DenseNetwork, noise_BA: Floats, features_BF: Floats) -> Drawn:
    """Draw actions for the features of observations."""
    return draw(forward(actor, FIRST, features_BF)[-1].y, features_BF, noise_BA)


@compiled_part
def draw(outputs_BO: Floats, features_BF: Floats, noise_BA: Floats) -> Drawn:
    """Return actions tanh(u), std, and log pi as in `squashed_log_prob`, without cancellation:

    log(1 - tanh(u)^2) = 2 (log 2 - |u| - log(1 + exp(-2 |u|)))
    """
    num_rows, num_actions = noise_BA.shape
    num_features = features_BF.shape[1]
    x_BI = np.empty((num_rows, num_features + num_actions), np.float32)
    put_rows(features_BF, x_BI)
    std_BA, log_prob_B = np.empty_like(noise_BA), np.empty(num_rows, np.float32)
    constant = np.float32(num_actions * (2.0 * math.log(2.0) + 0.5 * math.log(2.0 * math.pi)))
    for b in range(num_rows):
        total = -constant
        for a in range(num_actions):
            noise, log_std = noise_BA[b, a], min(max(outputs_BO[b, num_actions + a], LOW), HIGH)
            std_BA[b, a] = np.exp(log_std)
            u = outputs_BO[b, a] + std_BA[b, a] * noise
            small = np.exp(-TWO * abs(u))
            tanh = (ONE - small) / (ONE + small)
            x_BI[b, num_features + a] = tanh if u >= ZERO else -tanh
            total += TWO * (abs(u) + np.log(ONE + small)) - log_std - HALF * noise * noise
        log_prob_B[b] = total
    return Drawn(outputs_BO, x_BI, std_BA, log_prob_B)


@compiled_part
def _back_through_squash(
    noise_BA: Floats,
    drawn: Drawn,
    d_act_BA: Floats,
    entropy_weight: np.float32,
    d_outputs_SO: Floats,
) -> None:
    """Backpropagate the gradients of the actions in the critics' inputs, and of each log pi, to the
    actor's outputs; add the result to the first B rows of `d_outputs_SO`.
    """
    outputs_BO = drawn.outputs_BO
    num_rows, num_actions = noise_BA.shape
    act_BA = drawn.x_BI[:, -num_actions:]
    for b in range(num_rows):
        for a in range(num_actions):
            act = act_BA[b, a]
            d_u = d_act_BA[b, a] * (ONE - act * act) + TWO * entropy_weight * act
            d_outputs_SO[b, a] += d_u
            inside = LOW <= outputs_BO[b, num_actions + a] <= HIGH
            d_log_std = d_u * drawn.std_BA[b, a] * noise_BA[b, a] - entropy_weight
            d_outputs_SO[b, num_actions + a] += d_log_std if inside else ZERO
