"""LeRobot's data sets, written here in its documented layouts: 2 (a file per episode) and 3 (several in a file)."""

import json
import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tmrl_like.errors import CheckpointError, MissingExtraError
from tmrl_like.replay import ReplayMemory
from tmrl_like.replay.data_sets import read_data_set

LENGTHS = (3, 1, 4)
DONE = (True, False, False)  # the last frame of each episode is marked
FEATURES: dict[str, Any] = {
    "observation.state": {"dtype": "float32", "shape": [3], "names": ["x", "y", "z"]},
    "observation.grid": {"dtype": "float32", "shape": [2, 2], "names": None},
    "observation.gripper": {"dtype": "float32", "shape": [1], "names": None},
    "observation.images.top": {"dtype": "video", "shape": [48, 64, 3], "names": ["height", "width", "channels"]},
    "action": {"dtype": "float32", "shape": [2], "names": None},
    "next.reward": {"dtype": "float32", "shape": [1], "names": None},
    "next.done": {"dtype": "bool", "shape": [1], "names": None},
    "timestamp": {"dtype": "float32", "shape": [1], "names": None},
    "frame_index": {"dtype": "int64", "shape": [1], "names": None},
    "episode_index": {"dtype": "int64", "shape": [1], "names": None},
    "index": {"dtype": "int64", "shape": [1], "names": None},
    "task_index": {"dtype": "int64", "shape": [1], "names": None},
}


def columns(episode: int) -> dict[str, Any]:
    random, length = np.random.default_rng(episode), LENGTHS[episode]
    values = {
        name: random.random((length, *feature["shape"]), np.float32)
        for name, feature in FEATURES.items()
        if feature["dtype"] == "float32"
    }
    values["next.done"] = np.arange(length)[:, None] == (length - 1 if DONE[episode] else -1)
    numbers = np.arange(length)[:, None]
    return values | {
        "episode_index": 0 * numbers + episode,
        "frame_index": numbers,
        "index": numbers,
        "task_index": numbers,
    }


def write(folder: Path, version: str, features: dict[str, Any] = FEATURES) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (folder / "meta").mkdir(parents=True)
    info = {"codebase_version": version, "robot_type": "arm", "fps": 10, "total_episodes": 3, "features": features}
    (folder / "meta" / "info.json").write_text(json.dumps(info), encoding="utf-8")
    files = {f"episode_{k:06d}": [k] for k in range(3)} if version < "v3" else {"file-000": [0, 1], "file-001": [2]}
    (folder / "data" / "chunk-000").mkdir(parents=True)
    for name, episodes in files.items():
        parts = [columns(episode) for episode in episodes]
        table = {}
        for column in parts[0]:
            values = np.concatenate([part[column] for part in parts])
            is_number = FEATURES[column]["shape"] == [1]
            table[column] = pyarrow.array((values[:, 0] if is_number else values).tolist(), _type_of(pyarrow, values))
        parquet.write_table(pyarrow.table(table), folder / "data" / "chunk-000" / f"{name}.parquet")


def _type_of(pyarrow: Any, values: Any) -> Any:
    kind = pyarrow.from_numpy_dtype(values.dtype)
    if values.shape[1:] == (3,):
        return pyarrow.list_(kind, 3)
    return (
        kind
        if values.shape[1:] == (1,)
        else pyarrow.list_(kind)
        if values.ndim == 2
        else pyarrow.list_(pyarrow.list_(kind))
    )


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_a_lerobot_data_set_starts_a_memory(version: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, version)
    with caplog.at_level(logging.WARNING):
        memory = ReplayMemory(dataset_path=tmp_path, batch_size=4)
    assert "not observation.images.top" in caplog.text
    found = [t for t in (memory.get_transition(k) for k in range(len(memory))) if not t.info.is_reset]
    expected = [(columns(0), k) for k in range(3)] + [(columns(2), k) for k in range(3)]  # the last frame: no "after"
    assert len(found) == len(expected)
    for transition, (episode, k) in zip(found, expected, strict=True):
        after = min(k + 1, len(episode["action"]) - 1)  # where it is done nothing comes after it
        for obs, at in ((transition.last_obs, k), (transition.obs, after)):
            assert set(obs) == {"state", "grid", "gripper"}
            for name, value in obs.items():
                assert value.dtype == np.float32
                assert np.array_equal(value, episode[f"observation.{name}"][at])
        assert np.array_equal(transition.act, episode["action"][k])
        assert transition.rew == episode["next.reward"][k, 0]
        assert transition.terminated == (len(episode["action"]) == 3 and k == 2)
        assert transition.truncated == (len(episode["action"]) == 4 and k == 2)


