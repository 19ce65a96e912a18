"""Soft Actor-Critic for Discrete and MultiDiscrete actions.

Shape names: B batch, K categorical variables of an action, V categories of all K side by side, N
critics, F features.
"""

# Capital suffixes name a tensor's dimensions.
# ruff: noqa: N806
from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tmrl_like.agents.ensemble import EnsembleMLP
from tmrl_like.agents.in_numpy import NumpyCategoricalActor
from tmrl_like.agents.models import MLPActor
from tmrl_like.agents.observations import OneHot
from tmrl_like.agents.sac import SACAgent
from tmrl_like.agents.space_layout import Space, action_categories
from tmrl_like.policies.network import CategoricalSpec, NetworkOptions, Numbers
from tmrl_like.types import Observation

_SHARE_OF_ENTROPY = 0.5  # default target, as a share of the largest entropy


class CategoricalActor(MLPActor):
    """A categorical policy: each of an action's K variables has probabilities of its own, given the
    observation.

    pi(a|s) = prod_k pi_k(a_k|s). A Discrete action is one variable, a MultiDiscrete action several.
    Takes `NetworkOptions`.
    """

    page, numpy_form = NetworkOptions, NumpyCategoricalActor
    spec: CategoricalSpec

    def forward(self, obs: Observation) -> Tensor:
        """Map a structure of [B, ...] to log pi_k(v|s) of each category, [B, V]."""
        parts = torch.split(self.outputs(self.encoder(obs)), list(self.spec.sizes), dim=-1)
        return torch.cat([part.log_softmax(-1) for part in parts], dim=-1)

    def log_prob(self, obs: Observation, act: Tensor) -> Tensor:
        """See `ActorModule.log_prob`."""
        first = torch.tensor(self.spec.first, device=act.device)
        index_BK = act.reshape(len(act), -1).long() - first
        parts = self(obs).split(self.spec.sizes, dim=-1)
        chosen = [part.gather(1, index_BK[:, k : k + 1]) for k, part in enumerate(parts)]
        return torch.cat(chosen, dim=1).sum(dim=1)

    def best_actions(self, obs: Observation) -> Tensor:
        """Return each variable's likeliest category, int64; see `ActorModule.best_actions`."""
        parts = torch.split(self.best_outputs(obs), list(self.spec.sizes), dim=-1)
        chosen = [
            part.argmax(-1) + first for part, first in zip(parts, self.spec.first, strict=True)
        ]
        return torch.stack(chosen, dim=-1).view(-1, *self.spec.shape)


class DiscreteEnsembleCritic(EnsembleMLP):
    """N action values Q_i(s, a), computed for all categories at once. Images go through one encoder
    for all N.

    The value of an action is the sum over its variables, Q_i(s, a) = sum_k Q_ik(s, a_k), which is
    exact for one variable. Several variables are valued independently, so values that are good only
    together are not recognised: combine such variables into one.
    """

    def read_actions(self, action_space: Space) -> tuple[int, int]:
        """Return the number of inputs, none, and of outputs, one for each category."""
        sizes, first = (values.tolist() for values in action_categories(action_space))
        self.one_hot = OneHot(Numbers(first, first, sizes))
        return 0, self.one_hot.size

    def forward(self, obs: Observation, act: Tensor) -> Tensor:
        """Compute the values of actions, or their expectation over a policy.

        Args:
            obs: structure of [B, ...].
            act: whole numbers [B, ...], actions of the space; or float [B, V], the probability of
                each category.

        Returns:
            float32 [N, B].
        """
        if not act.is_floating_point():
            act = act.reshape(len(act), -1).float()
            act = self.one_hot(act, act)
        q_NBV = self.outputs(self.encoder(obs))
        return (q_NBV * act).sum(dim=-1)


class DiscreteSACAgent(SACAgent):
    """Soft Actor-Critic for Discrete and MultiDiscrete actions (Christodoulou 2019,
    arXiv:1910.07207).

    The losses are those of `SACAgent`, with exact expectations over the policy in place of one
    sampled action:

        V(s) = min_i pi(s)^T Q_i(s) - alpha pi(s)^T log pi(s)             eq. 10
        J(alpha) = pi(s)^T [-alpha (log pi(s) + H_target)]                eq. 11
        J_pi = E[ pi(s)^T (alpha log pi(s) - Q(s)) ]                      eq. 12

    The minimum is over the critics' expectations, where the paper takes it for each value: the
    terms of a sum over several variables are not comparable between critics, but their expectations
    are. With several variables, pi(s) holds the probabilities of all their categories, and Q(s)
    their terms of the sum, see `DiscreteEnsembleCritic`.

    Takes the arguments of `SACAgent`. `target_entropy` is the entropy of the whole action in nats;
    None takes half of the largest, which is the logarithm of the number of actions. (The paper's
    98 % is close to acting at random.)
    """

    _default_actor = CategoricalActor
    _default_critic = DiscreteEnsembleCritic
    _kinds = CategoricalActor, DiscreteEnsembleCritic

    def _usual_entropy(self) -> float:
        return _SHARE_OF_ENTROPY * float(np.log(action_categories(self.action_space)[0]).sum())

    def _sample(self, obs: Observation) -> tuple[Tensor, Tensor]:
        """Return, in place of one action, the probabilities of all categories [B, V], and the
        expected log-probability [B].
        """
        log_prob_BV = self.actor(obs)
        prob_BV = log_prob_BV.exp()
        return prob_BV, (prob_BV * log_prob_BV).sum(dim=-1)
