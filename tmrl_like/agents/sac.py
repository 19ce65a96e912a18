"""Soft Actor-Critic and its ensemble form REDQ: the losses, and the agent that minimises them.

Equation numbers are those of Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", 2018
(arXiv:1812.05905). Shape names: B batch, S observations and next observations together (2 B), A
action dimensions, N critics, M critics in the target. Everything is float32. On a CPU,
`tmrl_like.agents.dense_sac` computes the gradients of these losses: change a loss in both modules.
"""

# Capital suffixes name a tensor's dimensions.
# ruff: noqa: N803, N806
from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor, nn

from tmrl_like.agents.acceleration import (
    Flat,
    FlatAdam,
    Metrics,
    accelerate,
    adam_step,
    backward,
    compiled_or_none,
    learning_rate_of,
)
from tmrl_like.agents.models import (
    EnsembleCritic,
    MLPActor,
    SamplingActor,
    SquashedGaussianActor,
)
from tmrl_like.agents.observations import Encoder, RunningNorm, encoders_of, share_pictures
from tmrl_like.agents.pretraining import encoder_of, load_encoder
from tmrl_like.agents.returns import ReturnScale
from tmrl_like.agents.sharing import copy_shared, no_grad
from tmrl_like.agents.shipped import ShippedAgent, ShippedOptions, made_by, soft_update
from tmrl_like.agents.space_layout import Space, action_bounds
from tmrl_like.base import tree
from tmrl_like.base.factories import MISSING, completed
from tmrl_like.base.functional import cached_property
from tmrl_like.base.options import AboveZero, NotNegative, Positive
from tmrl_like.errors import ConfigError, expect
from tmrl_like.policies.actor import ActorModule
from tmrl_like.types import Batch, Observation

if TYPE_CHECKING:
    from tmrl_like.agents.dense_sac import CompiledSAC

# kept = updates / (updates + this) at first: the average is one of the last tenth of all updates
_FIRST_UPDATES = 10


def td_target(
    rew_B: Tensor,
    terminated_B: Tensor,
    next_q_MB: Tensor,
    next_log_prob_B: Tensor,
    entropy_coef: Tensor,
    gamma: float | Tensor,
) -> Tensor:
    """Return the targets of the critics, [B].

    Eq. 3 and the sampled form of eq. 6:

        y = r + gamma (1 - terminated) (min_i Q_i(s', a') - alpha log pi(a'|s')).

    A terminal state has no value beyond it. A truncated episode does, so `truncated` does not
    appear. With the M critics drawn out of N, this is line 8 of algorithm 1 in Chen et al.,
    "Randomized Ensembled Double Q-Learning", 2021 (REDQ). A `gamma` [B] discounts each transition
    by its own factor (n-step returns).
    """
    next_v_B = next_q_MB.amin(dim=0) - entropy_coef * next_log_prob_B  # [B]
    return rew_B + gamma * (1.0 - terminated_B) * next_v_B


def critic_loss(q_NB: Tensor, target_B: Tensor) -> Tensor:
    """Return the squared TD error, averaged over the batch and summed over the critics, [].

    Eq. 5:  J_Q = sum_i E[ 1/2 (Q_i(s, a) - y)^2 ].
    """
    return (q_NB - target_B).square().sum() * (0.5 / len(target_B))


def actor_loss(log_prob_B: Tensor, q_B: Tensor, entropy_coef: Tensor) -> Tensor:
    """Return the expected soft loss of the policy's own actions, [].

    Eq. 7:  J_pi = E[ alpha log pi(a|s) - Q(s, a) ],  a drawn by reparameterisation.
    """
    return (entropy_coef * log_prob_B - q_B).mean()


def smoothness_loss(mean_BA: Tensor, next_mean_BA: Tensor) -> Tensor:
    """Return how far the policy's mean actions for an observation and for the next one are apart,
    [], with actions scaled to [-1, 1].

    The temporal term of Mysore et al., "Regularizing Action Policies for Smooth Control with
    Reinforcement Learning", 2021 (CAPS, arXiv:2012.06644), with the squared
    distance:  L_T = E[ |mu(s) - mu(s')|^2 ].
    """
    return (mean_BA - next_mean_BA).square().sum(dim=1).mean()


