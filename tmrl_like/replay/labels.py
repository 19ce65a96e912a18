"""Labels that say which recorded episodes succeeded, in a text file beside the data set."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tmrl_like.base import tree
from tmrl_like.base.files import write_atomically, writing
from tmrl_like.errors import ConfigError
from tmrl_like.replay.streams import info_of, recorded_episodes
from tmrl_like.types import Buffer, Observation

_HEAD = "episode,success"
_LINE = re.compile(r"\s*(\d+)\s*,\s*(true|1|false|0)\s*", re.IGNORECASE)
_SMALLEST_SIDE = 8


class Pictured(NamedTuple):
    """An episode as a camera saw it.

    Attributes:
        path: where in an observation its picture is.
        pictures: uint8 [T, *shape], one after each step; the reset's are left out.
        terminated: whether it ended in a terminal state.
    """

    path: tree.Path
    pictures: NDArray[np.uint8]
    terminated: bool


def pictured_episodes(buffers: Iterable[Buffer]) -> list[Pictured]:
    """Return the episodes of a data set, with the first picture of each observation.

    Raises:
        ConfigError: there are no steps or no pictures, or pictures of several shapes.
    """
    place: tree.Path | None = None
    shapes: set[tuple[int, ...]] = set()
    episodes: list[Pictured] = []
    for samples in recorded_episodes(buffers):
        steps = [sample for sample in samples if not info_of(sample).is_reset]
        if not steps:
            continue
        if place is None:
            place = _place_of_picture(steps[0].obs)
        pictures = [tree.part_at(step.obs, place) for step in steps]
        shapes.update(picture.shape for picture in pictures)
        if len(shapes) > 1:
            raise ConfigError(
                f"the data set has pictures of several shapes, {sorted(shapes)}: record them alike"
            )
        episodes.append(Pictured(place, np.stack(pictures), bool(steps[-1].terminated)))
    if place is None:
        raise ConfigError("the data set has no step, so nothing to label or to learn from")
    return episodes


def _place_of_picture(obs: Observation) -> tree.Path:
    for path, leaf in tree.walk(obs):
        if isinstance(leaf, np.ndarray) and leaf.dtype == np.uint8 and 2 <= leaf.ndim <= 4:
            sides = [leaf.shape[-2:], leaf.shape[-3:-1]][: leaf.ndim - 1]  # channels first, or last
            if max(map(min, sides)) >= _SMALLEST_SIDE:
                return tuple(path)
    raise ConfigError(
        "the data set has no pictures: expected in each observation an array uint8, [height, "
        "width], [height, width, channels] or [channels, height, width], with sides of "
        f"{_SMALLEST_SIDE} or more"
    )


def labels_beside(data: Path) -> Path:
    """Return the path of a data set's labels."""
    whole = data.resolve()
    return whole.with_name(f"{whole.name}.labels.csv")


def write_labels(file: Path, labels: Mapping[int, bool]) -> None:
    """Write a line for each episode that has a label. Raises ConfigError if the file cannot be
    written.
    """
    lines = [f"{episode},{str(labels[episode]).lower()}" for episode in sorted(labels)]
    with writing("the labels", file):
        write_atomically(file, "\n".join([_HEAD, *lines, ""]).encode())


def read_labels(file: Path, num_episodes: int) -> dict[int, bool]:
    """Return the labels of a data set of `num_episodes` episodes, by episode number, from 0.

    Raises:
        ConfigError: the file cannot be read, or a line is wrong; the message names the line.
    """
    try:
        head, *lines = file.read_text(encoding="utf-8-sig").splitlines() or [""]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the labels {file} cannot be read: {error}") from None
    if head != _HEAD:
        raise ConfigError(f"{file}, line 1: expected {_HEAD}, then a line for each episode: 0,true")
    labels: dict[int, bool] = {}
    for number, line in enumerate(lines, 2):
        where = f"{file}, line {number}"
        found = _LINE.fullmatch(line)
        if found is None:
            raise ConfigError(f"{where}: {line!r}; expected an episode's number, and true or false")
        episode = int(found[1])
        if episode >= num_episodes:
            raise ConfigError(
                f"{where}: there is no episode {episode}, the data set has 0 to "
                f"{num_episodes - 1}: these are labels of another one"
            )
        if episode in labels:
            raise ConfigError(f"{where}: episode {episode} has a label already")
        labels[episode] = found[2].lower() in ("true", "1")
    return labels
