import logging
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from kit.fakes import ListMemory
from kit.packets import numbered, packet_of, write

from tmrl_like.base import tree
from tmrl_like.delivery import receiver, sample_store
from tmrl_like.delivery.sample_store import files_in, read_file
from tmrl_like.errors import CheckpointError, ConfigError, MemoryContractError
from tmrl_like.replay import ReplayMemory
from tmrl_like.replay.data_sets import read_data_set, write_data_set
from tmrl_like.testing.memories import ActionBufferEnv, packed
from tmrl_like.types import Batch, Buffer, Info, Sample

ACT = np.zeros(1, np.float32)
ONE_EPISODE = 1000


def samples(count, worker=0, first=0, episode=10):
    """Return samples of episodes of `episode` steps; obs is (worker, number)."""
    found = []
    for k in range(first, first + count):
        step = k % (episode + 1)
        obs = np.array([worker, k], np.float32)
        info = Info(is_reset=step == 0)
        found.append(Sample(ACT, obs, float(k), step == episode, False, info))
    return found


def filled(count=100, cls=ListMemory, **options):
    memory = cls(**{"batch_size": 32, **options})
    memory.append(Buffer(samples(count), "a"))
    return memory


def held_by(memory):
    return [(int(s.obs[0]), int(s.obs[1]), s.info.is_context) for s in memory.data]


def lowered(obs):
    obs -= 1
    return obs


@pytest.mark.parametrize(
    "options",
    [
        {"obs_preprocessor": lowered},
        {"sample_preprocessor": lambda last_obs, *others: (lowered(last_obs), *others)},
    ],
    ids=["of observations", "of samples"],
)
def test_a_preprocessor_that_works_in_place_changes_nothing_in_the_memory(options):
    memory = filled(**options)
    before = held_by(memory)
    memory.sample()
    assert held_by(memory) == before


def changing(change):
    """Return a memory class whose transitions are passed as lists through `change`."""

    class Changing(ListMemory):
        def get_transition(self, item):
            return change(list(super().get_transition(item)))

    return Changing


# -- batches ---------------------------------------------------------------------------------------


def test_a_round_is_nb_steps_batches_on_the_device():
    batches = list(filled(nb_steps=3))
    assert len(batches) == 3
    for batch in batches:
        assert type(batch) is Batch
        assert [tuple(field.shape[1:]) for field in batch] == [(2,), (1,), (), (2,), (), ()]
        assert {(len(field), field.dtype) for field in batch} == {(32, torch.float32)}


def test_draws_are_uniform_among_transitions_that_do_not_end_in_a_reset():
    memory = filled(101, batch_size=9000)
    memory.seed(1)
    batch = memory.sample()
    ends = batch.next_obs[:, 1].long()
    assert torch.equal(batch.obs[:, 1].long(), ends - 1)
    counts = torch.bincount(ends, minlength=101)
    trainable = [k for k in range(1, 101) if k % 11]
    assert counts[trainable].sum() == 9000
    assert abs(counts[trainable] - 9000 / len(trainable)).max() < 60  # six standard deviations


def test_a_dropped_info_is_refused_with_the_way_out():
    forgetful = changing(lambda transition: (*transition[:6], {}))
    with pytest.raises(
        MemoryContractError, match=r"Changing.get_transition.*handles_resets = True"
    ):
        filled(cls=forgetful).sample()
    forgetful.handles_resets = True
    filled(cls=forgetful).sample()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            lambda t: (*t[:5], t[6]),
            r"Changing.get_transition returned 6 items.*`done`.*`terminated`",
        ),
        (lambda t: 7, r"expected \(last_obs, act"),
        (lambda t: ((np.ones(int(t[2])),), *t[1:]), r"last_obs\[0\]"),  # a structure that grows
        (lambda t: (("text",), *t[1:]), r"last_obs\[0\]"),
    ],
)
def test_what_is_no_transition_or_does_not_stack_is_refused_by_name(change, match):
    with pytest.raises(MemoryContractError, match=match):
        filled(cls=changing(change)).sample()


def test_a_sample_of_other_items_is_refused_and_one_with_a_single_done_is_told_how_it_split():
    for sample, match in (
        ((0, 0, 0.0, False, {}), r"a sample has 5 items.*`done`"),
        ((0, 0, 0.0), r"a sample has 3 items; expected \(act"),
    ):
        with pytest.raises(MemoryContractError, match=match):
            Buffer([sample])


def test_structures_and_dtypes_survive_collation():
    obs = {"a": np.ones(2), "b": [np.uint8(7), (7, 0.5, True)], "c": torch.ones(3)}
    rich = changing(lambda _: (obs, np.int64(1), np.float64(0.1), obs, np.True_, False, Info()))
    batch = filled(cls=rich, batch_size=4).sample()
    dtypes = {tree.name_of(path): leaf.dtype for path, leaf in tree.walk(batch.obs)}
    assert dtypes == {
        "['a']": torch.float64,
        "['b'][0]": torch.uint8,
        "['b'][1][0]": torch.int64,
        "['b'][1][1]": torch.float64,
        "['b'][1][2]": torch.bool,
        "['c']": torch.float32,
    }
    assert batch.rew.dtype == batch.terminated.dtype == torch.float32


