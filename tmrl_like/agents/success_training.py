"""Training of a network that recognises success, on labelled pictures.

This is the first step of Singh et al., "End-to-End Robotic Reinforcement Learning without Reward
Engineering", 2019 (arXiv:1904.07854): a classifier of pictures, trained by cross-entropy on as many
examples of success as of anything else, gives the reward. Only the maximum of each channel over all
places counts, so that success is learnt for all places at once.
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

from tmrl_like.agents.acceleration import backward
from tmrl_like.agents.cloning import split_at_random
from tmrl_like.agents.images import channels_first, shifted
from tmrl_like.agents.space_layout import picture_spec
from tmrl_like.policies.success_model import SuccessSpec

_EACH = 64  # pictures of success in a batch, and as many of anything else
_LEARNING_RATE = 3e-3
_AT_ONCE = 1024  # pictures judged in one pass


class JudgedEpisode(NamedTuple):
    """The pictures of an episode, and whether it ended in success.

    Attributes:
        pictures: uint8 [T, *shape].
        success: the episode's label.
    """

    pictures: NDArray[np.uint8]
    success: bool


class Errors(NamedTuple):
    """The errors in judging a number of episodes.

    Attributes:
        episodes: number of episodes.
        false_positives: episodes in which success was seen where there was none, or long before it.
        false_negatives: episodes whose success was not seen.
    """

    episodes: int
    false_positives: int
    false_negatives: int

    @property
    def accuracy(self) -> float:
        """Share of the episodes that are judged right."""
        return 1.0 - (self.false_positives + self.false_negatives) / self.episodes


class SuccessNetwork(nn.Module):
    """`SuccessModel` in torch.

    Attributes:
        spec: the description from which both are made; whoever writes it sets the `path`.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        """Build the layers, for pictures uint8 of this shape."""
        super().__init__()
        self.spec = SuccessSpec(picture_spec(spaces.Box(0, 255, shape, np.uint8)), ())
        self.convolutions = nn.ModuleList(nn.Conv2d(*layer) for layer in self.spec.layers)
        self.head = nn.Linear(self.spec.layers[-1].channels, 1)

    def forward(self, pictures: Tensor, shift: bool = False) -> Tensor:
        """Map uint8 [B, *shape] to logits of success [B]. `shift` moves each picture by a few
        pixels, see `shifted`.
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
        """Map uint8 [T, *shape] to probabilities of success [T]."""
        parts = torch.split(torch.from_numpy(pictures), _AT_ONCE)
        return torch.cat([self(part) for part in parts]).sigmoid()


def split(
    episodes: Sequence[JudgedEpisode], share: float
) -> tuple[list[JudgedEpisode], list[JudgedEpisode]]:
    """Split at random into episodes to learn from, and a share of the successes and of the
    failures, one at least of each, to hold out.

    Raises:
        ConfigError: there are fewer than two successes, or than two failures.
    """
    learnt: list[JudgedEpisode] = []
    held_out: list[JudgedEpisode] = []
    for success, name in ((True, "labelled as successes"), (False, "labelled as failures")):
        of_kind = [episode for episode in episodes if episode.success is success]
        chosen, others = split_at_random(len(of_kind), share, f"episodes that are {name}")
        learnt += [of_kind[i] for i in chosen]
        held_out += [of_kind[i] for i in others]
    return learnt, held_out


def train_success(episodes: Sequence[JudgedEpisode], steps: int, last: int) -> SuccessNetwork:
    """Train a network by cross-entropy, with shifted pictures.

    Args:
        episodes: successes and failures. The last pictures of a success show it. As many before
            them may or may not, and are left out. No other picture shows success.
        steps: number of steps of Adam.
        last: number of these last pictures.
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
        backward(loss, optimizer)
        optimizer.step()
    return network


def errors_of(
    network: SuccessNetwork,
    episodes: Sequence[JudgedEpisode],
    threshold: float,
    frames: int,
    last: int,
) -> Errors:
    """Return the errors in judging whole episodes, judged as by a `SuccessEnv`."""
    positives = negatives = 0
    for pictures, success in episodes:
        shows = network.probabilities(pictures) >= threshold
        # the steps before which `frames` in a row have shown success
        seen = [step for step in range(frames, len(shows) + 1) if shows[step - frames : step].all()]
        if not seen:
            negatives += success
        else:
            positives += not success or seen[0] <= len(pictures) - 2 * last
    return Errors(len(episodes), positives, negatives)
