"""Networks for observations made of vectors and images: a squashed Gaussian actor and an ensemble of critics.

Shape names: B batch, F features of an observation, A flat action, H hidden width, N critics.
"""

# Capital suffixes name a tensor's dimensions.
# ruff: noqa: N803, N806
from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmrl_like.agents import in_numpy
from tmrl_like.agents.ensemble import EnsembleMLP
from tmrl_like.agents.in_numpy import NumpyActor
from tmrl_like.agents.layout import OBS_RANGE, action_bounds
from tmrl_like.agents.observations import Encoder, Rescale
from tmrl_like.base.factories import signature_of
from tmrl_like.policies.actor import ActorModule
from tmrl_like.policies.noise import ColouredNoise


class SamplingActor(ActorModule):
    """A policy that SAC can train: it draws actions with gradients and says how likely they were."""

    @abstractmethod
    def sample(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Draw actions by reparameterisation: gradients reach the parameters through both results.

        Args:
            obs: structure of [B, ...].

        Returns:
            Actions [B, *action shape] in the action space's units and their log-density [B] in those units.
        """


class MLPActor(ActorModule):
    """What the actors that ship have in common: an encoder and hidden layers."""

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        hidden_sizes: Sequence[int] = (256, 256),
        layer_norm: bool = False,
        obs_range: float = OBS_RANGE,
        normalize_obs: bool = True,
    ) -> None:
        """Build the network.

        Args:
            observation_space: see `Encoder`.
            action_space: see the class.
            hidden_sizes: width of each hidden layer.
            layer_norm: normalise each hidden layer before its ReLU.
            obs_range: bounded observations are scaled to [-obs_range, obs_range]; 0 leaves them as they are.
            normalize_obs: normalise observed numbers without useful bounds by the running statistics that the agent
                keeps.

        Raises:
            ConfigError: a space that this network cannot learn from, by name.
        """
        super().__init__(observation_space, action_space)
        num_outputs = self.read_actions(action_space)
        self.encoder = Encoder(observation_space, obs_range, normalize_obs)
        self.hidden_sizes, self.obs_range, self.normalize_obs = tuple(hidden_sizes), obs_range, normalize_obs
        widths = [self.encoder.size, *hidden_sizes]
        self.hidden = nn.ModuleList(nn.Linear(i, o) for i, o in itertools.pairwise(widths))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in hidden_sizes if layer_norm)
        self.head = nn.Linear(widths[-1], num_outputs)

    @abstractmethod
    def read_actions(self, action_space: gymnasium.Space[Any]) -> int:
        """Take what is needed of the action space; how many outputs the last layer has."""

    def in_numpy(self) -> NumpyActor | None:
        """The actor of this name in numpy, on the same parameters; None: images, a subclass, or another device."""
        twin_class: Any = getattr(in_numpy, type(self).__name__, None)
        if (
            self.device != "cpu"
            or self.encoder.images
            or twin_class is None
            or type(self) is not twin_class.torch_class()
        ):
            return None
        options = {name: getattr(self, name) for name in signature_of(twin_class).parameters if name != "layer_norm"}
        twin: NumpyActor = twin_class(layer_norm=len(self.norms) > 0, **options)
        twin.bind({name: parameter.numpy() for name, parameter in self.state_dict().items()})
        return twin

    def outputs(self, x: Tensor) -> Tensor:
        """Features [B, F] -> [B, outputs]."""
        for i, layer in enumerate(self.hidden):
            x = layer(x)
            x = F.relu(self.norms[i](x) if self.norms else x, inplace=True)
        return self.head(x)  # type: ignore[no-any-return]


class SquashedGaussianActor(MLPActor, SamplingActor):
    """A Gaussian policy squashed by tanh to the bounds of a Box action space.

    Haarnoja et al., "Soft Actor-Critic: Off-Policy Maximum Entropy Deep Reinforcement Learning with a
    Stochastic Actor", 2018, appendix C:  a = center + half * tanh(u),  u ~ N(mean(s), std(s)).
    """

    act_center: Tensor  # [A] float32
    act_half: Tensor  # [A] float32, half the width of the bounds

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        log_std_min: float = -10.0,
        log_std_max: float = 2.0,
        noise_beta: float = 0.0,
        noise_steps: int = 1000,
        **options: Any,
    ) -> None:
        """Build the network.

        Args:
            observation_space: see `Encoder`.
            action_space: Box with finite bounds, of any shape.
            log_std_min: lower bound of the logarithm of u's standard deviation.
            log_std_max: its upper bound.
            noise_beta: what it explores with while it acts: 0 draws each action's noise independently; above, up to 2,
                an episode's noise has the power spectral density 1 / f^noise_beta, so that it moves smoothly. See
                `tmrl_like.policies.noise.ColouredNoise`. `sample` is as it was.
            noise_steps: the lowest frequency is 1 / noise_steps: about the number of steps of an episode, or fewer.
            options: `hidden_sizes`, `layer_norm`, `obs_range` and `normalize_obs`, as `CategoricalActor` has them.

        Raises:
            ConfigError: a space that this network cannot learn from, by name; the noise is out of range.
        """
        super().__init__(observation_space, action_space, **options)
        self.log_std_min = log_std_min
        self.log_std_max = log_std_max
        self.noise_beta, self.noise_steps = noise_beta, noise_steps
        self.noise: ColouredNoise | None = None
        if noise_beta:
            random = np.random.default_rng(torch.randint(1 << 32, (4,)).numpy())
            self.noise = ColouredNoise(noise_beta, noise_steps, len(self.act_half), random)

    def reset(self) -> None:
        """An episode begins, and with it a new sequence of noise that is correlated over time."""
        if self.noise is not None:
            self.noise.reset()

    def carry_over(self, previous: Any) -> None:
        """Go on with the noise of the instance that acted until now."""
        self.noise = previous.noise

    def read_actions(self, action_space: gymnasium.Space[Any]) -> int:
        """A mean and a logarithm of the standard deviation for each entry of a Box."""
        center, half = action_bounds(action_space)
        self.register_buffer("act_center", torch.as_tensor(center), persistent=False)
        self.register_buffer("act_half", torch.as_tensor(half), persistent=False)
        self._log_half_sum = float(np.log(half.astype(np.float64)).sum())
        return 2 * len(center)

    def forward(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Structure of [B, ...] -> mean and log standard deviation of u, each [B, A]."""
        mean, log_std = self.outputs(self.encoder(obs)).chunk(2, dim=-1)
        return mean, log_std.clamp(self.log_std_min, self.log_std_max)

    def sample(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Draw actions and their log-density; see `SamplingActor.sample`."""
        mean_BA, log_std_BA = self(obs)
        noise_BA = torch.randn_like(mean_BA)
        u_BA = torch.addcmul(mean_BA, log_std_BA.exp(), noise_BA)
        act_BA = self._squashed(u_BA)
        return act_BA, squashed_log_prob(u_BA, noise_BA, log_std_BA) - self._log_half_sum

    @torch.inference_mode()
    def act(self, obs: Any, test: bool = False) -> np.ndarray[Any, Any]:
        """Choose an action, float32 [*action shape]; `test` takes u's mean. See `ActorModule.act`."""
        u_BA, log_std_BA = self(obs)
        if not test:
            noise = None if self.noise is None else torch.from_numpy(self.noise.standard_normal()).to(u_BA.device)
            u_BA = torch.addcmul(u_BA, torch.randn_like(u_BA) if noise is None else noise, log_std_BA.exp())
        action: np.ndarray[Any, Any] = self._squashed(u_BA)[0].cpu().numpy()
        return action

    def best_actions(self, obs: Any) -> Tensor:
        """Those of u's mean; see `ActorModule.best_actions`."""
        return self._squashed(self(obs)[0])

    def _squashed(self, u_BA: Tensor) -> Tensor:
        """U -> actions [B, *action shape]."""
        act_BA = torch.addcmul(self.act_center, self.act_half, u_BA.tanh())
        return act_BA.view(-1, *self.action_space.shape)  # type: ignore[misc]


class EnsembleCritic(EnsembleMLP):
    """N action values Q_i(s, a), computed together. Images go through one encoder for all N."""

    def read_actions(self, action_space: gymnasium.Space[Any]) -> tuple[int, int]:
        """A Box's entries are inputs, scaled to [-1, 1]; one output."""
        center, half = action_bounds(action_space)
        self.rescale_act = Rescale(1 / half, -center / half)
        return len(center), 1

    def forward(self, obs: Any, act: Tensor, members: Tensor | None = None) -> Tensor:
        """Value actions.

        Args:
            obs: structure of [B, ...].
            act: [B, *action shape] in the action space's units.
            members: int64 [M], which critics to ask; None asks all.

        Returns:
            float32 [N, B] (or [M, B]).
        """
        act_BA = self.rescale_act(act.reshape(len(act), -1).float())
        return self.outputs(torch.cat((self.encoder(obs), act_BA), dim=1), members).squeeze(-1)  # [N, B]


def squashed_log_prob(u_BA: Tensor, noise_BA: Tensor, log_std_BA: Tensor) -> Tensor:
    """Log-density of tanh(u), u = mean + std * noise; [B].

    Haarnoja et al. 2018, appendix C, eq. 21:  log pi(a|s) = log mu(u|s) - sum_i log(1 - tanh(u_i)^2),
    with  log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)),  which is exact where 1 - tanh^2 rounds to 0.
    """
    log_jacobian_BA = torch.sub(u_BA, F.softplus(u_BA, beta=-2.0), alpha=2.0)  # torch divides softplus by its beta
    per_dimension_BA = torch.addcmul(log_jacobian_BA * 2.0 - log_std_BA, noise_BA, noise_BA, value=-0.5)
    return per_dimension_BA.sum(dim=-1) - u_BA.shape[-1] * (2.0 * math.log(2.0) + 0.5 * math.log(2.0 * math.pi))
