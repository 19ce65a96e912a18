import math
from functools import partial
from itertools import pairwise
from unittest.mock import MagicMock

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.fakes import CountingEnv
from kit.memories import (
    arriving,
    assert_a_batch_is_what_the_items_are,
    gather,
    identity_of,
    steps_of_return,
)
from list_memory import ListMemory

from tmrl_like.base import tree
from tmrl_like.envs.robot import OtherTargets
from tmrl_like.errors import ConfigError, EncodingError, MemoryContractError, PipelineMismatchError
from tmrl_like.replay import (
    DropHistory,
    ReplayMemory,
    check_transition,
    compressor_of,
)
from tmrl_like.replay.table import Column
from tmrl_like.testing.memories import ActionBufferEnv, packed
from tmrl_like.types import Buffer, Info, Sample

LENGTH = 3
GAMMA = 0.9


def filled(steps=200, **options):
    memory = ReplayMemory(**{"act_buf_len": LENGTH, "batch_size": 50, **options})
    memory.append(
        packed(ActionBufferEnv(1, LENGTH).take(steps), "w", DropHistory(LENGTH), memory.crc_debug)
    )
    return memory


def rows(samples, reset_at=(0,), stream=""):
    """Return a buffer of samples given as (act, obs, rew)."""
    found = [
        Sample(a, o, r, False, False, Info(is_reset=k in reset_at))
        for k, (a, o, r) in enumerate(samples)
    ]
    return Buffer(found, stream)


# -- what comes back -------------------------------------------------------------------------------


def whole_transitions(kept, history, after_reset):
    """Return where the steps begin that end a transition with a complete history, among those still
    in the ring.

    Counted the slow way: each step adds a known row, and a reset makes at least `after_reset` rows
    known.
    """
    begun, known = set(), {}
    for stream, step in kept:
        before = known.get(stream)
        if before is not None and before >= history and not step.is_reset:
            begun.add(identity_of(step.last_obs))
        known[stream] = max((before or 0) + 1, after_reset * step.is_reset)
    return begun


def n_step_returns(streams, n_steps, greedy_only):
    """Return the steps that make up each n-step return, by the observation in which it begins."""
    return {
        identity_of(step.last_obs): steps_of_return(steps, row, n_steps, greedy_only)
        for steps in streams.values()
        for row, step in enumerate(steps)
        if not step.is_reset
    }


@settings(max_examples=50)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    workers=st.integers(1, 3),
    first=st.integers(0, 5),
    lost=st.sets(st.integers(0, 30), max_size=5),
    packets=st.integers(1, 60),
    options=st.fixed_dictionaries(
        {
            "memory_size": st.integers(1, 90),
            "n_steps": st.integers(1, 6),
            "greedy_only": st.booleans(),
            "crc_debug": st.booleans(),
        }
    ),
    env=st.fixed_dictionaries(
        {
            "reset_act_buf": st.booleans(),
            "last_act_on_reset": st.booleans(),
            "longest_episode": st.integers(1, 8),
            "act_buf_len": st.integers(0, 5),
            "frame_stack": st.integers(0, 5),
        }
    ),
)
def test_any_packets_of_any_workers_in_any_ring_are_rebuilt_and_none_is_missed(
    sizes, workers, first, lost, packets, options, env
):
    actions, frames = env["act_buf_len"], env["frame_stack"]
    history = {"act_buf_len": actions, "frame_stack": {1: frames} if frames else 0}
    memory = ReplayMemory(**history, **options, gamma=GAMMA)
    compress, arrived, streams, breaks = DropHistory(**history), [], {}, [0] * workers
    coming = list(arriving(workers, sizes, options["memory_size"], first=first, **env))
    for number, (worker, steps) in enumerate(coming[:packets]):
        if number in lost:
            breaks[worker] += 1
            continue
        stream = f"w{worker}/{breaks[worker]}"
        memory.append(packed(steps, stream, compress))
        arrived += [(stream, step) for step in steps]
        streams.setdefault(stream, []).extend(steps)
    expected = n_step_returns(streams, options["n_steps"], options["greedy_only"])
    batch, found = assert_a_batch_is_what_the_items_are(memory), []
    for item in range(len(memory)):
        transition = memory.get_transition(item)
        found.append(identity_of(transition.last_obs))
        steps = expected[found[-1]]
        last_obs, act, rew = steps[0].original[:3]
        if options["n_steps"] > 1:
            rew = 0.0
            for k, step in enumerate(steps):  # not `sum`, which compensates from Python 3.12 on
                rew += GAMMA**k * float(step.sample.rew)
            assert batch.discount[item] == np.float32(GAMMA ** len(steps))
        check_transition((last_obs, act, rew, *steps[-1].original[3:]), transition)
        memory[item]
    kept = arrived[-options["memory_size"] :]
    whole = whole_transitions(kept, actions, 1) & whole_transitions(kept, frames, 10**6)
    assert sorted(found) == sorted(whole)


