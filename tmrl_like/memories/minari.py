"""Minari data sets, read as samples (https://minari.farama.org, HDF5 files): needs h5py, not minari itself.

In the file, per episode of T steps: `observations` [T + 1, ...], `actions` [T, ...], `rewards`, `terminations`,
`truncations` [T]; a dict is a group, a tuple a group with the names `_index_0`, `_index_1`, ….
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tmrl_like.errors import CheckpointError, MissingExtraError
from tmrl_like.types import Buffer, Info, Sample

_FILE = "main_data.hdf5"
_INDEX = "_index_"
_JPEG = b"\xff\xd8"


def find_minari(path: Path) -> Path | None:
    """The file of the Minari data set at `path` (its folder, the folder `data` in it, or the file); None: none."""
    candidates = [path] if path.suffix == ".hdf5" else [path / _FILE, path / "data" / _FILE]
    return next((file for file in candidates if file.is_file()), None)


def episodes_of(file: Path) -> Iterator[Buffer]:
    """Each episode as samples; the first of each is its reset, with an action of zeros.

    Raises:
        MissingExtraError: h5py is not installed.
        CheckpointError: damaged, or holds what no memory of arrays can: text, JPEG images.
    """
    try:
        import h5py
    except ImportError:
        raise MissingExtraError("Minari data sets are read with h5py: pip install 'tmrl_like[minari]'") from None
    try:
        with h5py.File(file, "r") as data:
            names = sorted((name for name in data if name.startswith("episode_")), key=lambda name: int(name[8:]))
            for name in names:
                yield Buffer(_samples_of(data[name]), "minari")
    except (OSError, KeyError, ValueError, IndexError, RuntimeError) as error:
        raise CheckpointError(f"the data set {file} cannot be read: {error}") from None


def _samples_of(episode: Any) -> list[Sample]:
    observations, actions = (_tree(episode[name], name) for name in ("observations", "actions"))
    rewards, terminated, truncated = (episode[name][()].tolist() for name in ("rewards", "terminations", "truncations"))
    neutral = _map(np.zeros_like, _row(actions, 0))
    samples = [Sample(neutral, _row(observations, 0), 0.0, False, False, Info(is_reset=True))]
    for k, (rew, *flags) in enumerate(zip(rewards, terminated, truncated, strict=True)):
        samples.append(
            Sample(_row(actions, k), _row(observations, k + 1), float(rew), bool(flags[0]), bool(flags[1]), Info())
        )
    return samples


def _tree(node: Any, name: str) -> Any:
    """The structure of a group, with arrays [T, ...] as leaves."""
    if hasattr(node, "keys"):
        items = {key: _tree(node[key], f"{name}/{key}") for key in node}
        if items and all(key.startswith(_INDEX) for key in items):
            return tuple(items[f"{_INDEX}{k}"] for k in range(len(items)))
        return items
    values = node[()]
    if values.dtype.kind not in "biuf" or (values.ndim == 2 and values.dtype == np.uint8 and _is_jpeg(values)):
        raise ValueError(f"{name} is text or JPEG images; write images with jpeg_encoding=False, and leave text out")
    return values


def _is_jpeg(values: Any) -> bool:
    return bool(len(values)) and values[0, :2].tobytes() == _JPEG


def _row(tree: Any, k: int) -> Any:
    return _map(lambda leaf: leaf[k], tree)


def _map(call: Any, tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _map(call, item) for key, item in tree.items()}
    return tuple([_map(call, item) for item in tree]) if isinstance(tree, tuple) else call(tree)
