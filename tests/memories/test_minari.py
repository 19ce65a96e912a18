"""Minari's HDF5 files, in its own format, and written by minari itself."""

import json
import sys

import h5py
import numpy as np
import pytest
from gymnasium import spaces

from tmrl_like.errors import CheckpointError, MissingExtraError
from tmrl_like.memories import ReplayMemory
from tmrl_like.testing.fakes import ListMemory

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


def test_what_cannot_be_read_is_one_line(tmp_path):
    path = tmp_path / "main_data.hdf5"
    path.write_bytes(b"garbage")
    with pytest.raises(CheckpointError, match=r"main_data\.hdf5 cannot be read"):
        ReplayMemory(dataset_path=path)
    pictures = np.tile(np.frombuffer(b"\xff\xd8\xff\xe0", np.uint8), (4, 5))
    for wrong in (pictures, np.array([b"text"] * 4)):
        with h5py.File(path, "w") as file:
            put(file.create_group("episode_0"), next(episodes()) | {"observations": wrong})
        with pytest.raises(CheckpointError, match="observations is text or JPEG"):
            ReplayMemory(dataset_path=path)
    with h5py.File(path, "w") as file:
        file.create_group("episode_0")
    with pytest.raises(CheckpointError, match="cannot be read"):
        ReplayMemory(dataset_path=path)


def test_without_h5py_the_extra_is_named(tmp_path, monkeypatch):
    (tmp_path / "main_data.hdf5").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtraError, match=r"tmrl_like\[minari\]"):
        ReplayMemory(dataset_path=tmp_path)
