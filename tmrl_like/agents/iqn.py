"""Implicit quantile networks: the losses, and the agent that minimises them.

Equation numbers are those of Dabney et al., "Implicit Quantile Networks for Distributional
Reinforcement Learning", 2018 (arXiv:1806.06923). Shape names: B batch, N quantiles in training, M
quantiles of the target (the paper's N'), A actions. Everything is float32.
"""

# Capital suffixes name a tensor's dimensions.
# ruff: noqa: N803, N806
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from tmrl_like.agents.acceleration import (
    Flat,
    Metrics,
    accelerate,
    adam_step,
    backward,
    learning_rate_of,
)
from tmrl_like.agents.iqn_network import IQNActor
from tmrl_like.agents.observations import RunningNorm
from tmrl_like.agents.sharing import copy_shared, no_grad
from tmrl_like.agents.shipped import (
    Kept,
    Share,
    ShippedAgent,
    ShippedOptions,
    made_by,
    soft_update,
)
from tmrl_like.agents.space_layout import Space
from tmrl_like.base.options import AboveZero, NotNegative, Positive
from tmrl_like.policies.actor import ActorModule
from tmrl_like.policies.weight_file import Weights
from tmrl_like.types import Batch


def quantile_target(
    rew_B: Tensor, terminated_B: Tensor, next_z_BM: Tensor, gamma: float | Tensor
) -> Tensor:
    """Return the targets of the quantiles, [B, M].

    Eq. 2:  y_j = r + gamma (1 - terminated) Z_tau'_j(s', a*).

    A terminal state has no value beyond it. A `gamma` [B] discounts each transition by its own
    factor (n-step returns).
    """
    return rew_B[:, None] + (gamma * (1.0 - terminated_B))[:, None] * next_z_BM


def quantile_huber_loss(
    z_BN: Tensor, target_BM: Tensor, tau_BN: Tensor, kappa: float = 1.0
) -> Tensor:
    """Return the loss of each transition, [B]: the sum over the quantiles in training of the mean
    over those of the target::

        delta_ij = y_j - z_i
        L_kappa(delta) = delta^2 / 2  where |delta| <= kappa,  else kappa (|delta| - kappa / 2)
        loss = sum_i 1/M sum_j |tau_i - 1{delta_ij < 0}| L_kappa(delta_ij) / kappa   eq. 3

    It is smallest where z_i is the tau_i-quantile of the targets' distribution, or its expectile if
    kappa is large compared with the differences.
    """
    delta_BNM = target_BM[:, None, :] - z_BN[:, :, None]
    huber_BNM = torch.nn.functional.huber_loss(
        delta_BNM, torch.zeros_like(delta_BNM), reduction="none", delta=kappa
    )
    share_BNM = (tau_BN[:, :, None] - (delta_BNM.detach() < 0).float()).abs()
    return (share_BNM * huber_BNM).mean(dim=2).sum(dim=1) / kappa


@dataclass(frozen=True, kw_only=True)
class IQNOptions(ShippedOptions):
    """Options of implicit quantile networks.

    Attributes:
        quantiles: number of quantiles in training, N, drawn from U(0, 1) for each transition.
        target_quantiles: number of quantiles of the target network, M, drawn likewise; the next
            action is chosen by as many.
        kappa: differences up to this value, in units of the reward, count squared, larger ones
            linearly.
        epsilon: share of the steps in which a worker takes a random action.
        epsilon_boltzmann: share of the steps in which it adds noise to the values first.
        boltzmann_noise: standard deviation of this noise, in the values' unit.
        lr: learning rate.
        max_gradient_norm: gradients with a larger norm are scaled down to it.
    """

    quantiles: Positive = 8
    target_quantiles: Positive = 8
    kappa: AboveZero = 1.0
    actor_polyak: Kept = 0.0
    epsilon: Share = 0.05
    epsilon_boltzmann: Share = 0.0
    boltzmann_noise: NotNegative = 0.0
    lr: NotNegative = 3e-4
    eps: AboveZero = 1e-4
    max_gradient_norm: AboveZero = 10.0


