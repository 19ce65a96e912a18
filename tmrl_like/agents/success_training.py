"""A network that learns from labelled pictures what success looks like.

Singh et al., "End-to-End Robotic Reinforcement Learning without Reward Engineering", 2019 (arXiv:1904.07854), begin so:
a classifier of pictures, trained by cross-entropy on as many examples of success as of anything else, is the reward.

It is an actor whose action is the probability,  1/2 + tanh(u) / 2 = sigmoid(2 u),  so a policy file keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from numpy.typing import NDArray

from tmrl_like.agents.models import SquashedGaussianActor
from tmrl_like.errors import expect
from tmrl_like.policies.success_model import PROBABILITY

_EACH = 64  # pictures of a batch, of success and of anything else
_LEARNING_RATE = 1e-3
_AT_ONCE = 1024  # pictures to judge


class JudgedEpisode(NamedTuple):
    """What an episode showed, and whether it succeeded in its end.

    Attributes:
        pictures: uint8 [T, *shape].
        success: what its label says.
    """

    pictures: NDArray[np.uint8]
    success: bool


class Errors(NamedTuple):
    """How so many episodes are judged.

    Attributes:
        episodes: how many there were.
        false_positives: success was seen where there was none, or long before it.
        false_negatives: it was not seen where it was.
    """

    episodes: int
    false_positives: int
    false_negatives: int

    @property
    def accuracy(self) -> float:
        """Share that is judged right."""
        return 1.0 - (self.false_positives + self.false_negatives) / self.episodes


def split(episodes: Sequence[JudgedEpisode], share: float) -> tuple[list[JudgedEpisode], list[JudgedEpisode]]:
    """What is learnt from, and a share of the episodes of either kind, drawn at random, that is held out.

    Raises:
        ConfigError: there are fewer than two successes, or than two failures.
    """
    learnt: list[JudgedEpisode] = []
    held_out: list[JudgedEpisode] = []
    for success, name in ((True, "successes"), (False, "failures")):
        of_kind = [episode for episode in episodes if episode.success is success]
        num = len(of_kind)
        expect(num >= 2, f"the number of episodes that are labelled as {name}", num, "2 or more, one to be held out")
        num_held = min(max(1, round(share * num)), num - 1)
        order = torch.randperm(num).tolist()
        held_out += [of_kind[i] for i in order[:num_held]]
        learnt += [of_kind[i] for i in order[num_held:]]
    return learnt, held_out


def train_success(episodes: Sequence[JudgedEpisode], steps: int, last: int) -> SquashedGaussianActor:
    """Train by cross-entropy, with shifted pictures.

    Args:
        episodes: of both kinds. The last pictures of a success show it, as many before them may or may not and are
            left out; all others show none.
        steps: of Adam.
        last: how many pictures that is.
    """
    ends = [episode.pictures[-last:] for episode in episodes if episode.success]
    others = [episode.pictures[: -2 * last] if episode.success else episode.pictures for episode in episodes]
    success, other = (torch.from_numpy(np.concatenate(parts)) for parts in (ends, others))
    space = spaces.Box(0, 255, success.shape[1:], np.uint8)
    actor = SquashedGaussianActor(space, PROBABILITY, hidden_sizes=(64,))
    target = torch.cat((torch.ones(_EACH), torch.zeros(_EACH)))
    optimizer = torch.optim.Adam(actor.parameters(), _LEARNING_RATE)
    for _ in range(steps):
        drawn = [pictures[torch.randint(len(pictures), (_EACH,))] for pictures in (success, other)]
        mean, _ = actor(actor.encoder.see(torch.cat(drawn), shift=True))
        loss = F.binary_cross_entropy_with_logits(2.0 * mean[:, 0], target)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return actor


@torch.no_grad()
def errors_of(
    actor: SquashedGaussianActor, episodes: Sequence[JudgedEpisode], threshold: float, frames: int, last: int
) -> Errors:
    """How whole episodes are judged, as a `SuccessEnv` judges them."""
    positives = negatives = 0
    for pictures, success in episodes:
        parts = torch.split(torch.from_numpy(pictures), _AT_ONCE)
        probabilities = torch.cat([actor.best_actions(part)[:, 0] for part in parts])
        step = _first_seen((probabilities >= threshold).tolist(), frames)
        if step is None:
            negatives += success
        else:
            positives += not success or step < len(pictures) - 2 * last
    return Errors(len(episodes), positives, negatives)


def _first_seen(shows: Sequence[bool], frames: int) -> int | None:
    """The first step at which so many in a row, of [T], show it."""
    in_a_row = 0
    for step, one in enumerate(shows):
        in_a_row = in_a_row + 1 if one else 0
        if in_a_row == frames:
            return step
    return None
