"""Training of a picture encoder before the agent's training, as one half of an autoencoder of
recorded frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tmrl_like.agents.acceleration import backward
from tmrl_like.agents.agent import TrainingAgent
from tmrl_like.agents.images import PictureEncoder
from tmrl_like.agents.observations import Encoder
from tmrl_like.base import tree
from tmrl_like.errors import ConfigError, PolicyError
from tmrl_like.policies.weight_file import (
    read_weights,
    refuse_misfit,
    write_weights,
)
from tmrl_like.policies.weights import copied, manifest_of, tensors_of
from tmrl_like.types import Observation

_LEARNING_RATE = 1e-3
_HIDDEN = 256


def encoder_of(agent: TrainingAgent) -> Encoder:
    """Return the encoder by which actor and critics of an agent see pictures. Raise ConfigError if
    they share none.
    """
    encoder, of_actor = (
        getattr(getattr(agent, name, None), "encoder", None) for name in ("critic", "actor")
    )
    if not (
        isinstance(encoder, Encoder)
        and isinstance(of_actor, Encoder)
        and encoder.sees_pictures
        and encoder.images is of_actor.images
    ):
        raise ConfigError(
            f"{type(agent).__name__} has no encoder of pictures that can be trained beforehand: "
            "that takes an observation space with pictures, and SACAgent, REDQAgent or "
            "DiscreteSACAgent with the networks that ship"
        )
    return encoder


def train_encoder(encoder: Encoder, observations: Iterable[Observation]) -> Iterator[float]:
    """Train the encoder of an observation's pictures, one step per batch of observations.

    A decoder of two layers reconstructs each picture from its features. The loss is the mean
    squared error of pixels against the picture that the encoder sees, averaged down and shifted by
    a few pixels, as in the training of an agent.

    Yields:
        The loss of each step as a share of the pictures' variance over the batch: 1 means that the
        decoder gives the mean of all pictures.
    """
    images: list[Any] = [*encoder.images]
    decoders = nn.ModuleList(_decoder(image) for image in images)
    decoders.to(next(encoder.images.parameters()).device)
    optimizer = torch.optim.Adam(
        [*encoder.images.parameters(), *decoders.parameters()], _LEARNING_RATE
    )
    parts = list(zip(images, decoders, encoder.image_paths, strict=True))
    for obs in observations:
        missing = [
            _missing(image, decoder, tree.part_at(obs, path)) for image, decoder, path in parts
        ]
        mean = torch.stack(missing).mean()
        backward(mean, optimizer)
        optimizer.step()
        yield mean.item()


def _decoder(image: PictureEncoder) -> nn.Module:
    return nn.Sequential(
        nn.Linear(image.size, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, image.spec.num_averaged)
    )


def _missing(image: PictureEncoder, decoder: nn.Module, picture: Tensor) -> Tensor:
    seen = image.averaged(picture, shift=True)
    painted = decoder(image.convolved(seen))
    variance = seen.var(dim=0, unbiased=False).mean()
    return F.mse_loss(painted, seen.flatten(1)) / variance.clamp(min=1e-6)


def save_encoder(encoder: Encoder, path: Path) -> None:
    """Write the encoder of pictures to a safetensors file, for `load_encoder`. Raise OSError if it
    cannot be written.
    """
    write_weights(path, copied(encoder.images.state_dict()).content)


def load_encoder(encoder: Encoder, path: Path) -> None:
    """Load the encoder of pictures from a file that `save_encoder` wrote.

    Raises:
        ConfigError: the file cannot be read, or is for other pictures.
    """
    own = encoder.images.state_dict()
    try:
        _, weights = read_weights(path)
        refuse_misfit("the encoder of these pictures", manifest_of(own), weights.manifest)
    except (PolicyError, OSError) as error:
        raise ConfigError(f"picture_encoder is {path}: {error}") from None
    encoder.images.load_state_dict(tensors_of(weights))