class IQNAgent(ShippedAgent):
    """Q-learning of whole distributions of returns, for Discrete actions (Dabney et al. 2018,
    algorithm 1).

    It uses dueling heads (`IQNActor`) and double Q-learning (van Hasselt et al. 2016,
    arXiv:1509.06461): the network in training chooses the next action, as its policy does, and the
    target network values it.

    The workers draw the exploration; see `IQNActor`.

    Attributes:
        actor_ema: the moving average of the actor, by which the workers act, exploring as well;
            without `actor_polyak` they act by the actor itself.
        target: the target network.
    """

    actor: IQNActor
    actor_ema: IQNActor
    takes_time_left = True
    page: ClassVar[type[IQNOptions]] = IQNOptions
    tunable = (
        *("gamma", "kappa", "polyak", "lr", "max_gradient_norm"),
        *("epsilon", "epsilon_boltzmann", "boltzmann_noise"),
    )

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        device: str = "cpu",
        *,
        actor_cls: Callable[..., IQNActor] = IQNActor,
        **options: Any,
    ) -> None:
        """Build networks and optimiser.

        Args:
            observation_space: a space that `actor_cls` accepts.
            action_space: Discrete.
            device: device of the networks and of the batches.
            actor_cls: called as `actor_cls(observation_space, action_space)`. Give the workers the
                same class or partial.
            options: see `IQNOptions`.

        Raises:
            ConfigError: an argument is out of its range, or the network cannot learn from a space.
        """
        super().__init__(observation_space, action_space, device, **options)
        o: IQNOptions = self.options
        self.kappa, self.max_gradient_norm = o.kappa, o.max_gradient_norm
        self.epsilon, self.epsilon_boltzmann = o.epsilon, o.epsilon_boltzmann
        self.boltzmann_noise = o.boltzmann_noise
        self.actor = made_by("actor_cls", actor_cls, IQNActor, observation_space, action_space)
        self.actor.to_device(device)
        encoder = self.actor.encoder
        self.obs_norm = RunningNorm([encoder]) if encoder.normalizes else None
        self.target = no_grad(copy_shared(self.actor))
        self._flat, self._flat_target = Flat(self.actor), Flat(self.target, self.actor)
        self.actor_ema = no_grad(copy_shared(self.actor))
        self._flat_ema = Flat(self.actor_ema, self.actor)
        self.optimizer = self._adam(self._flat, o.lr)
        if o.acceleration == "auto":
            self._step = accelerate(self._update, device, [self.optimizer], self._numbers)
        self._explore()

    lr = learning_rate_of("optimizer")

    def _numbers(self) -> tuple[float, ...]:
        return self.gamma, self.kappa, self.polyak, self.max_gradient_norm

    def train(self, batch: Batch) -> Metrics:
        """Do one training step on a batch; see `TrainingAgent.train`."""
        self.updates += 1
        return self._step(batch, True)

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss; see `TrainingAgent.evaluate`."""
        z_BN, target_BM, tau_BN = self._quantiles(batch)
        return {"loss_quantiles": quantile_huber_loss(z_BN, target_BM, tau_BN, self.kappa).mean()}

    def tune(self, **values: float) -> None:
        """See `Tunable.tune`; the networks explore by the new values at once."""
        super().tune(**values)
        self._explore()

    def get_actor(self) -> ActorModule:
        """Return the moving average, or the actor in training if none is wanted."""
        self._explore()
        return self.actor_ema if self.actor_polyak else self.actor

    @torch.no_grad()
    def _explore(self) -> None:
        """Write the settings of exploration to the networks, where they are part of the weights."""
        behaviour = self.epsilon, self.epsilon_boltzmann, self.boltzmann_noise
        self.actor.behaviour.copy_(torch.tensor(behaviour))

    def start_from(self, weights: Weights, training_steps: int = 0) -> None:
        """See `ShippedAgent.start_from`; the target network takes the weights as well."""
        super().start_from(weights, training_steps)
        self.actor_ema.load_weights(weights)
        self.target.load_weights(weights)

    def _update(self, batch: Batch, _: bool) -> Metrics:
        if self.obs_norm is not None:
            self.obs_norm.update(batch.obs, self.ranks)
        z_BN, target_BM, tau_BN = self._quantiles(batch)
        loss = quantile_huber_loss(z_BN, target_BM, tau_BN, self.kappa).mean()
        backward(loss, self.optimizer)
        self.average_gradients(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_([self._flat.parameter], self.max_gradient_norm)
        adam_step(self.optimizer)
        soft_update(self.polyak, self._flat_target.parameter, self._flat.parameter)
        soft_update(self.actor_polyak, self._flat_ema.parameter, self._flat.parameter)
        z_BN = z_BN.detach()
        return {
            "loss_quantiles": loss.detach(),
            "q_mean": z_BN.mean(),
            "q_target_mean": target_BM.mean(),
            "return_std_mean": z_BN.std(dim=1, correction=0).mean(),
            "gradient_norm": norm,
        }

    def _quantiles(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the quantiles of the actions taken [B, N], their targets [B, M], and tau of the
        former [B, N].
        """
        act_B1 = batch.act.reshape(-1, 1) - int(self.action_space.start)  # type: ignore[attr-defined]
        tau_BN, target_tau_BM = (
            torch.rand(len(act_B1), n, device=self.device)
            for n in (self.options.quantiles, self.options.target_quantiles)
        )
        with torch.no_grad():
            next_obs, time_left = batch.next_obs, batch.next_time_left
            next_values_BA = self.actor.values(
                self.actor.features(next_obs, time_left), self.options.target_quantiles
            )
            next_z_BMA = self.target.quantiles(
                self.target.features(next_obs, time_left), target_tau_BM
            )
            next_z_BM = _of_actions(next_z_BMA, next_values_BA.argmax(dim=1, keepdim=True))
            gamma = self.gamma if batch.discount is None else batch.discount
            target_BM = quantile_target(batch.rew, batch.terminated, next_z_BM, gamma)
        z_BNA = self.actor.quantiles(self.actor.features(batch.obs, batch.time_left), tau_BN)
        return _of_actions(z_BNA, act_B1), target_BM, tau_BN


def _of_actions(z_BNA: Tensor, act_B1: Tensor) -> Tensor:
    """Select the quantiles of the given actions, [B, N]."""
    return z_BNA.gather(2, act_B1.long().unsqueeze(1).expand(-1, z_BNA.shape[1], -1)).squeeze(2)
