"""CrossQ: Soft Actor-Critic with batch-normalised critics and without target networks, whose
values are distributions.

Bhatt et al., "CrossQ: Batch Normalization in Deep Reinforcement Learning for Greater Sample
Efficiency and Simplicity", 2024 (arXiv:1902.05605), with what Palenicek et al. add to it in "XQC:
Well-conditioned Optimization Accelerates Deep Reinforcement Learning", 2025 (arXiv:2509.25174):
weights of constant length, and a cross-entropy loss. The actor's losses are those of
`tmrl_like.agents.sac`. On a CPU, `tmrl_like.agents.dense_crossq` computes the gradients: change a
loss in both modules. Shape names: B batch, N critics, K bins, R rows of the joint pass (2 B).
"""

# Capital suffixes name a tensor's dimensions.
# ruff: noqa: N803, N806
from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tmrl_like.agents.acceleration import Flat, Metrics
from tmrl_like.agents.batch_norm import BatchNormActor, BatchNormCritic, fold
from tmrl_like.agents.ensemble import MLP
from tmrl_like.agents.models import CategoricalCritic, EnsembleCritic, SquashedGaussianActor
from tmrl_like.agents.sac import SACAgent, SACOptions, joint_obs
from tmrl_like.agents.sharing import no_grad
from tmrl_like.agents.shipped import Kept
from tmrl_like.base.functional import cached_property, partial
from tmrl_like.base.options import NotNegative
from tmrl_like.errors import PolicyError, expect
from tmrl_like.policies.weight_file import Weights
from tmrl_like.types import Batch

if TYPE_CHECKING:
    from tmrl_like.agents.dense_sac import CompiledSAC


def categorical_target(
    rew_B: Tensor,
    terminated_B: Tensor,
    next_p_BK: Tensor,
    next_log_prob_B: Tensor,
    entropy_coef: Tensor,
    gamma: float | Tensor,
    bins_K: Tensor,
) -> Tensor:
    """Return the distributions that the critics learn, [B, K].

    The soft target of SAC for each value z_j of the next distribution,

        y_j = r + gamma (1 - terminated) (z_j - alpha log pi(a'|s')),  within z_1 and z_K,

    projected on the bins (Bellemare et al. 2017, eq. 7): the probability of y_j goes to the two
    bins beside it,

        m_k = sum_j p_j max(0, 1 - |y_j - z_k| / (z_2 - z_1)).
    """
    scale_B = gamma * (1.0 - terminated_B)
    shift_B = rew_B - scale_B * entropy_coef * next_log_prob_B
    y_BK = (shift_B[:, None] + scale_B[:, None] * bins_K).clamp(bins_K[0], bins_K[-1])
    width = bins_K[1] - bins_K[0]
    share_BKK = (1.0 - (y_BK[:, :, None] - bins_K).abs() / width).clamp(min=0.0)
    return torch.bmm(next_p_BK[:, None], share_BKK)[:, 0]


def categorical_loss(logits_NBK: Tensor, target_BK: Tensor) -> Tensor:
    """Return the cross-entropy of targets and distributions, averaged over the batch and summed
    over the critics, []:  J_Q = sum_i E[ -sum_k m_k log p_i,k ].
    """
    return -(target_BK * logits_NBK.log_softmax(dim=-1)).sum() / len(target_BK)


@dataclass(frozen=True, kw_only=True)
class CrossQOptions(SACOptions):
    """SAC's options, without those of target networks, which CrossQ does not use. Rewards are
    always scaled.

    The defaults are for batches of 128 and two training steps per environment step. `betas` are
    those of Bohlinger et al., "Gait in Eight: Efficient On-Robot Learning for Omnidirectional
    Quadruped Locomotion", 2025 (arXiv:2503.08375). A `target_entropy` of None takes minus half the
    number of action dimensions.
    """

    critics_in_target: None = field(default=None, init=False)
    polyak: float = field(default=0.0, init=False)
    scale_rewards: bool = field(default=True, init=False)
    actor_polyak: Kept = 0.999
    lr_actor: NotNegative = 1e-3
    lr_critic: NotNegative = 1e-3
    lr_entropy: NotNegative = 1e-3
    betas: tuple[Kept, Kept] = (0.5, 0.999)