def test_collate_can_be_replaced_and_may_return_a_plain_tuple():
    class Own(ListMemory):
        def collate(self, batch, device):
            return tuple(zip(*batch, strict=True))

    batch = filled(cls=Own, batch_size=3).sample()
    assert type(batch) is Batch
    assert len(batch.rew) == 3


def test_crc_debugging_needs_the_worker_to_take_part_and_says_that_it_passed(caplog):
    caplog.set_level(logging.INFO)
    with pytest.raises(MemoryContractError, match="crc_debug on in the worker too"):
        filled(crc_debug=True).sample()
    memory = ListMemory(crc_debug=True, batch_size=200)
    memory.append(packed(ActionBufferEnv(act_buf_len=0).take(50)))
    memory.sample()
    assert memory.crc_checked == 200
    (line,) = caplog.messages
    assert line.startswith("CRC check")


def test_a_memory_without_trainable_transition_is_not_ready_and_says_so():
    memory = ListMemory(batch_size=4)
    with pytest.raises(MemoryContractError, match="ready"):
        memory.sample()
    for first in (0, 11):  # two resets
        memory.append(Buffer(samples(1, first=first), "a"))
    assert len(memory) == 1
    assert not memory.ready
    with pytest.raises(MemoryContractError, match="nothing to train on"):
        memory.sample()
    memory.append(Buffer(samples(1, first=12), "a"))
    assert memory.ready
    memory.sample()


# -- several workers -------------------------------------------------------------------------------


@pytest.mark.parametrize(("episode", "packets"), [(ONE_EPISODE, (40, 30)), (10, (11, 6))])
def test_another_stream_is_held_until_it_or_an_episode_of_it_outweighs_its_context(
    episode, packets
):
    memory, (first, more) = filled(20), packets
    memory.append(Buffer(samples(first, 1, episode=episode), "b"))
    assert len(memory.data) == 20
    memory.append(Buffer(samples(more, 1, first=first, episode=episode), "b"))
    assert len(memory.data) == 20 + first + more


def test_a_new_stream_begins_with_context_and_a_returning_one_repeats_its_own():
    memory = filled(20)
    memory.append(Buffer(samples(64, 1, episode=ONE_EPISODE), "b"))
    memory.append(Buffer(samples(64, 0, first=20), "a"))
    new = [(1, k, k < 17) for k in range(64)]
    returning = [(0, k, k < 20) for k in range(3, 84)]
    assert held_by(memory)[20:] == new + returning
    assert memory.data[84 + 8].info.is_reset, "the past looks as it was"


@pytest.mark.parametrize("length", [0, 1, 3])
def test_all_that_a_transition_may_look_back_on_is_of_its_own_stream(length):
    memory = filled(8)
    memory.context_length, memory.min_run = length, 1
    for worker, first in ((1, 0), (0, 8), (1, 8)):
        new = samples(8, worker, first=first, episode=ONE_EPISODE)
        memory.append(Buffer(new, "ab"[worker]))
    held = held_by(memory)
    for end, (worker, step, is_context) in enumerate(held):
        if end > length and not is_context:
            seen = [sample[:2] for sample in held[end - length - 1 : end]]
            assert seen == [(worker, k) for k in range(step - length - 1, step)]


def test_what_is_held_is_bounded():
    memory = filled(1)
    for stream in range(200):
        memory.append(Buffer(samples(60, stream, episode=ONE_EPISODE), f"s{stream}"))
        assert 60 * (stream + 1) + 1 - len(memory.data) <= 4096
    assert 60 * 200 + 1 - len(memory.data) > 4096 - 60


def test_a_memory_may_set_its_own_context_length_and_shortest_run():
    memory = filled(3)
    memory.context_length, memory.min_run = 1, 3
    memory.append(Buffer(samples(3, 1, episode=ONE_EPISODE), "b"))
    assert held_by(memory)[3:] == [(1, 0, True), (1, 1, True), (1, 2, False)]


# -- data sets -------------------------------------------------------------------------------------


def test_a_data_set_is_read_by_folder_or_file(own_home):
    folder = own_home / "set"
    assert write_data_set(folder, [Buffer(samples(60), "a")]) == 60
    (file,) = folder.glob("*.log")
    for path in (folder, file, str(file), "~/set"):
        assert held_by(ListMemory(dataset_path=path)) == held_by(filled(60))


def test_the_samples_of_all_ranks_of_a_training_are_a_data_set(tmp_path):
    for log, count in (("log", 4), ("rank-1/log", 2)):
        write_data_set(tmp_path / log, [Buffer(samples(count), "a")])
    found = [sum(map(len, read_data_set(path))) for path in (tmp_path, tmp_path / "log")]
    assert found == [6, 4]


