from functools import partial

import pytest
import torch
from kit.memories import driven_by
from list_memory import ListMemory

from tmrl_like.errors import ConfigError, MemoryContractError
from tmrl_like.replay import DropHistory, ReplayMemory, WithDemonstrations, compressor_of
from tmrl_like.replay.data_sets import write_data_set
from tmrl_like.testing.memories import ActionBufferEnv, packed
from tmrl_like.types import ActionSource, Buffer, StepTiming

OWN, EXPERT = 1, 2
STEPS = {worker: ActionBufferEnv(worker).take(100) for worker in (OWN, EXPERT)}


def arrived(worker, steps=slice(None), source=None):
    source = source or (ActionSource.EXPERT if worker == EXPERT else ActionSource.POLICY)
    timing = StepTiming(1.0, 0.0, 0.0, 0, source)
    return packed(STEPS[worker][steps], f"w{worker}", DropHistory(4), timing=timing)


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


def test_a_share_of_less_than_one_sample_is_drawn_on_average():
    memory = filled(OWN, EXPERT, share=0.01)
    drawn = [workers_in(memory.sample()).count(EXPERT) for _ in range(500)]
    assert set(drawn) == {0, 1}
    assert sum(drawn) == pytest.approx(200, rel=0.2)


def test_one_memory_stands_in_while_the_other_is_empty():
    assert workers_in(filled(OWN).sample()) == [OWN] * 40
    assert workers_in(filled(EXPERT).sample()) == [EXPERT] * 40
    empty = make()
    assert not empty.ready
    with pytest.raises(MemoryContractError):
        empty.sample()


def test_both_memories_draw_on_with_the_generator_that_a_checkpoint_holds():
    memory, resumed = filled(OWN, EXPERT), make()
    for worker in (OWN, EXPERT):
        resumed.append(arrived(worker))
    resumed.rng.bit_generator.state = memory.rng.bit_generator.state
    assert torch.equal(memory.sample().next_obs[0], resumed.sample().next_obs[0])


def test_samples_that_make_no_transition_yet_are_held_all_the_same():
    memory = make()
    assert not memory.holds_samples
    memory.append(packed([STEPS[OWN][10]], "w", DropHistory(4)))
    assert len(memory) == 0
    assert memory.holds_samples


def test_a_stream_stays_with_the_demonstrations_when_a_safe_action_drives():
    memory = make()
    memory.append(arrived(EXPERT, slice(50)))
    memory.append(arrived(EXPERT, slice(50, None), ActionSource.SAFE))
    assert len(memory.own) == 0
    assert len(memory.demonstrations) == sum(not step.is_reset for step in STEPS[EXPERT])


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
    batch = memory.sample()
    assert len(batch.rew) == 20
    assert batch.discount.max() == 0.5
    for wrong, said in (
        ({"gamma": 2.0}, "gamma is 2"),
        ({"gamma": 0.25, "batch_size": 0}, "batch_size is 0"),
    ):
        with pytest.raises(ConfigError, match=said):
            memory.tune(**wrong)
    assert (memory.gamma, memory.own.gamma, memory.demonstrations.gamma) == (0.5, 0.5, 0.5)


class Texts(ListMemory):
    takes_text = True


def test_it_takes_and_changes_what_the_memories_inside_do():
    memory = WithDemonstrations(Texts)
    assert memory.takes_text
    assert memory.tunable == ListMemory.tunable
    assert make(inner={"gamma": 0.9}).tunable == ("batch_size", "gamma", "shaping")


BY_WHOM = {ActionSource.PROGRAM: (13, 19), ActionSource.HUMAN: (24, 30)}


@pytest.mark.parametrize("inner", [partial(ReplayMemory, act_buf_len=4), ListMemory])
@pytest.mark.parametrize("size", [100, 3])
def test_steps_of_who_takes_over_are_demonstrations_as_well(size, inner):
    is_ours = inner is not ListMemory
    memory = WithDemonstrations(partial(inner, batch_size=10), crc_debug=is_ours)
    for buffer in driven_by(BY_WHOM, STEPS[OWN], size=size):
        memory.append(buffer)
    memory.flush()
    steps, demonstrations = STEPS[OWN], memory.demonstrations
    driven = [step.sample.obs[0][1] for step in steps[13:19] + steps[24:30] if not step.is_reset]
    assert len(driven) == 4 + 6
    found = map(demonstrations.get_transition, range(len(demonstrations)))
    assert sorted(t[3][0][1] for t in found if demonstrations.is_trainable(t)) == sorted(driven)
    if is_ours:
        assert len(memory.own) == sum(not step.is_reset for step in steps)
        for item in range(len(memory)):
            memory[item]


class NothingOfBad(ListMemory):
    def append_buffer(self, buffer):
        if buffer.stream == "bad":
            raise MemoryContractError("it does not fit")
        super().append_buffer(buffer)


def test_the_end_of_a_takeover_leaves_what_is_held_back_of_others():
    memory = WithDemonstrations(NothingOfBad)
    memory.append(arrived(EXPERT))
    memory.append(Buffer(stream="bad", blocks=arrived(EXPERT, slice(3)).blocks))
    before = len(memory.demonstrations)
    memory.append(*driven_by(BY_WHOM, STEPS[OWN]))
    assert len(memory.demonstrations) > before
    with pytest.raises(MemoryContractError):
        memory.flush()


def test_steps_of_who_takes_over_are_none_where_that_is_said():
    memory = make(takeovers=False)
    memory.append(*driven_by(BY_WHOM, STEPS[OWN]))
    assert len(memory.demonstrations) == 0


def test_what_the_policy_did_between_a_reset_and_a_takeover_is_no_demonstration():
    steps = ActionBufferEnv(OWN, 0, frame_stack=4).take(100)
    start = next(k for k in range(100) if [s.is_reset for s in steps[k - 2 : k + 1]] == [1, 0, 0])
    memory = WithDemonstrations(partial(ReplayMemory, frame_stack={1: 4}), crc_debug=True)
    one_step = {ActionSource.HUMAN: (start, start + 1)}
    memory.append(*driven_by(one_step, steps, DropHistory(0, {1: 4})))
    (demonstrated,) = map(memory.demonstrations.get_transition, range(len(memory.demonstrations)))
    assert demonstrated[3][0].tolist() == steps[start].sample.obs[0].tolist()
