import errno
import gc
from functools import partial
from itertools import pairwise

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.memories import arriving, assert_a_batch_is_what_the_items_are, gather
from list_memory import ListMemory

from tmrl_like.base import tree
from tmrl_like.errors import ConfigError, EncodingError, MemoryContractError, PipelineMismatchError
from tmrl_like.replay import DropHistory, ReplayMemory, check_transition, compressor_of
from tmrl_like.replay.crc import first_difference
from tmrl_like.testing.memories import ActionBufferEnv, packed
from tmrl_like.types import Buffer, Info, Sample

LENGTH = 3


def columns_of(memory, *fields):
    """What it has stored, of some fields or all."""
    table = memory._rebuilder.table
    return [column for name in fields or table.fields for column in table.fields[name].columns]


def compress(sample):
    return DropHistory(LENGTH)(*sample)


def filled(steps=200, **kwargs):
    kwargs = {"act_buf_len": LENGTH, "batch_size": 50, **kwargs}
    memory = ReplayMemory(**kwargs)
    memory.append(packed(ActionBufferEnv(1, LENGTH).take(steps), "w", compress, memory.crc_debug))
    return memory


def rows(samples, reset_at=(0,)):
    """A buffer of plain samples: (act, obs, rew)."""
    return Buffer([Sample(a, o, r, False, False, Info(is_reset=k in reset_at)) for k, (a, o, r) in enumerate(samples)])


def test_a_batch_is_bit_for_bit_what_the_items_are():
    assert_a_batch_is_what_the_items_are(filled())


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    workers=st.integers(1, 3),
    memory_size=st.integers(1, 90),
    reset_act_buf=st.booleans(),
    last_act_on_reset=st.booleans(),
    longest_episode=st.integers(1, 8),
    first=st.integers(0, 5),
    act_buf_len=st.integers(0, 5),
    frame_stack=st.integers(0, 5),
    frame_padding=st.sampled_from(["reset", "zero"]),
)
def test_any_packets_of_any_workers_in_any_ring_are_rebuilt_and_none_is_missed(
    sizes,
    workers,
    memory_size,
    reset_act_buf,
    last_act_on_reset,
    longest_episode,
    first,
    act_buf_len,
    frame_stack,
    frame_padding,
):
    memory = ReplayMemory(
        memory_size=memory_size,
        act_buf_len=act_buf_len,
        frame_stack={1: frame_stack} if frame_stack else 0,
        frame_padding=frame_padding,
        crc_debug=True,
    )
    drop = DropHistory(act_buf_len, memory.options.frame_stack)
    env = {
        "act_buf_len": act_buf_len,
        "reset_act_buf": reset_act_buf,
        "last_act_on_reset": last_act_on_reset,
        "longest_episode": longest_episode,
        "frame_stack": frame_stack,
        "frame_padding": frame_padding,
    }
    arrived = []
    for worker, steps in arriving(workers, sizes, memory_size, first=first, **env):
        memory.append(packed(steps, f"w{worker}", lambda sample: drop(*sample)))
        arrived += [(worker, step) for step in steps]
        rebuilt = [memory.get_transition(k) for k in range(len(memory))]
        for transition in rebuilt:
            check_transition(transition[-1].original, transition)
    found = [tuple(transition[3][0].tolist()) for transition in rebuilt]
    assert_a_batch_is_what_the_items_are(memory)
    kept = arrived[-memory_size:]
    whole = whole_transitions(kept, act_buf_len, 1) & whole_transitions(kept, frame_stack, 10**6)
    assert sorted(found) == sorted(whole)


def whole_transitions(kept, history, after_reset):
    """Which steps, of those still in the ring, end a transition whose history is certain to be there.

    Counted the slow way: a row more is known after each, and `after_reset` rows at least after a reset.
    """
    ends = set()
    known = {}
    for worker, step in kept:
        before = known.get(worker)
        if before is not None and before >= history and not step.is_reset:
            ends.add(tuple(step.sample.obs[0].tolist()))
        known[worker] = max((before or 0) + 1, after_reset * step.is_reset)
    return ends


def test_each_frame_and_action_is_stored_once_in_its_own_dtype():
    memory = filled(10_000, memory_size=10_000)
    stored = sum(column.array.nbytes for column in columns_of(memory))
    payload = 8 + 8 + 6 + 8 + 4 + 2
    assert stored == 10_000 * payload


