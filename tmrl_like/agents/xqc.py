"""XQC: Soft Actor-Critic whose critics are well conditioned, so that they learn more from each step.

Palenicek et al., "XQC: Well-conditioned Optimization Accelerates Deep Reinforcement Learning", 2025 (arXiv:2509.25174).
What it has beside SAC: batch normalisation on the inputs and behind each hidden layer; weights on the unit sphere; a
distribution over returns and cross-entropy in place of a squared error. Shape names: B batch, F features of an
observation, A action dimensions, I inputs of the critics (F + A), N critics, K bins; everything is float32.
"""

# Capital suffixes name a tensor's dimensions.
# ruff: noqa: N803, N806
from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
import numpy as np
import torch
from torch import Tensor

from tmrl_like.agents.acceleration import Flat, adam_step, learning_rate_of
from tmrl_like.agents.agent import COUNT, NOT_NEGATIVE, PART, SHARE, AgentOptions, NumberRange, TrainingAgent, number
from tmrl_like.agents.batch_norm import BatchNormMLP, fold
from tmrl_like.agents.models import SquashedGaussianActor, squashed_log_prob
from tmrl_like.agents.observations import Rescale
from tmrl_like.agents.sac import Temperature, actor_loss, soft_update, td_target, temperature_loss
from tmrl_like.agents.sac import critic_loss as squared_loss
from tmrl_like.agents.sharing import no_grad
from tmrl_like.agents.space_layout import action_bounds
from tmrl_like.base.functional import partial
from tmrl_like.base.text import one_line
from tmrl_like.errors import PolicyError, expect
from tmrl_like.policies.actor import ActorModule
from tmrl_like.policies.weight_file import Weights
from tmrl_like.types import Batch

if TYPE_CHECKING:
    from tmrl_like.agents.dense_xqc import CompiledXQC

log = logging.getLogger("tmrl_like.agents")


def values_of(outputs: Tensor, bins_K: Tensor) -> Tensor:
    """What critics say; [..., K] -> [...]:  Q(s, a) = sum_k p_k z_k,  p = softmax(outputs); of one bin, the output."""
    return outputs.squeeze(-1) if len(bins_K) == 1 else outputs.softmax(-1) @ bins_K


def target_distribution(
    rew_B: Tensor,
    terminated_B: Tensor,
    next_logits_NBK: Tensor,
    next_log_prob_B: Tensor,
    entropy_coef: Tensor | float,
    gamma: float | Tensor,
    bins_K: Tensor,
) -> Tensor:
    """What the critics should say, as probabilities of the bins; [B, K].

    Of the critic whose value of (s', a') is the smallest, each bin moves to

        T z_k = r + gamma (1 - terminated) (z_k - alpha log pi(a'|s')),

    clipped to the bins' range, and its probability goes to the two bins beside that place, each the more the nearer it
    is: Bellemare et al., "A Distributional Perspective on Reinforcement Learning", 2017, algorithm 1.
    """
    least_B = values_of(next_logits_NBK, bins_K).argmin(0)
    prob_BK = next_logits_NBK[least_B, torch.arange(len(rew_B))].softmax(-1)
    follows_BK = bins_K - (entropy_coef * next_log_prob_B).unsqueeze(-1)
    discount_B = gamma * (1.0 - terminated_B)
    moved_BK = rew_B.unsqueeze(-1) + discount_B.unsqueeze(-1) * follows_BK
    low, high = bins_K[0], bins_K[-1]
    last = len(bins_K) - 1
    place_BK = (moved_BK.clamp(low, high) - low) * (last / (high - low))
    lower_BK = place_BK.floor().clamp(max=last - 1)
    share_BK = place_BK - lower_BK  # of the upper one
    target_BK = torch.zeros_like(prob_BK)
    target_BK.scatter_add_(1, lower_BK.long(), prob_BK * (1.0 - share_BK))
    return target_BK.scatter_add_(1, lower_BK.long() + 1, prob_BK * share_BK)


def critic_loss(logits_NBK: Tensor, target_BK: Tensor) -> Tensor:
    """Cross-entropy, mean over the batch, summed over the critics; [].

    J_Q = sum_i E[ - sum_k target_k log p_i,k(s, a) ].
    """
    return -(target_BK * logits_NBK.log_softmax(-1)).sum() / len(target_BK)


def discount_for(episode_steps: int) -> float:
    """Gamma for episodes of so many steps:  1 - 5 / steps, between 0.95 and 0.995.

    Hansen et al., "TD-MPC2: Scalable, Robust World Models for Continuous Control", 2024, appendix.
    """
    return min(max(1.0 - 5.0 / episode_steps, 0.95), 0.995)


