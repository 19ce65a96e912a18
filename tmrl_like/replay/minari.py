"""Reads Minari data sets (https://minari.farama.org, HDF5 files) with h5py.

Per episode of T steps, the file holds `observations` [T + 1, ...], `actions` [T, ...], `rewards`,
`terminations`, `truncations` [T]; a dict is a group, a tuple is a group with the names `_index_0`,
`_index_1`, ….
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tmrl_like.base import tree
from tmrl_like.base.text import one_line
from tmrl_like.errors import CheckpointError, MissingExtraError
from tmrl_like.replay.table import block_of
from tmrl_like.types import Buffer, Info, Observation, Sample
from tmrl_like.wire.rows import EPISODES

_FILE = "main_data.hdf5"
_INDEX = "_index_"
_JPEG = b"\xff\xd8"
_ARRAY_BYTES = 1 << 30

Group: TypeAlias = Any
"""An h5py group, or a data set in one."""

Columns: TypeAlias = Observation
"""The structure of observations or actions, with arrays [T, ...] as leaves."""


def find_minari(path: Path) -> Path | None:
    """Return the file of the Minari data set at `path` (its folder, the folder `data` in it, or the
    file), or None if there is none.
    """
    candidates = [path] if path.suffix == ".hdf5" else [path / _FILE, path / "data" / _FILE]
    return next((file for file in candidates if file.is_file()), None)


def episodes_of(file: Path) -> Iterator[Buffer]:
    """Yield each episode as samples; the first one is its reset, with an action of zeros.

    Raises:
        MissingExtraError: h5py is not installed.
        CheckpointError: the file is damaged, or holds what a memory of arrays cannot store: text,
            JPEG images, an array of more than a GiB.
    """
    try:
        import h5py
    except ImportError:
        raise MissingExtraError(
            "Minari data sets are read with h5py: pip install 'tmrl_like[minari]'"
        ) from None
    try:
        with h5py.File(file, "r") as data:
            names = sorted(
                (name for name in data if name.startswith("episode_")),
                key=lambda name: int(name[8:]),
            )
            for number, name in enumerate(names):
                samples = Buffer(_samples_of(data[name], number % EPISODES))
                yield Buffer(stream="minari", blocks=[block_of(samples)])
    except Exception as error:  # of h5py and numpy, whatever the file holds
        why = one_line(str(error) if isinstance(error, ValueError) else error, 300)
        raise CheckpointError(f"the data set {file} cannot be read: {why}") from None


def _samples_of(episode: Group, number: int) -> list[Sample]:
    names = ("observations", "actions", "rewards", "terminations", "truncations")
    observations, actions, *outcomes = (_columns_of(episode[name], name) for name in names)
    neutral = tree.map_leaves(np.zeros_like, _row(actions, 0))
    samples = [
        Sample(
            neutral, _row(observations, 0), 0.0, False, False, Info(is_reset=True, episode=number)
        )
    ]
    for k, (rew, ends, cut) in enumerate(
        zip(*(column.tolist() for column in outcomes), strict=True)
    ):
        obs = _row(observations, k + 1)
        samples.append(
            Sample(_row(actions, k), obs, float(rew), bool(ends), bool(cut), Info(episode=number))
        )
    return samples


def _columns_of(node: Group, name: str) -> Columns:
    """Return the columns in a group, or in a data set of h5py."""
    if hasattr(node, "keys"):
        items = {key: _columns_of(node[key], f"{name}/{key}") for key in node}
        if items and all(key.startswith(_INDEX) for key in items):
            return tuple(items[f"{_INDEX}{k}"] for k in range(len(items)))
        return items
    if node.nbytes > _ARRAY_BYTES:  # equal values take no room in the file, however many
        raise ValueError(
            f"{name} has {node.nbytes} bytes; at most {_ARRAY_BYTES} are read: write it in more "
            "episodes"
        )
    values = node[()]
    is_jpeg = values.ndim == 2 and values.dtype == np.uint8 and values[:1, :2].tobytes() == _JPEG
    if values.dtype.kind not in "biuf" or is_jpeg:
        raise ValueError(
            f"{name} is text or JPEG images; write images with jpeg_encoding=False, and leave text "
            "out"
        )
    return values


def _row(columns: Columns, k: int) -> Observation:
    return tree.map_leaves(lambda leaf: leaf[k], columns)