def test_dtypes_and_structure_reach_the_batch():
    batch = filled().sample()
    kinds = [(leaf.dtype, tuple(leaf.shape)) for leaf in batch.next_obs]
    actions = [(torch.float32, (50, 2))] * LENGTH
    assert kinds == [(torch.float32, (50, 2)), (torch.uint8, (50, 2, 3)), (torch.float64, (50,)), *actions]
    assert [field.dtype for field in (batch.rew, batch.terminated, batch.truncated)] == [torch.float32] * 3
    assert all(leaf.is_contiguous() for leaf in (*batch.obs, *batch.next_obs, batch.act))


def test_changing_a_tensor_of_a_batch_in_place_changes_no_other():
    batch = filled().sample()
    tensors = [*batch.obs, *batch.next_obs, batch.act, batch.rew, batch.terminated, batch.truncated]
    before = [tensor.clone() for tensor in tensors]
    for k, tensor in enumerate(tensors):
        tensor.zero_()
        assert all(torch.equal(a, b) for a, b in zip(tensors[k + 1 :], before[k + 1 :], strict=True))


@pytest.mark.parametrize("n_steps", [1, 3])
def test_batches_drawn_together_hold_what_is_drawn_one_by_one(n_steps):
    memory = filled(n_steps=n_steps, gamma=0.9)
    drawn = []
    memory.sample_indices = lambda: drawn.append(memory.rng.integers(0, len(memory), memory.batch_size)) or drawn[-1]
    batches = [memory.sample() for _ in range(31)]
    given_out = [
        drawn[first + k] for first, n in ((0, 1), (1, 2), (3, 4), (7, 8), (15, 8), (23, 8)) for k in range(n)[::-1]
    ]
    for items, batch in zip(given_out, batches, strict=True):
        expected = gather(memory, items)
        for tensor, other in zip(tree.leaves(tuple(batch)), tree.leaves(tuple(expected)), strict=True):
            assert torch.equal(tensor, other)
        assert (batch.discount is None) if n_steps == 1 else torch.equal(batch.discount, expected.discount)


def test_samples_that_come_are_drawn_from_with_the_next_batch():
    memory = ReplayMemory(batch_size=50)
    memory.append(rows([(0, 0.0, 0.0)] * 3))
    for _ in range(5):
        memory.sample()
    memory.append(rows([(0, 1.0, 1.0)] * 300, reset_at=()))
    assert memory.sample().rew.any()


def test_another_batch_size_and_another_seed_hold_from_the_next_batch():
    memory, other = filled(), filled()
    for _ in range(2):  # one more has been drawn
        memory.sample()
    memory.batch_size = other.batch_size = 20
    assert len(memory.sample().rew) == 20
    memory.seed(1)
    other.seed(1)
    assert torch.equal(memory.sample().rew, other.sample().rew)


def test_a_wrong_act_buf_len_is_found_by_crc_debugging():
    memory = filled(crc_debug=True, act_buf_len=LENGTH - 1)
    with pytest.raises(PipelineMismatchError, match="last_obs"):
        memory.sample()


@pytest.mark.parametrize("is_batched", [False, True])
def test_preprocessors_see_raw_observations_after_the_check(is_batched):
    def only_reading(obs):
        return obs[2] * 2

    def negative(last_obs, act, rew, obs, terminated, truncated):
        return last_obs, act, -rew, obs, terminated, truncated

    only_reading.batched = negative.batched = is_batched
    plain = filled()
    memory = filled(obs_preprocessor=only_reading, sample_preprocessor=negative, crc_debug=not is_batched)
    plain.seed(3)
    memory.seed(3)
    expected, batch = plain.sample(), memory.sample()
    assert torch.equal(batch.obs, expected.obs[2] * 2)
    assert torch.equal(batch.next_obs, expected.next_obs[2] * 2)
    assert torch.equal(batch.rew, -expected.rew)


def test_observations_need_not_be_tuples():
    memory = ReplayMemory(batch_size=4)
    memory.append(rows([(0, {"x": np.float32(k), "y": [np.ones(2), k]}, 0) for k in range(6)]))
    batch = memory.sample()
    assert batch.obs["x"].dtype == torch.float32
    assert batch.obs["y"][1].dtype == batch.act.dtype == torch.int64
    assert batch.obs["y"][0].shape == (4, 2)
    assert memory.get_transition(0).last_obs["y"][1] == 0


