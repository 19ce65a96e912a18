"""Behaviour cloning: training an actor on recorded demonstrations by maximum likelihood.

Pomerleau, "ALVINN: An Autonomous Land Vehicle in a Neural Network", 1988, in the form for
stochastic policies:

    max over theta of  E[ log pi_theta(a + k sigma noise | s + k sigma noise) ],

with (s, a) drawn from the recording, and independent standard normal noise on each float. sigma is
the float's standard deviation in the recording, for an action at least an eighth of the range; k is
`NOISE`, or 1 for past actions in s.

The noise on actions keeps the policy wide enough to explore from. Past actions get more noise
because an actor that sees them tends to repeat them, which is usually right, and to ignore the
rest: Wen et al., "Fighting Copycat Agents in Behavioral Cloning from Observation Histories", 2020
(arXiv:2010.14876). The noise on the rest of s teaches the actor to return to what was demonstrated.
Only the steps that are learnt from are disturbed, not those that are held out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor

from tmrl_like.agents.acceleration import backward
from tmrl_like.agents.observations import Encoder, RunningNorm
from tmrl_like.base import tree
from tmrl_like.errors import ConfigError, expect
from tmrl_like.policies.actor import ActorModule

BATCH = 256
NOISE = 0.1  # k
_LEARNING_RATE = 1e-3
_LEAST_SPREAD = 0.25  # least sigma of an action, as a share of half its range
_MOST_LOOKED_AT = 4096  # rows of which a likelihood is the mean


@dataclass(frozen=True)
class Shown:
    """Recorded demonstrations: N steps.

    Attributes:
        obs: structure of tensors [N, ...], as the actor sees observations.
        act: tensor [N, *action shape].
        episode: int64 [N], the number of each step's episode.
        past_actions: how many of the last parts of an observation are actions.
    """

    obs: Any
    act: Tensor
    episode: Tensor
    past_actions: int = 0

    @property
    def episodes(self) -> list[int]:
        """The sorted numbers of the episodes."""
        return sorted(set(self.episode.tolist()))

    def rows(self, which: Tensor) -> Shown:
        """Return the steps of these indices, int64 [M], or of this mask, bool [N]."""
        obs = tree.map_leaves(lambda leaf: leaf[which], self.obs)
        return Shown(obs, self.act[which], self.episode[which], self.past_actions)

    def split(self, share: float) -> tuple[Shown, Shown]:
        """Split at random into episodes to learn from, and a share of the episodes, one at least,
        to hold out.

        Raises:
            ConfigError: there are fewer than two episodes.
        """
        episodes = torch.tensor(self.episodes, device=self.episode.device)
        _, held_out = split_at_random(len(episodes), share, "recorded episodes")
        is_held = torch.isin(self.episode, episodes[held_out])
        return self.rows(~is_held), self.rows(is_held)


def split_at_random(num: int, share: float, what: str) -> tuple[list[int], list[int]]:
    """Split the numbers 0 to `num` - 1 at random: those to learn from, and a share, one at least,
    to hold out.

    Raises:
        ConfigError: there are fewer than two, of what the message calls `what`.
    """
    expect(num >= 2, f"the number of {what}", num, "2 or more, one of them to be held out")
    num_held = min(max(1, round(share * num)), num - 1)
    order = torch.randperm(num).tolist()
    return order[num_held:], order[:num_held]


class Likelihood(NamedTuple):
    """The mean of log pi(a | s), in nats per recorded step."""

    learnt: float
    held_out: float


def clone(
    actor: ActorModule, learnt: Shown, held_out: Shown, steps: int
) -> tuple[Likelihood, Likelihood]:
    """Train an actor to do what was demonstrated.

    Args:
        actor: an actor with `log_prob`. Its encoder normalises numbers without bounds by the
            statistics of `learnt`.
        learnt: steps to learn from.
        held_out: steps that are only used to measure the likelihood.
        steps: number of steps of Adam, with `BATCH` rows each.

    Returns:
        The likelihoods of the actor as it was, and after training.

    Raises:
        ConfigError: the actor has no `log_prob`.
    """
    if type(actor).log_prob is ActorModule.log_prob:
        raise ConfigError(
            f"a {type(actor).__name__} cannot be cloned: give it a method log_prob(obs, act), "
            "which says in torch how likely its actions are, [B]"
        )
    for part in actor.children():
        if isinstance(part, Encoder) and part.normalizes:
            RunningNorm([part]).update(learnt.obs)
    obs_noise, act_noise = _noise(learnt.obs, learnt.past_actions), _noise(learnt.act)
    space = actor.action_space
    # actions that hardly varied get noise as well
    if isinstance(space, spaces.Box) and space.is_bounded():
        least = torch.as_tensor(NOISE * _LEAST_SPREAD * (space.high - space.low) / 2)
        act_noise = torch.maximum(act_noise, least.to(act_noise))
    untrained = Likelihood(_mean(actor, learnt), _mean(actor, held_out))
    optimizer = torch.optim.Adam(actor.parameters(), _LEARNING_RATE)
    for _ in range(steps):
        drawn = learnt.rows(torch.randint(len(learnt.act), (BATCH,), device=learnt.act.device))
        obs = tree.map_leaves(_disturbed, drawn.obs, obs_noise)
        act = _disturbed(drawn.act, act_noise)
        backward(-actor.log_prob(obs, act).mean(), optimizer)
        optimizer.step()
    return untrained, Likelihood(_mean(actor, learnt), _mean(actor, held_out))


@torch.no_grad()
def _mean(actor: ActorModule, shown: Shown) -> float:
    few = shown.rows(torch.arange(min(len(shown.act), _MOST_LOOKED_AT), device=shown.act.device))
    modes = [(part, part.training) for part in actor.modules()]
    actor.eval()  # as it drives; statistics of batches stay as they are
    mean = actor.log_prob(few.obs, few.act).mean().item()
    for part, is_training in modes:
        part.training = is_training
    return mean


def _noise(values: Any, past_actions: int = 0) -> Any:
    """Return the standard deviation of the noise on each number; 0 for integers and booleans."""
    leaves = [*tree.leaves(values)]
    noise = []
    for number, leaf in enumerate(leaves):
        share = 1.0 if number >= len(leaves) - past_actions else NOISE
        is_float = leaf.is_floating_point() and len(leaf) > 1
        noise.append(share * leaf.std(dim=0) if is_float else torch.zeros((), device=leaf.device))
    return tree.fill(values, iter(noise))


def _disturbed(leaf: Tensor, deviation: Tensor) -> Tensor:
    return leaf + deviation * torch.randn_like(leaf) if leaf.is_floating_point() else leaf
