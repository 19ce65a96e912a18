"""Networks for observations made of vectors and images: a squashed Gaussian actor and an ensemble
of critics.

Shape names: B batch, F features of an observation, A flat action, H hidden width, N critics.
"""

# Capital suffixes name a tensor's dimensions.
# ruff: noqa: N803, N806
from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmrl_like.agents.ensemble import MLP, AverageMLP, EnsembleMLP
from tmrl_like.agents.in_numpy import NumpyActor, NumpyGaussianActor
from tmrl_like.agents.observations import Encoder, Rescale
from tmrl_like.agents.space_layout import Space, action_bounds, actor_spec
from tmrl_like.policies.acting import Actor
from tmrl_like.policies.actor import ActorModule
from tmrl_like.policies.network import (
    LOG_STD_MAX,
    LOG_STD_MIN,
    GaussianOptions,
    GaussianSpec,
    NetworkOptions,
    NetworkSpec,
    new_generator,
)
from tmrl_like.policies.noise import ColouredNoise
from tmrl_like.types import Action, Observation

NUM_BINS, LARGEST_VALUE = 101, 5.0  # of the distributions of values
_WITHIN = 0.99  # of the bounds, at which the density of a squashed Gaussian is 0


class SamplingActor(ActorModule):
    """A policy that SAC can train: it draws actions with gradients and gives their
    log-density.
    """

    @abstractmethod
    def sample(self, obs: Observation) -> tuple[Tensor, Tensor]:
        """Draw actions by reparameterisation: gradients reach the parameters through both results.

        Args:
            obs: structure of [B, ...].

        Returns:
            Actions [B, *action shape] in the action space's units and their log-density [B] in
            those units.
        """


class MLPActor(ActorModule, MLP):
    """Base class of `SquashedGaussianActor` and `CategoricalActor`: an encoder, hidden layers, and
    the conversion of their outputs to actions.

    Attributes:
        average: the moving average of the layers, which an agent may keep. It acts in tests, where
            it is steadier than the layers in training, which explore better.
        options: the arguments beside the spaces.
        spec: the description from which this actor and its form in numpy are made.
        random: draws the noise that `act` explores with.
    """

    page: ClassVar[type[NetworkOptions]]
    options: NetworkOptions
    spec: NetworkSpec

    numpy_form: ClassVar[type[NumpyActor]]
    """The actor in numpy that does what this class does. A subclass has its own or none."""

    def __init__(self, observation_space: Space, action_space: Space, **options: Any) -> None:
        """Build the network.

        Args:
            observation_space: see `Encoder`.
            action_space: see the class.
            options: see `page`.

        Raises:
            ConfigError: this network cannot learn from a space, which the message names; or the
                noise is out of range.
        """
        super().__init__(observation_space, action_space)
        self.options = self.page(**options)
        self.hidden_sizes = self.options.hidden_sizes
        self.encoder = Encoder(
            observation_space, self.options.obs_range, self.options.normalize_obs
        )
        self.spec = actor_spec(self.encoder.layout, action_space, self.options)
        self.make_layers(self.encoder.size, self.spec.num_outputs, self.options)
        self.random = self.spec.noise(new_generator())

    def make_layers(  # type: ignore[override]
        self, num_inputs: int, num_outputs: int, options: NetworkOptions
    ) -> None:
        """Make the layers, and `average`."""
        super().make_layers(num_inputs, num_outputs, options)
        self.average = AverageMLP(self)

    @property
    def layers(self) -> nn.ModuleList:
        """All layers behind the encoder, in the order of those of `average`."""
        return nn.ModuleList((self.hidden, self.norms, self.head))

    @classmethod
    def is_built_in(cls) -> bool:
        """Whether this is a class of this package, not a subclass with a network of its own."""
        return "numpy_form" in vars(cls)

    @torch.inference_mode()
    def act(self, obs: Observation, test: bool = False) -> Action:
        """Choose an action by the outputs of `forward`; see `ActorModule.act` and the spec's
        `action`.
        """
        outputs = self.best_outputs(obs) if test else self.outputs_at(obs)
        with np.errstate(all="ignore"):
            return self.spec.action(outputs[0].cpu().numpy(), None if test else self.random)

    def outputs_at(self, obs: Observation) -> Tensor:
        """Map a structure of [B, ...] to the outputs [B, O] by which the actor explores."""
        outputs = self(obs)
        return torch.cat(outputs, dim=-1) if isinstance(outputs, tuple) else outputs

    def best_outputs(self, obs: Observation) -> Tensor:
        """Map a structure of [B, ...] to the outputs [B, O] by which the actor acts in tests: the
        average's, if there is one.
        """
        outputs = self.outputs_at(obs)
        if not self.is_built_in():
            return outputs
        averaged = self.average.outputs(self.encoder(obs))
        return torch.where(self.average.is_used > 0, averaged, outputs)

    def reset(self) -> None:
        """Begin an episode, with a new sequence of noise if it is correlated over time."""
        if isinstance(self.random, ColouredNoise):
            self.random.reset()

    def carry_over(self, previous: Actor) -> None:
        """Continue the noise of the instance that acted until now."""
        assert isinstance(previous, MLPActor)
        self.random = previous.random

    def in_numpy(self) -> NumpyActor | None:
        """Return the actor that does the same in numpy, on the same parameters. None if the actor
        is on another device, or of a subclass without `numpy_form`.
        """
        if not self.is_built_in() or self.device != "cpu":
            return None
        twin = self.numpy_form(self.observation_space, self.action_space, **vars(self.options))
        parameters = self.state_dict().items()
        twin.network.bind({name: parameter.numpy() for name, parameter in parameters})
        return twin


