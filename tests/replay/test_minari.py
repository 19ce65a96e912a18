"""Minari's HDF5 files, written and read by minari itself and by this package."""

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from tmrl_like.errors import CheckpointError, MissingExtraError
from tmrl_like.replay import ReplayMemory
from tmrl_like.replay.crc import first_difference
from tmrl_like.replay.data_sets import read_data_set
from tmrl_like.replay.minari import write_minari
from tmrl_like.types import Buffer, Info, Sample


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


def written(folder):
    assert write_minari(folder, [Buffer(SAMPLES, "w")]) == (2, 3)


@pytest.mark.filterwarnings("ignore")
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


@pytest.mark.filterwarnings("ignore")
def test_minari_reads_what_we_write(tmp_path):
    import minari

    written(tmp_path / "new")
    data_set = minari.MinariDataset(tmp_path / "new" / "data")
    first, second = data_set.iterate_episodes()
    assert first.observations["camera"].dtype == np.uint8
    assert second.observations["state"][0].tolist() == [[3, -3], [4, -4]]
    assert (second.terminations.tolist(), second.truncations.tolist()) == ([False], [True])
    assert data_set.observation_space.contains(SAMPLES[0].obs)


HUGE = object()
JPEG = np.tile(np.frombuffer(b"\xff\xd8\xff\xe0", np.uint8), (4, 5))


@pytest.mark.parametrize(
    ("column", "value", "line"),
    [
        ("observations", JPEG, "text or JPEG"),
        ("observations", np.array([b"text"] * 4), "text or JPEG"),
        ("rewards", np.float32(1.0), "not iterable"),
        ("actions", np.float32(1.0), "cannot be read"),
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


def test_only_whole_episodes_are_written_each_of_one_process_to_its_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parts = [
        Buffer([sample(8), sample(9, terminated=True)], "a"),  # its beginning is missing
        Buffer([sample(0, is_reset=True), sample(1)], "a"),
        Buffer([sample(5, is_reset=True), sample(6)], "b"),  # never ends
        Buffer([sample(2, terminated=True), sample(9), sample(3, is_reset=True)], "a"),
        Buffer([sample(10, terminated=True)], "a after a gap"),
    ]
    assert write_minari(Path("new"), parts) == (1, 2)
    (episode,) = read_data_set(tmp_path / "new")
    assert [int(sample.obs["state"][1]) for sample in episode.memory] == [0, 1, 2]
    with pytest.raises(CheckpointError, match="no whole episode"):
        write_minari(Path("nothing"), parts[2:3])
    assert not Path("nothing").exists()


@pytest.mark.parametrize(
    ("obs", "line"),
    [
        (None, "there is text, bytes or None where"),
        (b"jpeg", "there is text, bytes or None where"),
        ({1: np.zeros(1)}, "TypeError"),
        ({".": np.zeros(1)}, "AssertionError"),
    ],
)
def test_samples_that_minari_cannot_hold_are_one_line(tmp_path, obs, line):
    samples = [one._replace(obs=obs) for one in SAMPLES]
    with pytest.raises(CheckpointError, match=f"Minari cannot hold these samples: {line}"):
        write_minari(tmp_path / "new", [Buffer(samples, "w")])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("missing", ["h5py", "minari"])
def test_an_extra_that_is_missing_is_named(tmp_path, monkeypatch, missing):
    (tmp_path / "main_data.hdf5").write_bytes(b"")
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtraError, match=r"tmrl_like\[minari\]"):
        if missing == "h5py":
            ReplayMemory(dataset_path=tmp_path)
        else:
            write_minari(tmp_path / "new", [])