def temperature_loss(
    log_entropy_coef: float | Tensor, entropy: float | Tensor, target_entropy: float
) -> float | Tensor:
    """Return the loss that raises alpha while the policy's entropy (nats) is below the target, and
    lowers it while the entropy is above, [].

    Eq. 18: J(alpha) = E[ -alpha log pi(a|s) - alpha H_target ],  with log alpha in place of alpha,
    as implementations have it: the fixed point is the same, and the size of the steps does not
    shrink with alpha. The entropy is E[ -log pi(a|s) ].
    """
    return log_entropy_coef * (entropy - target_entropy)


@dataclass(frozen=True, kw_only=True)
class SACOptions(ShippedOptions):
    """Options of Soft Actor-Critic. A built-in actor acts by its moving average in tests.

    Attributes:
        n_critics: number of critics, N.
        critics_in_target: number of critics in the target's minimum, drawn afresh in each step;
            None takes all of them.
        lr_actor: learning rate of the actor.
        lr_critic: learning rate of the critics.
        lr_entropy: learning rate of the logarithm of the entropy coefficient.
        scale_rewards: divide rewards by a running estimate of the returns' size (`ReturnScale`).
            Values, TD errors and alpha are then in that unit.
        learn_entropy_coef: learn alpha; False keeps it at `entropy_coef`.
        entropy_coef: alpha, or its initial value if it is learnt; None takes 0.2, or 0.01 with
            `scale_rewards`.
        target_entropy: in nats, of the policy over actions scaled to [-1, 1]; None takes minus the
            number of action dimensions (Haarnoja et al. 2018, appendix D).
        policy_delay: train the actor in every `policy_delay`-th step.
        smoothness: weight of `smoothness_loss` in the actor's loss, for a `SquashedGaussianActor`;
            0 leaves the loss out.
        picture_encoder: path of a file with initial weights of the picture encoder, as written by
            `tmrl-like trainer --encoder`.
    """

    n_critics: Positive = 2
    critics_in_target: Positive | None = None
    lr_actor: NotNegative = 3e-4
    lr_critic: NotNegative = 3e-4
    lr_entropy: NotNegative = 3e-4
    scale_rewards: bool = False
    learn_entropy_coef: bool = True
    entropy_coef: AboveZero | None = None
    target_entropy: Annotated[float, Meta(ge=-10_000, le=10_000)] | None = None
    policy_delay: Positive = 1
    smoothness: NotNegative = 0.0
    picture_encoder: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        drawn = self.critics_in_target
        expect(
            drawn is None or drawn <= self.n_critics,
            "critics_in_target",
            drawn,
            f"1 to {self.n_critics}",
        )


@dataclass(frozen=True, kw_only=True)
class REDQOptions(SACOptions):
    """SAC's options, with the defaults of Chen et al. 2021."""

    n_critics: Positive = 10
    critics_in_target: Positive | None = 2
    policy_delay: Positive = 20