def test_changing_a_tensor_of_a_batch_in_place_changes_no_other():
    batch = filled().sample()
    tensors = [*tree.leaves(tuple(batch))]
    before = [tensor.clone() for tensor in tensors]
    for k, tensor in enumerate(tensors, start=1):
        tensor.zero_()
        assert all(map(torch.equal, tensors[k:], before[k:]))


def test_batches_drawn_together_hold_what_is_drawn_one_by_one():
    memory = filled(n_steps=3, gamma=0.9)
    items = {identity_of(memory.get_transition(item).last_obs): item for item in range(len(memory))}
    seen = set()
    for batch in [memory.sample() for _ in range(31)]:
        drawn = [items[tuple(identity)] for identity in batch.obs[0].tolist()]
        assert tuple(drawn) not in seen, "the same batch twice"
        seen.add(tuple(drawn))
        expected = gather(memory, drawn)
        pairs = tree.walk((*batch, batch.discount), (*expected, expected.discount))
        assert all(torch.equal(one, other) for _, one, other in pairs)


def test_new_samples_another_batch_size_and_another_seed_hold_from_the_next_batch():
    memory, other = filled(20), filled(20)
    for _ in range(2):  # by then a third batch has been drawn ahead
        memory.sample()
    for one in (memory, other):
        one.append(packed(ActionBufferEnv(2, LENGTH).take(300), "v", DropHistory(LENGTH)))
    assert 2.0 in memory.sample().next_obs[0][:, 0]
    memory.batch_size = other.batch_size = 30
    assert len(memory.sample().rew) == 30
    memory.seed(1)
    other.seed(1)
    assert torch.equal(memory.sample().rew, other.sample().rew)


@pytest.mark.parametrize("kind", [partial(ReplayMemory, act_buf_len=4), ListMemory])
@pytest.mark.parametrize("of_batches", ["", "samples", "observations and samples"])
def test_preprocessors_get_raw_transitions_or_where_they_say_so_whole_batches(kind, of_batches):
    sizes = set()

    def only_reading(obs):
        return obs[2] * 2

    def negative(last_obs, act, rew, *others):
        sizes.add(torch.as_tensor(rew).numel())
        return last_obs, act, -rew, *others

    only_reading.batched, negative.batched = "observations" in of_batches, bool(of_batches)
    preprocessors = {"obs_preprocessor": only_reading, "sample_preprocessor": negative}
    plain, memory = kind(batch_size=40), kind(batch_size=40, **preprocessors, crc_debug=True)
    for one in (plain, memory):
        one.append(packed(ActionBufferEnv(1).take(100), "w", DropHistory(4)))
        one.seed(3)
    expected, batch = plain.sample(), memory.sample()
    assert torch.equal(batch.obs, expected.obs[2] * 2)
    assert torch.equal(batch.next_obs, expected.next_obs[2] * 2)
    assert torch.equal(batch.rew, -expected.rew)
    assert sizes == {40 if of_batches else 1}
    assert len(memory[0]) == 6


def test_a_sample_preprocessor_that_returns_a_single_done_is_told_how_it_split():
    with pytest.raises(MemoryContractError, match=r"sample_preprocessor returned 5 items.*`done`"):
        filled(sample_preprocessor=lambda *six: six[:5]).sample()


def test_a_wrong_act_buf_len_is_found_by_crc_debugging():
    with pytest.raises(PipelineMismatchError, match="last_obs"):
        filled(crc_debug=True, act_buf_len=LENGTH - 1).sample()


