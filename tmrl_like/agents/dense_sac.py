"""The gradients of SAC's losses, compiled for the CPU, for the networks of vectors that ship.

The losses are those of `tmrl_like.agents.sac`; their derivatives are written out. Shape names: N critics, M critics in
the target, B batch, A actions, F features, I inputs of the critics: features and actions, O outputs of the actor: means
and logarithms of standard deviations.
"""

# Capital suffixes name a tensor's dimensions.
# ruff: noqa: N803, N806
from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tmrl_like.agents.dense import ONE, ZERO, Dense, compiled, find_sgemm, zeros
from tmrl_like.agents.models import EnsembleCritic, SquashedGaussianActor
from tmrl_like.types import Batch

_Array = np.ndarray[Any, Any]


class CompiledGradients:
    """Leaves the gradients of the losses in the parameters of critics and actor, as autograd does.

    Actions are tanh(u) here, in [-1, 1]. What a call returns holds until the next one.
    """

    def __init__(self, actor: SquashedGaussianActor, critic: EnsembleCritic, critic_target: EnsembleCritic) -> None:
        """Take networks whose parameters and gradients stay where they are from the first call on.

        Raises:
            ImportError: there is no BLAS.
        """
        self._networks = actor, critic, critic_target
        self._encoder, self._rescale_act = actor.encoder, critic.rescale_act
        self._limits = np.float32(actor.log_std_min), np.float32(actor.log_std_max)
        self._num_rows = 0  # that the buffers are made for
        self._seen: tuple[Any, _Array] | None = None  # observations of this step, as features
        find_sgemm()

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledGradients:
        return CompiledGradients(*copy.deepcopy(self._networks, memo))

    @torch.no_grad()
    def of_critics(
        self,
        batch: Batch,
        draw_critics: Callable[[], Tensor | None],
        entropy_coef: float,
        gamma: float | Tensor,
    ) -> dict[str, float]:
        """Of `critic_loss`, by the critics; returns the metrics."""
        self._seen = None  # a batch may come again, and the statistics that see it have moved on
        next_x_BI = self._act(batch.next_obs)
        members = draw_critics()
        next_q_MB = self._targets.forward(next_x_BI, None if members is None else members.numpy())[..., 0]
        act_BA = self._rescale_act.forward(batch.act.reshape(self._num_rows, -1).float())
        features_BF = self._see(batch.obs)
        self._seen = batch.obs, features_BF
        q_NB = self._critics.forward(np.concatenate((features_BF, act_BA.numpy()), axis=1))[..., 0]
        gamma_B = gamma.numpy() if isinstance(gamma, Tensor) else np.full(self._num_rows, gamma, np.float32)
        values = batch.rew.numpy(), batch.terminated.numpy(), next_q_MB, self._log_prob_B, entropy_coef, gamma_B
        loss, q, target = _back_through_critic_loss(*values, q_NB, self._critics.d[..., 0])
        self._critics.learn()
        return {"loss_critic": loss, "q_mean": q, "q_target_mean": target}

    @torch.no_grad()
    def of_actor(self, obs: Any, entropy_coef: float, of_mean: bool) -> dict[str, float]:
        """Of `actor_loss`, by the actor, whose values are the critics' mean, or their minimum; returns the metrics."""
        x_BI = self._act(obs)
        q_NB = self._critics.forward(x_BI)[..., 0]
        q_B = q_NB.mean(axis=0) if of_mean else q_NB.min(axis=0)
        chosen_NB = np.ones_like(q_NB) if of_mean else (q_NB == q_B).astype(np.float32)
        self._critics.d[..., 0] = chosen_NB / (chosen_NB.sum(axis=0) * -len(q_B))
        d_x_NBI, entropy_weight = self._critics.back_to_x(), np.float32(entropy_coef / len(q_B))
        _back_through_squash(d_x_NBI, entropy_weight, *self._drawn, self._actor.d[0])
        self._actor.learn()
        entropy = -float(self._log_prob_B.mean())
        return {"loss_actor": -entropy_coef * entropy - float(q_B.mean()), "entropy_nats": entropy}

    def draw(self, noise_BA: Tensor) -> None:
        """Fill in the noise of the actions of one batch."""
        noise_BA.normal_()

    def _act(self, obs: Any) -> _Array:
        """Draw actions; what the critics see then, [B, I]."""
        features_BF = self._see(obs)
        if len(features_BF) != self._num_rows:
            self._make_buffers(len(features_BF))
        self._actor.forward(features_BF)
        self.draw(self._noise_BA)
        _squash(*self._drawn, self._log_prob_B)
        return np.concatenate((features_BF, self._act_BA), axis=1)

    def _see(self, obs: Any) -> _Array:
        """What actor and critics see of observations, [B, F]."""
        if self._seen is not None and self._seen[0] is obs:
            return self._seen[1]
        return np.ascontiguousarray(self._encoder.forward(obs).numpy())

    def _make_buffers(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._actor, self._critics, self._targets = (Dense(network, num_rows) for network in self._networks)
        (outputs_BO,) = self._actor.y
        self._noise_BA = torch.zeros(num_rows, outputs_BO.shape[1] // 2)
        noise_BA = self._noise_BA.numpy()
        self._act_BA, self._log_prob_B = np.zeros_like(noise_BA), zeros(num_rows)
        self._drawn = outputs_BO, noise_BA, *self._limits, self._act_BA, np.zeros_like(noise_BA)


@compiled
def _squash(outputs_BO: Any, noise_BA: Any, low: float, high: float, act_BA: Any, std_BA: Any, log_prob_B: Any) -> None:
    """From mean and log std of u to tanh(u), std, and log pi as in `squashed_log_prob`, without cancellation:

    log(1 - tanh(u)^2) = 2 (log 2 - |u| - log(1 + exp(-2 |u|)))
    """
    num_actions = noise_BA.shape[1]
    constant = np.float32(num_actions * (2.0 * math.log(2.0) + 0.5 * math.log(2.0 * math.pi)))
    for b in range(noise_BA.shape[0]):
        total = -constant
        for a in range(num_actions):
            noise, log_std = noise_BA[b, a], min(max(outputs_BO[b, num_actions + a], low), high)
            std_BA[b, a] = np.exp(log_std)
            u = outputs_BO[b, a] + std_BA[b, a] * noise
            small = np.exp(np.float32(-2.0) * abs(u))
            tanh = (ONE - small) / (ONE + small)
            act_BA[b, a] = tanh if u >= ZERO else -tanh
            total += np.float32(2.0) * (abs(u) + np.log(ONE + small)) - log_std - np.float32(0.5) * noise * noise
        log_prob_B[b] = total


@compiled
def _back_through_squash(
    d_x_NBI: Any,
    entropy_weight: float,
    outputs_BO: Any,
    noise_BA: Any,
    low: float,
    high: float,
    act_BA: Any,
    std_BA: Any,
    d_outputs_BO: Any,
) -> None:
    """The derivative by the critics' inputs, and by each log pi -> that by mean and log std of u."""
    num_actions = act_BA.shape[1]
    first = d_x_NBI.shape[2] - num_actions
    for b in range(act_BA.shape[0]):
        for a in range(num_actions):
            d_act, act = ZERO, act_BA[b, a]
            for n in range(d_x_NBI.shape[0]):
                d_act += d_x_NBI[n, b, first + a]
            d_u = d_act * (ONE - act * act) + np.float32(2.0) * entropy_weight * act
            d_outputs_BO[b, a] = d_u
            inside = low <= outputs_BO[b, num_actions + a] <= high
            d_log_std = d_u * std_BA[b, a] * noise_BA[b, a] - entropy_weight
            d_outputs_BO[b, num_actions + a] = d_log_std if inside else ZERO


@compiled
def _back_through_critic_loss(
    rew_B: Any,
    terminated_B: Any,
    next_q_MB: Any,
    next_log_prob_B: Any,
    entropy_coef: float,
    gamma_B: Any,
    q_NB: Any,
    d_q_NB: Any,
) -> tuple[float, float, float]:
    """`td_target` and the derivative of `critic_loss`; returns the loss, and the means of values and targets."""
    num_rows, loss, q_sum, target_sum = len(rew_B), 0.0, 0.0, 0.0
    for b in range(num_rows):
        next_v = next_q_MB[:, b].min() - np.float32(entropy_coef) * next_log_prob_B[b]
        target = rew_B[b] + gamma_B[b] * (ONE - terminated_B[b]) * next_v
        target_sum += target
        for n in range(len(q_NB)):
            error = q_NB[n, b] - target
            d_q_NB[n, b] = error / np.float32(num_rows)
            loss += 0.5 * error * error
            q_sum += q_NB[n, b]
    return loss / num_rows, q_sum / q_NB.size, target_sum / num_rows