class SACAgent(ShippedAgent):
    """Soft Actor-Critic (Haarnoja et al. 2018, arXiv:1812.05905) over an ensemble of critics.

    Two critics, both in the target, make SAC. Ten critics, two of them drawn at random for each
    target, with the mean of all ten for the actor, make REDQ (Chen et al. 2021, arXiv:2101.05982),
    see `REDQAgent`. Critics with dropout and layer normalisation make nearly DroQ (Hiraoka et al.
    2022), whose actor follows the mean of the critics, not their minimum:
    `critic_cls=partial(EnsembleCritic, dropout=0.01)`.

    The defaults aim to learn more per step than the papers' SAC. Each addition has a switch of its
    own. On by default: observed numbers without bounds are normalised by running statistics that
    are part of the weights (`normalize_obs` of the actor and the critics), the critics have layer
    normalisation (their `layer_norm`), and a moving average of a built-in actor acts in tests
    (`actor_polyak`). Off by default: rewards are divided by the size of returns (`scale_rewards`),
    and targets use n-step returns (`n_steps` of `ReplayMemory`), without the entropy of the steps
    in between. Plain SAC has `actor_polyak=0.0`, and False for `normalize_obs`, `layer_norm` and
    `scale_rewards`.

    Attributes:
        critic: the N critics in training.
        critic_target: their moving average.
        actor_updates: number of updates of the actor's moving average.
        return_scale: the estimate by which rewards are divided, or None if they are not.
        target_entropy: in nats, of the policy over actions scaled to [-1, 1].
    """

    # not in the instance while None: a checkpoint would bring the None to a training that has one
    return_scale: ReturnScale | None = None
    page: ClassVar[type[SACOptions]] = SACOptions
    tunable: ClassVar[tuple[str, ...]] = (
        *("gamma", "polyak", "actor_polyak", "lr_actor", "lr_critic", "lr_entropy"),
        *("entropy_coef", "target_entropy", "policy_delay"),
    )

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        device: str = "cpu",
        *,
        actor_cls: Callable[..., ActorModule] | None = None,
        critic_cls: Callable[..., nn.Module] | None = None,
        **options: Any,
    ) -> None:
        """Build networks and optimisers.

        Args:
            observation_space: a space that the actor and critic classes accept.
            action_space: a Box with finite bounds.
            device: device of the networks and of the batches.
            actor_cls: called as `actor_cls(observation_space, action_space)`. Give the workers the
                same class or partial. See `SamplingActor`. None takes the built-in actor.
            critic_cls: called as `critic_cls(observation_space, action_space, n_critics=N)`. Makes
                a module with `forward(obs, act) -> [N, B]`, as `EnsembleCritic` has
                it. If it takes `hidden_sizes` and is not given them, it gets the actor's. None
                takes the built-in critics.
            options: see `SACOptions`.

        Raises:
            ConfigError: an argument is out of its range, or the networks cannot learn from a space.
        """
        super().__init__(observation_space, action_space, device, **options)
        o: SACOptions = self.options
        self.n_critics, self.critics_in_target = o.n_critics, o.critics_in_target or o.n_critics
        self.policy_delay, self.learn_entropy_coef = o.policy_delay, o.learn_entropy_coef
        self.smoothness = o.smoothness
        self.actor_updates = 0
        usual_entropy = self._usual_entropy()
        self.target_entropy = usual_entropy if o.target_entropy is None else o.target_entropy
        self._take_networks(
            *self._made(actor_cls or self._default_actor, critic_cls or self._default_critic)
        )
        has_means = isinstance(self.actor, SquashedGaussianActor)
        expect(
            has_means or not o.smoothness,
            "smoothness",
            o.smoothness,
            "0, or a SquashedGaussianActor as actor_cls",
        )
        if o.picture_encoder is not None:
            load_encoder(encoder_of(self), Path(o.picture_encoder))
        self.temperature = Temperature(o.entropy_coef or (0.01 if o.scale_rewards else 0.2)).to(
            device
        )
        if o.scale_rewards:
            self.return_scale = ReturnScale().to(device)
        self._flat_temperature = Flat(self.temperature)
        self.actor_optimizer = self._adam(self._flat_actor, o.lr_actor)
        self.critic_optimizer = self._adam(self._flat_critic, o.lr_critic)
        self.temperature_optimizer = FlatAdam(self._flat_temperature.parameter, lr=o.lr_entropy)
        if o.acceleration == "auto":
            _ = self.compiled  # made here, so that its imports do not delay the first step
            optimizers = self.actor_optimizer, self.critic_optimizer, self.temperature_optimizer
            self._step = accelerate(self._update, device, optimizers, self._numbers)

    def train(self, batch: Batch) -> Metrics:
        """Do one training step on a batch; see `TrainingAgent.train`. The metrics are numbers or
        0-dimensional tensors.
        """
        self.updates += 1
        with_actor = self.updates % self.policy_delay == 0
        with nullcontext() if self.compiled is None else self.compiled.threads():
            metrics = self._step(batch, with_actor)
            if with_actor:
                self._average_actor()
        return metrics

    def _average_actor(self) -> None:
        """Update the moving average of a built-in actor. At first it is over few steps."""
        if self._flat_average is None:
            return
        self.actor_updates += 1
        kept = (self.actor_updates - 1) / (self.actor_updates + _FIRST_UPDATES)
        average, flat = self._flat_average.parameter, self._flat_published.parameter
        soft_update(min(kept, self.actor_polyak), average, flat[: len(average)])
        if self.actor_updates == 1:
            actor: Any = self.get_actor()
            actor.average.is_used.fill_(1.0)

    def _update(self, batch: Batch, with_actor: bool) -> Metrics:
        batch = self._normalize(self._see(batch, shift=True))
        metrics = self._train_critics(batch)
        if with_actor:
            metrics |= self._train_actor(
                batch._replace(obs=batch.obs.detach()) if self._sees_once else batch
            )
        self.average(with_actor)
        return metrics

    def _see(self, batch: Batch, shift: bool = False) -> Batch:
        """Return the batch with its observations flattened, and features in place of pictures, once
        for all networks. Gradients reach the encoder only through `obs`.

        As in Yarats et al., "Mastering Visual Continuous Control: Improved Data-Augmented
        Reinforcement Learning", 2021 (DrQ-v2, arXiv:2107.09645): the critics' loss trains the
        encoder, the actor sees `obs` without gradients, and the target sees `next_obs` through the
        same encoder, not a moving average of it. `shift` augments the pictures.
        """
        if not self._sees_once:
            return batch
        encoder = self.critic.encoder
        assert isinstance(encoder, Encoder)
        see = encoder.see
        with torch.no_grad():
            next_obs = see(batch.next_obs, shift)
        return batch._replace(obs=see(batch.obs, shift), next_obs=next_obs)

    def _normalize(self, batch: Batch) -> Batch:
        """Add a batch to the running statistics by which the networks normalise, and return it
        with its rewards scaled.
        """
        if self.obs_norm is not None:
            if self.compiled is not None and self.ranks is None:
                self.compiled.count(batch.obs)
            else:
                self.obs_norm.update(batch.obs, self.ranks)
        if self.return_scale is None:
            return batch
        discount = self._gamma_of(batch) * (1.0 - batch.terminated)
        return batch._replace(
            rew=batch.rew / self.return_scale.update(batch.rew, discount, self.ranks)
        )

    def _train_critics(self, batch: Batch) -> Metrics:
        metrics = self._critic_gradients(batch)
        self._descend(self.critic_optimizer)
        return metrics

    def _critic_gradients(self, batch: Batch) -> Metrics:
        """Compute the gradients of the critics' loss, and return the metrics."""
        if self.compiled is not None:
            return self.compiled.of_critics(
                batch, self._draw_critics, self.entropy_coef, self._gamma_of(batch)
            )
        loss, q_NB, target_B = self._critic_loss(batch, self.critic)
        backward(loss, self.critic_optimizer)
        return {
            "loss_critic": loss.detach(),
            "q_mean": q_NB.detach().mean(),
            "q_target_mean": target_B.mean(),
        }

    def _critic_loss(self, batch: Batch, critic: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss of the critics, their values [N, B] and their targets [B]."""
        target_B = self._td_target(batch)
        q_NB = self._values(critic, batch.obs, batch.act)
        return critic_loss(q_NB, target_B), q_NB, target_B

    @torch.no_grad()
    def _td_target(self, batch: Batch) -> Tensor:
        next_act_BA, next_log_prob_B = self._sample(batch.next_obs)  # [B, A], [B]
        members = self._draw_critics()
        next_q_MB = self._values(self.critic_target, batch.next_obs, next_act_BA)[members]
        gamma, entropy_coef = self._gamma_of(batch), self.temperature()
        return td_target(
            batch.rew, batch.terminated, next_q_MB, next_log_prob_B, entropy_coef, gamma
        )

    def _values(self, critic: nn.Module, obs: Observation, act: Tensor) -> Tensor:
        """Return the values of actions by all critics, [N, B]."""
        q_NB: Tensor = critic(obs, act)
        name = f"the result of {type(critic).__name__}.forward"
        _expect_shape(name, q_NB, self.n_critics, len(act))
        return q_NB

    def _gamma_of(self, batch: Batch) -> float | Tensor:
        return self.gamma if batch.discount is None else batch.discount

    @property
    def _draws_critics(self) -> bool:
        return self.critics_in_target < self.n_critics

    def _draw_critics(self) -> Tensor:
        """Draw the critics that make the target, int64 [M] without repetition."""
        if not self._draws_critics:
            return torch.arange(self.n_critics, device=self.device)
        return torch.rand(self.n_critics, device=self.device).topk(self.critics_in_target).indices

    def _train_actor(self, batch: Batch) -> Metrics:
        metrics, learned = self._actor_gradients(batch), [self.actor_optimizer]
        if self.learn_entropy_coef:
            log_coef, entropy = self.temperature.log_coef, metrics["entropy_nats"]
            metrics["loss_entropy_coef"] = temperature_loss(
                log_coef.detach(), entropy, self.target_entropy
            )
            assert log_coef.grad is not None
            # the loss is linear in log alpha, so this is its derivative
            log_coef.grad.fill_(temperature_loss(1.0, entropy, self.target_entropy))
            learned.append(self.temperature_optimizer)
        self._descend(*learned)
        return metrics

    def _actor_gradients(self, batch: Batch) -> Metrics:
        """Compute the gradients of the actor's loss, and return the metrics."""
        if self.compiled is not None:
            alpha = self.entropy_coef
            metrics = self.compiled.of_actor(batch, alpha, self._draws_critics, self.smoothness)
            return metrics | {"entropy_coef": alpha}
        entropy_coef = self.temperature().detach()
        loss, log_prob_B = self._actor_loss(batch, entropy_coef)
        backward(loss, self.actor_optimizer)
        entropy = -log_prob_B.detach().mean()
        return {"loss_actor": loss.detach(), "entropy_nats": entropy, "entropy_coef": entropy_coef}

    def _actor_loss(self, batch: Batch, entropy_coef: Tensor) -> tuple[Tensor, Tensor]:
        """Return the actor's loss, with its smoothness term, and the log-density [B] of the
        policy's actions.
        """
        change: float | Tensor = 0.0
        if self.smoothness:
            act_BA, log_prob_B, change = self._sample_smoothly(batch)
        else:
            act_BA, log_prob_B = self._sample(batch.obs)
        q_NB = self._values(self.critic_frozen, batch.obs, act_BA)
        q_B = q_NB.mean(dim=0) if self._draws_critics else q_NB.amin(dim=0)
        return actor_loss(log_prob_B, q_B, entropy_coef) + self.smoothness * change, log_prob_B

    def _sample_smoothly(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return what `_sample` returns, and `smoothness_loss`, both from one pass, so that batch
        normalisation sees the observations and the next ones together.
        """
        policy, num_rows = self._policy, len(batch.rew)
        assert isinstance(policy, SquashedGaussianActor)
        mean_SA, log_std_SA = policy(joint_obs(batch))
        act_BA, log_prob_B = policy.draw(mean_SA[:num_rows], log_std_SA[:num_rows])
        return act_BA, log_prob_B + self._log_half_sum, smoothness_loss(*mean_SA.tanh().chunk(2))

    def _sample(self, obs: Observation) -> tuple[Tensor, Tensor]:
        """Draw actions in the action space's units, and return them with their log-density [B] over
        actions scaled to [-1, 1].

        The entropy, its target and its coefficient then mean the same whatever the units of the
        actions. A density in those units differs by a constant, which would reward (or punish) the
        agent for every step that it stays alive.
        """
        policy = self._policy
        assert isinstance(policy, SamplingActor)
        act_BA, log_prob_B = policy.sample(obs)
        _expect_shape(f"the log-density of {type(policy).__name__}.sample", log_prob_B, len(act_BA))
        return act_BA, log_prob_B + self._log_half_sum

    @property
    def _policy(self) -> ActorModule:
        """The actor from which `_sample` draws."""
        return self.actor

    _log_half_sum = cached_property(
        lambda self: float(np.log(action_bounds(self.action_space)[1], dtype=np.float64).sum())
    )

    def _descend(self, *optimizers: torch.optim.Adam) -> None:
        self.average_gradients(*optimizers)
        step = adam_step if self.compiled is None else self.compiled.adam_step
        for optimizer in optimizers:
            step(optimizer)

    def average(self, with_actor: bool) -> None:
        """Update what follows the networks in training: here, the target critics."""
        target, critic = self._flat_critic_target.parameter, self._flat_critic.parameter
        # the parameters of the shared picture encoder come first
        soft_update(self.polyak, target, critic[-len(target) :])

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> dict[str, Tensor]:
        """Return the losses of critics and actor; see `TrainingAgent.evaluate`."""
        batch = self._see(batch)
        if self.return_scale is not None:
            batch = batch._replace(rew=batch.rew / self.return_scale.scale())
        loss_critic, _, _ = self._critic_loss(batch, self.critic_frozen)
        loss_actor, _ = self._actor_loss(batch, self.temperature())
        return {"loss_critic": loss_critic, "loss_actor": loss_actor}

    lr_actor = learning_rate_of("actor_optimizer")
    lr_critic = learning_rate_of("critic_optimizer")
    lr_entropy = learning_rate_of("temperature_optimizer")

    @property
    def entropy_coef(self) -> float:
        """The entropy coefficient alpha."""
        return math.exp(self.temperature.log_coef.item())

    @entropy_coef.setter
    def entropy_coef(self, value: float) -> None:
        self.temperature.log_coef.data.fill_(math.log(value))

    def tune(self, **values: float) -> None:
        is_learnt = self.learn_entropy_coef
        expect(
            not (is_learnt and "entropy_coef" in values),
            "learn_entropy_coef",
            is_learnt,
            "false to set alpha",
        )
        super().tune(**values)

    def _numbers(self) -> tuple[float, ...]:
        return self.gamma, self.polyak, self.target_entropy, self.critics_in_target

    _default_actor: Callable[..., ActorModule] = SquashedGaussianActor
    _default_critic: Callable[..., nn.Module] = EnsembleCritic
    _kinds: tuple[type[ActorModule], type[Any]] = SamplingActor, nn.Module
    _sees_once = False  # whether all networks take what one encoder sees
    _flat_average: Flat | None = None  # of a built-in actor

    def _made(
        self, actor_cls: Callable[..., ActorModule], critic_cls: Callable[..., nn.Module]
    ) -> tuple[Any, Any]:
        """Return the actor and the critics that these make, on the device."""
        spaces = self.observation_space, self.action_space
        of_actor, of_critic = self._kinds
        # what a `_sample` of the user needs is known to the user
        is_ours = type(self)._sample.__module__.startswith("tmrl_like.")
        actor = made_by("actor_cls", actor_cls, of_actor if is_ours else ActorModule, *spaces)
        critic_cls = completed(critic_cls, hidden_sizes=getattr(actor, "hidden_sizes", MISSING))
        critic = made_by("critic_cls", critic_cls, of_critic, *spaces, n_critics=self.n_critics)
        return actor.to_device(self.device), critic.to(self.device)

    def _take_networks(self, actor: Any, critic: Any) -> None:
        """Train these, and make what follows them in training."""
        self.actor, self.critic = actor, critic
        normalizing = [
            encoder
            for encoder in encoders_of((self.actor, self.critic))
            if encoder.normalizes and encoder.space == self.observation_space
        ]
        self.obs_norm = RunningNorm(normalizing) if normalizing else None
        self.critic_target = no_grad(copy_shared(self.critic))
        shared = share_pictures((self.critic, self.critic_target, self.actor))
        self._sees_once = shared is not None
        # `average` and `_average_actor` rely on which parameters come first
        self._flat_actor = self._flat_published = self._flatten(self.actor, shared)
        self._flat_critic = Flat(self.critic, first=shared)
        self._flat_critic_target = Flat(self.critic_target, self.critic, without=shared)

    def _flatten(self, actor: ActorModule, shared: nn.Module | None = None) -> Flat:
        """Return the parameters of the actor that is published, those that are averaged first."""
        if not (isinstance(actor, MLPActor) and actor.is_built_in()):
            return Flat(actor, without=shared)
        self._flat_average = Flat(actor.average, actor.layers)
        return Flat(actor, without=shared, first=actor.layers)

    critic_frozen = cached_property(lambda self: no_grad(copy_shared(self.critic)))
    """The critics in training, as modules whose parameters get no gradients."""

    def _usual_entropy(self) -> float:
        """Return the default target entropy in nats; raise ConfigError for an action space that
        the agent cannot learn.
        """
        return -float(action_bounds(self.action_space)[1].size)

    @cached_property
    def compiled(self) -> CompiledSAC | None:
        """Computes the gradients faster than autograd; None if autograd computes them."""
        is_wanted = self.options.acceleration == "auto" and self.device == "cpu"
        return compiled_or_none(self._compile) if is_wanted and self._is_compilable() else None

    def _is_compilable(self) -> bool:
        """Whether the compiled step computes what this agent does."""
        page = (
            *("_critic_loss", "_td_target", "_values"),
            *("_actor_loss", "_sample", "_sample_smoothly", "_policy"),
        )
        return (
            all(getattr(type(self), name) is getattr(SACAgent, name) for name in page)
            and type(self.actor) is SquashedGaussianActor
            and type(self.critic) is EnsembleCritic
            and self.critic.dropout == 0.0
            and not self.actor.encoder.images
            and self.actor.encoder.form == self.critic.encoder.form
            and all(
                parameter.requires_grad
                for network in (self.actor, self.critic)
                for parameter in itertools.chain(*network.tensors())
            )
        )

    def _compile(self) -> CompiledSAC:
        from tmrl_like.agents.dense_sac import compiled_sac

        assert isinstance(self.actor, SquashedGaussianActor)
        networks = self.actor, self.critic, self.critic_target
        flats = self._flat_actor, self._flat_critic, self._flat_critic_target
        return compiled_sac(networks, flats, self.obs_norm)


class REDQAgent(SACAgent):
    """`SACAgent` as in Chen et al. 2021: ten critics, two of them drawn for each target, and the
    mean of all ten for the actor.

    The actor is trained once per `policy_delay` critic steps (the paper's G); let the trainer do
    about that many steps per environment step.
    """

    page = REDQOptions


class Temperature(nn.Module):
    """The entropy coefficient alpha, stored as its logarithm; calling it returns alpha, []."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log_coef = nn.Parameter(torch.tensor(float(np.log(initial))))

    def forward(self) -> Tensor:
        return self.log_coef.exp()


def _expect_shape(name: str, values: Tensor, *shape: int) -> None:
    """Raise ConfigError if a network, which may be the user's, gives another shape: the losses
    would broadcast it.
    """
    if values.shape != shape:
        raise ConfigError(f"{name} has the shape {[*values.shape]}; expected {[*shape]}")


def joint_obs(batch: Batch) -> Observation:
    """Return observations and next observations in one batch, [2 B, …]."""
    return tree.map_leaves(lambda *both: torch.cat(both), batch.obs, batch.next_obs)