@pytest.mark.parametrize("first", [0, 0.0, np.zeros(1)])
def test_a_reward_may_be_a_number_or_an_array_of_one(first):
    memory = ReplayMemory()
    memory.append(rows([(0, 0.0, first)] * 2))
    for rew in (0.25, 2, np.full(1, 3.0), np.full((1, 1), 4.0)):
        memory.append(rows([(1, 1.0, rew)], reset_at=()))
    found = [float(np.squeeze(memory.get_transition(k).rew)) for k in range(len(memory))]
    assert found == [0.0, 0.25, 2.0, 3.0, 4.0]


def test_a_flag_of_another_type_becomes_one_of_the_first_ones():
    memory = ReplayMemory()
    memory.append(rows([(0, 0.0, 0.0)] * 2))
    (last,) = rows([(1, 1.0, 1.0)], reset_at=())
    memory.append(Buffer([last._replace(terminated=2)]))
    assert [memory.get_transition(k).terminated for k in range(2)] == [False, True]
    assert type(memory.get_transition(0).terminated) is bool


def test_a_dict_may_have_its_keys_in_another_order():
    memory = ReplayMemory()
    seen = [{"a": 1.0, "b": (2.0,)}, {"b": (3.0,), "a": 4.0}]  # a data set's, a worker's
    for k, obs in enumerate(seen):
        memory.append(rows([(0, obs, 0.0)] * 2, stream=str(k)))
    assert [memory.get_transition(k).obs for k in range(2)] == seen


def test_items_outside_are_refused():
    with pytest.raises(IndexError, match="item 5"):
        ReplayMemory().get_transition(5)


# -- what it refuses -------------------------------------------------------------------------------

GOOD = (0, (np.ones(2, np.float32),), 1)
OBS = GOOD[1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"obs": (np.ones(2),)}, r"obs\[0\] began as float32 \(2,\) and is now float64"),
        ({"obs": (np.ones(3, np.float32),)}, r"obs\[0\].*\(3,\)"),
        ({"obs": (OBS,)}, "structure"),
        ({"rew": np.ones(2)}, "rew"),
        ({"terminated": np.zeros(2, bool)}, "terminated"),
    ],
)
def test_what_changes_is_refused_by_name_and_nothing_of_its_buffer_is_stored(wrong, message):
    memory = ReplayMemory(memory_size=4)
    memory.append(rows([GOOD] * 2))
    before = repr(memory.get_transition(0))
    fits = rows([(0, OBS, 0.5)] * 4, reset_at=()).memory
    with pytest.raises(MemoryContractError, match=message):
        memory.append(Buffer([*fits, fits[0]._replace(**wrong)], "other"))
    assert (len(memory), repr(memory.get_transition(0))) == (1, before)


CAMERA = {"frame_stack": {"camera": 4}}


@pytest.mark.parametrize(
    ("options", "sample", "message"),
    [
        ({}, (0, {"name": "a"}, 0.0), r"obs\['name'\] is a Python str"),
        ({}, (0, np.array(["a", "b"]), 0.0), "stores arrays and numbers|obs has the dtype"),
        ({"act_buf_len": 1}, (0, np.ones(1), 0.0), "not a tuple"),
        (CAMERA, (0, {"lidar": 0}, 0.0), r"obs\['camera'\] .* the arrays are obs\['lidar'\]"),
        ({"frame_stack": {0: 4}}, (0, ((np.ones(2),),), 0.0), "not a single array"),
        ({}, (0, 0.0, np.zeros(2)), "rew is not a single number but"),
    ],
)
def test_samples_that_no_memory_with_its_arguments_can_hold_are_refused_by_name(
    options, sample, message
):
    memory = ReplayMemory(**options)
    with pytest.raises((MemoryContractError, EncodingError), match=message):
        memory.append(rows([sample] * 2))
    assert not memory.holds_samples


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"act_buf_len": 2.5}, "act_buf_len is 2.5; expected a whole number"),
        ({"columns": "speed"}, "columns is 'speed'; expected a list of names"),
        ({"memory_size": 0}, "memory_size"),
        ({"batch_size": None}, "batch_size is None; expected a number, 1 or more"),
        ({"frame_stack": {"a": 1.5}}, "frame_stack"),
        ({"act_buf_len": 1, "frame_stack": 2}, "which item"),
        ({"n_steps": 0}, "n_steps is"),
        ({"n_steps": 3}, "there is no gamma"),
        ({"gamma": 1.5}, "gamma is"),
        (
            {"gamma": 0.9, "n_steps": 3, "sample_preprocessor": OtherTargets()},
            "n_steps is 3; expected 1: the sample_preprocessor makes rewards of one step",
        ),
        ({"shaping": 1.0}, "there is no gamma"),
        ({"gamma": 0.9, "shaping": math.nan}, "shaping is nan; expected -1000000.0 to"),
        ({"gamma": 1.0, "mini_races": 0.0}, "mini_races is 0"),
        ({"gamma": 1.0, "mini_races": math.inf}, "mini_races is inf"),
        ({"mini_races": 7.0}, "mini-races the memory needs the agent's gamma"),
        ({"gamma": 1.0, "mini_races": 7.0}, "mini-races of 7 s need the environment's"),
        ({"held_out": 1.0}, "held_out is 1"),
        ({"held_out": 0.004}, "held_out is 0.004; expected 0, or 0.005 to below 0.995"),
    ],
)
def test_arguments_that_cannot_be_are_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        ReplayMemory(**wrong)


