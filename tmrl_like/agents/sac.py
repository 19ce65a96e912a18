"""Soft Actor-Critic and its ensemble form REDQ: the losses, and the agent that descends them.

Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", 2018 (arXiv:1812.05905), by equation number. Shape
names: B batch, A action dimensions, N critics, M critics in the target; everything is float32.
"""

# Capital suffixes name a tensor's dimensions.
# ruff: noqa: N803, N806
from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

from tmrl_like.agents.acceleration import Flat, accelerate, adam_step, learning_rate_of
from tmrl_like.agents.agent import Ranges, TrainingAgent, expect_in_range
from tmrl_like.agents.layout import action_bounds
from tmrl_like.agents.models import EnsembleCritic, SquashedGaussianActor
from tmrl_like.agents.observations import Encoder, RunningNorm
from tmrl_like.agents.returns import ReturnScale
from tmrl_like.agents.sharing import copy_shared, no_grad
from tmrl_like.base.factories import MISSING, completed
from tmrl_like.base.functional import cached_property
from tmrl_like.base.text import one_line
from tmrl_like.errors import expect
from tmrl_like.policies.actor import ActorModule
from tmrl_like.types import Batch

log = logging.getLogger("tmrl_like.trainer")

OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def td_target(
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
    next_v_B = next_q_MB.amin(dim=0) - entropy_coef * next_log_prob_B  # [B]
    return rew_B + gamma * (1.0 - terminated_B) * next_v_B


def critic_loss(q_NB: Tensor, target_B: Tensor) -> Tensor:
    """Squared TD error, mean over the batch, summed over the critics; [].

    Eq. 5:  J_Q = sum_i E[ 1/2 (Q_i(s, a) - y)^2 ].
    """
    return (q_NB - target_B).square().sum() * (0.5 / len(target_B))


def actor_loss(log_prob_B: Tensor, q_B: Tensor, entropy_coef: Tensor) -> Tensor:
    """Expected soft loss of the policy's own actions; [].

    Eq. 7:  J_pi = E[ alpha log pi(a|s) - Q(s, a) ],  a drawn by reparameterisation.
    """
    return (entropy_coef * log_prob_B - q_B).mean()


def temperature_loss(log_entropy_coef: Tensor, log_prob_B: Tensor, target_entropy: float) -> Tensor:
    """Moves alpha up while the policy's entropy is below the target (nats), down while it is above; [].

    Eq. 18:  J(alpha) = E[ -alpha log pi(a|s) - alpha H_target ],  with log alpha in alpha's place, as implementations
    have it: the same fixed point, and steps whose size does not shrink with alpha.
    """
    return log_entropy_coef * -(log_prob_B.detach().mean() + target_entropy)


@torch.no_grad()
def soft_update(polyak: float, average: Tensor, parameter: Tensor) -> None:
    """Exponential moving average (EMA), in place:  average <- polyak * average + (1 - polyak) * parameter.

    The target's update in algorithm 1, with tau = 1 - polyak.
    """
    average.lerp_(parameter, 1.0 - polyak)


_RANGES: Ranges = {
    **dict.fromkeys(("lr_actor", "lr_critic", "lr_entropy"), (lambda v: 0.0 <= v < math.inf, "0 or more")),
    **dict.fromkeys(("polyak", "actor_polyak"), (lambda v: 0.0 <= v < 1.0, "0 to below 1")),
    "gamma": (lambda v: 0.0 <= v <= 1.0, "0 to 1"),
    "entropy_coef": (lambda v: 0.0 < v < math.inf, "more than 0"),
    "policy_delay": (lambda v: v >= 1 and int(v) == v, "a whole number, 1 or more"),
    "target_entropy": (math.isfinite, "a finite number"),
}


class SACAgent(TrainingAgent):
    """Soft Actor-Critic (Haarnoja et al. 2018, arXiv:1812.05905) over an ensemble of critics.

    Two critics, both in the target, are SAC. Ten critics, two drawn at random for each target, and their mean for
    the actor, are REDQ (Chen et al. 2021, arXiv:2101.05982), see `REDQAgent`. Critics with dropout and layer
    normalisation are DroQ (Hiraoka et al. 2022): `critic_cls=partial(EnsembleCritic, dropout=0.01)`.

    The defaults are to learn more per step than the papers' SAC. What is beside it, each part with a switch of its own:
    observed numbers without bounds normalised by running statistics that are part of the weights (`normalize_obs` of
    the actor and the critics), layer normalisation (`layer_norm` of the critics), and a moving average of the actor
    that acts (`actor_polyak`); further rewards divided by the size of returns (`scale_rewards`), and n-step returns
    (`n_steps` of `ReplayMemory`). Plain SAC has `actor_polyak=0.0`, and False for the other three.

    Attributes:
        actor: the policy in training.
        actor_ema: its moving average, which `get_actor` returns; without `actor_polyak` the policy itself.
        critic: the N critics in training.
        critic_target: their moving average.
        return_scale: what rewards are divided by; None: by nothing.
        obs_norm: the statistics by which the networks that ship normalise; None: none of them does.
        target_entropy: nats, of the policy over actions scaled to [-1, 1].
        updates: training steps done.
    """

    tunable = (
        *("gamma", "polyak", "actor_polyak", "lr_actor", "lr_critic", "lr_entropy"),
        *("target_entropy", "entropy_coef", "policy_delay"),
    )

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        device: str = "cpu",
        *,
        actor_cls: Callable[..., ActorModule] | None = None,
        critic_cls: Callable[..., nn.Module] | None = None,
        n_critics: int = 2,
        critics_in_target: int | None = None,
        gamma: float = 0.99,
        polyak: float = 0.995,
        actor_polyak: float = 0.995,
        lr_actor: float = 3e-4,
        lr_critic: float = 3e-4,
        lr_entropy: float = 3e-4,
        scale_rewards: bool = False,
        learn_entropy_coef: bool = True,
        entropy_coef: float | None = None,
        target_entropy: float | None = None,
        policy_delay: int = 1,
        optimizer: str = "adam",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        acceleration: str = "auto",
    ) -> None:
        """Build networks and optimisers.

        Args:
            observation_space: what the actor and critic classes accept.
            action_space: a Box with finite bounds.
            device: where the networks live and batches arrive.
            actor_cls: called as `actor_cls(observation_space, action_space)`; the same class or partial goes to
                the workers. See `SamplingActor`. None: the actor that ships.
            critic_cls: called as `critic_cls(observation_space, action_space, n_critics=N)`. Needs
                `forward(obs, act, members=None) -> [N, B]` as `EnsembleCritic`. None: the critics that ship.
                Where it takes `hidden_sizes` and has none, they are the actor's.
            n_critics: N.
            critics_in_target: how many critics, drawn afresh in each step, make the target's minimum; None: all.
            gamma: discount per environment step.
            polyak: share of the target critics that stays in one step.
            actor_polyak: share that stays of the moving average of the actor that goes to the workers, which acts
                more steadily than the actor in training; 0 uses no average.
            lr_actor: learning rate of the actor.
            lr_critic: learning rate of the critics.
            lr_entropy: learning rate of the logarithm of the entropy coefficient.
            scale_rewards: divide rewards by a running estimate of the returns' size (`ReturnScale`). Values, their
                errors and alpha are in that unit then.
            learn_entropy_coef: False keeps `entropy_coef` as it is.
            entropy_coef: alpha, or its initial value when it is learned; None: 0.2, with `scale_rewards` 0.01.
            target_entropy: nats, of the policy over actions scaled to [-1, 1]; None: minus the number of action
                dimensions (Haarnoja et al. 2018, appendix D).
            policy_delay: the actor is trained in every `policy_delay`-th step.
            optimizer: "adam" or "adamw", for actor and critics.
            betas: decay rates of Adam's two moments, for actor and critics.
            eps: what Adam adds to its denominator, for actor and critics.
            weight_decay: of actor and critics; an L2 term with "adam", decoupled with "adamw".
            amsgrad: divide by the largest second moment so far, for actor and critics.
            acceleration: "auto", "off" or "graph"; see `tmrl_like.agents.acceleration`.

        Raises:
            ConfigError: an argument out of its range, or a space that the networks cannot learn from.
        """
        super().__init__(observation_space, action_space, device)
        entropy_coef = (0.01 if scale_rewards else 0.2) if entropy_coef is None else entropy_coef
        self.n_critics = n_critics
        self.critics_in_target = critics_in_target = n_critics if critics_in_target is None else critics_in_target
        expect(1 <= critics_in_target <= n_critics, "critics_in_target", critics_in_target, f"1 to {n_critics}")
        expect(optimizer in OPTIMIZERS, "optimizer", optimizer, " or ".join(map(repr, OPTIMIZERS)))
        rates = {"lr_actor": lr_actor, "lr_critic": lr_critic, "lr_entropy": lr_entropy}
        shares = {"gamma": gamma, "polyak": polyak, "actor_polyak": actor_polyak}
        expect_in_range(_RANGES, **rates, **shares, entropy_coef=entropy_coef, policy_delay=policy_delay)
        self.gamma = gamma
        self.polyak = polyak
        self.actor_polyak = actor_polyak
        self.learn_entropy_coef = learn_entropy_coef
        self.policy_delay = policy_delay
        usual_entropy = self._usual_entropy()
        self.target_entropy = usual_entropy if target_entropy is None else target_entropy
        self.updates = 0

        self.actor: Any = (actor_cls or self._default_actor)(observation_space, action_space)
        self.actor.to_device(device)
        self.actor_ema = no_grad(deepcopy(self.actor)) if actor_polyak else self.actor
        sizes = getattr(self.actor, "hidden_sizes", MISSING)
        critic_cls = completed(critic_cls or self._default_critic, hidden_sizes=sizes)
        self.critic = critic_cls(observation_space, action_space, n_critics=n_critics).to(device)
        self.critic_target = no_grad(deepcopy(self.critic))
        self.temperature = Temperature(entropy_coef).to(device)
        adam = {"betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
        self._flat_actor, self._flat_critic = Flat(self.actor), Flat(self.critic)
        self._flat_actor_ema = Flat(self.actor_ema, self.actor) if actor_polyak else self._flat_actor
        self._flat_critic_target = Flat(self.critic_target, self.critic)
        self._flat_temperature = Flat(self.temperature)
        self.actor_optimizer = self._flat_actor.adam(OPTIMIZERS[optimizer], lr=lr_actor, **adam)
        self.critic_optimizer = self._flat_critic.adam(OPTIMIZERS[optimizer], lr=lr_critic, **adam)
        self.temperature_optimizer = self._flat_temperature.adam(torch.optim.Adam, lr=lr_entropy)
        networks = self.actor, self.critic, self.critic_target, self.critic_frozen
        encoders = [getattr(network, "encoder", None) for network in (*networks, self.actor_ema)]
        normalizing = [e for e in encoders if isinstance(e, Encoder) and e.normalizes and e.space == observation_space]
        self.obs_norm = RunningNorm(normalizing) if normalizing else None
        self.return_scale = ReturnScale().to(device) if scale_rewards else None
        optimizers = self.actor_optimizer, self.critic_optimizer, self.temperature_optimizer
        compiled = self._compiled_step() if acceleration == "auto" else None
        self._step = compiled or accelerate(self._update, acceleration, device, optimizers, self._numbers)

    _default_actor: Callable[..., ActorModule] = SquashedGaussianActor
    _default_critic: Callable[..., nn.Module] = EnsembleCritic

    def _compiled_step(self) -> Callable[[Batch, bool], dict[str, Any]] | None:
        """What does `_update` in `tmrl_like.agents.dense_sac`; None: it does not do what this agent does."""
        page = "_update", "_normalize", "_train_critics", "_train_actor", "_td_target", "_sample", "_draw_critics"
        if not (
            self.device == "cpu"
            and all(getattr(type(self), name) is getattr(SACAgent, name) for name in (*page, "average"))
            and type(self.actor) is SquashedGaussianActor
            and type(self.critic) is EnsembleCritic
            and self.critic.dropout == 0.0
            and not self.actor.encoder.images
            and self.actor.encoder.is_as(self.critic.encoder)
        ):
            return None
        if importlib.util.find_spec("numba") is None:
            log.info('a training step is up to four times as fast with numba: pip install "tmrl_like[fast]"')
            return None
        try:
            from tmrl_like.agents.dense_sac import DenseStep

            return DenseStep(self)
        except Exception as error:  # of an installation that is broken, of any kind
            log.warning("training is slower than with numba, which cannot be used: %s", one_line(error))
            return None

    critic_frozen = cached_property(lambda self: no_grad(copy_shared(self.critic)))
    """The critics in training, seen without gradients for their parameters."""

    def train(self, batch: Batch) -> dict[str, Any]:
        """Do one step on a batch; see `TrainingAgent.train`. The metrics are numbers or 0-dimensional tensors."""
        self.updates += 1
        is_alone = self.ranks is None or self.device == "cpu"  # else collectives would be in the graph
        return (self._step if is_alone else self._update)(batch, self.updates % self.policy_delay == 0)

    lr_actor = learning_rate_of("actor_optimizer")
    lr_critic = learning_rate_of("critic_optimizer")
    lr_entropy = learning_rate_of("temperature_optimizer")

    @property
    def entropy_coef(self) -> float:
        """Alpha."""
        return float(self.temperature().item())

    @entropy_coef.setter
    def entropy_coef(self, value: float) -> None:
        self.temperature.set(value)

    def tune(self, **values: float) -> None:
        expect_in_range(_RANGES, **values)
        is_learnt, has_average = self.learn_entropy_coef, self.actor_ema is not self.actor
        expect(not (is_learnt and "entropy_coef" in values), "learn_entropy_coef", is_learnt, "false to set alpha")
        polyak = values.get("actor_polyak", 0.0)
        expect(
            has_average or not polyak, "actor_polyak", polyak, "0, as at the start: there is no average of the actor"
        )
        super().tune(**values)

    def _numbers(self) -> tuple[float, ...]:
        return self.gamma, self.polyak, self.actor_polyak, self.target_entropy, self.critics_in_target

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> dict[str, Tensor]:
        """As `TrainingAgent.evaluate`: the losses of critics and actor."""
        if self.return_scale is not None:
            batch = batch._replace(rew=batch.rew / self.return_scale.scale())
        target_B = self._td_target(batch)  # [B]
        q_B, log_prob_B = self._value_of_policy(batch.obs)
        return {
            "loss_critic": critic_loss(self.critic(batch.obs, batch.act), target_B),
            "loss_actor": actor_loss(log_prob_B, q_B, self.temperature()),
        }

    def start_from(self, weights: bytes, training_steps: int = 0) -> None:
        """As `TrainingAgent.start_from`: actor and average are the policy, whose statistics are gone on with."""
        self.actor.load_weights(weights)
        self.actor_ema.load_weights(weights)
        if self.obs_norm is not None:
            self.obs_norm.go_on(training_steps)

    def get_actor(self) -> ActorModule:
        """Return the actor in training, or its moving average: its parameters change with each step."""
        actor: ActorModule = self.actor_ema
        return actor

    def _update(self, batch: Batch, with_actor: bool) -> dict[str, Tensor]:
        batch = self._normalize(batch)
        metrics = self._train_critics(batch)
        if with_actor:
            metrics |= self._train_actor(batch.obs)
        self.average(with_actor)
        return metrics

    def _normalize(self, batch: Batch) -> Batch:
        """Count a batch in the running statistics, which the networks normalise by; with its rewards scaled."""
        if self.obs_norm is not None:
            self.obs_norm.update(self.obs_norm.flatten(batch.obs), self.ranks)
        return self._scale_rewards(batch)

    def _scale_rewards(self, batch: Batch) -> Batch:
        if self.return_scale is None:
            return batch
        gamma = self.gamma if batch.discount is None else batch.discount
        discount = gamma * (1.0 - batch.terminated)
        return batch._replace(rew=batch.rew / self.return_scale.update(batch.rew, discount, self.ranks))

    def average(self, with_actor: bool) -> None:
        """Move the averages: the target critics, and, where there is one, the actor that acts."""
        if with_actor and self.actor_ema is not self.actor:
            soft_update(self.actor_polyak, self._flat_actor_ema.parameter, self._flat_actor.parameter)
        soft_update(self.polyak, self._flat_critic_target.parameter, self._flat_critic.parameter)

    def _train_critics(self, batch: Batch) -> dict[str, Tensor]:
        target_B = self._td_target(batch)  # [B]
        q_NB = self.critic(batch.obs, batch.act)  # [N, B]
        loss = critic_loss(q_NB, target_B)
        _backward(loss, self.critic_optimizer)
        self.average_gradients(self.critic_optimizer)
        adam_step(self.critic_optimizer)
        return {"loss_critic": loss.detach(), "q_mean": q_NB.detach().mean(), "q_target_mean": target_B.mean()}

    def _train_actor(self, obs: Any) -> dict[str, Tensor]:
        q_B, log_prob_B = self._value_of_policy(obs)
        entropy_coef = self.temperature().detach()
        loss = actor_loss(log_prob_B, q_B, entropy_coef)
        _backward(loss, self.actor_optimizer)
        learned = [self.actor_optimizer]
        entropy = -log_prob_B.detach().mean()
        metrics = {"loss_actor": loss.detach(), "entropy_nats": entropy, "entropy_coef": entropy_coef}
        if self.learn_entropy_coef:
            loss = temperature_loss(self.temperature.log_coef, log_prob_B, self.target_entropy)
            _backward(loss, self.temperature_optimizer)
            learned.append(self.temperature_optimizer)
            metrics["loss_entropy_coef"] = loss.detach()
        self.average_gradients(*learned)
        for optimizer in learned:
            adam_step(optimizer)
        return metrics

    def _value_of_policy(self, obs: Any) -> tuple[Tensor, Tensor]:
        """What the critics say of actions of the policy, [B], and their log-density [B]."""
        act_BA, log_prob_B = self._sample(obs)  # [B, A], [B]
        q_NB = self.critic_frozen(obs, act_BA)  # [N, B]
        return q_NB.mean(dim=0) if self._draws_critics else q_NB.amin(dim=0), log_prob_B

    @torch.no_grad()
    def _td_target(self, batch: Batch) -> Tensor:
        next_act_BA, next_log_prob_B = self._sample(batch.next_obs)  # [B, A], [B]
        next_q_MB = self.critic_target(batch.next_obs, next_act_BA, self._draw_critics())  # [M, B]
        gamma = self.gamma if batch.discount is None else batch.discount
        return td_target(batch.rew, batch.terminated, next_q_MB, next_log_prob_B, self.temperature(), gamma)

    def _sample(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Actions in the action space's units, and their log-density [B] over actions scaled to [-1, 1].

        So entropy, its target and its coefficient mean the same whatever the units of the actions: a density in
        those units differs by a constant, which would pay (or cost) the agent for every step it stays alive.
        """
        act_BA, log_prob_B = self.actor.sample(obs)
        return act_BA, log_prob_B + self._log_half_sum

    _log_half_sum = cached_property(
        lambda self: float(np.log(action_bounds(self.action_space)[1], dtype=np.float64).sum())
    )

    def _usual_entropy(self) -> float:
        """The target where none is given, in nats; raises ConfigError for an action space it cannot learn."""
        return -float(action_bounds(self.action_space)[1].size)

    @property
    def _draws_critics(self) -> bool:
        return self.critics_in_target < self.n_critics

    def _draw_critics(self) -> Tensor | None:
        """Which critics make the target: int64 [M] without repetition, or None for all."""
        if not self._draws_critics:
            return None
        return torch.rand(self.n_critics, device=self.device).topk(self.critics_in_target).indices


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
        return self.log_coef.exp()

    @torch.no_grad()
    def set(self, value: float) -> None:
        self.log_coef.fill_(math.log(value))


def _backward(loss: Tensor, optimizer: torch.optim.Adam) -> None:
    optimizer.zero_grad(set_to_none=False)
    loss.backward()  # type: ignore[no-untyped-call]