class CrossQAgent(SACAgent):
    """CrossQ (Bhatt et al. 2024, arXiv:1902.05605) with the critics of XQC (Palenicek et al. 2025,
    arXiv:2509.25174), for vectors and categories.

    In training, critics and actor are normalised by each batch (`BatchNormMLP`), and the weights of
    their hidden units keep the length 1. The critics see (s, a) and (s', a') in one pass, so that
    the same statistics normalise their values and their targets. Each value is a distribution over
    fixed bins:

        Z(s, a), Z(s', a') = critics([s; s'], [a; a'])
        m = categorical_target(r, …, Z_i(s', a')),  i the critic whose mean is the least.

    No gradient flows through m, so there are no target networks. Rewards are divided by the size of
    returns (`ReturnScale`), so that values lie within the bins, which end at five times this size.
    The running statistics normalise where the next actions are drawn, where the actor's actions are
    valued, and on the workers. They are folded into the weights of plain networks for this, so
    acting costs what it costs with SAC.

    Takes the arguments of `SACAgent`, see `CrossQOptions`. `actor_cls` must make a
    `SquashedGaussianActor` and `critic_cls` an `EnsembleCritic` (None takes the actor's widths),
    both without layer normalisation or dropout. `normalize_obs` has no effect: batch normalisation
    takes its place. With several ranks, each normalises by its own batch, and the running
    statistics are averaged over them.

    Attributes:
        actor: the policy in training.
        plain_actor: the plain network that does the same, which `get_actor` returns.
        critic: the N critics in training.
        critic_target: the plain networks that do the same.
    """

    actor: BatchNormActor
    plain_actor: SquashedGaussianActor
    critic: BatchNormCritic
    critic_target: CategoricalCritic
    page = CrossQOptions
    tunable = tuple(name for name in SACAgent.tunable if name != "polyak")

    _default_critic = staticmethod(partial(EnsembleCritic, layer_norm=False))
    _kinds = SquashedGaussianActor, EnsembleCritic
    _sees_once = True

    critic_frozen = cached_property(lambda self: self.critic_target)

    def start_from(self, weights: Weights, training_steps: int = 0) -> None:
        """Raise PolicyError: the weights of a policy are plain, without the statistics of batch
        normalisation.
        """
        raise PolicyError(
            "CrossQAgent cannot begin with the policy of another training (init_policy); SACAgent "
            "can"
        )

    def average(self, with_actor: bool) -> None:
        """Fold the actor into its plain network."""
        if with_actor:
            self._fold(self.actor, self.plain_actor)

    def get_actor(self) -> SquashedGaussianActor:
        """Return the plain network, whose parameters change with each step."""
        return self.plain_actor

    def _take_networks(self, actor: Any, critic: Any) -> None:
        """Take the plain actor, and make all critics with the options of those given."""
        _expect_plain("actor_cls", actor, SquashedGaussianActor)
        _expect_plain("critic_cls", critic, EnsembleCritic)
        expect(
            not actor.encoder.images,
            "observation_space",
            "one with pictures",
            "vectors and categories for CrossQ",
        )
        spaces, of_critic = (self.observation_space, self.action_space), vars(critic.options)
        self.plain_actor = actor
        self.critic_target = CategoricalCritic(*spaces, **of_critic).to(self.device)
        self.actor = BatchNormActor(*spaces, **vars(actor.options))
        self.critic = BatchNormCritic(*spaces, **of_critic).to(self.device)
        self.actor.to_device(self.device)
        self._flat_actor, self._flat_critic = Flat(self.actor), Flat(self.critic)
        self._flat_published = self._flatten(self.plain_actor)
        self._flat_critic_target = Flat(self.critic_target)
        for normed, plain in ((self.actor, self.plain_actor), (self.critic, self.critic_target)):
            fold(normed.network, no_grad(plain))
        self.obs_norm = None

    def _is_compilable(self) -> bool:
        is_same = self.plain_actor.encoder.form == self.critic_target.encoder.form
        return type(self) is CrossQAgent and is_same

    def _compile(self) -> CompiledSAC:
        from tmrl_like.agents.dense_crossq import compiled_crossq

        plain, normed = (self.plain_actor, self.critic_target), (self.actor, self.critic)
        flat_plain = self._flat_published, self._flat_critic_target
        return compiled_crossq(plain, flat_plain, normed, (self._flat_actor, self._flat_critic))

    def _train_critics(self, batch: Batch) -> Metrics:
        metrics = super()._train_critics(batch)
        self._fold(self.critic, self.critic_target)
        return metrics

    def _fold(self, normed: BatchNormActor | BatchNormCritic, plain: MLP) -> None:
        if self.ranks is not None:
            self.ranks.mean(normed.network.statistics)
        normed.network.rescale()
        fold(normed.network, plain)

    def _critic_loss(self, batch: Batch, critic: Any) -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():
            next_act, next_log_prob_B = self._sample(batch.next_obs)
        logits_NRK = critic.outputs_at(joint_obs(batch), torch.cat((batch.act, next_act)))
        logits_NBK, _ = logits_NRK.chunk(2, dim=1)
        bins_K, p_NRK = critic.bins, logits_NRK.detach().softmax(dim=-1)
        p_NBK, next_p_NBK = p_NRK.chunk(2, dim=1)
        least_B = (next_p_NBK @ bins_K).argmin(dim=0)
        next_p_BK = next_p_NBK[least_B, torch.arange(len(least_B), device=self.device)]
        rest = next_log_prob_B, self.temperature().detach(), self._gamma_of(batch), bins_K
        target_BK = categorical_target(batch.rew, batch.terminated, next_p_BK, *rest)
        return categorical_loss(logits_NBK, target_BK), p_NBK @ bins_K, target_BK @ bins_K

    @property
    def _policy(self) -> SquashedGaussianActor:
        """The actor in training, which updates its statistics, or the plain actor while gradients
        are off.
        """
        return self.actor if torch.is_grad_enabled() else self.plain_actor

    def _usual_entropy(self) -> float:
        return 0.5 * super()._usual_entropy()


def _expect_plain(name: str, network: MLP, cls: type[MLP]) -> None:
    is_plain = type(network) is cls and not network.norms and not network.dropout
    wanted = f"{cls.__name__} without layer_norm and dropout"
    expect(is_plain, name, type(network).__name__, wanted)
