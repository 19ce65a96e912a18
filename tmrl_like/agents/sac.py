"""Soft Actor-Critic and its ensemble form REDQ: one class."""

# Capital suffixes name a tensor's dimensions.
# ruff: noqa: N806
from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from tmrl_like.actor import ActorModule
from tmrl_like.agents.acceleration import accelerate
from tmrl_like.agents.losses import actor_loss, critic_loss, critic_loss_gradient, soft_target, temperature_loss
from tmrl_like.agents.models import EnsembleCritic, SamplingActor, SquashedGaussianActor, action_bounds
from tmrl_like.agents.optimizers import OPTIMIZERS, clear_gradients, fingerprint, make_optimizer, step
from tmrl_like.errors import ConfigError
from tmrl_like.nn import copy_shared, no_grad
from tmrl_like.training import TrainingAgent
from tmrl_like.types import Batch
from tmrl_like.util import cached_property


class SACAgent(TrainingAgent):
    """Soft Actor-Critic (Haarnoja et al. 2018, arXiv:1812.05905) over an ensemble of critics.

    Two critics, both in the target, are SAC. Ten critics, two drawn at random for each target, and their mean for
    the actor, are REDQ (Chen et al. 2021, arXiv:2101.05982), see `REDQAgent`. Critics with dropout and layer
    normalisation are DroQ (Hiraoka et al. 2022): `critic_cls=partial(EnsembleCritic, dropout=0.01, layer_norm=True)`.

    Attributes:
        actor: the policy in training.
        actor_average: its moving average, which `get_actor` then returns; None without `actor_polyak`.
        critic: the N critics in training.
        critic_target: their slow copy.
        target_entropy: nats, of the policy over actions scaled to [-1, 1].
        updates: training steps done.
    """

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        device: str = "cpu",
        *,
        actor_cls: Callable[..., SamplingActor] = SquashedGaussianActor,
        critic_cls: Callable[..., nn.Module] = EnsembleCritic,
        n_critics: int = 2,
        critics_in_target: int | None = None,
        gamma: float = 0.99,
        polyak: float = 0.995,
        actor_polyak: float = 0.0,
        lr_actor: float = 3e-4,
        lr_critic: float = 3e-4,
        lr_entropy: float = 3e-4,
        learn_entropy_coef: bool = True,
        entropy_coef: float = 0.2,
        target_entropy: float | None = None,
        policy_delay: int = 1,
        optimizer: str = "adam",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        acceleration: str = "off",
    ) -> None:
        """Build networks and optimisers.

        Args:
            observation_space: what the actor and critic classes accept.
            action_space: a Box with finite bounds.
            device: where the networks live and batches arrive.
            actor_cls: called as `actor_cls(observation_space, action_space)`; the same class or partial goes to
                the workers. See `SamplingActor`.
            critic_cls: called as `critic_cls(observation_space, action_space, n_critics=N)`. Needs
                `forward(obs, act, members=None) -> [N, B]` as `EnsembleCritic`.
            n_critics: N.
            critics_in_target: how many critics, drawn anew in each step, make the target's minimum; None: all.
            gamma: discount per environment step.
            polyak: share of the target critics that stays in one step.
            actor_polyak: share that stays of the moving average of the actor that goes to the workers: 0.995
                acts more steadily than the actor in training when learning rates are high; 0 uses no average.
            lr_actor: learning rate of the actor.
            lr_critic: learning rate of the critics.
            lr_entropy: learning rate of the logarithm of the entropy coefficient.
            learn_entropy_coef: False keeps `entropy_coef` as it is.
            entropy_coef: alpha, or its initial value when it is learned.
            target_entropy: nats, of the policy over actions scaled to [-1, 1]; None: minus the number of action
                dimensions (Haarnoja et al. 2018, appendix D).
            policy_delay: the actor is trained in every `policy_delay`-th step.
            optimizer: "adam" or "adamw", for actor and critics.
            betas: decay rates of Adam's two moments, for actor and critics.
            eps: what Adam adds to its denominator, for actor and critics.
            weight_decay: of actor and critics; an L2 term with "adam", decoupled with "adamw".
            amsgrad: divide by the largest second moment so far, for actor and critics.
            acceleration: "off", "auto", "compile", "graph" or "compile+graph"; see `tmrl_like.agents.acceleration`.

        Raises:
            ConfigError: an argument out of its range, or a space that the networks cannot learn from.
        """
        super().__init__(observation_space, action_space, device)
        self.critics_in_target = n_critics if critics_in_target is None else critics_in_target
        _check_options(
            n_critics, self.critics_in_target, gamma, polyak, actor_polyak, entropy_coef, policy_delay, optimizer
        )
        self.n_critics = n_critics
        self.gamma = gamma
        self.polyak = polyak
        self.actor_polyak = actor_polyak
        self.learn_entropy_coef = learn_entropy_coef
        self.policy_delay = policy_delay
        usual_entropy = self._usual_entropy()
        self.target_entropy = usual_entropy if target_entropy is None else target_entropy
        self.updates = 0

        self.actor: Any = actor_cls(observation_space, action_space)
        self.actor.to_device(device)
        self.actor_average = no_grad(deepcopy(self.actor)) if actor_polyak else None
        self.critic = critic_cls(observation_space, action_space, n_critics=n_critics).to(device)
        self.critic_target = no_grad(deepcopy(self.critic))
        self.temperature = Temperature(entropy_coef).to(device)
        options = {"betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
        self.actor_optimizer = make_optimizer(optimizer, self.actor, lr_actor, **options)
        self.critic_optimizer = make_optimizer(optimizer, self.critic, lr_critic, **options)
        self.temperature_optimizer = make_optimizer("adam", self.temperature, lr_entropy)
        networks = self.actor, self.critic, self.critic_target, self.critic_frozen
        self._accelerated = accelerate(self._update, acceleration, device, self._fixed_in_a_graph, networks)

    critic_frozen = cached_property(lambda self: no_grad(copy_shared(self.critic)))
    """The critics in training, seen without gradients for their parameters."""

    _shipped: tuple[type, type] = SquashedGaussianActor, EnsembleCritic
    _log_half_sum = cached_property(lambda self: float(np.log(_half_widths(self.action_space)).sum()))
    _critic_parameters = cached_property(lambda self: list(self.critic.parameters()))
    _actor_parameters = cached_property(lambda self: list(self.actor.parameters()))
    _average_parameters = cached_property(lambda self: list(self.actor_average.parameters()))
    _target_parameters = cached_property(lambda self: list(self.critic_target.parameters()))

    def _usual_entropy(self) -> float:
        """The target where none is given, in nats; raises ConfigError for an action space it cannot learn."""
        return -float(_half_widths(self.action_space).size)

    @property
    def _subset(self) -> bool:
        return self.critics_in_target < self.n_critics

    def train(self, batch: Batch) -> dict[str, Any]:
        """Do one step on a batch; see `TrainingAgent.train`. The metrics are 0-dimensional tensors."""
        self.updates += 1
        return self._accelerated(self._flatten(batch), self.updates % self.policy_delay == 0)

    def _update(self, batch: Batch, with_actor: bool) -> dict[str, Tensor]:
        metrics = self._train_critics(batch)
        if with_actor:
            metrics |= self._train_actor(batch.obs)
            self._average_actor()
        self._follow_critics()
        return metrics

    def _fixed_in_a_graph(self) -> Any:
        optimizers = self.actor_optimizer, self.critic_optimizer, self.temperature_optimizer
        return [fingerprint(optimizer) for optimizer in optimizers]

    def get_actor(self) -> ActorModule:
        """Return the actor in training, or its moving average: its parameters change with each step."""
        actor: ActorModule = self.actor if self.actor_average is None else self.actor_average
        return actor

    def _flatten(self, batch: Batch) -> Batch:
        """Concatenate the observations once, where actor and critics would each do it several times."""
        if (type(self.actor), type(self.critic)) != self._shipped or self.actor.encoder.pictures:
            return batch
        flatten = self.actor.encoder.flatten
        return batch._replace(obs=flatten(batch.obs), next_obs=flatten(batch.next_obs))

    def _train_critics(self, batch: Batch) -> dict[str, Tensor]:
        target_B = self._target(batch)
        q_NB = self.critic(batch.obs, batch.act)
        clear_gradients(self.critic_optimizer)
        values_NB = q_NB.detach()
        q_NB.backward(critic_loss_gradient(values_NB, target_B, batch.weight))  # spares the loss's own graph
        step(self.critic_optimizer)
        loss = critic_loss(values_NB, target_B, batch.weight)
        metrics = {"loss_critic": loss, "q_mean": values_NB.mean(), "q_target_mean": target_B.mean()}
        if batch.drawn is not None:
            metrics["td_error"] = (values_NB - target_B).abs().mean(dim=0)
        return metrics

    @torch.no_grad()
    def _target(self, batch: Batch) -> Tensor:
        next_act_BA, next_log_prob_B = self._sample(batch.next_obs)
        next_q_MB = self.critic_target(batch.next_obs, next_act_BA, self._draw_critics())
        entropy_coef = self.temperature()
        gamma = self.gamma if batch.discount is None else batch.discount
        return soft_target(batch.rew, batch.terminated, next_q_MB, next_log_prob_B, entropy_coef, gamma)

    def _sample(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Actions in the action space's units, and their log-density [B] over actions scaled to [-1, 1].

        So entropy, its target and its coefficient mean the same whatever the units of the actions: a density in
        those units differs by a constant, which would pay (or cost) the agent for every step it stays alive.
        """
        act_BA, log_prob_B = self.actor.sample(obs)
        return act_BA, log_prob_B + self._log_half_sum

    def _draw_critics(self) -> Tensor | None:
        """Which critics make the target: int64 [M] without repetition, or None for all."""
        if not self._subset:
            return None
        return torch.rand(self.n_critics, device=self.device).topk(self.critics_in_target).indices

    def _train_actor(self, obs: Any) -> dict[str, Tensor]:
        act_BA, log_prob_B = self._sample(obs)
        q_NB = self.critic_frozen(obs, act_BA)
        q_B = q_NB.mean(dim=0) if self._subset else q_NB.amin(dim=0)
        entropy_coef = self.temperature().detach()
        loss = actor_loss(log_prob_B, q_B, entropy_coef)
        clear_gradients(self.actor_optimizer)
        loss.backward()  # type: ignore[no-untyped-call]
        step(self.actor_optimizer)
        entropy = -log_prob_B.detach().mean()
        metrics = {"loss_actor": loss.detach(), "entropy_nats": entropy, "entropy_coef": entropy_coef}
        if self.learn_entropy_coef:
            metrics["loss_entropy_coef"] = self._train_temperature(entropy)
        return metrics

    def _train_temperature(self, entropy: Tensor) -> Tensor:
        log_coef = self.temperature.log_coef
        loss = temperature_loss(log_coef.detach(), entropy, self.target_entropy)
        log_coef.grad = entropy - self.target_entropy  # the loss's derivative
        step(self.temperature_optimizer)
        return loss

    @torch.no_grad()
    def _follow_critics(self) -> None:
        """Target critics: polyak * theirs + (1 - polyak) * the critics'."""
        torch._foreach_lerp_(self._target_parameters, self._critic_parameters, 1.0 - self.polyak)

    @torch.no_grad()
    def _average_actor(self) -> None:
        """Moving average: actor_polyak * its parameters + (1 - actor_polyak) * the actor's."""
        if self.actor_average is not None:
            torch._foreach_lerp_(self._average_parameters, self._actor_parameters, 1.0 - self.actor_polyak)


class REDQAgent(SACAgent):
    """`SACAgent` as in Chen et al. 2021: ten critics, two drawn for each target, their mean for the actor.

    The actor is trained once per `policy_delay` critic steps (the paper's G); let the trainer do about that many
    steps per environment step.
    """

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        device: str = "cpu",
        *,
        n_critics: int = 10,
        critics_in_target: int = 2,
        policy_delay: int = 20,
        **options: Any,
    ) -> None:
        """Take the same arguments as `SACAgent`, with the paper's defaults."""
        options |= {"n_critics": n_critics, "critics_in_target": critics_in_target, "policy_delay": policy_delay}
        super().__init__(observation_space, action_space, device, **options)


class Temperature(nn.Module):
    """The entropy coefficient alpha, kept as its logarithm; calling it gives alpha []."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log_coef = nn.Parameter(torch.tensor(float(np.log(initial))))

    def forward(self) -> Tensor:
        """Return alpha, with its gradient."""
        return self.log_coef.exp()


def _half_widths(space: gymnasium.Space[Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Half the width of each action's bounds, [A]."""
    return action_bounds(space)[1].astype(np.float64)


def _check_options(
    n_critics: int,
    critics_in_target: int,
    gamma: float,
    polyak: float,
    actor_polyak: float,
    entropy_coef: float,
    policy_delay: int,
    optimizer: str,
) -> None:
    rules = [
        (1 <= critics_in_target <= n_critics, f"critics_in_target={critics_in_target}, expected 1 to {n_critics}"),
        (0.0 <= gamma <= 1.0, f"gamma={gamma}, expected 0 to 1"),
        (0.0 <= polyak < 1.0, f"polyak={polyak}, expected 0 to below 1"),
        (0.0 <= actor_polyak < 1.0, f"actor_polyak={actor_polyak}, expected 0 to below 1"),
        (entropy_coef > 0.0, f"entropy_coef={entropy_coef}, expected more than 0"),
        (policy_delay >= 1, f"policy_delay={policy_delay}, expected at least 1"),
        (optimizer in OPTIMIZERS, f"optimizer={optimizer!r}, expected {' or '.join(map(repr, OPTIMIZERS))}"),
    ]
    for fine, message in rules:
        if not fine:
            raise ConfigError(message)
