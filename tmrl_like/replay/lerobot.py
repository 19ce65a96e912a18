"""LeRobot's data sets (Hugging Face), of the layouts 2 and 3: Parquet files, which pyarrow reads.

`meta/info.json` says which features there are; below `data/` each row is a frame: what was observed (`observation.…`),
what was done (`action`), to which episode it belongs, and perhaps what came of it (`next.reward`, `next.done`,
`next.success`). Layout 2 has a file per episode, layout 3 several episodes in a file.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from tmrl_like.base.text import one_line
from tmrl_like.errors import CheckpointError, MissingExtraError
from tmrl_like.replay.minari import samples_of
from tmrl_like.types import Buffer
from tmrl_like.wire.rows import EPISODES

log = logging.getLogger("tmrl_like.memory")

_OBSERVATION = "observation."
_EPISODE = "episode_index"
_MARKS = ("next.reward", "next.done", "next.success")
_FILE_BYTES = 1 << 30  # as arrays; a file of layout 3 has 0.1 GB
_FILE_FRAMES = 1 << 22  # which become samples, an episode at a time


class _Feature(msgspec.Struct):
    dtype: str
    shape: list[Annotated[int, msgspec.Meta(ge=0, lt=2**32)]]


class _Info(msgspec.Struct):
    """What is read of `meta/info.json`."""

    codebase_version: str
    features: dict[str, _Feature]


def find_lerobot(path: Path) -> Path | None:
    """What describes the LeRobot data set in this folder; None: it holds none."""
    described = path / "meta" / "info.json"
    return described if described.is_file() else None


def lerobot_episodes(described: Path) -> Iterator[Buffer]:
    """Each episode as samples; the first of each is its reset, with an action of zeros.

    A single `observation.NAME` is an array, several are a dict of arrays by NAME; images and videos are left out. Where
    the last frame is marked as done or success the episode terminates there. Elsewhere it is truncated a frame earlier:
    what was observed after the last action is not in the data. Rewards that are not in the data are 0.

    Raises:
        MissingExtraError: pyarrow is not installed.
        CheckpointError: damaged, of another layout, without observations that are numbers, or with a file of more than
            a GiB or four million frames.
    """
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise MissingExtraError("LeRobot data sets are read with pyarrow: pip install 'tmrl_like[lerobot]'") from None
    folder = described.parent.parent
    try:
        shapes = _shapes_of(msgspec.json.decode(described.read_bytes(), type=_Info), folder)
        for path in sorted(folder.glob("data/*/*.parquet")):
            file = parquet.ParquetFile(path)
            _refuse_too_large(file, shapes, path)
            table = file.read([*shapes])
            columns = {name: _array(table[name], shape) for name, shape in shapes.items()}
            episodes = columns.pop(_EPISODE)
            starts = [0, *(np.flatnonzero(np.diff(episodes)) + 1).tolist(), len(episodes)]
            for start, end in itertools.pairwise(starts):
                episode = {name: values[start:end] for name, values in columns.items()}
                if (buffer := _samples(episode, int(episodes[start]) % EPISODES)) is not None:
                    yield buffer
    except Exception as error:  # of pyarrow and numpy, whatever the files hold
        why = one_line(str(error) if isinstance(error, ValueError | msgspec.MsgspecError) else error, 300)
        raise CheckpointError(f"the data set {folder} cannot be read: {why}") from None


def _shapes_of(info: _Info, folder: Path) -> dict[str, tuple[int, ...]]:
    """Shape of each feature that is read; numbers of shape [1] are columns of numbers."""
    if not info.codebase_version.startswith(("v2.", "v3.")):
        raise ValueError(f"it has the layout {info.codebase_version}; expected 2 or 3")
    features = info.features
    pictures = [name for name, feature in features.items() if feature.dtype in ("video", "image", "string")]
    read = [name for name in features if name.startswith(_OBSERVATION) and name not in pictures]
    if left_out := [name for name in pictures if name.startswith(_OBSERVATION)]:
        log.warning("of the data set %s only numbers are read, not %s", folder, ", ".join(left_out))
    if not read:
        raise ValueError("it has no observations that are numbers")
    if "action" not in features:
        raise ValueError("it has no feature `action`")
    shapes = {name: tuple(features[name].shape) for name in (*read, "action")}
    return shapes | {name: () for name in _MARKS if name in features} | {_EPISODE: ()}


def _refuse_too_large(file: Any, shapes: Mapping[str, tuple[int, ...]], path: Path) -> None:
    """A few bytes of a file can stand for any number of equal values; its footer says how many.

    Raises:
        ValueError: more than are read, or what is read is text.
    """
    footer, size_bytes = file.metadata, 0
    for k in range(footer.num_columns):
        column = file.schema.column(k)
        if column.path.startswith(tuple(f"{name}." for name in shapes)) or column.path in shapes:
            if column.physical_type == "BYTE_ARRAY":
                raise ValueError(f"{path}: {column.path} is text; expected numbers")
            values = sum(footer.row_group(group).column(k).num_values for group in range(footer.num_row_groups))
            size_bytes += values * max(8, column.length)
    size_bytes = max(size_bytes, sum(footer.row_group(group).total_byte_size for group in range(footer.num_row_groups)))
    if size_bytes > _FILE_BYTES or footer.num_rows > _FILE_FRAMES:
        raise ValueError(
            f"{path} holds {footer.num_rows} frames of {size_bytes} bytes in all; at most {_FILE_FRAMES} frames and "
            f"{_FILE_BYTES} bytes are read: write it in more files"
        )


def _array(column: Any, shape: tuple[int, ...]) -> Any:
    """A column, of numbers or of lists, as an array [T, *shape]."""
    values = column.combine_chunks()
    while hasattr(values, "flatten") and hasattr(values.type, "value_type"):
        values = values.flatten()
    array = values.to_numpy(zero_copy_only=False)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"a column holds {values.type}; expected numbers")
    return array.reshape(len(column), *shape)


def _samples(episode: dict[str, Any], number: int) -> Buffer | None:
    action = episode["action"]
    observed = {name.removeprefix(_OBSERVATION): v for name, v in episode.items() if name.startswith(_OBSERVATION)}
    terminates = any(name in episode and bool(episode[name][-1]) for name in ("next.done", "next.success"))
    steps = len(action) if terminates else len(action) - 1
    if not steps:
        return None
    rewards = episode.get("next.reward", np.zeros(len(action)))[:steps].tolist()
    last = [False] * (steps - 1)
    if terminates:
        observed = {name: np.concatenate((values, values[-1:])) for name, values in observed.items()}
    observations = observed if len(observed) > 1 else next(iter(observed.values()))
    ends = [*last, terminates], [*last, not terminates]
    return Buffer(samples_of(observations, action[:steps], rewards, *ends, number), "lerobot")