def test_columns_that_are_larger_than_ram_are_one_line(monkeypatch):
    error = MemoryError("Unable to allocate 25.7 GiB")
    monkeypatch.setattr("tmrl_like.replay.table.Column", MagicMock(side_effect=error))
    line = "memory_size 1,000 is more than fits here: Unable to allocate 25.7 GiB"
    with pytest.raises(ConfigError, match=line):
        filled(memory_size=1000)


def test_a_memory_that_outgrows_the_machine_is_announced(caplog, monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: MagicMock(total=1e6))
    filled(memory_size=1_000_000)
    (line,) = caplog.messages
    assert line.startswith("memory_size 1,000,000 takes 0.0 GB once it is full, and this machine")


# -- the compressor, and stacks --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("history", "obs", "message"),
    [
        ((2,), (1, 2), "the compressor got an observation"),
        ((2,), np.ones(5), "the compressor got an observation"),
        ((0, 4), np.ones((3, 2)), r"a stack of 4 frames, \[4, ...\]; it is float64 \(3, 2\)"),
        ((0, {"a": 2}), np.ones(2), "no tuple or dict"),
        ((0, {3: 2}), (np.ones(2),), r"names the item 3.*tuple of float64 \(2,\)"),
        ((0, {0: 2}), ([1, 2],), r"obs\[0\] is a stack.*it is list of int 1, int 2"),
    ],
)
def test_an_observation_without_the_history_is_refused(history, obs, message):
    with pytest.raises(MemoryContractError, match=message):
        DropHistory(*history)(0, obs, 0.0, False, False, {})


def test_the_compressor_comes_from_the_memorys_own_arguments():
    arguments = {"act_buf_len": 2, "frame_stack": {0: 3}, "memory_size": 10}
    assert compressor_of(partial(ReplayMemory, **arguments)) == DropHistory(2, {0: 3})
    assert compressor_of(ReplayMemory) is None
    assert compressor_of(lambda: ReplayMemory(act_buf_len=2)) is None
    assert compressor_of(partial(ListMemory, memory_size=5)) is None


def test_gymnasiums_stack_of_frames_is_rebuilt():
    env = gymnasium.wrappers.FrameStackObservation(CountingEnv(), 4)
    stacks = [env.reset()[0], *(env.step(0)[0] for _ in range(6))]
    compress, memory = DropHistory(frame_stack=4), ReplayMemory(frame_stack=4)
    memory.append(rows([compress(0, obs, 0.0, False, False, {})[:3] for obs in stacks]))
    for item, (last_obs, obs) in enumerate(pairwise(stacks)):
        check_transition((last_obs, 0, 0.0, obs, False, False), memory.get_transition(item))
    assert len(memory) == 6


# -- where it is kept ------------------------------------------------------------------------------


def test_each_frame_and_action_is_stored_once_in_its_own_dtype(monkeypatch):
    columns = []

    def noted(leaf, array, frames):
        columns.append(array)
        return Column(leaf, array, frames)

    monkeypatch.setattr("tmrl_like.replay.table.Column", noted)
    filled(memory_size=200)
    observation = 8 + 6 + 8
    assert sum(column.nbytes for column in columns) == 200 * (observation + 8 + 4 + 2)