def test_whole_rewards_that_become_fractions_are_kept_exactly():
    memory = ReplayMemory()
    memory.append(rows([(0, 0, 0), (0, 1, 1), (0, 2, 1)]))
    memory.append(rows([(0, 3, 0.25)], reset_at=()))
    assert [memory.get_transition(k).rew for k in range(3)] == [1, 1, 0.25]


@pytest.mark.parametrize("first", [0.0, np.zeros(1)])
def test_a_reward_may_be_a_number_or_an_array_of_one(first):
    memory = ReplayMemory(batch_size=8)
    memory.append(rows([(0, np.zeros(2), first), (1, np.ones(2), first)]))
    for rew in (2.0, np.full(1, 3.0), np.full((1, 1), 4.0)):
        memory.append(rows([(1, np.ones(2), rew), (1, np.ones(2), rew)], reset_at=()))
    rewards = [np.asarray(memory.get_transition(k).rew).item() for k in range(len(memory))]
    assert rewards == [0.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0]


def test_a_default_action_of_another_float_type_is_cast():
    memory = ReplayMemory()
    memory.append(rows([(np.zeros(2), np.ones(1), 0.0)]))
    assert len(memory) == 0
    memory.append(rows([(np.ones(2, np.float32), np.ones(1), np.float32(2))], reset_at=()))
    assert memory.get_transition(0).act.dtype == np.float32
    assert type(memory.get_transition(0).rew) is np.float32


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        (np.ones(2, np.float64), r"obs\[0\] began as float32 \(2,\) and is now float64"),
        (np.ones(3, np.float32), r"obs\[0\].*\(3,\)"),
        ((np.ones(2, np.float32),), "structure"),
    ],
)
def test_an_observation_that_changes_is_refused_by_name(obs, message):
    memory = ReplayMemory()
    good = (np.ones(2, np.float32),)
    memory.append(rows([(0, good, 0.0), (0, good, 0.0)]))
    with pytest.raises(MemoryContractError, match=message):
        memory.append(rows([(0, (obs,), 0.0)], reset_at=()))
    assert len(memory) == 1


GOOD = [(0, np.ones(2, np.float32), 1), (0, np.ones(2, np.float32), 1)]


@pytest.mark.parametrize(
    "wrong",
    [
        (0, np.ones(2), 0.5),
        (0, np.ones(2, np.float32), (0.5,)),
        (0, np.ones(2, np.float32), "good"),
        (0, np.ones(2, np.float32), np.ones(2)),
    ],
    ids=["observation", "tuple", "text", "array"],
)
def test_of_a_buffer_that_does_not_fit_nothing_is_stored(wrong):
    memory = ReplayMemory(memory_size=4)
    memory.append(rows(GOOD))
    before = repr([memory.get_transition(k) for k in range(len(memory))])
    with pytest.raises(MemoryContractError, match=r"rew|obs"):
        memory.append(Buffer(rows([(0, np.ones(2, np.float32), 0.5)] * 4 + [wrong], reset_at=()).memory, "other"))
    assert repr([memory.get_transition(k) for k in range(len(memory))]) == before
    memory.append(rows([(0, np.ones(2, np.float32), 3)] * 2, reset_at=()))
    assert [memory.get_transition(k).rew for k in range(3)] == [1, 3, 3]


def test_a_flag_that_is_not_a_single_number_is_refused():
    memory = ReplayMemory()
    memory.append(rows(GOOD))
    sample = Sample(0, np.ones(2, np.float32), 1, np.zeros(2, bool), False, Info())
    with pytest.raises(MemoryContractError, match="terminated"):
        memory.append(Buffer([sample], "a"))
    assert len(memory) == 1


@pytest.mark.parametrize("rew", [np.zeros(2), (0.0, 0.0)])
def test_a_reward_that_begins_as_several_numbers_is_refused(rew):
    with pytest.raises(MemoryContractError, match="rew is not a single number but"):
        ReplayMemory().append(rows([(0, np.ones(2), rew)] * 2, reset_at=()))


def test_an_empty_memory_that_refused_a_buffer_takes_the_next_whatever_its_structure():
    memory = ReplayMemory(frame_stack={"camera": 2})
    memory.append(rows([(0, {"camera": np.ones(2)}, 0.0)]))
    with pytest.raises(MemoryContractError):
        memory.append(rows([(0, {"camera": np.ones(3)}, 0.0)] * 2))
    assert not memory.holds_samples
    memory.append(rows([(0, {"camera": np.ones(2)}, 0.0)] * 2, reset_at=()))
    assert memory.holds_samples
    assert len(memory) == 2