@dataclass(frozen=True, kw_only=True)
class XQCOptions(AgentOptions):
    """How XQC learns. Rewards are to be divided by the deviation of discounted returns, so that the bins hold values.

    Attributes:
        critic_sizes: width of each hidden layer of the critics; those of the actor are those of `actor_cls`.
        n_critics: N; the smallest value of all of them counts.
        num_bins: K; 1: critics say a value in place of a distribution, and their loss is the squared error.
        largest_value: the bins lie between it and its negative.
        gamma: discount per environment step, see `discount_for`.
        polyak: share of the target critics that stays in one step; 0: there are none, the critics themselves say what
            follows.
        lr_actor: learning rate of the actor.
        lr_critic: learning rate of the critics.
        lr_entropy: learning rate of the logarithm of the entropy coefficient.
        entropy_coef: alpha at first.
        target_entropy: nats, of the policy over actions scaled to [-1, 1]; None: minus half the number of action
            dimensions.
        policy_delay: the actor is trained in every `policy_delay`-th step.
        unit_sphere: put each unit's weights on the unit sphere after each step.
        renorm_after: training steps until batch renormalisation; None: never.
        betas: decay rates of Adam's two moments, for actor and critics.
        acceleration: "auto": compiled where numba is installed; "off".
    """

    critic_sizes: tuple[int, ...] = (256, 256, 256)
    n_critics: int = 2
    num_bins: int = 101
    largest_value: float = 5.0
    gamma: float = number(0.99, SHARE)
    polyak: float = number(0.995, PART)
    lr_actor: float = number(3e-4, NOT_NEGATIVE)
    lr_critic: float = number(3e-4, NOT_NEGATIVE)
    lr_entropy: float = number(3e-4, NOT_NEGATIVE)
    entropy_coef: float = number(0.01, NumberRange(lambda v: 0.0 < v < math.inf, "more than 0"))
    target_entropy: float | None = number(None, NumberRange(math.isfinite, "a finite number"))
    policy_delay: int = number(3, COUNT)
    unit_sphere: bool = True
    renorm_after: int | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    acceleration: str = "auto"


@dataclass(frozen=True, kw_only=True)
class CrossQOptions(XQCOptions):
    """Those of XQC, with the defaults of CrossQ as Bohlinger et al. ran it on a robot (arXiv:2503.08375)."""

    critic_sizes: tuple[int, ...] = (256, 256)
    num_bins: int = 1
    polyak: float = number(0.0, PART)
    lr_actor: float = number(5e-3, NOT_NEGATIVE)
    lr_critic: float = number(5e-3, NOT_NEGATIVE)
    lr_entropy: float = number(5e-3, NOT_NEGATIVE)
    entropy_coef: float = number(1.0, NumberRange(lambda v: 0.0 < v < math.inf, "more than 0"))
    policy_delay: int = number(1, COUNT)
    unit_sphere: bool = False
    renorm_after: int | None = 1000
    betas: tuple[float, float] = (0.5, 0.999)


