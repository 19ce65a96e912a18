"""Minari's HDF5 files, in its own format, and written by minari itself."""

import json
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from gymnasium import spaces

from tmrl_like.errors import CheckpointError, MissingExtraError
from tmrl_like.replay import ReplayMemory
from tmrl_like.replay.data_sets import read_data_set
from tmrl_like.replay.minari import write_minari
from tmrl_like.testing.fakes import ListMemory
from tmrl_like.types import Buffer, Info, Sample

OBS = spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Tuple((spaces.Discrete(9), spaces.Box(0, 1, (1, 2))))})
ACT = spaces.Box(-1, 1, (2,))
LENGTHS = (3, 1, 4)


def episodes():
    rng = np.random.default_rng(0)
    for steps in LENGTHS:
        yield {
            "observations": {
                "a": rng.random((steps + 1, 2), np.float32),
                "b": (rng.integers(0, 9, steps + 1), rng.random((steps + 1, 1, 2), np.float32)),
            },
            "actions": rng.random((steps, 2), np.float32),
            "rewards": rng.random(steps),
            "terminations": np.arange(steps) == steps - 1,
            "truncations": np.zeros(steps, bool),
        }


def put(group, items):
    for name, value in items.items():
        if isinstance(value, tuple):
            value = {f"_index_{k}": item for k, item in enumerate(value)}
        if isinstance(value, dict):
            put(group.create_group(name), value)
        else:
            group[name] = value


def by_hand(folder):
    (folder / "data").mkdir()
    (folder / "data" / "metadata.json").write_text(json.dumps({"data_format": "hdf5", "total_episodes": len(LENGTHS)}))
    with h5py.File(folder / "data" / "main_data.hdf5", "w") as file:
        for k, episode in enumerate(episodes()):
            put(file.create_group(f"episode_{k}"), episode)


def by_minari(folder):
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    storage = MinariStorage.new(folder / "data", observation_space=OBS, action_space=ACT, data_format="hdf5")
    buffers = [EpisodeBuffer(id=k, **episode, infos={}) for k, episode in enumerate(episodes())]
    storage.update_episodes(buffers)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("write", [by_hand, by_minari])
@pytest.mark.parametrize("memory_cls", [ReplayMemory, ListMemory])
def test_a_minari_data_set_starts_a_memory(tmp_path, write, memory_cls):
    write(tmp_path)
    for path in (tmp_path, tmp_path / "data", tmp_path / "data" / "main_data.hdf5"):
        memory = memory_cls(dataset_path=path, batch_size=4)
        transitions = [memory.get_transition(k) for k in range(len(memory))]
        transitions = [t for t in transitions if not t.info.is_reset]
        expected = [(episode, k) for episode in episodes() for k in range(len(episode["rewards"]))]
        assert len(transitions) == len(expected) == sum(LENGTHS)
        for found, (episode, k) in zip(transitions, expected, strict=True):
            for obs, at in ((found.last_obs, k), (found.obs, k + 1)):
                assert np.array_equal(obs["a"], episode["observations"]["a"][at])
                assert obs["b"][0] == episode["observations"]["b"][0][at]
                assert np.array_equal(obs["b"][1], episode["observations"]["b"][1][at])
            assert np.array_equal(found.act, episode["actions"][k])
            assert (found.rew, found.terminated) == (episode["rewards"][k], bool(episode["terminations"][k]))
        assert memory.sample().obs["a"].shape == (4, 2)


