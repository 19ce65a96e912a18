"""Minari's HDF5 files, written by minari itself and read by this package."""

import sys

import h5py
import numpy as np
import pytest
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage

from tmrl_like.base import tree
from tmrl_like.errors import CheckpointError, MissingExtraError
from tmrl_like.replay import ReplayMemory
from tmrl_like.replay.crc import first_difference
from tmrl_like.replay.data_sets import read_data_set
from tmrl_like.types import Info, Sample


def sample(k, is_reset=False, terminated=False, truncated=False):
    """Return a sample with dicts, tuples, an image, a flag and a Discrete action, all derived from
    k.
    """
    obs = {
        "camera": np.full((2, 2), k, np.uint8),
        "state": (np.float64([k, -k]), np.int64(k), np.bool_(k % 2)),
    }
    return Sample(
        np.int64(k % 3),
        obs,
        0.0 if is_reset else float(k),
        terminated,
        truncated,
        Info(is_reset=is_reset),
    )


SAMPLES = [
    *(sample(0, is_reset=True), sample(1), sample(2, terminated=True)),
    *(sample(3, is_reset=True), sample(4, truncated=True)),
]


def episode(number, samples):
    observed = [sample.obs for sample in samples]
    steps = samples[1:]
    return EpisodeBuffer(
        id=number,
        observations=tree.map_leaves(lambda *leaves: np.stack(leaves), *observed),
        actions=np.stack([step.act for step in steps]),
        rewards=[step.rew for step in steps],
        terminations=[step.terminated for step in steps],
        truncations=[step.truncated for step in steps],
        infos={},
    )


def written(folder):
    """Have minari write SAMPLES as two episodes, in `folder`/data."""
    state = spaces.Tuple(
        [spaces.Box(-9, 9, (2,), np.float64), spaces.Discrete(9), spaces.Box(0, 1, (), np.bool_)]
    )
    seen = spaces.Dict({"camera": spaces.Box(0, 9, (2, 2), np.uint8), "state": state})
    (folder / "data").mkdir(parents=True)
    storage = MinariStorage.new(folder / "data", seen, spaces.Discrete(3), data_format="hdf5")
    storage.update_episodes([episode(0, SAMPLES[:3]), episode(1, SAMPLES[3:])])


def test_a_minari_data_set_is_read_in_its_own_dtypes_and_starts_a_memory(tmp_path):
    folder = tmp_path / "new"
    written(folder)
    for path in (folder, folder / "data", folder / "data" / "main_data.hdf5"):
        found = [sample for buffer in read_data_set(path) for sample in buffer.memory]
        for one, other in zip(found, SAMPLES, strict=True):
            assert one[2:5] == other[2:5]
            assert one.info.is_reset is other.info.is_reset
            assert one.info.is_reset or one.act == other.act
            assert first_difference(one.obs, other.obs, "obs") is None
    memory = ReplayMemory(dataset_path=folder, batch_size=4)
    assert len(memory) == 3
    assert memory.sample().obs["camera"].shape == (4, 2, 2)


HUGE = object()
JPEG = np.tile(np.frombuffer(b"\xff\xd8\xff\xe0", np.uint8), (4, 5))


@pytest.mark.parametrize(
    ("column", "value", "line"),
    [
        ("observations", JPEG, "text or JPEG"),
        ("observations", np.array([b"text"] * 4), "text or JPEG"),
        ("rewards", np.float32(1.0), "not iterable"),
        ("actions", None, "cannot be read"),
        ("rewards", np.full(2, np.nan), "rew holds nan, which is not finite"),
        ("rewards", HUGE, "rewards has 8000000000000 bytes; at most 1073741824 are read"),
    ],
)
def test_an_episode_that_is_none_is_one_line(tmp_path, column, value, line):
    written(tmp_path / "new")
    with h5py.File(tmp_path / "new" / "data" / "main_data.hdf5", "a") as file:
        episode = file["episode_0"]
        del episode[column]
        if value is HUGE:
            # a few hundred bytes that claim to be 8 TB of zeros
            episode.create_dataset(column, (10**12,), "float64", chunks=(1024,))
        elif value is not None:
            episode[column] = value
    with pytest.raises(CheckpointError, match=line):
        ReplayMemory(dataset_path=tmp_path / "new")


def test_what_cannot_be_read_is_one_line(tmp_path):
    path = tmp_path / "main_data.hdf5"
    path.write_bytes(b"garbage")
    with pytest.raises(CheckpointError, match=r"main_data\.hdf5 cannot be read"):
        ReplayMemory(dataset_path=path)


def test_an_extra_that_is_missing_is_named(tmp_path, monkeypatch):
    (tmp_path / "main_data.hdf5").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtraError, match=r"tmrl_like\[minari\]"):
        ReplayMemory(dataset_path=tmp_path)