def test_text_in_an_observation_is_refused_by_name():
    with pytest.raises(MemoryContractError, match=r"obs\['name'\] is a Python str"):
        ReplayMemory().append(rows([(0, {"name": "a"}, 0.0)] * 2))


def test_an_action_buffer_needs_tuple_observations():
    with pytest.raises(MemoryContractError, match="not a tuple"):
        ReplayMemory(act_buf_len=1).append(rows([(0, np.ones(1), 0.0)] * 2))


def test_items_outside_are_refused():
    with pytest.raises(IndexError, match="item 5"):
        ReplayMemory().get_transition(5)


def test_impossible_numbers_are_refused():
    for wrong in ({"act_buf_len": -1}, {"memory_size": 0}, {"memory_size": 2**31}, {"batch_size": 1.5}):
        with pytest.raises(ConfigError):
            ReplayMemory(**wrong)


def test_the_compressor_cuts_the_action_buffer_off_and_refuses_what_has_none():
    assert DropHistory(2)(0, (1, 2, 3), 0.0, False, False, {})[1] == (1,)
    assert DropHistory(0)(0, (1, 2), 0.0, False, False, {})[1] == (1, 2)
    for obs in ((1, 2), [1, 2, 3], np.ones(5)):
        with pytest.raises(MemoryContractError, match="the compressor got an observation"):
            DropHistory(2)(0, obs, 0.0, False, False, {})
    with pytest.raises(ConfigError):
        DropHistory(-1)


def stacked_buffer(observations, frame_stack, stream="w"):
    """Plain samples through the compressor, the first a reset."""
    compress = DropHistory(frame_stack=frame_stack)
    samples = [compress(0, obs, 0.0, False, False, Info(is_reset=k == 0)) for k, obs in enumerate(observations)]
    return Buffer(samples, stream)


@pytest.mark.parametrize("padding", ["reset", "zero"])
@pytest.mark.parametrize("shape", [(2,), (3, 2, 2)])
def test_gymnasiums_stack_of_frames_is_rebuilt(padding, shape):
    class Counting(gymnasium.Env):
        observation_space = gymnasium.spaces.Dict({"camera": gymnasium.spaces.Box(0, 255, shape, np.uint8)})
        action_space = gymnasium.spaces.Discrete(2)
        count = 0

        def observe(self):
            self.count += 1
            return {"camera": np.full(shape, self.count, np.uint8)}

        def reset(self, **_):
            return self.observe(), {}

        def step(self, action):
            return self.observe(), 0.0, False, False, {}

    env = gymnasium.wrappers.FrameStackObservation(Counting(), 4, padding_type=padding)
    memory = ReplayMemory(frame_stack={"camera": 4}, frame_padding=padding, batch_size=200)
    produced = []
    for _ in range(3):
        episode = [env.reset()[0]]
        episode += [env.step(0)[0] for _ in range(6)]
        memory.append(stacked_buffer(episode, {"camera": 4}))
        produced += pairwise(episode)
    assert len(memory) == len(produced)
    for item, (last_obs, obs) in enumerate(produced):
        transition = memory.get_transition(item)
        check_transition((last_obs, 0, 0.0, obs, False, False), transition)
    assert_a_batch_is_what_the_items_are(memory)
    assert memory.sample().obs["camera"].shape == (200, 4, *shape)


def test_an_observation_can_be_a_stack_of_numbers_and_each_is_stored_once():
    values = np.arange(50, dtype=np.float32)
    stacks = [values[np.maximum(0, np.arange(k - 2, k + 1))] for k in range(50)]
    memory = ReplayMemory(frame_stack=3, memory_size=50)
    memory.append(stacked_buffer(stacks, 3))
    assert columns_of(memory, "obs")[0].array.nbytes == 50 * 4
    for k in range(49):
        check_transition((stacks[k], 0, 0.0, stacks[k + 1], False, False), memory.get_transition(k))


def test_the_compressor_comes_from_the_memorys_own_arguments():
    arguments = {"act_buf_len": 2, "frame_stack": {0: 3}, "memory_size": 10}
    assert compressor_of(partial(ReplayMemory, **arguments)) == DropHistory(2, {0: 3})
    assert compressor_of(partial(ReplayMemory, act_buf_len=2)) == DropHistory(2)
    assert compressor_of(ReplayMemory) is None
    assert compressor_of(partial(ListMemory, memory_size=5)) is None