def with_episode(path, change):
    """A file of one episode, with these items changed; None: with none at all."""
    with h5py.File(path, "w") as file:
        put(file.create_group("episode_0"), {} if change is None else next(episodes()) | change)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"observations": np.tile(np.frombuffer(b"\xff\xd8\xff\xe0", np.uint8), (4, 5))}, "text or JPEG"),
        ({"observations": np.array([b"text"] * 4)}, "text or JPEG"),
        ({"rewards": np.float32(1.0)}, "not iterable"),
        ({"actions": np.float32(1.0)}, "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_an_episode_that_is_none_is_one_line(tmp_path, change, line):
    path = tmp_path / "main_data.hdf5"
    with_episode(path, change)
    with pytest.raises(CheckpointError, match=line):
        ReplayMemory(dataset_path=path)


def test_what_cannot_be_read_is_one_line(tmp_path):
    path = tmp_path / "main_data.hdf5"
    path.write_bytes(b"garbage")
    with pytest.raises(CheckpointError, match=r"main_data\.hdf5 cannot be read"):
        ReplayMemory(dataset_path=path)
    with_episode(path, {})
    with h5py.File(path, "a") as file:  # a few hundred bytes that say of themselves that they are 8 TB of zeros
        del file["episode_0"]["rewards"]
        file["episode_0"].create_dataset("rewards", (10**12,), "float64", chunks=(1024,))
    with pytest.raises(CheckpointError, match="rewards has 8000000000000 bytes; at most 1073741824 are read"):
        ReplayMemory(dataset_path=path)


def written(k, is_reset=False, terminated=False, truncated=False):
    """A sample with dicts, tuples, an image, a flag and a Discrete action; k is in all of it."""
    obs = {"camera": np.full((2, 2), k, np.uint8), "state": (np.float64([k, -k]), np.int64(k), np.bool_(k % 2))}
    return Sample(np.int64(k % 3), obs, 0.0 if is_reset else float(k), terminated, truncated, Info(is_reset=is_reset))


@pytest.mark.filterwarnings("ignore")
def test_what_is_written_is_read_again_by_minari_and_by_us_in_its_own_dtypes(tmp_path):
    import minari

    samples = [written(0, is_reset=True), written(1), written(2, terminated=True)]
    samples += [written(3, is_reset=True), written(4, truncated=True)]
    assert write_minari(tmp_path / "new", [Buffer(samples, "w")]) == (2, 3)
    data_set = minari.MinariDataset(tmp_path / "new" / "data")
    assert (data_set.total_episodes, data_set.total_steps) == (2, 3)
    first, second = data_set.iterate_episodes()
    assert first.observations["camera"].dtype == np.uint8
    assert second.observations["state"][0].tolist() == [[3, -3], [4, -4]]
    assert (second.terminations.tolist(), second.truncations.tolist()) == ([False], [True])
    assert data_set.observation_space.contains(samples[0].obs | {"state": tuple(samples[0].obs["state"])})
    found = [sample for buffer in read_data_set(tmp_path / "new") for sample in buffer.memory]
    for one, other in zip(found, samples, strict=True):
        assert one[2:5] == other[2:5]
        assert one.info.is_reset is other.info.is_reset
        assert one.info.is_reset or one.act == other.act
        assert np.array_equal(one.obs["camera"], other.obs["camera"])
        for leaf, original in zip(one.obs["state"], other.obs["state"], strict=True):
            assert leaf.dtype == original.dtype
            assert np.array_equal(leaf, original)


def test_a_folder_may_be_named_from_where_the_process_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    samples = [written(0, is_reset=True), written(1, terminated=True)]
    assert write_minari(Path("new"), [Buffer(samples, "w")]) == (1, 1)


def test_only_whole_episodes_are_written_each_of_one_worker_process(tmp_path):
    parts = [
        Buffer([written(8), written(9, terminated=True)], "a"),  # its beginning is missing
        Buffer([written(0, is_reset=True), written(1)], "a"),
        Buffer([written(5, is_reset=True), written(6)], "b"),  # never ends
        Buffer([written(2, terminated=True), written(3, is_reset=True)], "a"),
        Buffer([written(10, terminated=True)], "a after a gap"),
    ]
    assert write_minari(tmp_path / "new", parts) == (1, 2)
    (episode,) = read_data_set(tmp_path / "new")
    assert [float(sample.obs["state"][0][0]) for sample in episode.memory] == [0, 1, 2]


def test_nothing_is_made_where_there_is_nothing_to_write(tmp_path):
    with pytest.raises(CheckpointError, match="no whole episode"):
        write_minari(tmp_path / "new", [Buffer([written(0, is_reset=True), written(1)], "a")])
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("missing", ["h5py", "minari"])
def test_an_extra_that_is_missing_is_named(tmp_path, monkeypatch, missing):
    (tmp_path / "main_data.hdf5").write_bytes(b"")
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtraError, match=r"tmrl_like\[minari\]"):
        ReplayMemory(dataset_path=tmp_path) if missing == "h5py" else write_minari(tmp_path / "new", [])
