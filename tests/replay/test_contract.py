import logging

import numpy as np
import pytest
import torch

from tmrl_like.delivery.sample_store import read_file
from tmrl_like.errors import CheckpointError, ConfigError, MemoryContractError
from tmrl_like.replay import ReplayMemory
from tmrl_like.replay.data_sets import read_data_set, write_data_set
from tmrl_like.testing.fakes import ListMemory
from tmrl_like.types import Batch, Buffer, Info, Sample

ACT = np.zeros(1, np.float32)
ONE_EPISODE = 1000


def samples(count, worker=0, first=0, episode=10):
    """Episodes of `episode` steps; obs is (worker, number)."""
    found = []
    for k in range(first, first + count):
        obs = np.array([worker, k], np.float32)
        is_last = k % (episode + 1) == episode
        info = Info({"k": k}, is_reset=k % (episode + 1) == 0)
        found.append(Sample(ACT, obs, float(k), is_last, False, info))
    return found


def filled(count=100, cls=ListMemory, **options):
    memory = cls(**{"batch_size": 32, **options})
    memory.append(Buffer(samples(count), "a"))
    return memory


def held_by(memory):
    return [(int(s.obs[0]), int(s.obs[1]), s.info.is_context) for s in memory.data]


def changing(change):
    """The memory, whose transitions `change` gets as lists."""

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
        assert [tuple(field.shape) for field in batch] == [
            (32, 2),
            (32, 1),
            (32,),
            (32, 2),
            (32,),
            (32,),
        ]
        assert {field.dtype for field in batch} == {torch.float32}


def test_an_item_that_ends_in_a_reset_stands_for_another():
    memory = filled()
    assert memory.get_transition(10)[-1].is_reset
    assert memory[10][3][1] % 11


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


@pytest.mark.parametrize("info", [{}, None, "gone"])
def test_a_dropped_info_is_refused_with_the_way_out(info):
    forgetful = changing(lambda transition: (*transition[:6], info))
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
        (lambda t: (1, 2), r"expected \(last_obs, act"),
        (lambda t: None, r"expected \(last_obs, act"),
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


def test_preprocessors_run_on_both_observations_then_on_the_six():
    def shifted(obs):
        return obs + 1000

    def negative(last_obs, act, rew, obs, terminated, truncated):
        return last_obs, act, -rew, obs, terminated, truncated

    batch = filled(obs_preprocessor=shifted, sample_preprocessor=negative).sample()
    assert torch.equal(batch.next_obs[:, 1], 1000 - batch.rew)
    assert torch.equal(batch.obs[:, 1], batch.next_obs[:, 1] - 1)
    with pytest.raises(MemoryContractError, match=r"sample_preprocessor returned 5 items.*`done`"):
        filled(sample_preprocessor=lambda *six: six[:5]).sample()


def test_structures_and_dtypes_survive_collation():
    def rich(transition):
        obs = {"a": np.ones(2), "b": [np.uint8(7), (7, 0.5, True)], "c": torch.ones(3)}
        return obs, np.int64(1), np.float64(0.1), obs, np.True_, False, Info()

    batch = filled(cls=changing(rich), batch_size=4).sample()
    assert batch.obs["a"].dtype == torch.float64
    assert batch.obs["b"][0].dtype == torch.uint8
    assert [leaf.dtype for leaf in batch.obs["b"][1]] == [torch.int64, torch.float64, torch.bool]
    assert batch.obs["c"].shape == (4, 3)
    assert batch.rew.dtype == batch.terminated.dtype == torch.float32
    assert batch.terminated.tolist() == [1.0] * 4


def test_collate_can_be_replaced_and_may_return_a_plain_tuple():
    class Own(ListMemory):
        def collate(self, batch, device):
            return tuple(zip(*batch, strict=True))

    batch = filled(cls=Own, batch_size=3).sample()
    assert type(batch) is Batch
    assert len(batch.rew) == 3