@pytest.mark.parametrize(
    ("frame_stack", "obs", "message"),
    [
        (4, np.ones((3, 2)), r"a stack of 4 frames, \[4, ...\]; it is an array \(3, 2\)"),
        (4, (np.ones(4),), "it is a tuple"),
        ({"a": 2}, np.ones(2), "no tuple or dict"),
        ({"a": 2}, {"b": np.ones(2)}, "names the item 'a'"),
        ({3: 2}, (np.ones(2),), "names the item 3.*a tuple of 1"),
        ({0: 2}, ([1, 2],), r"obs\[0\] is a stack.*it is a list"),
    ],
)
def test_an_observation_without_the_stack_is_refused(frame_stack, obs, message):
    with pytest.raises(MemoryContractError, match=message):
        DropHistory(frame_stack=frame_stack)(0, obs, 0.0, False, False, {})


@pytest.mark.parametrize("wrong", [{"frame_stack": -1}, {"frame_stack": {"a": 0}}, {"frame_stack": {"a": 1.5}}])
def test_stacks_that_cannot_be_are_refused(wrong):
    for cls in (DropHistory, ReplayMemory):
        with pytest.raises(ConfigError, match="frame_stack"):
            cls(**wrong)
    with pytest.raises(ConfigError, match="which item"):
        ReplayMemory(act_buf_len=1, frame_stack=2)
    with pytest.raises(ConfigError, match="frame_padding"):
        ReplayMemory(frame_padding="edge")


def test_a_memory_that_finds_no_stack_in_what_arrives_says_so():
    memory = ReplayMemory(frame_stack={"camera": 4})
    with pytest.raises(MemoryContractError, match=r"obs\['camera'\] .* the arrays are obs\['lidar'\]"):
        memory.append(rows([(0, {"lidar": np.ones(2)}, 0.0)] * 2))
    with pytest.raises(MemoryContractError, match="not a single array"):
        ReplayMemory(frame_stack={0: 4}).append(rows([(0, ((np.ones(2),),), 0.0)] * 2))


def test_a_memory_that_is_larger_than_the_machine_is_one_line(monkeypatch):
    def too_large(*_):
        raise MemoryError("Unable to allocate 25.7 GiB")

    monkeypatch.setattr("tmrl_like.replay.table.Column", too_large)
    with pytest.raises(ConfigError, match=r"memory_size 1,000 is more than fits here: Unable to allocate 25.7 GiB"):
        filled(memory_size=1000)


@pytest.mark.parametrize("obs", [np.array(["a", "b"]), np.array([1, 2], "M8[s]"), np.array([b"x"]), "text", b"x"])
def test_text_and_times_are_refused_as_observations(obs):
    memory = ReplayMemory()
    act = np.zeros(1, np.float32)
    with pytest.raises((MemoryContractError, EncodingError), match=r"stores arrays and numbers|obs has the dtype"):
        memory.append_buffer(rows([(act, obs, 0.0), (act, obs, 0.0)]))
    assert not memory.holds_samples
    number = np.zeros(2, np.float32)
    memory.append_buffer(rows([(act, number, 0.0), (act, number, 0.0)]))
    assert len(memory) == 1


def test_columns_in_scratch_files_give_the_same_samples_and_leave_nothing_behind(tmp_path):
    in_ram, on_disk = filled(), filled(scratch_dir=str(tmp_path))
    items = range(len(in_ram))
    assert all(first_difference(in_ram[k], on_disk[k], "item") is None for k in items)
    pairs = tree.walk(gather(in_ram, items), gather(on_disk, items))
    assert all(torch.equal(one, other) for _, one, other in pairs)
    del on_disk
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_a_scratch_disk_that_is_full_or_missing_is_one_clear_line(tmp_path, monkeypatch):
    def full(file, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tmrl_like.replay.table.allocate", full)
    with pytest.raises(ConfigError, match=r"scratch_dir does not take memory_size 7: .*No space left"):
        filled(memory_size=7, scratch_dir=str(tmp_path))
    with pytest.raises(ConfigError, match=r"there is no folder .*missing, which scratch_dir names"):
        ReplayMemory(scratch_dir=str(tmp_path / "missing"))