class SquashedGaussianActor(MLPActor, SamplingActor):
    """A Gaussian policy squashed by tanh to the bounds of a Box action space; takes
    `GaussianOptions`.

    Haarnoja et al., "Soft Actor-Critic: Off-Policy Maximum Entropy Deep Reinforcement Learning with
    a Stochastic Actor", 2018, appendix C:  a = center + half * tanh(u),  u ~ N(mean(s), std(s)).
    """

    page, numpy_form = GaussianOptions, NumpyGaussianActor
    options: GaussianOptions
    spec: GaussianSpec
    act_center: Tensor  # [A] float32
    act_half: Tensor  # [A] float32, half the width of the bounds

    def __init__(self, observation_space: Space, action_space: Space, **options: Any) -> None:
        super().__init__(observation_space, action_space, **options)
        self.register_buffer("act_center", torch.tensor(self.spec.center), persistent=False)
        self.register_buffer("act_half", torch.tensor(self.spec.half), persistent=False)
        self._log_half_sum = float(np.log(self.spec.half).sum())

    def forward(self, obs: Observation) -> tuple[Tensor, Tensor]:
        """Map a structure of [B, ...] to mean and log standard deviation of u, each [B, A]."""
        mean, log_std = self.outputs(self.encoder(obs)).chunk(2, dim=-1)
        return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)

    def sample(self, obs: Observation) -> tuple[Tensor, Tensor]:
        """Draw actions and their log-density; see `SamplingActor.sample`."""
        return self.draw(*self(obs))

    def draw(self, mean_BA: Tensor, log_std_BA: Tensor) -> tuple[Tensor, Tensor]:
        """Draw actions and their log-density, as `sample`, from the outputs of `forward`."""
        noise_BA = torch.randn_like(mean_BA)
        u_BA = torch.addcmul(mean_BA, log_std_BA.exp(), noise_BA)
        act_BA = self._squashed(u_BA)
        return act_BA, squashed_log_prob(u_BA, noise_BA, log_std_BA) - self._log_half_sum

    def log_prob(self, obs: Observation, act: Tensor) -> Tensor:
        """See `ActorModule.log_prob`. Actions at the bounds are taken to be a little within
        them.
        """
        mean_BA, log_std_BA = self(obs)
        act_BA = (act.reshape(len(act), -1).float() - self.act_center) / self.act_half
        u_BA = act_BA.clamp(-_WITHIN, _WITHIN).atanh()
        noise_BA = (u_BA - mean_BA) * (-log_std_BA).exp()
        return squashed_log_prob(u_BA, noise_BA, log_std_BA) - self._log_half_sum

    def best_actions(self, obs: Observation) -> Tensor:
        """Return the actions of u's mean; see `ActorModule.best_actions`."""
        return self._squashed(self.best_outputs(obs).chunk(2, dim=-1)[0])

    def _squashed(self, u_BA: Tensor) -> Tensor:
        """Map u to actions [B, *action shape]."""
        act_BA = torch.addcmul(self.act_center, self.act_half, u_BA.tanh())
        return act_BA.view(-1, *self.action_space.shape)  # type: ignore[misc]