def test_the_constructor_takes_positions_in_the_documented_order():
    memory = ListMemory("cpu", 2, None, None, 1e6, 64.0, "", False)
    assert (memory.nb_steps, memory.memory_size, memory.batch_size) == (2, 1_000_000, 64)
    assert memory.data == []


def test_the_batch_size_may_change_while_training_and_nothing_else():
    memory = filled(batch_size=8)
    memory.tune(batch_size=5)
    assert len(memory.sample().rew) == 5
    for wrong in ({"batch_size": 0}, {"batch_size": 2.5}, {"memory_size": 10}):
        with pytest.raises(ConfigError, match=f"^{next(iter(wrong))} "):
            memory.tune(**wrong)
    assert memory.batch_size == 5


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


# -- CRC debugging ---------------------------------------------------------------------------------


def test_crc_debugging_needs_the_worker_to_take_part():
    with pytest.raises(MemoryContractError, match="worker too"):
        filled(crc_debug=True).sample()


@pytest.mark.parametrize(("level", "lines"), [(logging.INFO, 1), (logging.DEBUG, 201)])
def test_crc_debugging_says_that_it_passed_now_and_then_and_at_debug_level_for_each_transition(
    caplog, level, lines
):
    found = samples(50)
    for sample, before in zip(found, [None, *found[:-1]], strict=True):
        sample.info.original = (
            before and before.obs,
            sample.act,
            sample.rew,
            *sample[1:2],
            *sample[3:5],
        )
    memory = ListMemory(crc_debug=True, batch_size=200)
    memory.append(Buffer(found, "a"))
    with caplog.at_level(level):
        memory.sample()
    assert memory.crc_checked == 200
    assert len(caplog.records) == lines
    assert all(r.message.startswith("CRC check") for r in caplog.records)


# -- several workers -------------------------------------------------------------------------------


def test_one_stream_passes_through_at_once():
    memory = ListMemory()
    for k in range(30):
        memory.append(Buffer(samples(1, first=k), "a"))
        assert len(memory.data) == k + 1
    assert not any(is_context for *_, is_context in held_by(memory))


@pytest.mark.parametrize(("episode", "packets"), [(ONE_EPISODE, (40, 30)), (10, (11, 5))])
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
    new, repeated, more = held_by(memory)[20:84], held_by(memory)[84:100], held_by(memory)[100:]
    assert new == [(1, k, k < 16) for k in range(64)]
    assert repeated == [(0, k, True) for k in range(4, 20)]
    assert more == [(0, k, False) for k in range(20, 84)]
    assert memory.data[84].info["k"] == 4
    assert memory.data[84 + 7].info.is_reset, "the past looks as it was"


def test_a_stream_of_few_samples_gets_the_rest_of_its_context_from_what_follows():
    memory = filled(5)
    memory.append(Buffer(samples(64, 1), "b"))
    memory.append(Buffer(samples(64, 0, first=5), "a"))
    assert held_by(memory)[69:] == [(0, k, k < 16) for k in range(69)]


def test_flush_puts_everything_in():
    memory = filled(20)
    memory.append(Buffer(samples(3, 1), "b"))
    memory.append(Buffer(samples(4, 2), "c"))
    for stream, held in (("c", 24), ("nobody", 24), (None, 27)):
        memory.flush(*filter(None, [stream]))
        assert len(memory.data) == held


def test_what_is_held_is_bounded():
    memory = filled(1)
    for stream in range(200):
        memory.append(Buffer(samples(60, stream, episode=ONE_EPISODE), f"s{stream}"))
        assert 60 * (stream + 1) + 1 - len(memory.data) <= 4096
    assert 60 * 200 + 1 - len(memory.data) > 4096 - 60


