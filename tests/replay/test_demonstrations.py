from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from list_memory import ListMemory

from tmrl_like.errors import ConfigError, MemoryContractError
from tmrl_like.replay import DropHistory, ReplayMemory, WithDemonstrations, compressor_of
from tmrl_like.replay.data_sets import write_data_set
from tmrl_like.testing.memories import ActionBufferEnv, cut, packed
from tmrl_like.types import ActionSource, Buffer, Info, Sample, StepTiming

OWN, EXPERT = 1, 2


def compress(sample):
    return DropHistory(4)(*sample)


def by(source):
    return StepTiming(1.0, 0.0, 0.0, 0, source)


def steps_of(worker, count=100):
    return ActionBufferEnv(worker).take(count)


def arrived(worker, count=100):
    source = ActionSource.EXPERT if worker == EXPERT else ActionSource.POLICY
    return packed(steps_of(worker, count), f"w{worker}", compress, timing=by(source))


def make(share=0.5, inner=None, **kwargs):
    options = {"act_buf_len": 4, "batch_size": 40, **(inner or {})}
    return WithDemonstrations(partial(ReplayMemory, **options), share, **kwargs)


def filled(*workers, **kwargs):
    memory = make(**kwargs)
    for worker in workers:
        memory.append(arrived(worker))
    memory.seed(1)
    return memory


def workers_in(batch):
    return batch.next_obs[0][:, 0].int().tolist()


@pytest.mark.parametrize(("share", "count"), [(0.5, 20), (0.25, 10), (0.0, 0), (1.0, 40)])
def test_experts_make_up_their_share_of_each_batch(share, count):
    batch = filled(OWN, EXPERT, share=share).sample()
    assert workers_in(batch) == [OWN] * (40 - count) + [EXPERT] * count
    assert all(len(leaf) == 40 for leaf in (*batch.obs, batch.act, batch.rew, batch.terminated))


def test_one_memory_stands_in_while_the_other_is_empty():
    assert workers_in(filled(OWN).sample()) == [OWN] * 40
    assert workers_in(filled(EXPERT).sample()) == [EXPERT] * 40
    empty = make()
    assert not empty.ready
    with pytest.raises(MemoryContractError):
        empty.sample()


def test_what_the_policy_does_never_overwrites_a_demonstration():
    memory = filled(EXPERT, inner={"memory_size": 100})
    before = len(memory.demonstrations)
    for _ in range(5):
        memory.append(arrived(OWN))
    assert len(memory.demonstrations) == before
    assert memory.demonstrations.memory_size == 100
    assert make(demonstrations_size=7).demonstrations.memory_size == 7


def test_a_stream_stays_with_the_demonstrations_when_a_safe_action_drives():
    memory = make()
    memory.append(packed(steps_of(EXPERT)[:50], "w", compress, timing=by(ActionSource.EXPERT)))
    memory.append(packed(steps_of(EXPERT)[50:], "w", compress, timing=by(ActionSource.SAFE)))
    assert len(memory.own) == 0
    assert len(memory.demonstrations) == sum(not step.is_reset for step in steps_of(EXPERT))


def test_single_samples_tell_their_source_too():
    timing = by(ActionSource.EXPERT)
    samples = [
        Sample(0, np.float32(k), 0.0, False, False, Info(is_reset=k == 0, timing=timing))
        for k in range(5)
    ]
    memory = WithDemonstrations(ReplayMemory)
    memory.append(Buffer(samples, "w"))
    assert (len(memory.own), len(memory.demonstrations)) == (0, 4)


def test_a_data_set_is_a_demonstration(tmp_path):
    write_data_set(tmp_path, [arrived(EXPERT)])
    memory = make(demonstrations_path=tmp_path)
    memory.append(arrived(OWN))
    assert workers_in(memory.sample()) == [OWN] * 20 + [EXPERT] * 20


def test_the_compressor_is_that_of_the_memories_inside():
    assert compressor_of(
        partial(WithDemonstrations, memory=partial(ReplayMemory, act_buf_len=2))
    ) == DropHistory(2)
    with pytest.raises(ConfigError, match="share is 2"):
        make(share=2)


def test_what_may_change_while_training_changes_in_both():
    memory = filled(OWN, EXPERT, inner={"n_steps": 3, "gamma": 0.9})
    memory.tune(gamma=0.5, batch_size=20)
    assert (memory.gamma, memory.own.gamma, memory.demonstrations.gamma) == (0.5, 0.5, 0.5)
    batch = memory.sample()
    assert len(batch.rew) == memory.batch_size == 20
    assert batch.discount.max() == 0.5
    with pytest.raises(ConfigError, match="gamma is 2"):
        memory.tune(gamma=2.0)
    with pytest.raises(ConfigError, match="batch_size is 0"):
        memory.tune(gamma=0.25, batch_size=0)
    assert (memory.gamma, memory.own.gamma, memory.demonstrations.gamma) == (0.5, 0.5, 0.5)


def taken_over(by_whom, sizes=(100,)):
    """A stream of 100 steps in packets of these sizes; `by_whom` says who took over in which of
    them.
    """
    sources = np.zeros(100, np.uint8)
    for source, (first, end) in by_whom.items():
        sources[first:end] = source
    start = 0
    for steps in cut(steps_of(OWN), sizes):
        (block,) = packed(steps, "w", compress).blocks
        timing = block.timing._replace(source=sources[start : start + len(steps)])
        yield Buffer(stream="w", blocks=[replace(block, timing=timing)])
        start += len(steps)


@pytest.mark.parametrize("inner", [ReplayMemory, ListMemory])
@pytest.mark.parametrize("sizes", [(100,), (3,), (25,)])
def test_steps_of_who_takes_over_are_demonstrations_as_well(sizes, inner):
    options = {"act_buf_len": 4} if inner is ReplayMemory else {}
    memory = WithDemonstrations(
        partial(inner, batch_size=10, **options), crc_debug=inner is ReplayMemory
    )
    by_whom = {ActionSource.PROGRAM: (13, 19), ActionSource.HUMAN: (24, 30)}
    for buffer in taken_over(by_whom, sizes):
        memory.append(buffer)
    memory.flush()
    steps = steps_of(OWN)
    driven = [
        k for first, end in by_whom.values() for k in range(first, end) if not steps[k].is_reset
    ]
    assert len(driven) == 4 + 6
    if inner is ReplayMemory:
        assert len(memory.own) == sum(not step.is_reset for step in steps)
    found = map(memory.demonstrations.get_transition, range(len(memory.demonstrations)))
    found = [t for t in found if memory.demonstrations.is_trainable(t)]
    assert sorted(int(t[3][0][1]) for t in found) == sorted(
        int(steps[k].sample.obs[0][1]) for k in driven
    )
    for item in range(len(memory) if memory.crc_debug else 0):
        memory[item]


def test_who_takes_over_is_none_of_the_demonstrations_where_that_is_switched_off():
    memory = make(takeovers=False)
    for buffer in taken_over({ActionSource.HUMAN: (20, 30)}):
        memory.append(buffer)
    assert len(memory.demonstrations) == 0
