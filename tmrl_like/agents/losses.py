"""The losses of Soft Actor-Critic as pure functions. Shape names: B batch, N critics, M critics in the target.

Equations are those of Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", 2018 (arXiv:1812.05905).
"""

# Capital suffixes name a tensor's dimensions.
# ruff: noqa: N803, N806
from __future__ import annotations

from torch import Tensor


def soft_target(
    rew_B: Tensor,
    terminated_B: Tensor,
    next_q_MB: Tensor,
    next_log_prob_B: Tensor,
    entropy_coef: Tensor,
    gamma: float | Tensor,
) -> Tensor:
    """What the critics should say; [B].

    Eq. 3 and the sampled form of eq. 6:  y = r + gamma (1 - terminated) (min_i Q_i(s', a') - alpha log pi(a'|s')).
    A terminal state has no value beyond it; a truncated episode has, so `truncated` does not appear. With the
    M critics drawn out of N, this is line 8 of algorithm 1 in Chen et al., "Randomized Ensembled Double
    Q-Learning", 2021 (REDQ). A `gamma` [B] discounts each transition by its own factor (n-step returns).
    """
    next_v_B = next_q_MB.amin(dim=0) - entropy_coef * next_log_prob_B
    return rew_B + gamma * (1.0 - terminated_B) * next_v_B


def critic_loss(q_NB: Tensor, target_B: Tensor, weight_B: Tensor | None = None) -> Tensor:
    """Squared Bellman error, mean over the batch, summed over the critics; [].

    Eq. 5:  J_Q = sum_i E[ 1/2 (Q_i(s, a) - y)^2 ]. With importance weights w, as in Schaul et al., "Prioritized
    Experience Replay", 2016, section 3.4:  sum_i E[ w/2 (Q_i(s, a) - y)^2 ].
    """
    squared_NB = (q_NB - target_B).square()
    if weight_B is not None:
        squared_NB = squared_NB * weight_B
    return squared_NB.sum() * (0.5 / len(target_B))


def critic_loss_gradient(q_NB: Tensor, target_B: Tensor, weight_B: Tensor | None = None) -> Tensor:
    """Derivative of `critic_loss` by the critics' values,  w (Q_i(s, a) - y) / B;  [N, B]."""
    gradient_NB = (q_NB - target_B).mul_(1.0 / len(target_B))
    return gradient_NB if weight_B is None else gradient_NB.mul_(weight_B)


def actor_loss(log_prob_B: Tensor, q_B: Tensor, entropy_coef: Tensor) -> Tensor:
    """Expected soft loss of the policy's own actions; [].

    Eq. 7:  J_pi = E[ alpha log pi(a|s) - Q(s, a) ],  a drawn by reparameterisation.
    """
    return (entropy_coef * log_prob_B - q_B).mean()


def temperature_loss(log_entropy_coef: Tensor, entropy: Tensor, target_entropy: float) -> Tensor:
    """Moves alpha up while the policy's entropy is below the target, down while it is above; [].

    Eq. 18, J(alpha) = E[ -alpha log pi(a|s) - alpha H_target ], with log alpha in alpha's place, as implementations
    have it: the same fixed point, and steps whose size does not shrink with alpha. Its derivative by
    `log_entropy_coef` is `entropy - target_entropy`.

    Args:
        log_entropy_coef: log alpha; [].
        entropy: the policy's, estimated as -E[ log pi(a|s) ], in nats; [].
        target_entropy: nats.
    """
    return log_entropy_coef * (entropy - target_entropy)
