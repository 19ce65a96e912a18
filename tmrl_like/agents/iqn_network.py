"""The implicit quantile network, which is also the policy.

Shape names: B batch, N quantiles, A actions, D width of the state, H of a head's hidden layer, C
cosines, R rows, B times N.
"""

# Capital suffixes name a tensor's dimensions.
# ruff: noqa: N803, N806
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from msgspec import Meta
from torch import Tensor, nn

from tmrl_like.agents.images import ConvolutionEncoder
from tmrl_like.agents.observations import Encoder
from tmrl_like.agents.space_layout import MAX_CATEGORIES, Space
from tmrl_like.base.options import NotNegative, Positive, in_ranges
from tmrl_like.base.text import one_line
from tmrl_like.errors import ConfigError
from tmrl_like.policies.acting import Actor
from tmrl_like.policies.actor import ActorModule
from tmrl_like.policies.network import OBS_RANGE
from tmrl_like.types import Action, Observation


class IQNActor(ActorModule):
    """A network of the quantiles of each action's return (Dabney et al. 2018, arXiv:1806.06923),
    and the policy that acts by them.

    The state psi(s) [D] is made of the observation and of the time left, multiplied by the
    embedding phi(tau) [D] of each quantile, and valued by two heads (Wang et al. 2016,
    arXiv:1511.06581, eq. 9):

        phi_d(tau) = relu(sum_i cos(pi i tau) w_id + b_d),  i = 0 … C - 1      eq. 4
        Z_tau(s, a) = V(psi phi(tau)) + Adv(psi phi(tau), a) - mean_a' Adv(psi phi(tau), a')

    Q(s, a) is the mean of the K quantiles tau_k = (k + 1/2) / K, which is that of the returns. A
    policy that explores takes

        a uniformly random action in a share `epsilon` of the steps
        argmax_a Q(s, a) + `boltzmann_noise` N(0, 1), with probability `epsilon_boltzmann`
        argmax_a Q(s, a) otherwise.

    A random action is held for up to `longest_hold` steps; for how many is drawn with a probability
    proportional to n^-2 (Dabney, Ostrovski and Barreto 2020, arXiv:2006.01782). No hold lasts
    longer than the episode.

    Attributes:
        behaviour: float32 [3]: `epsilon`, `epsilon_boltzmann` and `boltzmann_noise`. They are part
            of the weights, so that what the agent sets travels with the policy. At first, the
            policy is greedy.
        extras: "greedy": numpy bool, whether the action was the one of the largest value, however
            it was chosen; "values": float32 [A], Q of each action.
    """

    behaviour: Tensor
    frequencies: Tensor  # [C]

    @in_ranges
    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        *,
        width: Positive = 256,
        hidden_size: Positive = 256,
        cosines: Positive = 64,
        acting_quantiles: Positive = 32,
        longest_hold: Annotated[int, Meta(ge=1, le=10_000)] = 1,
        layer_norm: bool = True,
        obs_range: NotNegative = OBS_RANGE,
        normalize_obs: bool = True,
        picture_encoder: Callable[[spaces.Box], nn.Module] = ConvolutionEncoder,
    ) -> None:
        """Build the network.

        Args:
            observation_space: see `Encoder`.
            action_space: Discrete.
            width: D.
            hidden_size: H.
            cosines: C.
            acting_quantiles: K.
            longest_hold: most steps for which a random action is held; 1: each step draws anew.
            layer_norm: normalise the state, and the hidden layer of both heads together, before
                their ReLU.
            obs_range: bounded observations are scaled to [-obs_range, obs_range]; 0 leaves them as
                they are.
            normalize_obs: normalise observed numbers without useful bounds by the running
                statistics that the agent keeps.
            picture_encoder: see `Encoder`.

        Raises:
            ConfigError: this network cannot learn from a space, which the message names; or a size
                is below 1.
        """
        super().__init__(observation_space, action_space)
        if not (isinstance(action_space, spaces.Discrete) and action_space.n <= MAX_CATEGORIES):
            raise ConfigError(
                f"the action space is {one_line(action_space)}; this agent needs Discrete, of at "
                f"most {MAX_CATEGORIES:,} actions, as a table of inputs makes one of other actions"
            )
        actions, self._first = int(action_space.n), int(action_space.start)
        self.acting_quantiles = acting_quantiles
        self.encoder = Encoder(observation_space, obs_range, normalize_obs, picture_encoder)
        self.state = nn.Linear(self.encoder.size + 1, width)
        self.norm = nn.LayerNorm(width) if layer_norm else nn.Identity()
        self.hidden_norm = nn.LayerNorm(2 * hidden_size) if layer_norm else nn.Identity()
        self.embedding = nn.Linear(cosines, width)
        # of both heads: the first half for the value, the second for the advantages
        self.hidden = nn.Linear(width, 2 * hidden_size)
        self.value = nn.Linear(hidden_size, 1)
        self.advantage = nn.Linear(hidden_size, actions)
        self.register_buffer("frequencies", math.pi * torch.arange(cosines), persistent=False)
        self.register_buffer("behaviour", torch.zeros(3))
        lengths = torch.arange(1, longest_hold + 1)
        self._share_of_hold = F.normalize(1.0 / lengths**2, p=1, dim=0)  # of each length
        self._mean_hold = float(self._share_of_hold @ lengths.float())
        self._held, self._held_steps = 0, 0  # an index, and for how many steps to come
        self.extras = {"greedy": np.bool_(False), "values": np.zeros(actions, np.float32)}

    def features(self, obs: Observation, time_left: Tensor | None = None) -> Tensor:
        """Compute the state, once for all quantiles.

        Args:
            obs: structure of [B, ...].
            time_left: float32 [B], share of the mini-race that is left, 0 to 1; None stands for all
                of it.

        Returns:
            float32 [B, D].
        """
        x_BF = self.encoder(obs)
        time_B1 = (
            torch.ones_like(x_BF[:, :1]) if time_left is None else 2.0 * time_left[:, None] - 1.0
        )
        x_BD = self.state(torch.cat((x_BF, OBS_RANGE * time_B1), dim=1))
        return F.relu(self.norm(x_BD), inplace=True)

    def quantiles(self, state_BD: Tensor, tau_BN: Tensor) -> Tensor:
        """Compute Z_tau of each action, [B, N, A]; tau is [B, N], or [1, N] for all states."""
        return self._heads(self._hidden(state_BD, tau_BN))

    def values(self, state_BD: Tensor, quantiles: int) -> Tensor:
        """Compute the values by which actions are chosen, Q [B, A]: the mean of a number of evenly
        spaced `quantiles`.
        """
        tau_1N = ((torch.arange(quantiles, device=state_BD.device) + 0.5) / quantiles)[None]
        # the heads are linear, so the mean may be taken before them
        return self._heads(self._hidden(state_BD, tau_1N).mean(dim=1))

    def forward(self, obs: Observation, time_left: Tensor | None = None) -> Tensor:
        """Map a structure of [B, ...] to Q [B, A]."""
        return self.values(self.features(obs, time_left), self.acting_quantiles)

    def act(self, obs: Observation, test: bool = False) -> Action:
        """Choose an action; see `ActorModule.act`. It is NaN if the values are not finite; the
        worker then takes its safe action.
        """
        values_A = self(obs)[0].cpu()
        best = chosen = int(values_A.argmax())
        if not test:
            chosen = self._explore(values_A, best)
        self.extras = {"greedy": np.bool_(chosen == best), "values": values_A.numpy()}
        if not math.isfinite(values_A[best]):  # NaN counts as the largest
            return np.full((), np.nan)[()]
        return np.int64(self._first + chosen)

    def _explore(self, values_A: Tensor, best: int) -> int:
        """Return the index of the action to take, `best` unless this step explores."""
        epsilon, boltzmann, scale = self.behaviour.tolist()
        if not self._held_steps:
            begins = epsilon / (epsilon + self._mean_hold * (1.0 - epsilon))
            draw = float(torch.rand(()))
            if draw >= begins + boltzmann:
                return best
            if draw >= begins:
                return int(torch.add(values_A, torch.randn(len(values_A)), alpha=scale).argmax())
            self._held = int(torch.randint(len(values_A), ()))
            self._held_steps = 1 + int(self._share_of_hold.multinomial(1))
        self._held_steps -= 1
        return self._held

    def reset(self) -> None:
        """Begin an episode, in which no action is held yet."""
        self._held_steps = 0

    def carry_over(self, previous: Actor) -> None:
        """Hold what the instance that acted until now holds."""
        assert isinstance(previous, IQNActor)
        self._held, self._held_steps = previous._held, previous._held_steps

    def best_actions(self, obs: Observation) -> Tensor:
        """Return the actions of the largest values, int64 [B]; see `ActorModule.best_actions`."""
        best: Tensor = self(obs).argmax(dim=1) + self._first
        return best

    def _hidden(self, state_BD: Tensor, tau_BN: Tensor) -> Tensor:
        """Compute the hidden layer of both heads, [B, N, 2 H]."""
        phi_RD = F.relu(
            self.embedding(torch.cos(tau_BN.reshape(-1, 1) * self.frequencies)), inplace=True
        )
        x_BND = state_BD.unsqueeze(1) * phi_RD.view(*tau_BN.shape, -1)
        hidden = F.relu(self.hidden_norm(self.hidden(x_BND.flatten(0, 1))), inplace=True)
        return hidden.view(*x_BND.shape[:2], -1)

    def _heads(self, hidden: Tensor) -> Tensor:
        """Map [..., 2 H] to [..., A]: eq. 9 of Wang et al. as one product, with the mean taken of
        the weights.
        """
        value, advantage = self.value, self.advantage
        weight = torch.cat(
            (value.weight.expand_as(advantage.weight), advantage.weight - advantage.weight.mean(0)),
            1,
        )
        return F.linear(hidden, weight, value.bias + advantage.bias - advantage.bias.mean())