def test_the_samples_of_a_training_that_goes_on_are_read_whole_while_their_files_are_joined(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(receiver, "_MERGED_SAMPLES", 1)
    monkeypatch.setattr(sample_store, "SMALL_FILES", 3)
    packets = [[packet_of(number, numbered(number))] for number in (1, 2, 3, 4)]
    write(tmp_path, *packets[:3])
    buffers = read_data_set(tmp_path)
    read = [next(buffers)]
    write(tmp_path, packets[3])
    assert [path.stem for path in files_in(tmp_path)] == ["0000000001", "0000000004"]
    read += buffers
    assert [sample.obs for buffer in read for sample in buffer.memory] == [1, 2, 3]


def test_a_data_set_that_does_not_fit_into_the_memory_is_said_to_lose_samples(tmp_path, caplog):
    write_data_set(tmp_path, [Buffer(samples(60), "a")])
    ListMemory(dataset_path=tmp_path, memory_size=60)
    assert caplog.text == ""
    ListMemory(dataset_path=tmp_path, memory_size=59)
    said = f"data set {tmp_path} has 60 samples, and memory_size is 59: the oldest are dropped"
    assert said in caplog.text


def test_a_long_buffer_is_written_as_packets_of_moderate_size(tmp_path):
    image = np.zeros((64, 64), np.uint8)
    frames = [Sample(k, image, 0.0, False, False, Info()) for k in range(200)]
    assert write_data_set(str(tmp_path), [Buffer(frames, "a")]) == 200
    (file,) = tmp_path.glob("*.log")
    packets = [packet.samples for packet, *_ in read_file(file).packets()]
    assert 1 < max(packets) <= 256 * 1024 // image.nbytes


@pytest.mark.parametrize("end", [{"terminated": True}, {"truncated": True}])
def test_episodes_whose_beginnings_are_not_marked_are_not_joined_in_a_data_set(tmp_path, end):
    first, *others = samples(60, episode=ONE_EPISODE)
    others[20] = others[20]._replace(**end)
    with pytest.raises(ConfigError, match=r"sample 22 .* is not marked as a reset.*is_reset=True"):
        write_data_set(tmp_path / "new", [Buffer([first, *others], "a")])
    with pytest.raises(ConfigError, match="sample 22 "):
        write_data_set(tmp_path / "new", [Buffer(part, "a") for part in ([first], others)])
    others[21] = others[21]._replace(info=Info(is_reset=True))
    assert write_data_set(tmp_path / "new", [Buffer([first, *others], "a")]) == 60


def test_streams_of_a_data_set_are_kept_apart_and_what_follows_begins_with_context(tmp_path):
    buffers = [Buffer(samples(70, worker, episode=ONE_EPISODE), f"w{worker}") for worker in (0, 1)]
    write_data_set(tmp_path, buffers)
    memory = ListMemory(dataset_path=tmp_path)
    expected = [(0, k, False) for k in range(70)] + [(1, k, k < 17) for k in range(70)]
    assert held_by(memory) == expected
    memory.append(Buffer(samples(64, 2), "w0"))
    assert held_by(memory)[140:] == [(2, k, k < 17) for k in range(64)]


def test_what_is_no_data_set_of_this_memory_is_one_clear_line(tmp_path, monkeypatch):
    text = [Sample("left", 0.0, 0.0, False, False, Info())] * 2
    write_data_set(tmp_path / "text", [Buffer(text, "a")])
    with pytest.raises(ConfigError, match="holds samples already"):
        write_data_set(tmp_path / "text", [Buffer(text, "a")])
    with monkeypatch.context() as patch:
        patch.setattr("tmrl_like.wire.messages.WIRE_VERSION", 1)
        write_data_set(tmp_path / "old", [Buffer(text, "a")])
    (tmp_path / "data.pkl").write_bytes(b"cos\nsystem\n")
    (tmp_path / "run.log").write_text("12:00 a line of text\n")
    for path, error, match in (
        ("run.log", CheckpointError, r"run\.log holds no sample that can be read"),
        ("nowhere", ConfigError, r"there is no data set at .*nowhere: expected a folder"),
        ("", ConfigError, r"is a pickle.*tmrl-like record"),
        ("data.pkl", ConfigError, r"is a pickle.*tmrl-like record"),
        ("old", CheckpointError, "cannot be read: it holds wire version 1"),
        ("text", CheckpointError, "does not fit this ReplayMemory: act is a Python str"),
    ):
        with pytest.raises(error, match=match):
            ReplayMemory(dataset_path=tmp_path / path)
    monkeypatch.setattr(Path, "is_file", MagicMock(side_effect=PermissionError("not yours")))
    with pytest.raises(CheckpointError, match="cannot be read: not yours"):
        ReplayMemory(dataset_path=tmp_path)