def test_a_single_observation_is_an_array_and_rewards_may_be_missing(tmp_path: Path) -> None:
    kept = ("observation.state", "action", "episode_index")
    write(tmp_path, "v2.0", {name: FEATURES[name] for name in kept})
    samples = next(read_data_set(tmp_path)).memory
    assert [sample.obs.shape for sample in samples] == [(3,)] * 3
    assert [sample.rew for sample in samples] == [0.0] * 3
    assert (samples[0].info.is_reset, samples[-1].truncated, samples[-1].terminated) == (True, True, False)


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    write(tmp_path / "a", "v1.6")
    with pytest.raises(CheckpointError, match=r"has the layout v1\.6; expected 2 or 3"):
        list(read_data_set(tmp_path / "a"))
    write(tmp_path / "b", "v3.0", {"observation.images.top": FEATURES["observation.images.top"]})
    with pytest.raises(CheckpointError, match="no observations that are numbers"):
        list(read_data_set(tmp_path / "b"))
    write(tmp_path / "c", "v3.0")
    (tmp_path / "c" / "data" / "chunk-000" / "file-000.parquet").write_bytes(b"garbage")
    with pytest.raises(CheckpointError, match="c cannot be read"):
        list(read_data_set(tmp_path / "c"))
    write(tmp_path / "d", "v3.0", FEATURES | {"observation.state": {"dtype": "float32", "shape": [4]}})
    with pytest.raises(CheckpointError, match=r"d cannot be read: .*reshape"):
        list(read_data_set(tmp_path / "d"))


def test_what_is_said_of_the_features_is_checked(tmp_path: Path) -> None:
    write(tmp_path, "v3.0")
    state = {"dtype": "float32", "shape": [3]}
    for info, line in (
        ([1], r"cannot be read: Expected `object`, got `array`"),
        ({"features": {}}, "missing required field `codebase_version`"),
        ({"codebase_version": "v3.0"}, "missing required field `features`"),
        ({"codebase_version": "v3.0", "features": {"observation.state": state}}, "no feature `action`"),
        ({"codebase_version": "v3.0", "features": {"action": {"dtype": "float32"}}}, "missing required field `shape`"),
    ):
        (tmp_path / "meta" / "info.json").write_text(json.dumps(info), encoding="utf-8")
        with pytest.raises(CheckpointError, match=line):
            list(read_data_set(tmp_path))


def test_a_small_file_cannot_become_a_large_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "v2.0", {name: FEATURES[name] for name in ("observation.state", "action", "episode_index")})
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "data" / "chunk-000" / "episode_000000.parquet"
    equal = {
        "observation.state": [[0.0] * 3] * 100_000,
        "action": [[0.0] * 2] * 100_000,
        "episode_index": [0] * 100_000,
    }
    parquet.write_table(pyarrow.table(equal), file)
    assert file.stat().st_size < 10_000
    monkeypatch.setattr("tmrl_like.replay.lerobot._FILE_BYTES", 1 << 20)
    with pytest.raises(CheckpointError, match=r"000000\.parquet holds 100000 frames of 4800000 bytes in all; at most"):
        list(read_data_set(tmp_path))
    monkeypatch.undo()
    monkeypatch.setattr("tmrl_like.replay.lerobot._FILE_FRAMES", 1000)
    with pytest.raises(CheckpointError, match="at most 1000"):
        list(read_data_set(tmp_path))
    for action, line in (("far", "action is text; expected numbers"), (None, "a column holds null; expected numbers")):
        parquet.write_table(
            pyarrow.table({"observation.state": [[0.0] * 3], "action": [action], "episode_index": [0]}), file
        )
        with pytest.raises(CheckpointError, match=line):
            list(read_data_set(tmp_path))


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "v3.0")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtraError, match=r"tmrl_like\[lerobot\]"):
        list(read_data_set(tmp_path))
