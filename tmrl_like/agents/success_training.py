"""A network that learns from labelled pictures what success looks like.

Singh et al., "End-to-End Robotic Reinforcement Learning without Reward Engineering", 2019
(arXiv:1904.07854), begin so: a classifier of pictures, trained by cross-entropy on as many examples
of success as of anything else, is the reward. The largest answer of each channel counts, wherever
it is: so what success looks like is learnt for all places at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from tmrl_like.agents.images import channels_first, shifted
from tmrl_like.agents.space_layout import picture_spec
from tmrl_like.errors import expect
from tmrl_like.policies.success_model import SuccessSpec

_EACH = 64  # pictures of a batch, of success and of anything else
_LEARNING_RATE = 3e-3
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


class SuccessNetwork(nn.Module):
    """`SuccessModel` in torch.

    Attributes:
        spec: the description that both are made from.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        """Build the layers, for pictures uint8 of this shape."""
        super().__init__()
        self.spec = SuccessSpec(picture_spec(spaces.Box(0, 255, shape, np.uint8)))
        self.convolutions = nn.ModuleList(nn.Conv2d(*layer) for layer in self.spec.layers)
        self.head = nn.Linear(self.spec.layers[-1].channels, 1)

    def forward(self, pictures: Tensor, shift: bool = False) -> Tensor:
        """uint8 [B, *shape] -> logits of success [B]; `shift`: each picture by a few pixels, see
        `shifted`.
        """
        x = channels_first(pictures, self.spec.picture)
        if shift:
            x = shifted(x, self.spec.picture.largest_shift)
        x = F.avg_pool2d(x.float(), self.spec.factor).div_(255.0).sub_(0.5)
        for convolution in self.convolutions:
            x = F.relu(convolution(x), inplace=True)
        logits: Tensor = self.head(x.amax(dim=(2, 3)))
        return logits.squeeze(-1)

    @torch.no_grad()
    def probabilities(self, pictures: NDArray[np.uint8]) -> Tensor:
        """uint8 [T, *shape] -> [T]."""
        parts = torch.split(torch.from_numpy(pictures), _AT_ONCE)
        return torch.cat([self(part) for part in parts]).sigmoid()


def split(
    episodes: Sequence[JudgedEpisode], share: float
) -> tuple[list[JudgedEpisode], list[JudgedEpisode]]:
    """What is learnt from, and a share of the episodes of either kind, drawn at random, that is
    held out.

    Raises:
        ConfigError: there are fewer than two successes, or than two failures.
    """
    learnt: list[JudgedEpisode] = []
    held_out: list[JudgedEpisode] = []
    for success, name in ((True, "successes"), (False, "failures")):
        of_kind = [episode for episode in episodes if episode.success is success]
        num = len(of_kind)
        expect(
            num >= 2,
            f"the number of episodes that are labelled as {name}",
            num,
            "2 or more, one to be held out",
        )
        num_held = min(max(1, round(share * num)), num - 1)
        order = torch.randperm(num).tolist()
        held_out += [of_kind[i] for i in order[:num_held]]
        learnt += [of_kind[i] for i in order[num_held:]]
    return learnt, held_out


def train_success(episodes: Sequence[JudgedEpisode], steps: int, last: int) -> SuccessNetwork:
    """Train by cross-entropy, with shifted pictures.

    Args:
        episodes: of both kinds. The last pictures of a success show it, as many before them may or
            may not and are left out; all others show none.
        steps: of Adam.
        last: how many pictures that is.
    """
    ends = [episode.pictures[-last:] for episode in episodes if episode.success]
    others = [
        episode.pictures[: -2 * last] if episode.success else episode.pictures
        for episode in episodes
    ]
    success, other = (torch.from_numpy(np.concatenate(parts)) for parts in (ends, others))
    network = SuccessNetwork(tuple(success.shape[1:]))
    target = torch.cat((torch.ones(_EACH), torch.zeros(_EACH)))
    optimizer = torch.optim.Adam(network.parameters(), _LEARNING_RATE)
    for _ in range(steps):
        drawn = [pictures[torch.randint(len(pictures), (_EACH,))] for pictures in (success, other)]
        loss = F.binary_cross_entropy_with_logits(network(torch.cat(drawn), shift=True), target)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return network


def errors_of(
    network: SuccessNetwork,
    episodes: Sequence[JudgedEpisode],
    threshold: float,
    frames: int,
    last: int,
) -> Errors:
    """How whole episodes are judged, as a `SuccessEnv` judges them."""
    positives = negatives = 0
    for pictures, success in episodes:
        step = _first_seen((network.probabilities(pictures) >= threshold).tolist(), frames)
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