class EnsembleCritic(EnsembleMLP):
    """N action values Q_i(s, a), computed together. Images go through one encoder for all N."""

    def read_actions(self, action_space: Space) -> tuple[int, int]:
        """Return the number of inputs, a Box's entries scaled to [-1, 1], and of outputs, one."""
        center, half = action_bounds(action_space)
        self.rescale_act = Rescale(np.reciprocal(half), np.divide(-center, half))
        return len(center), 1

    def forward(self, obs: Observation, act: Tensor) -> Tensor:
        """Compute the values of actions.

        Args:
            obs: structure of [B, ...].
            act: [B, *action shape] in the action space's units.

        Returns:
            float32 [N, B].
        """
        return self.outputs_at(obs, act).squeeze(-1)

    def outputs_at(self, obs: Observation, act: Tensor) -> Tensor:
        """Compute the outputs, [N, B, O]; arguments as for `forward`."""
        act_BA = self.rescale_act(act.reshape(len(act), -1).float())
        return self.outputs(torch.cat((self.encoder(obs), act_BA), dim=1))


class CategoricalCritic(EnsembleCritic):
    """N distributions of action values, over 101 values from -5 to 5, computed together. The
    outputs are logits; `forward` returns the means of the distributions.

    Bellemare et al., "A Distributional Perspective on Reinforcement Learning", 2017
    (arXiv:1707.06887).

    Attributes:
        bins: float32 [K], the values.
    """

    bins: Tensor

    def read_actions(self, action_space: Space) -> tuple[int, int]:
        """Return the number of inputs, and of outputs, one for each bin."""
        num_inputs, _ = super().read_actions(action_space)
        bins = torch.linspace(-LARGEST_VALUE, LARGEST_VALUE, NUM_BINS)
        self.register_buffer("bins", bins, persistent=False)
        return num_inputs, NUM_BINS

    def forward(self, obs: Observation, act: Tensor) -> Tensor:
        """Compute the values of actions; see `EnsembleCritic.forward`."""
        return self.outputs_at(obs, act).softmax(dim=-1) @ self.bins


def squashed_log_prob(u_BA: Tensor, noise_BA: Tensor, log_std_BA: Tensor) -> Tensor:
    """Return the log-density of tanh(u), u = mean + std * noise, [B].

    Haarnoja et al. 2018, appendix C, eq. 21:

        log pi(a|s) = log mu(u|s) - sum_i log(1 - tanh(u_i)^2)
        log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)),

    which is exact where 1 - tanh^2 rounds to 0.
    """
    # torch divides softplus by its beta
    log_jacobian_BA = torch.sub(u_BA, F.softplus(u_BA, beta=-2.0), alpha=2.0)
    per_dimension_BA = torch.addcmul(
        log_jacobian_BA * 2.0 - log_std_BA, noise_BA, noise_BA, value=-0.5
    )
    return per_dimension_BA.sum(dim=-1) - u_BA.shape[-1] * (
        2.0 * math.log(2.0) + 0.5 * math.log(2.0 * math.pi)
    )