def test_the_context_length_can_be_set_on_class_and_instance():
    memory = ListMemory()
    memory.context_length, memory.min_run = 2, 3
    for k in range(4):
        for worker in (0, 1):
            memory.append(
                Buffer(samples(3, worker, first=3 * k, episode=ONE_EPISODE), f"w{worker}")
            )
    contexts = [(worker, k) for worker, k, is_context in held_by(memory) if is_context]
    assert contexts[:6] == [(1, 0), (1, 1), (0, 1), (0, 2), (1, 1), (1, 2)]


def test_a_memory_that_handles_streams_gets_every_buffer_as_it_comes():
    class Direct(ListMemory):
        handles_streams = True

    memory = filled(5, cls=Direct)
    memory.append(Buffer(samples(1, 1), "b"))
    assert len(memory.data) == 6


# -- data sets -------------------------------------------------------------------------------------


def test_a_data_set_is_read_by_folder_or_file(tmp_path):
    assert write_data_set(tmp_path / "set", [Buffer(samples(60), "a")]) == 60
    (file,) = (tmp_path / "set").glob("*.log")
    for path in (tmp_path / "set", file, str(file)):
        assert held_by(ListMemory(dataset_path=path)) == held_by(filled(60))


def test_a_long_buffer_is_written_as_packets_of_moderate_size(tmp_path):
    image = np.zeros((64, 64), np.uint8)
    frames = [Sample(k, image, 0.0, False, False, Info()) for k in range(200)]
    assert write_data_set(str(tmp_path), [Buffer(frames, "a")]) == 200
    (file,) = tmp_path.glob("*.log")
    packets = [packet.samples for packet, *_ in read_file(file).packets()]
    assert len(packets) > 2
    assert max(packets) <= 256 * 1024 // image.nbytes
    (buffer,) = read_data_set(tmp_path)
    assert [sample.act for sample in buffer.memory] == list(range(200))


def test_streams_of_a_data_set_are_kept_apart_and_what_follows_begins_with_context(tmp_path):
    write_data_set(
        tmp_path,
        [Buffer(samples(70, worker, episode=ONE_EPISODE), f"w{worker}") for worker in (0, 1)],
    )
    memory = ListMemory(dataset_path=tmp_path)
    expected = [(0, k, False) for k in range(70)] + [(1, k, k < 16) for k in range(70)]
    assert held_by(memory) == expected
    memory.append(Buffer(samples(64, 2), "w0"))
    assert held_by(memory)[140:] == [(2, k, k < 16) for k in range(64)]


def test_a_data_set_that_is_missing_and_one_that_is_pickled_are_one_clear_line(tmp_path):
    (tmp_path / "data.pkl").write_bytes(b"cos\nsystem\n")
    for path, match in (
        ("nowhere", r"there is no data set at .*nowhere: expected a folder"),
        ("", r"is a pickle.*tmrl-like record"),
        ("data.pkl", r"is a pickle.*tmrl-like record"),
    ):
        with pytest.raises(ConfigError, match=match):
            ListMemory(dataset_path=tmp_path / path)


def test_a_data_set_is_not_written_over(tmp_path):
    write_data_set(tmp_path, [Buffer(samples(3), "a")])
    with pytest.raises(ConfigError, match="holds samples already"):
        write_data_set(tmp_path, [Buffer(samples(3), "a")])


def test_a_data_set_of_another_wire_version_is_one_clear_line(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("tmrl_like.wire.messages.WIRE_VERSION", 1)
        write_data_set(tmp_path, [Buffer(samples(3), "a")])
    with pytest.raises(CheckpointError, match="cannot be read: it holds wire version 1"):
        ListMemory(dataset_path=tmp_path)


def test_a_data_set_that_does_not_fit_is_one_clear_line(tmp_path):
    write_data_set(tmp_path, [Buffer([Sample("left", 0.0, 0.0, False, False, Info())] * 2, "a")])
    with pytest.raises(
        CheckpointError, match="does not fit this ReplayMemory: act is a Python str"
    ):
        ReplayMemory(dataset_path=tmp_path)
