"""`tmrl-like label`: a person says which recorded episodes succeeded."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tmrl_like.agents.space_layout import channels_are_last
from tmrl_like.cli.arguments import Arguments, to_type
from tmrl_like.cli.preview import enlarged
from tmrl_like.envs.display import has_display
from tmrl_like.envs.vision import Frame, load_opencv
from tmrl_like.errors import ConfigError
from tmrl_like.replay.data_sets import read_data_set
from tmrl_like.replay.labels import (
    Pictured,
    labels_beside,
    pictured_episodes,
    read_labels,
    write_labels,
)

_TITLE = "tmrl_like: s success, f failure, space skip, q quit"
_ANSWERS = {ord("s"): True, ord("f"): False, ord(" "): None}
_QUIT = (ord("q"), 27)
_WAIT_MS = 100


def main(arguments: Arguments) -> int:
    """Ask for the labels, or take them from a file or from how the episodes ended, and save
    them.
    """
    data = Path(arguments.data)
    file = labels_beside(data)
    episodes = pictured_episodes(read_data_set(data))
    if arguments.file:
        write_labels(file, read_labels(Path(arguments.file), len(episodes)))
    elif arguments.terminated:
        write_labels(file, {number: episode.terminated for number, episode in enumerate(episodes)})
    else:
        _ask(file, episodes, arguments.last)
    labels = read_labels(file, len(episodes)) if file.exists() else {}
    successes, unknown = sum(labels.values()), len(episodes) - len(labels)
    print(f"{file}: success: {successes}, failure: {len(labels) - successes}, no label: {unknown}")
    files = map("success_{}.safetensors".format, itertools.count(1))
    new = next(file for file in files if not Path(file).exists())
    command = to_type("tmrl-like", "success-model", data, "--out", new)
    print(f"learn from it: {command}")
    return 0


def _ask(file: Path, episodes: Sequence[Pictured], last: int) -> None:
    """Show the end of each episode that has no label, and save each answer at once."""
    if not has_display():
        raise ConfigError(
            "there is no display to show episodes on; --file FILE takes labels from a text file, "
            "--terminated from the episodes' own ends"
        )
    cv2 = load_opencv()
    labels = read_labels(file, len(episodes)) if file.exists() else {}
    cv2.namedWindow(_TITLE, cv2.WINDOW_AUTOSIZE | cv2.WINDOW_GUI_NORMAL)
    for number, episode in enumerate(episodes):
        if number in labels:
            continue
        ends = [enlarged(as_rgb(picture)) for picture in episode.pictures[-last:]]
        cv2.imshow(_TITLE, cv2.cvtColor(np.concatenate(ends, axis=1), cv2.COLOR_RGB2BGR))
        print(f"episode {number} of 0 to {len(episodes) - 1}")
        key = -1
        while key not in _ANSWERS:
            key = cv2.waitKey(_WAIT_MS)
            if key in _QUIT or cv2.getWindowProperty(_TITLE, cv2.WND_PROP_VISIBLE) < 1:
                cv2.destroyAllWindows()
                return
        answer = _ANSWERS[key]
        if answer is not None:
            labels[number] = answer
            write_labels(file, labels)
    cv2.destroyAllWindows()


def as_rgb(picture: Frame) -> Frame:
    """Convert a picture of any form that a data set may hold to uint8 [H, W, 3]; from a history,
    take the newest picture.
    """
    if picture.ndim == 4:
        picture = picture[-1]
    if picture.ndim == 2:
        picture = picture[..., None]
    elif not channels_are_last(picture.shape):
        picture = np.moveaxis(picture, 0, -1)
    is_coloured = picture.shape[-1] in (3, 4)
    return np.ascontiguousarray(picture[..., [0, 1, 2] if is_coloured else [-1, -1, -1]])