class XQCAgent(TrainingAgent):
    """XQC (Palenicek et al. 2025, arXiv:2509.25174) for observations without images, on the CPU.

    The critics see (s, a) and (s', a') in one pass, so that one set of batch statistics normalises both, as in Bhatt et
    al., "CrossQ", 2024 (arXiv:1902.05605).

    Attributes:
        policy: what goes to the workers: the actor, with its normalisations folded into its weights.
        actor: the policy in training; mean and log standard deviation of each action.
        critic: the N critics in training.
        critic_target: their moving average; without `polyak` the critics themselves.
        target_entropy: nats, of the policy over actions scaled to [-1, 1].
        compiled: what computes gradients in the page's place; else None.
        updates: training steps done.
    """

    page: ClassVar[type[XQCOptions]] = XQCOptions
    tunable = XQCOptions.live()

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        device: str = "cpu",
        *,
        actor_cls: Callable[..., SquashedGaussianActor] | None = None,
        **options: Any,
    ) -> None:
        """Build networks and optimisers.

        Args:
            observation_space: see `Encoder`, without images.
            action_space: a Box with finite bounds.
            device: "cpu".
            actor_cls: makes the actor that goes to the workers, without layer normalisation or `normalize_obs`, whose
                place batch normalisation takes. None: the actor that ships.
            options: see `XQCOptions`.

        Raises:
            ConfigError: an argument out of its range, or a space that the networks cannot learn from.
        """
        super().__init__(observation_space, action_space, device)
        expect(device == "cpu", "device", device, "cpu, for this agent")
        o = self.page(**options)
        self.gamma, self.polyak, self.policy_delay = o.gamma, o.polyak, o.policy_delay
        self.unit_sphere = o.unit_sphere
        actor_cls = actor_cls or partial(SquashedGaussianActor, normalize_obs=False)
        self.policy = no_grad(actor_cls(observation_space, action_space))
        self.encoder, sizes = self.policy.encoder, self.policy.options
        expect(not self.encoder.images, "observation_space", "images", "numbers, for this agent")
        is_bare = not sizes.layer_norm and not self.encoder.normalizes
        expect(is_bare, "actor_cls", "with normalisation", "one without layer_norm and normalize_obs")
        center, half = action_bounds(action_space)
        self.rescale_act = Rescale(np.reciprocal(half), np.divide(-center, half))
        num_actions = len(center)
        self.target_entropy = -0.5 * num_actions if o.target_entropy is None else o.target_entropy
        self.bins_K = torch.linspace(-o.largest_value, o.largest_value, o.num_bins)
        renorm_after = math.inf if o.renorm_after is None else o.renorm_after
        num_inputs = self.encoder.size + num_actions
        self.actor = BatchNormMLP(1, self.encoder.size, sizes.hidden_sizes, 2 * num_actions, renorm_after)
        self.critic = BatchNormMLP(o.n_critics, num_inputs, o.critic_sizes, o.num_bins, renorm_after)
        self.critic_target = no_grad(deepcopy(self.critic)) if o.polyak else self.critic
        self.temperature = Temperature(o.entropy_coef)
        self._flat_actor, self._flat_critic = Flat(self.actor), Flat(self.critic)
        self._flat_critic_target = Flat(self.critic_target, self.critic) if o.polyak else self._flat_critic
        self._flat_temperature = Flat(self.temperature)
        self.actor_optimizer = self._flat_actor.adam(torch.optim.Adam, lr=o.lr_actor, betas=o.betas)
        self.critic_optimizer = self._flat_critic.adam(torch.optim.Adam, lr=o.lr_critic, betas=o.betas)
        self.temperature_optimizer = self._flat_temperature.adam(torch.optim.Adam, lr=o.lr_entropy)
        self.updates = 0
        self.compiled = self._compiled_gradients() if o.acceleration == "auto" else None

    def _compiled_gradients(self) -> CompiledXQC | None:
        if importlib.util.find_spec("numba") is None:
            log.info('a training step is several times as fast with numba: pip install "tmrl_like[fast]"')
            return None
        try:
            from tmrl_like.agents.dense_xqc import CompiledXQC

            limits = self.policy.log_std_min, self.policy.log_std_max
            return CompiledXQC(self.actor, self.critic, self.critic_target, self.bins_K, limits)
        except Exception as error:  # of an installation that is broken, of any kind
            log.warning("training is slower than with numba, which cannot be used: %s", one_line(error))
            return None

    lr_actor = learning_rate_of(lambda self: self.actor_optimizer)
    lr_critic = learning_rate_of(lambda self: self.critic_optimizer)
    lr_entropy = learning_rate_of(lambda self: self.temperature_optimizer)

    @property
    def entropy_coef(self) -> float:
        """Alpha."""
        return math.exp(self.temperature.log_coef.item())

    @entropy_coef.setter
    def entropy_coef(self, value: float) -> None:
        self.temperature.set(value)

    def train(self, batch: Batch) -> dict[str, Any]:
        """Do one step on a batch; see `TrainingAgent.train`. The metrics are numbers or 0-dimensional tensors."""
        self.updates += 1
        metrics = self._critic_gradients(batch)
        self._descend(self.critic_optimizer)
        if self.unit_sphere:
            self.critic.to_unit_sphere()
        if self.updates % self.policy_delay == 0:
            metrics |= self._train_actor(batch)
        if self.critic_target is not self.critic:
            soft_update(self.polyak, self._flat_critic_target.parameter, self._flat_critic.parameter)
        return metrics

    def get_actor(self) -> ActorModule:
        """Return the actor as it is now, with its normalisations folded into its weights; always the same module."""
        fold(self.actor, self.policy)
        return self.policy

    def start_from(self, weights: Weights, training_steps: int = 0) -> None:
        """PolicyError: weights without normalisations do not say what the statistics of these are."""
        raise PolicyError("this agent cannot begin with the policy of another training (init_policy); SAC can")

    def _train_actor(self, batch: Batch) -> dict[str, Any]:
        metrics = self._actor_gradients(batch)
        log_coef, entropy = self.temperature.log_coef, metrics["entropy_nats"]
        metrics["loss_entropy_coef"] = temperature_loss(log_coef.detach(), entropy, self.target_entropy)
        assert log_coef.grad is not None
        log_coef.grad.fill_(temperature_loss(1.0, entropy, self.target_entropy))  # the derivative of what is linear
        self._descend(self.actor_optimizer, self.temperature_optimizer)
        if self.unit_sphere:
            self.actor.to_unit_sphere()
        return metrics

    def _critic_gradients(self, batch: Batch) -> dict[str, Any]:
        """Of the critics' loss, by their parameters; returns the metrics."""
        num_rows = len(batch.rew)
        gamma = self.gamma if batch.discount is None else batch.discount
        with torch.no_grad():
            features_BF, next_features_BF = self.encoder(batch.obs), self.encoder(batch.next_obs)
            act_BA = self.rescale_act(batch.act.reshape(num_rows, -1).float())
            if self.compiled is not None:
                alpha = self.entropy_coef
                return self.compiled.of_critics(features_BF, act_BA, next_features_BF, batch, alpha, gamma)
            next_act_BA, next_log_prob_B = self.draw(next_features_BF, training=False)
            now_BI = torch.cat((features_BF, act_BA), 1)
            next_BI = torch.cat((next_features_BF, next_act_BA), 1)
            both = torch.cat((now_BI, next_BI))  # [2 B, I]
        outputs = self.critic(both, training=True)
        followers = outputs.detach()
        if self.critic_target is not self.critic:
            followers = self.critic_target(both, training=True)
        now_NBK, next_NBK = outputs[:, :num_rows], followers[:, num_rows:]
        loss, target_B = self._loss(batch, now_NBK, next_NBK, next_log_prob_B, gamma)
        self.critic_optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        q_mean = values_of(now_NBK.detach(), self.bins_K).mean()
        return {"loss_critic": loss.detach(), "q_mean": q_mean, "q_target_mean": target_B.mean()}

    def _loss(
        self, batch: Batch, now_NBK: Tensor, next_NBK: Tensor, next_log_prob_B: Tensor, gamma: float | Tensor
    ) -> tuple[Tensor, Tensor]:
        """Of the critics, [], and the values that they should say, [B]."""
        rew_B, terminated_B, alpha = batch.rew, batch.terminated, self.temperature().detach()
        if len(self.bins_K) == 1:
            target_B = td_target(rew_B, terminated_B, next_NBK.squeeze(-1), next_log_prob_B, alpha, gamma)
            return squared_loss(now_NBK.squeeze(-1), target_B), target_B
        target_BK = target_distribution(rew_B, terminated_B, next_NBK, next_log_prob_B, alpha, gamma, self.bins_K)
        return critic_loss(now_NBK, target_BK), target_BK @ self.bins_K

    def _actor_gradients(self, batch: Batch) -> dict[str, Any]:
        """Of the actor's loss, by its parameters; returns the metrics."""
        alpha = self.entropy_coef
        features_BF = self.encoder(batch.obs)
        if self.compiled is not None:
            return self.compiled.of_actor(features_BF, alpha) | {"entropy_coef": alpha}
        act_BA, log_prob_B = self.draw(features_BF, training=True)
        logits_NBK = self.critic(torch.cat((features_BF, act_BA), 1), training=False)
        loss = actor_loss(log_prob_B, values_of(logits_NBK, self.bins_K).amin(0), torch.tensor(alpha))
        self.actor_optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        return {"loss_actor": loss.detach(), "entropy_nats": -log_prob_B.detach().mean(), "entropy_coef": alpha}

    def draw(self, features_BF: Tensor, training: bool) -> tuple[Tensor, Tensor]:
        """Actions in [-1, 1], [B, A], by reparameterisation, and their log-density [B]."""
        mean_BA, log_std_BA = self.actor(features_BF, training)[0].chunk(2, dim=-1)
        log_std_BA = log_std_BA.clamp(self.policy.log_std_min, self.policy.log_std_max)
        noise_BA = torch.randn_like(mean_BA)
        u_BA = torch.addcmul(mean_BA, log_std_BA.exp(), noise_BA)
        return u_BA.tanh(), squashed_log_prob(u_BA, noise_BA, log_std_BA)

    def _descend(self, *optimizers: torch.optim.Adam) -> None:
        self.average_gradients(*optimizers)
        for optimizer in optimizers:
            adam_step(optimizer)


class CrossQAgent(XQCAgent):
    """CrossQ (Bhatt et al. 2024, arXiv:1902.05605) as a robot can afford it: `XQCAgent` with other defaults.

    Without target networks, with batch renormalisation and a high learning rate; its critics say values.
    """

    page = CrossQOptions
